//! Whatever a test writes, as calls of the contract's functions: each byte of a program names a call or chooses one of its arguments. What a
//! call answers is kept, and is an argument of later ones, also of those in the next call of the host.

use std::cell::RefCell;

use kv_store_sdk::files::{self, Directory, ReadRequest, WriteRequest};
use kv_store_sdk::net::{self, ConnectOptions, ConnectRequest, Connection, Message};
use kv_store_sdk::payloads::{self, ItemRange, Part};
use kv_store_sdk::records::{self, NewRecord, RecordOptions, RecordStore};
use kv_store_sdk::{GetOutcome, Hashes, Payload, Result, changes, http, system};

/// Lengths, counts, offsets and numbers of things.
const NUMBERS: [u64; 12] = [0, 1, 2, 7, 64, 4096, 65_537, 1 << 20, 8 << 20, 64 << 20, u32::MAX as u64, u64::MAX];
/// What a test may have the guest allocate at once: the rest of its memory is for what it is answered.
const MOST_BYTES: u64 = 4 << 20;
const MOST_ITEMS: usize = 300;

#[derive(Default)]
struct Held {
    payloads: Vec<Payload>,
    connections: Vec<Connection>,
    directories: Vec<Directory>,
    options: Vec<ConnectOptions>,
    requests: Vec<http::RequestOptions>,
    records: Vec<RecordStore>,
}

thread_local! {
    static HELD: RefCell<Held> = RefCell::default();
}

struct Program<'a> {
    bytes: std::slice::Iter<'a, u8>,
    server: String,
}

/// `server`, a line, and the program.
pub fn run(text: &[u8]) -> Result<()> {
    let mut lines = text.splitn(2, |byte| *byte == b'\n');
    let (server, program) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let mut program = Program { bytes: program.iter(), server: String::from_utf8_lossy(server).into_owned() };
    HELD.with_borrow_mut(|held| {
        while let Some(call) = program.bytes.next().copied() {
            // A refusal is as good as an answer.
            let _ = program.step(call, held);
        }
    });
    Ok(())
}

impl Program<'_> {
    fn byte(&mut self) -> u8 {
        self.bytes.next().copied().unwrap_or(0)
    }

    fn number(&mut self) -> u64 {
        NUMBERS[usize::from(self.byte()) % NUMBERS.len()]
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = self.number().min(MOST_BYTES);
        vec![b'\n'; len as usize]
    }

    fn count(&mut self) -> usize {
        (self.number() as usize).min(MOST_ITEMS)
    }

    fn text(&mut self) -> String {
        match self.byte() % 4 {
            0 => String::from_utf8_lossy(&self.bytes()).into_owned(),
            1 => "a/file".into(),
            2 => "any".into(),
            _ => String::new(),
        }
    }

    fn pick<'h, T>(&mut self, of: &'h [T]) -> Option<&'h T> {
        let at = usize::from(self.byte());
        of.get(at % of.len().max(1))
    }

    fn parts<'h>(&mut self, payloads: &'h [Payload]) -> Vec<Part<'h>> {
        let (count, kind, offset, len) = (self.count(), self.byte() % 4, self.number(), self.number());
        let bytes = if kind == 0 { self.bytes() } else { Vec::new() };
        let payload = self.pick(payloads);
        // All bytes of a list are the guest's own, and its memory is bounded.
        let count = if kind == 0 { count.min((MOST_BYTES / (bytes.len() as u64 + 1)) as usize) } else { count };
        let part = |_| match (kind, payload) {
            (1, Some(payload)) => Part::Payload(payload),
            (2, _) => Part::Item(0),
            (3, _) => Part::ItemRange(ItemRange { item: 0, offset, len }),
            _ => Part::Bytes(bytes.clone()),
        };
        (0..count).map(part).collect()
    }

    /// Keys of one width, or of none.
    fn keys(&mut self) -> kv_store_sdk::records::Hashes {
        let width = self.number() as u32;
        let mut keys = Hashes::one(b"k").keys();
        (keys.width, keys.bytes) = (width, self.bytes());
        keys
    }

    fn step(&mut self, call: u8, held: &mut Held) -> Result<()> {
        match call % 42 {
            call @ 0..=8 => self.payloads(call, held),
            call @ 9..=22 => self.connections(call, held),
            call @ 23..=25 => self.http(call, held),
            call @ 26..=32 => self.files(call, held),
            call @ 33..=35 => self.system(call),
            call => self.records(call, held),
        }
    }

    fn payloads(&mut self, call: u8, held: &mut Held) -> Result<()> {
        match call {
            0 => held.payloads.push(Payload::from_bytes(&self.bytes())?),
            1 => {
                let made = Payload::from_parts(&self.parts(&held.payloads))?;
                held.payloads.push(made);
            }
            2 => drop(self.pick(&held.payloads).map(|data| data.read(self.number(), self.number() as u32))),
            3 => {
                let shared = self.pick(&held.payloads).map(Payload::share).transpose()?;
                held.payloads.extend(shared);
            }
            4 => held.payloads.truncate(usize::from(self.byte()) / 16),
            5 => drop(payloads::crc32c(&self.parts(&held.payloads))?),
            6 => drop(payloads::xxh3(&self.parts(&held.payloads))?),
            7 => drop(payloads::sha256(&self.parts(&held.payloads))?),
            _ => drop(payloads::hmac_sha256(&self.bytes(), &self.parts(&held.payloads))?),
        }
        Ok(())
    }

    fn connections(&mut self, call: u8, held: &mut Held) -> Result<()> {
        match call {
            9 => {
                let made = net::connect(&self.server.clone(), self.pick(&held.options))?;
                held.connections.push(made);
            }
            10 => {
                let (authority, options) = (self.server.clone(), self.pick(&held.options));
                let request = |_| ConnectRequest { authority: authority.clone(), options };
                let made = net::connect_all(&(0..self.count()).map(request).collect::<Vec<_>>());
                held.connections.extend(made.into_iter().flatten());
            }
            11 => drop(self.pick(&held.connections).map(|to| to.send(&self.parts(&held.payloads)))),
            12 => drop(self.pick(&held.connections).map(|to| to.receive_exact(self.number() as u32))),
            13 => drop(self.pick(&held.connections).map(|to| to.receive_until(&self.bytes(), self.number() as u32))),
            14 => drop(self.pick(&held.connections).map(|to| to.receive_some(self.number() as u32))),
            15 => {
                let item = Some(0).filter(|_| self.byte() % 2 == 0);
                let came = self.pick(&held.connections).map(|to| to.receive_payload(self.number(), item));
                held.payloads.extend(came.transpose()?);
            }
            16 => drop(self.pick(&held.connections).map(|to| to.skip(self.number()))),
            17 => drop(self.pick(&held.connections).map(|to| to.set_patience(self.number() % 50_000_000))),
            18 => {
                let parts = || self.parts(&held.payloads);
                let messages = held.connections.iter().zip(std::iter::repeat_with(parts));
                let messages = messages.map(|(connection, parts)| Message { connection, parts });
                drop(net::send_all(&messages.collect::<Vec<_>>()));
            }
            19 => drop(net::ready(&held.connections.iter().collect::<Vec<_>>(), Some(self.number() % 20_000_000))?),
            20 => drop(held.connections.pop().map(net::park)),
            21 => held.connections.truncate(usize::from(self.byte()) / 16),
            _ => {
                let options = ConnectOptions::new();
                options.set_session(&self.text())?;
                options.set_patience(self.number() % 50_000_000);
                held.options.push(options);
            }
        }
        Ok(())
    }

    fn http(&mut self, call: u8, held: &mut Held) -> Result<()> {
        match call {
            23 | 24 => {
                let (headers, path, body) = (self.count(), self.text(), self.parts(&held.payloads));
                let item = Some(0).filter(|_| self.byte() % 2 == 0);
                let value = "v".repeat(self.number().min(10_000) as usize);
                let (options, count) = (self.pick(&held.requests), self.byte());
                let request = |n: usize| http::Request {
                    method: if call == 23 { "GET" } else { "PUT" }.into(),
                    authority: self.server.clone(),
                    path: format!("/{}", path.len()),
                    headers: (0..headers.min(20)).map(|header| (format!("x-{header}"), value.clone())).collect(),
                    body: if n == 0 { body.clone() } else { Vec::new() },
                    item,
                    options,
                };
                let answers = http::send(&(0..usize::from(count) % 64).map(request).collect::<Vec<_>>());
                held.payloads.extend(answers.into_iter().flatten().map(|answer| answer.body));
            }
            _ => {
                let options = http::RequestOptions::new();
                options.set_max_body(self.number());
                held.requests.push(options);
            }
        }
        Ok(())
    }

    fn files(&mut self, call: u8, held: &mut Held) -> Result<()> {
        match call {
            26 => held.directories.push(files::open_directory("any")?),
            27 => {
                let (path, offset, count) = (self.text(), self.number(), self.count());
                let (len, item) =
                    (Some(self.number()).filter(|len| *len != 7), Some(0).filter(|_| self.byte() % 2 == 0));
                let request = ReadRequest { path, offset, len, item };
                let read = self.pick(&held.directories).map(|directory| directory.read(&vec![request; count]));
                for outcome in read.transpose()?.into_iter().flatten() {
                    if let files::ReadOutcome::Found(data) = outcome {
                        held.payloads.push(data);
                    }
                }
            }
            28 => {
                let (path, content) = (self.text(), self.parts(&held.payloads));
                let request = WriteRequest { path, content, replace: self.byte() % 2 == 0 };
                drop(self.pick(&held.directories).map(|directory| directory.write(&[request], false)));
            }
            29 => {
                let paths = vec![self.text(); self.count().min(32)];
                drop(self.pick(&held.directories).map(|directory| directory.sizes(&paths)));
            }
            30 => {
                let paths = vec![self.text(); self.count().min(32)];
                drop(self.pick(&held.directories).map(|directory| match self.byte() % 2 {
                    0 => directory.remove(&paths, false).map(drop),
                    _ => directory.remove_unused(&paths, self.number()).map(drop),
                }));
            }
            31 => {
                let (path, after) = (self.text(), self.text());
                let limit = self.number() as u32;
                drop(self.pick(&held.directories).map(|directory| directory.entries(&path, Some(&after), limit)));
            }
            _ => drop(self.pick(&held.directories).map(Directory::space)),
        }
        Ok(())
    }

    fn system(&mut self, call: u8) -> Result<()> {
        match call {
            33 => system::log(system::Level::Info, &self.text()),
            34 => {
                drop(system::secret(&self.text())?);
                drop(system::fact(&self.text()));
                system::sleep(self.number() % 3_000_000)?;
            }
            _ => {
                drop(changes::begin(&[0], &self.bytes()));
                changes::not_done(&vec![0; self.count()]);
            }
        }
        Ok(())
    }

    fn records(&mut self, call: u8, held: &mut Held) -> Result<()> {
        match call {
            36 => {
                let options = RecordOptions::new();
                options.set_max_bytes(self.number());
                options.set_max_records(self.number());
                options.set_file_bytes(self.number().min(1 << 20));
                held.records.push(records::open_records("any", Some(&options))?);
            }
            37 => {
                let (space, keys, item) = (self.byte() % 5, self.keys(), Some(self.number() as u32));
                let found = self.pick(&held.records).map(|store| store.get(space, &keys, item.filter(|_| space != 1)));
                for outcome in found.transpose()?.into_iter().flatten() {
                    if let GetOutcome::Found(data) = outcome {
                        held.payloads.push(data);
                    }
                }
            }
            38 => {
                let (space, keys, value) = (self.byte() % 5, self.keys(), self.parts(&held.payloads));
                let count = keys.bytes.len() / (keys.width as usize).max(1);
                // All bytes of a list are the guest's own, and its memory is bounded.
                let values = (0..count.min(MOST_ITEMS)).map(|n| if n == 0 { value.clone() } else { Vec::new() });
                let (values, replace) = (values.collect::<Vec<_>>(), self.byte() % 2 == 0);
                drop(self.pick(&held.records).map(|store| store.put(space, &keys, &values, replace)));
            }
            39 => {
                let (space, keys, count) = (self.byte() % 5, self.keys(), usize::from(self.byte() % 4));
                let last = NewRecord { space, key: keys.bytes.iter().take(300).copied().collect(), value: Vec::new() };
                drop(self.pick(&held.records).map(|store| match count {
                    0 => store.exists(space, &keys).map(drop),
                    1 => store.delete(space, &keys, true).map(drop),
                    _ => store.commit(space, &vec![keys.clone(); count], Some(&last)).map(drop),
                }));
            }
            40 => {
                let (space, after, limit) = (self.byte() % 5, self.text(), self.number() as u32);
                drop(self.pick(&held.records).map(|store| store.entries(space, Some(&after), limit)));
                drop(self.pick(&held.records).map(|store| store.entries(space, None, limit)));
            }
            _ => drop(self.pick(&held.records).map(|store| {
                (
                    store.bounds(),
                    store.usage(self.byte() % 5),
                    store.evict(self.number(), Some(self.number()), self.number()),
                )
            })),
        }
        Ok(())
    }
}
