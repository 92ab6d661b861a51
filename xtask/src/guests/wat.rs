//! Guests in the text of WebAssembly: `hostile/*.wat` of the tests' guests, one misbehaviour each.
//!
//! A file that begins with `(component` is one. Any other is a piece of a core module: what it exports takes the place of what
//! `hostile/base/base.wat` exports under that name, so that a guest is right in all but one thing. A line
//! `;; adds to <interface>: <function>;`, or `;; adds to resource <resource>: ..`, says what its contract has beyond ours.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use wit_bindgen_core::wit_parser::Resolve;
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};

use crate::place::Place;

/// The texts of a folder, in order.
fn texts(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut texts: Vec<PathBuf> = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    texts.retain(|path| path.extension().is_some_and(|extension| extension == "wat"));
    texts.sort();
    Ok(texts)
}

/// Build each text of a folder into `<output>/<name>.wasm`.
pub fn build(place: &Place, folder: &Path, output: &Path) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(output)?;
    let base = std::fs::read_to_string(folder.join("base/base.wat"))?;
    let contract = std::fs::read_to_string(place.root.join("wit/backend.wit"))?;
    let mut made = Vec::new();
    for path in texts(folder)? {
        let text = std::fs::read_to_string(&path)?;
        let bytes = component(&text, &base, &contract).with_context(|| path.display().to_string())?;
        let component = output.join(path.with_extension("wasm").file_name().context("a text has a name")?);
        super::replace(&component, &bytes)?;
        made.push(component);
    }
    Ok(made)
}

fn component(text: &str, base: &str, contract: &str) -> Result<Vec<u8>> {
    let code = text.lines().find(|line| !line.starts_with(";;") && !line.is_empty());
    if code.is_some_and(|line| line.starts_with("(component")) {
        return Ok(wat::parse_str(text)?);
    }
    let mut module = wat::parse_str(over(text, base))?;
    let mut resolve = Resolve::default();
    let package = resolve.push_str("backend.wit", &extended(contract, text)?)?;
    let world = resolve.select_world(&[package], Some("backend"))?;
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)?;
    ComponentEncoder::default().validate(true).module(&module)?.encode()
}

/// The module of a guest: its own definitions, and of the base those whose export it does not have.
fn over(text: &str, base: &str) -> String {
    let (imports, definitions): (Vec<&str>, Vec<&str>) =
        base.split("\n\n").partition(|block| block.contains("(import "));
    let exported = |block: &&str| {
        let name = block.split_once("(export \"").and_then(|(_, rest)| rest.split_once('"'));
        name.is_none_or(|(name, _)| !text.contains(&format!("(export \"{name}\")")))
    };
    let kept: Vec<&str> = definitions.into_iter().filter(exported).collect();
    format!("(module\n{}\n{text}\n{}\n)", imports.join("\n"), kept.join("\n"))
}

/// The contract with what a guest says that its own has more.
fn extended(contract: &str, text: &str) -> Result<String> {
    let mut contract = contract.to_owned();
    for (interface, function) in text.lines().filter_map(|line| line.strip_prefix(";; adds to ")?.split_once(": ")) {
        let head = if interface.starts_with("resource ") { "" } else { "interface " };
        let (head, tail) = (format!("{head}{interface} {{"), &*contract.clone());
        let at = tail.find(&head).with_context(|| format!("the contract has no {interface}"))? + head.len();
        contract.insert_str(at, &format!("\n  {function}\n"));
    }
    Ok(contract)
}
