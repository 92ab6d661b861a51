//! The contract's `files`, over the directories that the [`Host`](super::Host) of the running call has.

use super::payloads::{Part, Payload, joined};
use super::{Rc, host};
use crate::{Error, Result};

/// A directory that the operator granted, as a host has it. Batches may be answered in part.
pub trait Granted {
    /// Bytes of files. None: there is no such file.
    fn read(&self, wanted: &[ReadRequest]) -> Result<Vec<Result<Option<Vec<u8>>>>>;

    /// Whole files, each of its path, its content and whether it replaces another. False: one is there, and stays.
    fn write(&self, files: Vec<(String, Vec<u8>, bool)>, durable: bool) -> Result<Vec<Result<bool>>>;

    /// None: there is no such file.
    fn sizes(&self, paths: &[String]) -> Result<Vec<Result<Option<u64>>>>;

    /// Have what was written before survive power loss.
    fn sync(&self, paths: &[String]) -> Result<()>;

    /// False: there was none.
    fn remove(&self, paths: &[String], durable: bool) -> Result<Vec<Result<bool>>>;

    /// What was not used since.
    fn remove_unused(&self, paths: &[String], unused_since: u64) -> Result<Vec<EvictOutcome>>;

    /// Of its file system.
    fn space(&self) -> Result<Space>;

    /// The first entries after one.
    fn entries(&self, path: &str, after: Option<&str>, limit: u32) -> Result<Vec<Entry>>;
}

#[derive(Debug)]
pub struct ReadRequest {
    pub path: String,
    pub offset: u64,
    pub len: Option<u64>,
    pub item: Option<u32>,
}

#[derive(Debug)]
pub enum ReadOutcome {
    Found(Payload),
    Missing,
    Failed(Error),
}

#[derive(Debug)]
pub struct WriteRequest<'a> {
    pub path: String,
    pub content: Vec<Part<'a>>,
    pub replace: bool,
}

#[derive(Debug)]
pub enum WriteOutcome {
    Written,
    Existed,
    Failed(Error),
}

#[derive(Debug)]
pub enum RemoveOutcome {
    Removed,
    Missing,
    Failed(Error),
}

#[derive(Clone, Debug)]
pub enum SizeOutcome {
    Size(u64),
    Missing,
    Failed(Error),
}

#[derive(Debug)]
pub enum EvictOutcome {
    Removed(u64),
    Kept,
    Missing,
    Failed(Error),
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub name: String,
    pub directory: bool,
    pub size: u64,
    pub modified: u64,
    pub used: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Space {
    pub total: u64,
    pub available: u64,
}

/// A handle to a directory. What it does is done by the host of the call that uses it.
#[derive(Debug)]
pub struct Directory {
    grant: String,
}

pub fn open_directory(grant: &str) -> Result<Directory> {
    host(|host| host.directory(grant))?;
    Ok(Directory { grant: grant.to_owned() })
}

impl Directory {
    fn granted<T>(&self, ask: impl FnOnce(&dyn Granted) -> Result<T>) -> Result<T> {
        host(|host| {
            let granted: Rc<dyn Granted> = host.directory(&self.grant)?;
            ask(&*granted)
        })
    }

    pub fn read(&self, requests: &[ReadRequest]) -> Result<Vec<ReadOutcome>> {
        let outcome = |read: Result<Option<Vec<u8>>>| match read {
            Ok(Some(bytes)) => Payload::from_bytes(&bytes).map_or_else(ReadOutcome::Failed, ReadOutcome::Found),
            Ok(None) => ReadOutcome::Missing,
            Err(error) => ReadOutcome::Failed(error),
        };
        Ok(self.granted(|granted| granted.read(requests))?.into_iter().map(outcome).collect())
    }

    pub fn write(&self, requests: &[WriteRequest], durable: bool) -> Result<Vec<WriteOutcome>> {
        let file = |request: &WriteRequest| Ok((request.path.clone(), joined(&request.content)?, request.replace));
        let files = requests.iter().map(file).collect::<Result<Vec<_>>>()?;
        let outcome = |written| match written {
            Ok(true) => WriteOutcome::Written,
            Ok(false) => WriteOutcome::Existed,
            Err(error) => WriteOutcome::Failed(error),
        };
        Ok(self.granted(|granted| granted.write(files, durable))?.into_iter().map(outcome).collect())
    }

    pub fn sizes(&self, paths: &[String]) -> Result<Vec<SizeOutcome>> {
        let outcome = |size| match size {
            Ok(Some(size)) => SizeOutcome::Size(size),
            Ok(None) => SizeOutcome::Missing,
            Err(error) => SizeOutcome::Failed(error),
        };
        Ok(self.granted(|granted| granted.sizes(paths))?.into_iter().map(outcome).collect())
    }

    pub fn sync(&self, paths: &[String]) -> Result<()> {
        self.granted(|granted| granted.sync(paths))
    }

    pub fn remove(&self, paths: &[String], durable: bool) -> Result<Vec<RemoveOutcome>> {
        let outcome = |removed| match removed {
            Ok(true) => RemoveOutcome::Removed,
            Ok(false) => RemoveOutcome::Missing,
            Err(error) => RemoveOutcome::Failed(error),
        };
        Ok(self.granted(|granted| granted.remove(paths, durable))?.into_iter().map(outcome).collect())
    }

    pub fn remove_unused(&self, paths: &[String], unused_since: u64) -> Result<Vec<EvictOutcome>> {
        self.granted(|granted| granted.remove_unused(paths, unused_since))
    }

    pub fn space(&self) -> Result<Space> {
        self.granted(|granted| granted.space())
    }

    pub fn entries(&self, path: &str, after: Option<&str>, limit: u32) -> Result<Vec<Entry>> {
        self.granted(|granted| granted.entries(path, after, limit))
    }
}
