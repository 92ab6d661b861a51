//! Which model and context a state belongs to. llama.cpp takes the state of another model of the same shape, and answers
//! wrong from it; so the name of a state in the store holds a fingerprint of what made it.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use kv_cache::Fingerprint;
use kv_platform::sync::Mutex;
use sha2::{Digest, Sha256};

use crate::engine::Shape;

/// Options of llama-server and its kin that change what a model computes and that no function of libllama tells: words of
/// the command line that begin so, each with the word behind it, and variables.
const OPTIONS: &[&str] = &["--rope-", "--yarn-", "--override-kv", "--grp-attn-"];
const VARIABLES: &[&str] = &["LLAMA_ARG_ROPE", "LLAMA_ARG_YARN", "LLAMA_ARG_OVERRIDE_KV", "LLAMA_ARG_GRP_ATTN"];

/// The fingerprint of a model and its context. `named` stands for the model file's content where it is given; `build` is of a libllama
/// whose states are not known.
///
/// # Errors
/// No mapped GGUF file, or more than one, has a model of this shape.
pub fn fingerprint(shape: &Shape, version: u32, build: Option<u64>, named: Option<&str>) -> Result<[u8; 32], String> {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    part(b"kv-store-llama 1");
    part(&version.to_le_bytes());
    if let Some(build) = build {
        part(b"build");
        part(&build.to_le_bytes());
    }
    match named {
        Some(name) => {
            part(b"named");
            part(name.as_bytes());
        }
        None => {
            part(b"gguf");
            part(&mapped_model(shape.params)?);
        }
    }
    let Shape { params, layers, embd, kv_heads } = *shape;
    part(&params.to_le_bytes());
    [layers, embd, kv_heads].iter().for_each(|number| part(&number.to_le_bytes()));
    let words = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    options(&words, OPTIONS).iter().for_each(|word| part(word));
    for (name, value) in variables(VARIABLES) {
        part(name.as_encoded_bytes());
        part(value.as_encoded_bytes());
    }
    Ok(hash.finalize().into())
}

/// What tells the states of the automatic cache apart: what made them, and the context, whose size may choose other factors of RoPE. K
/// and V have other bytes with other options.
pub fn auto_key(fingerprint: &[u8; 32], positions: u32, streams: u32) -> [u8; 32] {
    const OPTIONS: &[&str] = &["-ctk", "--cache-type-k", "-ctv", "--cache-type-v", "-fa", "--flash-attn", "--swa-full"];
    const VARIABLES: &[&str] = &["LLAMA_ARG_CACHE_TYPE", "LLAMA_ARG_FLASH_ATTN", "LLAMA_ARG_SWA_FULL"];
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    part(b"kv-store-llama auto 1");
    part(fingerprint);
    part(&positions.to_le_bytes());
    part(&streams.to_le_bytes());
    let words = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    options(&words, OPTIONS).iter().for_each(|word| part(word));
    for (name, value) in variables(VARIABLES) {
        part(name.as_encoded_bytes());
        part(value.as_encoded_bytes());
    }
    hash.finalize().into()
}

/// Variables whose names begin so, in the order of their names.
fn variables(begins: &[&str]) -> Vec<(OsString, OsString)> {
    let counts = |name: &OsString| begins.iter().any(|begin| name.as_encoded_bytes().starts_with(begin.as_bytes()));
    let mut variables: Vec<_> = std::env::vars_os().filter(|(name, _)| counts(name)).collect();
    variables.sort();
    variables
}

/// The words of a command line that begin as one of these options, each with the word behind it.
fn options<'a>(words: &'a [u8], options: &[&str]) -> Vec<&'a [u8]> {
    let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
    let counts = |word: &&[u8]| options.iter().any(|option| word.starts_with(option.as_bytes()));
    let found = words.iter().enumerate().filter(|(_, word)| counts(word));
    found.flat_map(|(index, _)| words.get(index..index + 2).unwrap_or_default()).copied().collect()
}

/// The fingerprint of the one model of so many numbers whose GGUF files are mapped.
fn mapped_model(params: u64) -> Result<[u8; 32], String> {
    let maps = std::fs::read("/proc/self/maps").map_err(|error| format!("cannot read /proc/self/maps: {error}"))?;
    let maps = String::from_utf8_lossy(&maps);
    let mapped = mapped_files(&maps);
    let models: Vec<Model> =
        models_of(&mapped).iter().filter_map(Files::read).filter(|model| model.params == params).collect();
    match models.as_slice() {
        [model] => Ok(model.fingerprint),
        [] => Err("this model's GGUF file is not mapped into memory (is the model loaded without mmap?)".to_owned()),
        _ => Err(format!(
            "{} GGUF files of this shape are mapped into memory, and the library cannot tell which one this model is",
            models.len()
        )),
    }
}

/// The files that are mapped, each once. One that was removed or replaced has a name that no file has.
fn mapped_files(maps: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    for line in maps.lines() {
        // Address, permissions, offset, device, inode, and the path behind spaces.
        let path = line.splitn(6, ' ').nth(5).map(str::trim_start).unwrap_or_default();
        let executable = line.split(' ').nth(1).is_some_and(|permissions| permissions.contains('x'));
        let path = Path::new(path);
        if path.is_absolute() && !executable && !files.iter().any(|known| known == path) {
            files.push(path.to_owned());
        }
    }
    files
}

/// A model whose content may be known: its files, and what they say.
struct Files {
    parts: Vec<PathBuf>,
    expected: usize,
}

struct Model {
    fingerprint: [u8; 32],
    params: u64,
}

/// Files that are parts of one model (`NAME-00001-of-00003.gguf`) belong together.
fn models_of(files: &[PathBuf]) -> Vec<Files> {
    let mut split: BTreeMap<(PathBuf, usize), Vec<PathBuf>> = BTreeMap::new();
    let mut models = Vec::new();
    for file in files {
        match split_name(file) {
            Some(whole) => split.entry(whole).or_default().push(file.clone()),
            None => models.push(Files { parts: vec![file.clone()], expected: 1 }),
        }
    }
    for ((_, expected), mut parts) in split {
        parts.sort();
        models.push(Files { parts, expected });
    }
    models
}

/// The name before the number of a part, and how many parts there are.
fn split_name(path: &Path) -> Option<(PathBuf, usize)> {
    let stem = path.to_str()?.strip_suffix(".gguf")?;
    let (head, parts) = stem.rsplit_once("-of-")?;
    let (name, part) = head.rsplit_once('-')?;
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(parts) && digits(part)).then_some((PathBuf::from(name), parts.parse().ok()?))
}

impl Files {
    /// What the files are; `None` if they are no whole model that can be read.
    fn read(&self) -> Option<Model> {
        if self.parts.len() != self.expected {
            return None;
        }
        let mut hash = Sha256::new();
        let mut params = 0_u64;
        for part in &self.parts {
            let (fingerprint, numbers) = read(part)?;
            hash.update(fingerprint);
            params = params.saturating_add(numbers);
        }
        Some(Model { fingerprint: hash.finalize().into(), params })
    }
}

/// What tells one state of a file from another: device, inode, bytes, time of change.
type Version = (u64, u64, u64, i64, i64);

/// What is known of files: the fingerprint and the numbers of one that is GGUF.
type Known = HashMap<Version, Option<([u8; 32], u64)>>;

/// The fingerprint of a GGUF file and the numbers in its tensors; kept while the file does not change.
fn read(path: &Path) -> Option<([u8; 32], u64)> {
    static KNOWN: Mutex<Option<Known>> = Mutex::new(None);
    /// More than a process maps. They are forgotten then.
    const MOST: usize = 1024;
    let meta = path.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let version = (meta.dev(), meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec());
    let lock = || KNOWN.lock();
    if let Some(known) = lock().get_or_insert_default().get(&version) {
        return *known;
    }
    let found = match is_gguf(path) {
        true => {
            let (fingerprint, numbers) = Fingerprint::of_gguf(path).ok()?;
            Some((fingerprint.bytes, numbers))
        }
        false => None,
    };
    let mut known = lock();
    let known = known.get_or_insert_default();
    if known.len() >= MOST {
        known.clear();
    }
    known.insert(version, found);
    found
}

fn is_gguf(path: &Path) -> bool {
    use std::io::Read;
    let mut magic = [0; 4];
    std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == *b"GGUF"
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
