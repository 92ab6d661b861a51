//! What the contract asks of a component that reaches a server: it bears a server that hangs, and takes no refusal for an answer. Between
//! the two is a [`Relay`]. These cases need a store that was given, and go through the library's own interface, which tells a miss
//! from a failure.

use std::time::{Duration, Instant};

use kv_store_wasm::Store;

use super::relay::{Mode, Relay};

/// A case's verdict: nothing, or what was wrong, in words for the author of the backend.
type Verdict = Result<(), String>;

pub struct Case {
    pub name: &'static str,
    /// What the contract asks for, in a sentence.
    pub asks: &'static str,
    /// It is for components that import one of these.
    imports: &'static [&'static str],
    run: fn(&Subject) -> Verdict,
}

const HTTP: &str = "kv-store:backend/http";

pub const CASES: &[Case] = &[
    Case {
        name: "patience",
        asks: "while the server hangs, calls fail instead of reporting a miss; when it is back, the store works again",
        imports: &["kv-store:backend/net", HTTP, "wasi:sockets/"],
        run: patience,
    },
    Case {
        name: "http-refusals",
        asks: "requests that the server refuses (503, 403) fail: nothing is reported as stored, published or missing",
        imports: &[HTTP],
        run: refusals,
    },
];

impl Case {
    /// Whether a component with these imports can be asked.
    pub fn is_for(&self, imports: &[String]) -> bool {
        imports.iter().any(|import| self.imports.iter().any(|wanted| import.starts_with(wanted)))
    }
}

struct Subject {
    store: Store,
    relay: Relay,
    salt: u64,
}

/// How long a store may take to go on when its server does.
const RECOVERY: Duration = Duration::from_secs(40);

/// Run a case. The outer `Err`: why it makes no sense here.
pub fn run(case: &Case, uri: &str, salt: u64) -> Result<Verdict, String> {
    let (through, relay) = Relay::before(uri)?;
    let opened = Store::open(&through).and_then(|store| store.get_manifest("kv-store-check").map(|_| store));
    let why_not = |error: kv_store_wasm::Error| format!("the store does not open through a relay of ours: {error}");
    let subject = Subject { store: opened.map_err(why_not)?, relay, salt };
    if subject.relay.connections() == 0 {
        return Err("it makes no connections to the servers that the URI names".into());
    }
    if case.imports == [HTTP] && subject.relay.saw_tls() {
        return Err("requests that are encrypted can not be answered by a relay: give a URI without TLS".into());
    }
    let verdict = (case.run)(&subject);
    subject.relay.set(Mode::Pass);
    let _ = subject.store.delete_manifest(&subject.name());
    Ok(verdict)
}

impl Subject {
    fn hash(&self, number: u64) -> [u8; 16] {
        let mut hash = [0x5e; 16];
        hash.iter_mut().zip(self.salt.to_le_bytes()).for_each(|(to, from)| *to = from);
        hash.iter_mut().rev().zip(number.to_le_bytes()).for_each(|(to, from)| *to ^= from);
        hash
    }

    fn name(&self) -> String {
        format!("kv-store-check~{:016x}", self.salt)
    }

    fn data(&self, number: u64) -> Vec<u8> {
        (0..5000_u64).map(|at| (at ^ number ^ self.salt) as u8).collect()
    }

    fn save(&self, number: u64) -> Result<(), kv_store_wasm::Error> {
        self.store.put_chunk(&self.hash(number), &self.data(number))?;
        self.store.put_manifest(&self.name(), &number.to_le_bytes())
    }

    /// What was saved under this number is there.
    fn expect(&self, number: u64) -> Verdict {
        let manifest = self.store.get_manifest(&self.name()).map_err(|error| format!("get_manifest: {error}"))?;
        if manifest.as_deref() != Some(&number.to_le_bytes()) {
            return Err(format!(
                "the manifest of save {number} is not the one that is there: {:?}",
                manifest.as_deref()
            ));
        }
        match self.store.get_chunk(&self.hash(number)).map_err(|error| format!("get_chunk: {error}"))? {
            None => Err(format!("the chunk of save {number} is missing")),
            Some(data) if *data != *self.data(number) => Err(format!("the chunk of save {number} has other bytes")),
            Some(_) => Ok(()),
        }
    }

    /// Save under this number, as soon as it works again.
    fn recover(&self, number: u64, after: &str) -> Verdict {
        let begun = Instant::now();
        loop {
            match self.save(number) {
                Ok(()) => return self.expect(number),
                Err(error) if begun.elapsed() > RECOVERY => {
                    let seconds = RECOVERY.as_secs();
                    return Err(format!(
                        "{seconds} s after {after} it still fails, and the server is as it was before: {error}"
                    ));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    /// Ask for what is there and for what is not: both must fail.
    fn all_fails(&self, there: u64, absent: u64, while_: &str) -> Verdict {
        if let Ok(None) = self.store.get_chunk(&self.hash(there)) {
            return Err(format!(
                "while {while_}, a chunk that is there was answered as missing: answer `failed`, or an error"
            ));
        }
        if let Ok(found) = self.store.get_chunk(&self.hash(absent)) {
            let found = if found.is_some() { "found" } else { "missing" };
            return Err(format!("while {while_}, a chunk was answered as {found}: answer `failed`, or an error"));
        }
        if let Ok(None) = self.store.get_manifest(&self.name()) {
            return Err(format!("while {while_}, a manifest that is there was answered as missing: answer an error"));
        }
        Ok(())
    }
}

fn patience(subject: &Subject) -> Verdict {
    subject.save(1).map_err(|error| error.to_string())?;
    subject.expect(1)?;
    subject.relay.set(Mode::Stall);
    let failed = subject.all_fails(1, 2, "the server hangs");
    subject.relay.set(Mode::Pass);
    failed?;
    subject.recover(3, "a server that hung goes on")
}

fn refusals(subject: &Subject) -> Verdict {
    subject.save(1).map_err(|error| error.to_string())?;
    subject.expect(1)?;
    for (number, status) in (2..).zip([503, 403]) {
        subject.relay.set(Mode::Refuse(status));
        let while_ = format!("the server answers each request with status {status}");
        let failed = subject.all_fails(number - 1, 100, &while_);
        let saved = subject.save(number);
        subject.relay.set(Mode::Pass);
        failed?;
        if saved.is_ok() {
            return Err(format!("while {while_}, a manifest was answered as published"));
        }
        subject.recover(number, &format!("status {status}"))?;
    }
    Ok(())
}
