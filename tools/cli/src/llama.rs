//! `kv-store llama`: the slots that `libkv_store_llama.so` has saved into a store, by the names that their users know.

use clap::Subcommand;
use kv_store_wasm::{ManifestEntry, Store};
use serde_json::json;

use crate::contents::{each_page_of_manifests, moment};
use crate::failure::{Failure, Outcome};
use crate::place::{Place, open_as_it_lies};
use crate::show;

/// List or remove saved llama.cpp slots, by name
///
/// A slot is stored under the name of its file and a fingerprint of the model and the settings that made it. What shares a prefix shares
/// chunks, so these stay when a slot is removed; kv-store gc removes those that nothing has used.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  kv-store llama ls local-fs:///var/cache/kv\n  kv-store llama rm local-fs:///var/cache/kv --slot chat.bin\n\n\
        Exit codes: 0 as asked; 1 not removed, or there is no such store; 2 the store does not open; 3 there was nothing to remove.",
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
pub struct LlamaArguments {
    #[command(subcommand)]
    command: LlamaCommand,
}

#[derive(Subcommand)]
enum LlamaCommand {
    /// List the slots
    #[command(after_help = "Example:\n  kv-store llama ls redis://cache.svc:6379/3 --json\n\n\
        Exit codes: 0 listed; 1 there is no such store; 2 the store does not open, or its backend lists nothing.")]
    Ls(LlamaLsArguments),
    /// Remove a slot, of all models or of one
    #[command(after_help = "Example:\n  kv-store llama rm local-fs:///var/cache/kv --slot chat.bin --model 0001\n\n\
        Exit codes: 0 removed; 1 not removed, or there is no such store; 2 the store does not open, or its backend lists nothing; \
        3 there was nothing to remove.")]
    Rm(LlamaRmArguments),
}

#[derive(clap::Args)]
struct LlamaLsArguments {
    #[command(flatten)]
    place: Place,
    /// A JSON object on standard output for each slot
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct LlamaRmArguments {
    #[command(flatten)]
    place: Place,
    /// The name of the slot's file
    #[arg(long, value_name = "NAME")]
    slot: String,
    /// Only what was made by this model: how its fingerprint begins
    #[arg(long, value_name = "HEX")]
    model: Option<String>,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

impl LlamaArguments {
    pub fn json(&self) -> bool {
        match &self.command {
            LlamaCommand::Ls(arguments) => arguments.json,
            LlamaCommand::Rm(arguments) => arguments.json,
        }
    }
}

pub fn run(arguments: &LlamaArguments) -> Outcome {
    match &arguments.command {
        LlamaCommand::Ls(arguments) => list(arguments),
        LlamaCommand::Rm(arguments) => remove(arguments),
    }
}

/// What the name of a slot's manifest says: `SLOT@FINGERPRINT[-STREAMS][.checkpoints]`, see docs/formats.md.
#[derive(Debug, PartialEq, Eq)]
struct Name<'a> {
    slot: &'a str,
    /// The first half of the fingerprint, in hex.
    model: &'a str,
    /// Sequences that the cache which it was made in had streams for.
    streams: u32,
    /// It holds what the server appended to the slot's file.
    appended: bool,
}

impl<'a> Name<'a> {
    fn of(manifest: &'a str) -> Option<Self> {
        let (name, appended) = match manifest.strip_suffix(".checkpoints") {
            Some(name) => (name, true),
            None => (manifest, false),
        };
        let (slot, made_by) = name.rsplit_once('@')?;
        let (model, streams) = match made_by.split_once('-') {
            Some((model, streams)) => (model, streams.parse().ok().filter(|streams| *streams > 1)?),
            None => (made_by, 1),
        };
        let is_hex = model.len() == 32 && model.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (is_hex && !slot.is_empty()).then_some(Name { slot, model, streams, appended })
    }
}

fn each(store: &Store, see: &mut dyn FnMut(&Name<'_>, &ManifestEntry) -> Outcome) -> Outcome {
    each_page_of_manifests(store, &mut |page| {
        page.iter().try_for_each(|entry| match Name::of(&entry.name) {
            Some(name) => see(&name, entry),
            None => Ok(()),
        })
    })
}

fn list(arguments: &LlamaLsArguments) -> Outcome {
    let store = open_as_it_lies(&arguments.place.uri()?)?;
    let mut headed = arguments.json;
    each(&store, &mut |name, entry| {
        // What was appended goes with its slot.
        if name.appended {
            return Ok(());
        }
        let Name { slot, model, streams, .. } = name;
        if arguments.json {
            let entry =
                json!({ "slot": slot, "model": model, "streams": streams, "stored": entry.stored, "used": entry.used });
            println!("{}", show::json_line(&entry).unwrap_or_default());
            return Ok(());
        }
        if !std::mem::replace(&mut headed, true) {
            println!("{:32}  {:>7}  {:19}  {:19}  SLOT", "MODEL", "STREAMS", "STORED (UTC)", "USED (UTC)");
        }
        println!("{model}  {streams:>7}  {:19}  {:19}  {slot:?}", moment(entry.stored), moment(entry.used));
        Ok(())
    })
}

fn remove(arguments: &LlamaRmArguments) -> Outcome {
    let uri = &arguments.place.uri()?;
    let LlamaRmArguments { slot, model, .. } = arguments;
    let store = open_as_it_lies(uri)?;
    let model = model.as_deref().unwrap_or_default().to_ascii_lowercase();
    let mut found = Vec::new();
    each(&store, &mut |name, entry| {
        if name.slot == slot && name.model.starts_with(&model) {
            found.push((name.appended, entry.name.clone()));
        }
        Ok(())
    })?;
    if found.is_empty() {
        return Err(Failure::Nothing(format!(
            "llama rm {uri}: there is no slot {slot:?}; kv-store llama ls lists what there is"
        )));
    }
    // The state first: without it what was appended is not read.
    found.sort();
    for (_, name) in &found {
        store.delete_manifest(name).map_err(Failure::of("llama rm", uri))?;
    }
    if arguments.json {
        let removed: Vec<&str> = found.iter().map(|(_, name)| name.as_str()).collect();
        show::json(&json!({ "uri": uri, "slot": slot, "removed": removed }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_slots_are_read_and_others_left_alone() {
        const MODEL: &str = "000102030405060708090a0b0c0d0e0f";
        let name = |slot, streams, appended| Some(Name { slot, model: MODEL, streams, appended });
        for (manifest, expected) in [
            (format!("slot.bin@{MODEL}"), name("slot.bin", 1, false)),
            (format!("slot.bin@{MODEL}-2"), name("slot.bin", 2, false)),
            (format!("slot.bin@{MODEL}-2.checkpoints"), name("slot.bin", 2, true)),
            (format!("a@b.checkpoints@{MODEL}"), name("a@b.checkpoints", 1, false)),
            (format!("@{MODEL}"), None),
            (format!("slot.bin@{MODEL}-1"), None),
            (format!("slot.bin@{MODEL}-x"), None),
            (format!("slot.bin@{}", MODEL.to_uppercase()), None),
            ("slot.bin@0001".to_owned(), None),
            ("prompt-1".to_owned(), None),
        ] {
            assert_eq!(Name::of(&manifest), expected, "{manifest}");
        }
    }
}
