//! What the packages consist of, in CycloneDX: each crate with its version, licence and package URL, and what it is linked with.

use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use cyclonedx_bom::models::component::{Classification, Component, Components};
use cyclonedx_bom::models::dependency::{Dependencies, Dependency};
use cyclonedx_bom::models::license::{LicenseChoice, Licenses};
use cyclonedx_bom::models::metadata::Metadata;
use cyclonedx_bom::prelude::{Bom, DateTime, NormalizedString, Purl, SpdxExpression, Validate as _};

use super::Release;
use super::linked::{Linked, Package};
use crate::step;

/// Write the list.
pub fn write(release: &Release, linked: &Linked, path: &Path) -> Result<()> {
    let whole = {
        let mut whole =
            Component::new(Classification::Library, "kv-store-wasm", &release.version, Some("kv-store-wasm".into()));
        whole.licenses = Some(Licenses(vec![expression("Apache-2.0")]));
        whole
    };
    let components = linked.packages.iter().map(component).collect::<Result<Vec<_>>>()?;
    let dependencies = linked.depends.iter().map(|(purl, depends)| Dependency {
        dependency_ref: purl.clone(),
        dependencies: depends.iter().cloned().collect(),
    });
    let metadata = Metadata {
        timestamp: Some(DateTime::try_from(moment(release.time)?).context("a moment")?),
        component: Some(whole),
        ..Metadata::default()
    };
    // Of the time of the commit, and without a serial number: two runs give the same.
    let bom = Bom {
        serial_number: None,
        metadata: Some(metadata),
        components: Some(Components(components)),
        dependencies: Some(Dependencies(dependencies.collect())),
        ..Bom::default()
    };
    let checked = bom.validate();
    ensure!(checked.passed(), "the SBOM is not valid: {checked:?}");
    let mut bytes = Vec::new();
    bom.output_as_json_v1_5(&mut bytes)?;
    std::fs::write(path, bytes)?;
    Ok(())
}

fn component(package: &Package) -> Result<Component> {
    let mut component = Component::new(Classification::Library, &package.name, &package.version, Some(package.purl()));
    component.purl = Some(Purl::from_str(&package.purl()).ok().context("a package URL")?);
    component.description = package.description.as_deref().map(|text| NormalizedString::new(text.trim()));
    component.licenses = package.license.as_deref().map(|licence| Licenses(vec![expression(licence)]));
    Ok(component)
}

/// Some crates still write `MIT/Apache-2.0`.
fn expression(licence: &str) -> LicenseChoice {
    LicenseChoice::Expression(SpdxExpression::new(&licence.replace('/', " OR ")))
}

/// Seconds since 1970 as RFC 3339 has them.
fn moment(seconds: u64) -> Result<String> {
    let said =
        step::output(Command::new("date").args(["--utc", &format!("--date=@{seconds}"), "+%Y-%m-%dT%H:%M:%SZ"]))?;
    Ok(said.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_dates() {
        assert_eq!(moment(0).unwrap(), "1970-01-01T00:00:00Z");
        assert_eq!(moment(951_826_154).unwrap(), "2000-02-29T12:09:14Z");
    }
}
