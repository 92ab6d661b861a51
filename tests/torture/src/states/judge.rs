//! What a state of the disk must hold, and a look at whether it does.

use std::path::Path;

use kv_cache::Query;
use kv_store_tests::memkv::MemkvServer;
use kv_store_tests::servers::Server;
use kv_store_tests::{Library, library_path};

use super::Kind;
use super::script::{self, IDENTITY, NAMES, ROWS};
use super::trace::{Call, What};
use crate::oracle::{Name, State};
use crate::workload::{Manifest, Random, content, hash, name};

pub struct Judge {
    kind: Kind,
    library: Library,
    /// The seed of the script, of which its rows are made.
    seed: u64,
    /// What was said, and after how many calls.
    said: Vec<(usize, Said)>,
    calls: usize,
    /// What may be there now.
    names: Vec<Name>,
    /// Rows: those that were tried, and those that were acknowledged.
    tried: Vec<bool>,
    acknowledged: Vec<bool>,
    looks: u64,
}

struct Said {
    done: bool,
    number: usize,
    state: State,
}

/// Bytes of chunks that a store of `Kind::Evicting` has room for beside its manifests.
const FITS: usize = 8000;

impl Judge {
    pub fn new(kind: Kind, seed: u64, calls: &[Call]) -> Self {
        let said = calls.iter().enumerate().filter_map(|(at, call)| match &call.what {
            What::Said(line) => Some((at + 1, Said::parse(line)?)),
            _ => None,
        });
        Judge {
            kind,
            library: Library::load(&library_path()).expect("the library loads"),
            seed,
            said: said.collect(),
            calls: calls.len(),
            names: Vec::new(),
            tried: Vec::new(),
            acknowledged: Vec::new(),
            looks: 0,
        }
    }

    /// After how many calls the crashes come: each number from the first save on, or some of them where that is too many.
    pub fn points(&self, random: &mut Random, states: usize) -> Vec<usize> {
        let first = self.said.first().map_or(0, |(at, _)| *at);
        let mut points: Vec<usize> = (first..=self.calls).collect();
        while points.len() > (states / 4).max(1) {
            points.remove(random.below(points.len() as u64) as usize);
        }
        points
    }

    /// The crash comes after so many calls.
    pub fn crash_after(&mut self, calls: usize) {
        self.names = vec![Name::default(); NAMES];
        self.tried = vec![false; ROWS as usize];
        self.acknowledged = self.tried.clone();
        for (_, said) in self.said.iter().filter(|(at, _)| *at <= calls) {
            let Said { done, number, state } = said;
            if self.kind == Kind::Rows {
                let of = if *done { &mut self.acknowledged } else { &mut self.tried };
                of[*number] = true;
            } else if *done {
                // What is not made to last may be lost, acknowledged or not.
                self.names[*number].acknowledge(self.kind != Kind::Rename);
            } else {
                self.names[*number].tries(*state);
            }
        }
    }

    /// What may be there, as text.
    pub fn expectation(&self) -> String {
        let names: Vec<String> = self.names.iter().map(Name::describe).collect();
        format!("{names:?} {:?} {:?}", self.tried, self.acknowledged)
    }

    /// Open what a crash has left in a folder, and look.
    pub fn look(&mut self, folder: &Path, random: &mut Random) -> Result<(), String> {
        self.looks += 1;
        match self.kind {
            Kind::Rows => self.look_at_rows(folder),
            Kind::Memkv => {
                let mut server = MemkvServer::start(&["--data", &folder.display().to_string()]);
                let looked = self.look_at(&server.uri("states"), random);
                server.stop();
                looked
            }
            _ => self.look_at(&self.kind.uri(folder), random),
        }
    }

    fn look_at(&self, uri: &str, random: &mut Random) -> Result<(), String> {
        let store = self.library.open(uri).ok_or("the store does not open")?;
        let chunk = |number: u64, must: bool| {
            let right = content(number);
            match store.get_chunk(&hash(&right))? {
                Ok(found) if found != right => Err(format!("chunk {number}: wrong bytes")),
                Err(_) if must => Err(format!("chunk {number} of a manifest is not there")),
                _ => Ok(()),
            }
        };
        for (number, known) in self.names.iter().enumerate() {
            let found = match store.get_manifest(&name(number))? {
                Ok(bytes) => Some(Manifest::parse(&bytes)?),
                Err(_) => None,
            };
            let state = found.as_ref().map(|manifest| manifest.save);
            let evicted = self.kind.evicts() && state.is_none();
            if !(evicted || known.allows(known.begin(), state))
                || found.as_ref().is_some_and(|found| found.name != number)
            {
                return Err(format!("{} is of save {state:?}; it may be {}", name(number), known.describe()));
            }
            for number in found.into_iter().flat_map(|manifest| manifest.chunks) {
                chunk(number, self.kind.keeps_chunks())?;
            }
        }
        if !self.looks.is_multiple_of(4) {
            return Ok(());
        }
        // What a crash has damaged is found when it is fetched, and heals with the next save.
        let chunks: Vec<u64> = (0..3).map(|_| script::chunk(random)).collect();
        chunks.iter().try_for_each(|number| chunk(*number, false))?;
        let number = random.below(NAMES as u64) as usize;
        // Of a store that evicts without a grace, what was put may be gone before the manifest.
        let tries = if self.kind.evicts() { 10 } else { 1 };
        let mut published = script::publish(&store, number, 1000, &chunks, false);
        for _ in 1..tries {
            if published.is_err() {
                published = script::publish(&store, number, 1000, &chunks, false);
            }
        }
        match published {
            // Chunks that are over the bound together.
            Err(why) if self.kind.evicts() && (why == script::FULL || script::len(&chunks) > FITS) => {
                return Ok(());
            }
            published => published.map_err(|why| format!("it saves no more: {why}"))?,
        }
        let stay = !self.kind.evicts();
        chunks.iter().try_for_each(|number| chunk(*number, stay)).map_err(|why| format!("after the next save {why}"))
    }

    fn look_at_rows(&self, folder: &Path) -> Result<(), String> {
        let cache = script::cache(folder)?;
        for row in 0..ROWS {
            let tokens = script::tokens(row);
            let hit = cache.lookup(&Query::new(&IDENTITY, &tokens)).map_err(|error| error.to_string())?;
            let found = hit.filter(|hit| hit.tokens() == tokens.len()).and_then(|hit| {
                let mut buffer = vec![0; hit.payload_len()];
                hit.load_into(&mut buffer).ok().map(|()| buffer)
            });
            let at = row as usize;
            match found {
                Some(_) if !self.tried[at] => return Err(format!("row {row} is there, and was never saved")),
                Some(found) if found != script::payload(self.seed, row) => {
                    return Err(format!("row {row}: wrong bytes"));
                }
                None if self.acknowledged[at] => return Err(format!("row {row} was acknowledged, and is not there")),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Said {
    fn parse(line: &str) -> Option<Self> {
        let (what, rest) = line.split_once(' ')?;
        let (number, state) = rest.split_once(' ')?;
        Some(Said { done: what == "done", number: number.parse().ok()?, state: state.parse().ok() })
    }
}
