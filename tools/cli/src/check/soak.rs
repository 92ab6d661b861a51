//! Configs that cases open stores with. `--soak MINUTES`: random operations while calls into the component fail, wait, trap and are answered
//! in part.

use std::path::{Path, PathBuf};

use kv_store_wasm::Depth;
use toml::{Table, Value};

use crate::failure::{Failure, Outcome};

/// What is done to calls, each with its probability. Nothing that lies or damages: what comes through must be right.
const FAULTS: [(&str, f64); 4] = [("fail", 0.01), ("short", 0.1), ("delay", 0.01), ("trap", 0.002)];
const DELAY_MS: i64 = 20;

/// The operator's config, which an open of this URI reads, with faults for the scheme, as a file in a folder. Faults that are there stay.
pub fn config_with_faults(uri: &str, scheme: &str, seed: u64, folder: &Path) -> Outcome<PathBuf> {
    changed(uri, &folder.join("faults.toml"), |config| with_faults(config, scheme, seed))
}

/// The same with an option for the component, and without faults.
pub fn config_with_option(uri: &str, scheme: &str, option: &str, folder: &Path) -> Outcome<PathBuf> {
    changed(uri, &folder.join("option.toml"), |config| with_option(config, scheme, option))
}

fn changed(uri: &str, path: &Path, change: impl FnOnce(&str) -> Outcome<String>) -> Outcome<PathBuf> {
    let config = kv_store_wasm::doctor(uri, Depth::Offline).config;
    let text = match &config {
        Some(path) => {
            std::fs::read_to_string(path).map_err(|error| Failure::unable(format!("{}: {error}", path.display())))?
        }
        None => String::new(),
    };
    std::fs::write(path, change(&text)?).map_err(|error| Failure::unable(format!("{}: {error}", path.display())))?;
    Ok(path.to_owned())
}

/// A table in a table, made where it is not there.
fn table<'a>(within: &'a mut Table, name: &str) -> Outcome<&'a mut Table> {
    let table = within.entry(name).or_insert_with(|| Value::Table(Table::new()));
    table.as_table_mut().ok_or_else(|| Failure::unable(format!("the config's {name} is no table")))
}

fn parse(config: &str) -> Outcome<Table> {
    config.parse().map_err(|error: toml::de::Error| Failure::unable(error.message()))
}

fn with_option(config: &str, scheme: &str, option: &str) -> Outcome<String> {
    let mut config = parse(config)?;
    let options = table(table(table(&mut config, "backend")?, scheme)?, "options")?;
    options.insert(option.to_owned(), Value::String("1".into()));
    toml::to_string(&config).map_err(Failure::unable)
}

fn with_faults(config: &str, scheme: &str, seed: u64) -> Outcome<String> {
    let mut config = parse(config)?;
    let backend = table(table(&mut config, "backend")?, scheme)?;
    backend.entry("fault").or_insert_with(|| {
        let faults = FAULTS.iter().map(|(name, chance)| ((*name).to_owned(), Value::Float(*chance)));
        let seed = i64::try_from(seed >> 1).unwrap_or_default();
        let rest = [("seed", Value::Integer(seed)), ("delay_ms", Value::Integer(DELAY_MS))];
        Value::Table(faults.chain(rest.map(|(name, value)| (name.to_owned(), value))).collect())
    });
    toml::to_string(&config).map_err(Failure::unable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_joins_those_of_the_config() {
        let config = with_option("[backend.acme.options]\na = \"1\"\n", "acme", "b").unwrap().parse::<Table>().unwrap();
        assert_eq!(config["backend"]["acme"]["options"].as_table().unwrap().len(), 2);
        assert!(with_option("backend = 1", "acme", "b").is_err());
    }

    #[test]
    fn faults_join_what_the_config_says() {
        let config = with_faults("[backend.acme]\nroot = \"/x\"\n[backend.other]\n", "acme", 7).unwrap();
        let config: Table = config.parse().unwrap();
        let acme = &config["backend"]["acme"];
        assert_eq!(acme["root"].as_str(), Some("/x"));
        assert_eq!(acme["fault"]["fail"].as_float(), Some(0.01));
        assert!(config["backend"]["other"].get("fault").is_none());
        let own = with_faults("[backend.acme.fault]\nlie = 1.0\n", "acme", 7).unwrap().parse::<Table>().unwrap();
        assert_eq!(own["backend"]["acme"]["fault"].as_table().unwrap().len(), 1, "the operator's own faults stay");
        assert!(with_faults("backend = 1", "acme", 7).is_err());
    }
}
