//! `std-fs:///DIR`: a backend that knows of files only what `std::fs` offers. What a vendor's Rust does that was not
//! written for this host.
//!
//! Chunks lie at `/chunks/<first hex digit>/<hex>`, manifests at `/manifests/<escaped name>`, what is being written in
//! `/tmp`; `/` is the URI's directory. A file appears by rename. A manifest is published when the fresh chunks, the manifest
//! and, where std can, their directories were synced.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use kv_store_sdk::key::{escape, hex};
use kv_store_sdk::payloads::Part;
use kv_store_sdk::uri::without_query;
use kv_store_sdk::{
    Backend, Chunk, CommitOutcome, DeleteOutcome, Error, Features, GetOutcome, Hashes, Manifest, Options, Payload,
    Presence, Properties, PutOutcome, Result, absent, export,
};

/// Bytes of a value that are in this component's memory at once.
const PIECE: usize = 1 << 20;

struct StdFs;

impl Backend for StdFs {
    fn open(uri: &str, options: Options) -> Result<(Self, Features)> {
        options.finish()?;
        without_query(uri);
        for directory in ["/chunks", "/manifests", "/tmp"] {
            fs::create_dir_all(directory).map_err(|error| failed(Path::new(directory), &error))?;
        }
        let features = Features {
            label: format!("std::fs at {uri}"),
            properties: Properties::DURABLE | Properties::SHARED | Properties::CHEAP_REPEAT | Properties::WRITE_THROUGH,
            ..Default::default()
        };
        Ok((StdFs, features))
    }

    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        let len = |hash| fs::metadata(chunk_path(hash)).ok().filter(fs::Metadata::is_file).map(|there| there.len());
        Ok(hashes.iter().map(|hash| len(hash).into()).collect())
    }

    fn put_chunks(&mut self, chunks: &[Chunk], replace: bool) -> Result<Vec<PutOutcome>> {
        let put = |chunk: &Chunk| {
            let path = chunk_path(chunk.hash);
            // Another length is what a power cut left.
            if !replace && fs::metadata(&path).is_ok_and(|there| there.len() == chunk.len) {
                return PutOutcome::Existed;
            }
            match write(&path, chunk.len, &|at, len| chunk.range(at, len), false) {
                Ok(()) => PutOutcome::Stored,
                Err(error) => PutOutcome::Failed(error),
            }
        };
        Ok(chunks.iter().map(put).collect())
    }

    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        let get = |hash: &[u8]| match read(&chunk_path(hash)) {
            Ok(Some(data)) => GetOutcome::Found(data),
            Ok(None) => GetOutcome::Missing,
            Err(error) => GetOutcome::Failed(error),
        };
        Ok(hashes.iter().map(get).collect())
    }

    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        let delete = |hash: &[u8]| {
            let path = chunk_path(hash);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => DeleteOutcome::Failed(failed(&path, &error)),
                _ => DeleteOutcome::Gone,
            }
        };
        Ok(hashes.iter().map(delete).collect())
    }

    fn commit(&mut self, fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome> {
        let (mut gone, mut directories) = (Vec::new(), Vec::new());
        for hash in fresh.iter().flat_map(|hashes| hashes.iter()) {
            let path = chunk_path(hash);
            match File::open(&path).and_then(|file| file.sync_all()) {
                Err(error) if error.kind() == ErrorKind::NotFound => gone.push(hash),
                synced => synced.map_err(|error| failed(&path, &error))?,
            }
            directories.extend(path.parent().map(Path::to_owned));
        }
        if let Some(gone) = absent(gone) {
            return Ok(gone);
        }
        directories.sort();
        directories.dedup();
        if !directories.is_empty() {
            directories.extend(["/chunks".into(), "/".into()]);
        }
        directories.iter().try_for_each(|directory: &PathBuf| sync_directory(directory))?;
        if let Some(manifest) = manifest {
            write(&manifest_path(manifest.name), manifest.len, &|at, len| manifest.range(at, len), true)?;
            ["/manifests", "/"].iter().try_for_each(|directory| sync_directory(Path::new(directory)))?;
        }
        Ok(CommitOutcome::Published)
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        read(&manifest_path(name))
    }

    fn delete_manifest(&mut self, name: &str) -> Result<()> {
        let path = manifest_path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(&path, &error)),
            _ => sync_directory(Path::new("/manifests")),
        }
    }
}

fn chunk_path(hash: &[u8]) -> PathBuf {
    let hex = hex(hash);
    Path::new("/chunks").join(&hex[..1]).join(hex)
}

fn manifest_path(name: &str) -> PathBuf {
    Path::new("/manifests").join(escape(name))
}

/// Some bytes of an item, from a place on, so many.
type Range<'a> = &'a dyn Fn(u64, u64) -> Part<'static>;

/// Write a file whole: under a name of its own, then renamed.
fn write(path: &Path, len: u64, range: Range, durable: bool) -> Result<()> {
    let temporary = PathBuf::from(format!("/tmp/{:016x}", RandomState::new().hash_one(path)));
    let written = write_to(&temporary, len, range, durable).and_then(|()| {
        let renamed = fs::rename(&temporary, path).or_else(|error| match (error.kind(), path.parent()) {
            (ErrorKind::NotFound, Some(parent)) => {
                fs::create_dir_all(parent)?;
                fs::rename(&temporary, path)
            }
            _ => Err(error),
        });
        renamed.map_err(|error| failed(path, &error))
    });
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn write_to(temporary: &Path, len: u64, range: Range, durable: bool) -> Result<()> {
    let failed = |error: io::Error| failed(temporary, &error);
    let mut file = File::create_new(temporary).map_err(failed)?;
    let mut at = 0;
    while at < len {
        let piece = (len - at).min(PIECE as u64);
        let piece = Payload::from_parts(&[range(at, piece)])?.read(0, piece as u32)?;
        file.write_all(&piece).map_err(failed)?;
        at += piece.len() as u64;
    }
    if durable { file.sync_all().map_err(failed) } else { Ok(()) }
}

/// A file's bytes, in the host's memory and piece by piece on the way; none if there is no such file.
fn read(path: &Path) -> Result<Option<Payload>> {
    let failed = |error: io::Error| failed(path, &error);
    let mut file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let len = file.metadata().map_err(failed)?.len();
    let mut pieces = Vec::new();
    let mut piece = Vec::with_capacity(len.min(PIECE as u64) as usize);
    loop {
        piece.clear();
        if (&mut file).take(PIECE as u64).read_to_end(&mut piece).map_err(failed)? == 0 {
            break;
        }
        pieces.push(Payload::from_bytes(&piece)?);
    }
    match pieces.len() {
        1 => Ok(pieces.pop()),
        _ => Payload::from_parts(&pieces.iter().map(Part::Payload).collect::<Vec<_>>()).map(Some),
    }
}

/// Make the names in a directory durable. Where std was built on a libc that speaks WASI 0.1, it cannot, and says that the
/// descriptor is bad: names are then left to the kernel.
fn sync_directory(path: &Path) -> Result<()> {
    const BAD_DESCRIPTOR: i32 = 8;
    match File::open(path).and_then(|directory| directory.sync_all()) {
        Err(error) if error.raw_os_error() != Some(BAD_DESCRIPTOR) => Err(failed(path, &error)),
        _ => Ok(()),
    }
}

fn failed(path: &Path, error: &io::Error) -> Error {
    let message = format!("{}: {error}", path.display());
    match error.kind() {
        ErrorKind::PermissionDenied => Error::denied(message),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Error::exhausted(message),
        _ => Error::other(message),
    }
}

export!(StdFs, wishes: ["the directory in the URI, through WASI"]);
