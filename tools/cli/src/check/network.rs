//! What the contract asks of a component that reaches a server: it bears a server that hangs, and takes no refusal for an answer. Between
//! the two is a [`Relay`]. These cases need a store that was given, and go through the library's own interface, which tells a miss
//! from a failure.

use std::time::{Duration, Instant};

use super::CaseResult;
use super::relay::{Mode, Relay};
use super::tap::{Chunk, Instances, Tap};

pub struct NetworkCase {
    pub name: &'static str,
    /// What the contract asks for, in a sentence.
    pub asks: &'static str,
    /// It is for components that import one of these.
    imports: &'static [&'static str],
    run: fn(&NetworkSubject) -> CaseResult,
}

const HTTP: &str = "kv-store:backend/http";
const NET: &str = "kv-store:backend/net";
const SOCKETS: &str = "wasi:sockets/";

pub const CASES: &[NetworkCase] = &[
    NetworkCase {
        name: "patience",
        asks: "while the server hangs, calls fail instead of reporting a miss; when it is back, the store works again",
        imports: &[NET, HTTP, SOCKETS],
        run: patience,
    },
    NetworkCase {
        name: "http-refusals",
        asks: "requests that the server refuses (503, 403) fail: nothing is reported as stored, published or missing",
        imports: &[HTTP],
        run: refusals,
    },
    NetworkCase {
        name: "net-refusals",
        asks: "what the server refuses fails: nothing is reported as stored, removed, published or missing",
        imports: &[NET, SOCKETS],
        run: said_refusals,
    },
    NetworkCase {
        name: "closed",
        asks: "while the server closes each connection, calls fail instead of reporting a miss or a success; then the store works again",
        imports: &[NET, HTTP, SOCKETS],
        run: closed,
    },
    NetworkCase {
        name: "garbled",
        asks: "while the server's answers have other bytes, nothing is reported as stored or published, and no instance traps",
        imports: &[NET, HTTP, SOCKETS],
        run: garbled,
    },
];

/// What a `durable` store is asked, where its server can be restarted.
pub const RESTARTED: &str = "server-restart";
pub const RESTARTED_ASKS: &str = "what a `durable` store has published is there after a restart of its server";

/// The part before the restart, and the one after it. The outer `Err`: why it makes no sense here.
pub fn restarted(instances: &Instances, salt: u64, is_after: bool) -> Result<CaseResult, String> {
    if !instances.store.info().durable {
        return Err("it does not say that it is `durable`".into());
    }
    let (hash, name) = ([&salt.to_le_bytes()[..], RESTARTED.as_bytes()].concat(), format!("{RESTARTED}~{salt:016x}"));
    let (data, manifest) = (vec![7; 5000], [1; 100]);
    if !is_after {
        return Ok((|| {
            instances.put(&[(hash.clone(), data)], false)?;
            instances.commit(&[hash], Some((&name, &manifest))).map(drop)
        })());
    }
    let verdict = (|| {
        if instances.manifest(&name)?.as_deref() != Some(&manifest) {
            return Err("the manifest is gone".to_owned());
        }
        if instances.get(std::slice::from_ref(&hash))? != [Some(data)] {
            return Err("a chunk that was fresh in the commit is gone".into());
        }
        Ok(())
    })();
    let _ = (instances.delete_manifest(&name), instances.delete(&[hash]));
    Ok(verdict)
}

impl NetworkCase {
    /// Whether a component with these imports can be asked.
    pub fn is_for(&self, imports: &[String]) -> bool {
        imports.iter().any(|import| self.imports.iter().any(|wanted| import.starts_with(wanted)))
    }
}

struct NetworkSubject {
    instances: Instances,
    relay: Relay,
    salt: u64,
}

/// How many requests of a call may pass before the others are refused: a backend may look before it changes something.
const PASSED: u32 = 3;
/// How long a store may take to go on when its server does.
const RECOVERY: Duration = Duration::from_secs(40);

/// Run a case. The outer `Err`: why it makes no sense here.
pub fn run(case: &NetworkCase, tap: &Tap, uri: &str, refusal: Option<&str>, salt: u64) -> Result<CaseResult, String> {
    let refusal = match (case.name, refusal) {
        ("net-refusals", None) => {
            return Err("what does the server say when it refuses? give it as --refusal TEXT".into());
        }
        (_, refusal) => unescape(refusal.unwrap_or_default()),
    };
    let (through, relay) = Relay::before(uri, &refusal)?;
    let opened =
        Instances::open(tap, &through).and_then(|instances| instances.manifest("kv-store-check").map(|_| instances));
    let why_not = |error: String| format!("the store does not open through a relay of ours: {error}");
    let subject = NetworkSubject { instances: opened.map_err(why_not)?, relay, salt };
    if subject.relay.connections() == 0 {
        return Err("it makes no connections to the servers that the URI names".into());
    }
    if case.imports == [HTTP] && subject.relay.saw_tls() {
        return Err("requests that are encrypted can not be answered by a relay: give a URI without TLS".into());
    }
    let verdict = (case.run)(&subject);
    subject.relay.set(Mode::Pass);
    let _ = subject.instances.store.delete_manifest(&subject.name());
    Ok(verdict)
}

/// Bytes as they are written on a command line: `\r`, `\n`, `\t`, `\0`, `\\` and `\xNN`.
fn unescape(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.chars().next() {
        let hex = rest.strip_prefix("\\x").and_then(|rest| u8::from_str_radix(rest.get(..2)?, 16).ok());
        let plain = [("\\r", b'\r'), ("\\n", b'\n'), ("\\t", b'\t'), ("\\0", 0), ("\\\\", b'\\')];
        let named = plain.into_iter().find(|(written, _)| rest.starts_with(written)).map(|(_, byte)| byte);
        let (byte, len) = match (hex, named) {
            (Some(byte), _) => (Some(byte), 4),
            (None, Some(byte)) => (Some(byte), 2),
            (None, None) => (None, first.len_utf8()),
        };
        bytes.extend(byte.map_or_else(|| rest.as_bytes().get(..len).unwrap_or_default().to_vec(), |byte| vec![byte]));
        rest = rest.get(len..).unwrap_or_default();
    }
    bytes
}

impl NetworkSubject {
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
        self.instances.store.put_chunk(&self.hash(number), &self.data(number))?;
        self.instances.store.put_manifest(&self.name(), &number.to_le_bytes())
    }

    /// Put a chunk straight into the component. Answers its hash, a chunk that is not there, and the name of the manifest that is.
    fn put_there(&self) -> Result<(Vec<u8>, Chunk, String), String> {
        let chunk = |number| (self.hash(number).to_vec(), self.data(number));
        let (there, new) = (chunk(60), chunk(50));
        self.instances.put(std::slice::from_ref(&there), false)?;
        Ok((there.0, new, self.name()))
    }

    /// What was saved under this number is there.
    fn expect(&self, number: u64) -> CaseResult {
        let manifest =
            self.instances.store.get_manifest(&self.name()).map_err(|error| format!("get_manifest: {error}"))?;
        if manifest.as_deref() != Some(&number.to_le_bytes()) {
            return Err(format!(
                "the manifest of save {number} is not the one that is there: {:?}",
                manifest.as_deref()
            ));
        }
        match self.instances.store.get_chunk(&self.hash(number)).map_err(|error| format!("get_chunk: {error}"))? {
            None => Err(format!("the chunk of save {number} is missing")),
            Some(data) if *data != *self.data(number) => Err(format!("the chunk of save {number} has other bytes")),
            Some(_) => Ok(()),
        }
    }

    /// What a call acknowledges holds, also if the server has refused all but the first requests of the call.
    fn holds(&self, mode: Mode, after: u32) -> CaseResult {
        let (instances, name) = (&self.instances, self.name());
        let (there, _, _) = self.put_there()?;
        let (hash, data) = (self.hash(200 + u64::from(after)).to_vec(), self.data(200));
        let manifest = [after as u8; 40];
        let while_ = format!("the server refuses all requests of a call after the first {after}");
        let refused = |acknowledges: &dyn Fn() -> bool| {
            self.relay.set(mode);
            let acknowledged = acknowledges();
            self.relay.set(Mode::Pass);
            acknowledged
        };
        let must = |what: &str, is_so: &dyn Fn() -> Result<bool, String>| match self.ask(is_so)? {
            true => Ok(()),
            false => Err(format!("while {while_}, {what}, and it is not so: answer `failed`, or an error")),
        };
        let new = [(hash.clone(), data.clone())];
        for replace in [false, true] {
            if refused(&|| instances.put(&new, replace).is_ok()) {
                let is_there = || Ok(instances.get(std::slice::from_ref(&hash))? == [Some(data.clone())]);
                must("put-chunks answered `stored` or `existed`", &is_there)?;
            }
        }
        if refused(&|| instances.commit(&[], Some((&name, &manifest))) == Ok(Vec::new())) {
            let is_there = || Ok(instances.manifest(&name)?.as_deref() == Some(&manifest));
            must("commit answered `published`", &is_there)?;
        }
        if refused(&|| instances.delete(std::slice::from_ref(&there)) == Ok(true)) {
            let is_gone = || Ok(instances.get(std::slice::from_ref(&there))? == [None]);
            must("delete-chunks answered `gone`", &is_gone)?;
        }
        // There is one to remove, whatever became of the commit.
        self.ask(&|| instances.commit(&[], Some((&name, &manifest))).map(|_| true))?;
        if refused(&|| instances.delete_manifest(&name).is_ok()) {
            must("delete-manifest succeeded", &|| Ok(instances.manifest(&name)?.is_none()))?;
        }
        let _ = instances.delete(&[hash, there]);
        Ok(())
    }

    /// An answer, as soon as the store works again.
    fn ask(&self, asked: &dyn Fn() -> Result<bool, String>) -> Result<bool, String> {
        let begun = Instant::now();
        loop {
            match asked() {
                Err(_) if begun.elapsed() < RECOVERY => std::thread::sleep(Duration::from_millis(100)),
                answer => return answer,
            }
        }
    }

    /// Save under this number, as soon as it works again.
    fn recover(&self, number: u64, after: &str) -> CaseResult {
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
    fn all_fails(&self, there: u64, absent: u64, while_: &str) -> CaseResult {
        if let Ok(None) = self.instances.store.get_chunk(&self.hash(there)) {
            return Err(format!(
                "while {while_}, a chunk that is there was answered as missing: answer `failed`, or an error"
            ));
        }
        if let Ok(found) = self.instances.store.get_chunk(&self.hash(absent)) {
            let found = if found.is_some() { "found" } else { "missing" };
            return Err(format!("while {while_}, a chunk was answered as {found}: answer `failed`, or an error"));
        }
        if let Ok(None) = self.instances.store.get_manifest(&self.name()) {
            return Err(format!("while {while_}, a manifest that is there was answered as missing: answer an error"));
        }
        Ok(())
    }
}

fn patience(subject: &NetworkSubject) -> CaseResult {
    subject.save(1).map_err(|error| error.to_string())?;
    subject.expect(1)?;
    subject.relay.set(Mode::Stall);
    let failed = subject.all_fails(1, 2, "the server hangs");
    subject.relay.set(Mode::Pass);
    failed?;
    subject.recover(3, "a server that hung goes on")
}

fn refusals(subject: &NetworkSubject) -> CaseResult {
    subject.save(1).map_err(|error| error.to_string())?;
    subject.expect(1)?;
    for (number, status) in (2..).zip([503, 403]) {
        subject.relay.set(Mode::Refuse { status, after: 0 });
        let while_ = format!("the server answers each request with status {status}");
        let failed = subject.all_fails(number - 1, 100, &while_);
        let saved = subject.save(number);
        subject.relay.set(Mode::Pass);
        failed?;
        if saved.is_ok() {
            return Err(format!("while {while_}, a manifest was answered as published"));
        }
        subject.recover(number, &format!("status {status}"))?;
        fails(subject, Mode::Refuse { status, after: 0 }, &while_)?;
    }
    let last = (1..=PASSED).try_for_each(|after| subject.holds(Mode::Refuse { status: 403, after }, after));
    last.and_then(|()| subject.recover(4, "refusals"))
}

fn said_refusals(subject: &NetworkSubject) -> CaseResult {
    subject.save(1).map_err(|error| error.to_string())?;
    subject.expect(1)?;
    fails(subject, Mode::Say { after: 0 }, "the server refuses each request")?;
    (1..=PASSED).try_for_each(|after| subject.holds(Mode::Say { after }, after))?;
    subject.recover(2, "refusals")
}

fn closed(subject: &NetworkSubject) -> CaseResult {
    subject.save(1).map_err(|error| error.to_string())?;
    subject.expect(1)?;
    fails(subject, Mode::Close, "the server closes each connection")?;
    subject.recover(2, "a server that closed each connection")
}

/// No call succeeds, and nothing is missing, while the relay is in a mode.
fn fails(subject: &NetworkSubject, mode: Mode, while_: &str) -> CaseResult {
    let instances = &subject.instances;
    let (there, new, name) = subject.put_there()?;
    subject.relay.set(mode);
    let said = [
        ("get-chunks answered for a chunk that is there", instances.get(std::slice::from_ref(&there)).is_ok()),
        ("get-manifest answered for a manifest that is there", instances.manifest(&name).is_ok()),
        ("put-chunks answered `stored` or `existed`", instances.put(std::slice::from_ref(&new), false).is_ok()),
        // A backend that looks first has no reason to here.
        ("put-chunks answered `stored` to a put that replaces", instances.put(&[new], true).is_ok()),
        ("commit answered", instances.commit(&[], Some((&name, &[0; 40]))).is_ok()),
        ("delete-manifest succeeded", instances.delete_manifest(&name).is_ok()),
        // A backend that removes nothing asks nobody.
        ("delete-chunks answered `gone`", instances.delete(&[there]) == Ok(true)),
    ];
    subject.relay.set(Mode::Pass);
    match said.into_iter().find(|(_, succeeded)| *succeeded) {
        Some((what, _)) => Err(format!("while {while_}, {what}: answer `failed`, or an error")),
        None => Ok(()),
    }
}

fn garbled(subject: &NetworkSubject) -> CaseResult {
    subject.save(1).map_err(|error| error.to_string())?;
    subject.expect(1)?;
    let instances = &subject.instances;
    let (there, new, name) = subject.put_there()?;
    subject.relay.set(Mode::Garble);
    let read = [instances.get(&[there]).map(drop), instances.manifest(&name).map(drop)];
    let written = [
        ("put-chunks answered `stored`", instances.put(&[new], true).map(drop)),
        ("commit answered `published`", instances.commit(&[], Some((&name, &[0; 40]))).map(drop)),
    ];
    subject.relay.set(Mode::Pass);
    let trapped = |answer: &Result<(), String>| answer.as_ref().err().filter(|why| why.contains("trap")).cloned();
    if let Some(why) = read.iter().chain(written.iter().map(|(_, answer)| answer)).find_map(trapped) {
        return Err(format!("while the server's answers have other bytes, an instance ended: {why}"));
    }
    if let Some((what, _)) = written.into_iter().find(|(_, answer)| answer.is_ok()) {
        return Err(format!("while the server's answers have other bytes, {what}"));
    }
    subject.recover(2, "answers with other bytes")
}

#[cfg(test)]
mod tests {
    use super::unescape;

    #[test]
    fn a_refusal_is_written_with_escapes() {
        assert_eq!(unescape(r"-NO\r\n"), b"-NO\r\n");
        assert_eq!(
            unescape(r"\x00\xfFé\\x41\q\x4"),
            "\u{0}".bytes().chain([0xff]).chain("é\\x41\\q\\x4".bytes()).collect::<Vec<_>>()
        );
    }
}
