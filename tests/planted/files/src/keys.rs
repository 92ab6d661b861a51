//! Paths of chunks and manifests, and the bugs that have two of them meet.

use kv_store_sdk::key::{escape, hex};

use crate::named::Files as Bug;

/// Where a chunk lies.
pub fn chunk(bug: Bug, folder: &str, hash: &[u8]) -> String {
    let key = match bug {
        Bug::CutsHashes => hex(hash.get(..16).unwrap_or(hash)),
        Bug::TrimsHashes => {
            let end = hash.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            format!("h{}", hex(hash.get(..end).unwrap_or_default()))
        }
        Bug::PadsHashes => format!("{}{}", hex(hash), "00".repeat(64 - hash.len().min(64))),
        Bug::UnpaddedHex => hash.iter().map(|byte| format!("{byte:x}")).collect(),
        _ => hex(hash),
    };
    format!("{folder}/{key}")
}

/// The file of a manifest.
pub fn manifest(bug: Bug, name: &str) -> String {
    let key = match bug {
        Bug::FoldsCase => escape(&name.to_lowercase()),
        Bug::CutsNames => {
            let end = (0..=200).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
            escape(name.get(..end).unwrap_or(name))
        }
        Bug::FlattensNames => escape(&name.replace('/', "_")),
        Bug::TrimsNames => match name.trim() {
            "" => escape(name),
            trimmed => escape(trimmed),
        },
        Bug::NormalizesNames => {
            let mut parts: Vec<&str> = Vec::new();
            for part in name.split('/') {
                match part {
                    ".." => drop(parts.pop()),
                    "" | "." => {}
                    part => parts.push(part),
                }
            }
            format!("n{}", escape(&parts.join("/")))
        }
        Bug::AsciiNames => escape(&name.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect::<String>()),
        Bug::DropsControls => format!("n{}", escape(&name.chars().filter(|c| !c.is_control()).collect::<String>())),
        _ => escape(name),
    };
    match bug {
        Bug::OneKeySpace => format!("chunks/{key}"),
        _ => format!("manifests/{key}"),
    }
}
