//! What is measured against, where it is not a library of others: written as somebody would who has nothing else to do.

use std::io::{IoSlice, Write};
use std::net::TcpStream;

use anyhow::{Result, ensure};

pub mod disk;
pub mod memkv;
pub mod process;
pub mod resp;

/// A client that saves by itself what it holds in memory.
pub trait Saver {
    /// Which chunks are there.
    fn exists(&mut self, keys: &[Vec<u8>]) -> Result<Vec<bool>>;
    /// Store chunks.
    fn put(&mut self, items: &[(Vec<u8>, &[u8])]) -> Result<()>;
    /// Publish the manifest of chunks.
    fn publish(&mut self, name: &str, data: &[u8], chunks: &[Vec<u8>]) -> Result<()>;

    /// A whole save: what is there is not sent again.
    fn save(&mut self, name: &str, manifest: &[u8], chunks: &[(Vec<u8>, &[u8])]) -> Result<()> {
        let keys: Vec<Vec<u8>> = chunks.iter().map(|(key, _)| key.clone()).collect();
        let there = self.exists(&keys)?;
        let missing = chunks.iter().zip(there).filter(|(_, there)| !there);
        let missing: Vec<(Vec<u8>, &[u8])> = missing.map(|(chunk, _)| chunk.clone()).collect();
        if !missing.is_empty() {
            self.put(&missing)?;
        }
        self.publish(name, manifest, &keys)
    }
}

/// What one `writev` takes, from POSIX.
const MAX_SLICES: usize = 1024;

fn write_all(stream: &mut TcpStream, slices: &mut [IoSlice<'_>]) -> Result<()> {
    let mut rest = slices;
    while !rest.is_empty() {
        let some = rest.len().min(MAX_SLICES);
        let written = stream.write_vectored(&rest[..some])?;
        ensure!(written > 0, "the server closed the connection");
        IoSlice::advance_slices(&mut rest, written);
    }
    Ok(())
}
