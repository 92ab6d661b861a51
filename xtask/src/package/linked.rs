//! The crates that what is packed consists of, from what cargo says of both workspaces.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::place::Place;
use crate::step;

/// The members of the main workspace that are packed; of the guests' all are.
const PACKED: &[&str] =
    &["kv-store-library", "kv-store", "kv-store-compiler", "kv-store-llama", "kv-cache", "memkv-server"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: Vec<String>,
    resolve: Resolve,
}

#[derive(Clone, Deserialize)]
pub struct Package {
    pub id: String,
    pub name: String,
    pub version: String,
    pub license: Option<String>,
    pub description: Option<String>,
    pub manifest_path: PathBuf,
    /// None: it is ours.
    pub source: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    /// None: a normal one; otherwise `dev` or `build`.
    kind: Option<String>,
}

/// The crates, in the order of their names and versions, and what each is linked with.
pub struct Linked {
    pub packages: Vec<Package>,
    pub depends: BTreeMap<String, BTreeSet<String>>,
}

impl Package {
    /// Where its files are.
    pub fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(Path::new("/"))
    }

    /// Its package URL, by which databases of advisories know it.
    pub fn purl(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version)
    }
}

pub fn find(place: &Place) -> Result<Linked> {
    find_for(place, &format!("{}-unknown-linux-gnu", std::env::consts::ARCH))
}

/// What is packed for a target.
pub fn find_for(place: &Place, target: &str) -> Result<Linked> {
    let mut linked = Linked { packages: Vec::new(), depends: BTreeMap::new() };
    for (folder, platform, packed) in [("", target, Some(PACKED)), ("guests", "wasm32-unknown-unknown", None)] {
        let mut metadata = Command::new("cargo");
        metadata.current_dir(place.root.join(folder)).args(["metadata", "--locked", "--format-version", "1"]);
        let text = step::output(metadata.args(["--filter-platform", platform]))?;
        let metadata: Metadata = serde_json::from_str(&text).context("cargo metadata")?;
        linked.add(metadata, packed)?;
    }
    linked.packages.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    linked.packages.dedup_by(|a, b| (&a.name, &a.version) == (&b.name, &b.version));
    Ok(linked)
}

impl Linked {
    /// What the packed members reach by dependencies that are linked. Those of proc macros and build scripts are not.
    fn add(&mut self, metadata: Metadata, packed: Option<&[&str]>) -> Result<()> {
        let by_id: BTreeMap<&str, &Package> = metadata.packages.iter().map(|p| (p.id.as_str(), p)).collect();
        let nodes: BTreeMap<&str, &Node> = metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
        let is_packed = |id: &&String| {
            by_id.get(id.as_str()).is_some_and(|p| packed.is_none_or(|names| names.contains(&p.name.as_str())))
        };
        let mut open: Vec<&str> = metadata.workspace_members.iter().filter(is_packed).map(String::as_str).collect();
        anyhow::ensure!(packed.is_none_or(|names| names.len() == open.len()), "not all of {packed:?} are members");
        let mut seen = BTreeSet::new();
        while let Some(id) = open.pop() {
            if !seen.insert(id) {
                continue;
            }
            let (package, node) = (by_id.get(id).context("a package")?, nodes.get(id).context("a node")?);
            let normal = node.deps.iter().filter(|dep| dep.dep_kinds.iter().any(|kind| kind.kind.is_none()));
            let own = self.depends.entry(package.purl()).or_default();
            for dependency in normal {
                own.insert(by_id.get(dependency.pkg.as_str()).context("a dependency")?.purl());
                open.push(&dependency.pkg);
            }
            self.packages.push((*package).clone());
        }
        Ok(())
    }
}
