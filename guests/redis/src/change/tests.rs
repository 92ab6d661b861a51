//! The scripts, on a real server.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::script::{self, Call, DONE, EXISTED, LATE, NO_VALUE, Script};
use crate::resp::{self, Reply};

/// A redis-server of a test's own, ended with its value, and a connection to it.
struct Server {
    child: Child,
    socket: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// What the server answers.
#[derive(Debug, PartialEq)]
enum Said {
    Line(Reply),
    Bytes(Vec<u8>),
    List(Vec<Said>),
}

impl Server {
    /// None: it is not installed, which is said.
    fn start() -> Option<Self> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        // No port: tests that start at once would be given the same one.
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let socket = std::env::temp_dir().join(format!("kv-redis-{}-{number}", std::process::id()));
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]).arg(&socket);
        let Ok(mut child) = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn() else {
            let _ = writeln!(std::io::stderr(), "skipped: redis-server is not installed");
            return None;
        };
        let begun = Instant::now();
        loop {
            if let Ok(stream) = UnixStream::connect(&socket) {
                return Some(Server { child, socket, stream: BufReader::new(stream) });
            }
            if begun.elapsed() > Duration::from_secs(60) {
                let _ = child.kill();
                panic!("redis-server does not start");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn read(&mut self) -> Said {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).expect("the server answers");
        match Reply::parse(line.strip_suffix(b"\r\n").expect("a line")).expect("RESP") {
            Reply::Bulk(len) => {
                let mut bytes = vec![0; len as usize + 2];
                self.stream.read_exact(&mut bytes).expect("the server answers");
                bytes.truncate(len as usize);
                Said::Bytes(bytes)
            }
            Reply::Array(count) => Said::List((0..count).map(|_| self.read()).collect()),
            line => Said::Line(line),
        }
    }

    fn ask(&mut self, words: &[&[u8]]) -> Said {
        self.stream.get_mut().write_all(&resp::command(words)).expect("the server reads");
        self.read()
    }

    fn bytes(&mut self, words: &[&[u8]]) -> Vec<u8> {
        match self.ask(words) {
            Said::Bytes(bytes) => bytes,
            other => panic!("{other:?}"),
        }
    }

    /// What a script answers, first by its name.
    fn run(&mut self, script: &'static Script, keys: &[&[u8]], end: u64, rest: &[&[u8]]) -> (i64, u64) {
        let rest = rest.iter().map(|word| word.to_vec()).collect();
        let call = Call { script, keys: keys.to_vec(), end, value: None, rest };
        for whole in [false, true] {
            self.stream.get_mut().write_all(&call.around(whole, None).0).expect("the server reads");
            match self.read() {
                Said::Line(Reply::Refused(refusal)) if refusal.starts_with("NOSCRIPT") && !whole => {}
                Said::List(said) => match said.as_slice() {
                    [Said::Line(Reply::Integer(code)), Said::Line(Reply::Integer(time))] => {
                        return (*code, u64::try_from(*time).expect("a time"));
                    }
                    other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            }
        }
        panic!("the server has no such script")
    }

    fn set(&mut self, key: &[u8], end: u64, value: &[u8], rest: [&[u8]; 3]) -> i64 {
        let [seconds, only_new, nonce] = rest;
        self.run(&script::SET, &[key], end, &[value, seconds, only_new, nonce]).0
    }

    /// The generation of a manifest, and what came with it.
    fn generation(&mut self, key: &[u8]) -> (u64, Vec<u8>) {
        let tail = self.bytes(&[b"GETRANGE", key, b"-16", b"-1"]);
        (u64::from_le_bytes(tail[..8].try_into().unwrap()), tail[8..].to_vec())
    }
}

const FAR: u64 = 1 << 52;
/// The place of a generation behind a value.
const PLACE: &[u8] = b"value\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

#[test]
fn what_comes_late_changes_nothing() {
    let Some(mut server) = Server::start() else { return };
    assert_eq!(server.set(b"k", FAR, b"first", [b"", b"", b""]), DONE);
    let (_, now) = server.run(&script::SET, &[b"k"], 1, &[b"late", b"", b"", b""]);
    assert_eq!(server.set(b"k", now, b"late", [b"", b"", b""]), LATE, "from its end on");
    server.ask(&[b"SET", b"t", b"late"]);
    assert_eq!(server.run(&script::MOVE, &[b"k", b"t"], now, &[b"", b"", b""]).0, LATE);
    assert_eq!(server.ask(&[b"EXISTS", b"t"]), Said::Line(Reply::Integer(0)), "the value goes");
    assert_eq!(server.run(&script::DELETE, &[b"k"], now, &[b""]).0, LATE);
    assert_eq!(server.bytes(&[b"GET", b"k"]), b"first");
    // And in time it does.
    assert_eq!(server.set(b"k", now + 60_000_000, b"next", [b"", b"", b""]), DONE);
    assert_eq!(server.bytes(&[b"GET", b"k"]), b"next");
    assert_eq!(server.run(&script::DELETE, &[b"k"], FAR, &[b""]).0, DONE);
    assert_eq!(server.ask(&[b"GET", b"k"]), Said::Line(Reply::Nothing));
}

#[test]
fn what_exists_stays_and_what_has_a_time_to_live_gets_it() {
    let Some(mut server) = Server::start() else { return };
    assert_eq!(server.set(b"k", FAR, b"first", [b"100", b"NX", b""]), DONE);
    assert_eq!(server.set(b"k", FAR, b"second", [b"", b"NX", b""]), EXISTED);
    server.ask(&[b"SET", b"t", b"third", b"PX", b"60000"]);
    assert_eq!(server.run(&script::MOVE, &[b"k", b"t"], FAR, &[b"", b"NX", b""]).0, EXISTED);
    assert_eq!(server.ask(&[b"EXISTS", b"t"]), Said::Line(Reply::Integer(0)));
    assert_eq!(server.bytes(&[b"GET", b"k"]), b"first");
    assert_eq!(server.ask(&[b"TTL", b"k"]), Said::Line(Reply::Integer(100)));
    assert_eq!(server.run(&script::MOVE, &[b"k", b"gone"], FAR, &[b"", b"", b""]).0, NO_VALUE);
    for (seconds, left) in [(&b""[..], -1), (b"7", 7)] {
        server.ask(&[b"SET", b"t", b"moved", b"PX", b"60000"]);
        assert_eq!(server.run(&script::MOVE, &[b"k", b"t"], FAR, &[seconds, b"", b""]).0, DONE);
        assert_eq!(server.bytes(&[b"GET", b"k"]), b"moved");
        assert_eq!(server.ask(&[b"TTL", b"k"]), Said::Line(Reply::Integer(left)));
    }
}

#[test]
fn golden_generations_grow_and_a_deleted_manifest_leaves_its_own() {
    let Some(mut server) = Server::start() else { return };
    let (_, before) = server.run(&script::SET, &[b"m"], FAR, &[PLACE, b"", b"", b"12345678"]);
    assert_eq!(server.generation(b"m"), (before, b"12345678".to_vec()));
    // A clock that was ahead: the next one is greater all the same.
    let ahead = 9_000_000_000_000_000_u64;
    let value = [b"value".as_slice(), &ahead.to_le_bytes(), b"abcdefgh"].concat();
    server.ask(&[b"SET", b"m", &value]);
    server.ask(&[b"SET", b"t", PLACE]);
    assert_eq!(server.run(&script::MOVE, &[b"m", b"t"], FAR, &[b"", b"", b"ABCDEFGH"]).0, DONE);
    assert_eq!(server.generation(b"m"), (ahead + 1, b"ABCDEFGH".to_vec()));
    assert_eq!(server.bytes(&[b"GETRANGE", b"m", b"0", b"-17"]), b"value");
    assert_eq!(server.run(&script::DELETE, &[b"m"], FAR, &[b"M"]).0, DONE);
    let left = Said::List(vec![
        Said::Bytes(b"kv-store: deleted".to_vec()),
        Said::Bytes(vec![0x01, 0x80, 0xfa, 0xca, 0x73, 0xf9, 0x1f, 0]),
    ]);
    assert_eq!(server.ask(&[b"LRANGE", b"m", b"0", b"-1"]), left);
    // It is kept when nothing is deleted once more.
    assert_eq!(server.run(&script::DELETE, &[b"m"], FAR, &[b"M"]).0, DONE);
    assert_eq!(server.ask(&[b"LRANGE", b"m", b"0", b"-1"]), left);
    let Said::Line(Reply::Integer(millis)) = server.ask(&[b"PTTL", b"m"]) else { panic!("a time to live") };
    assert!((500_000..=600_000).contains(&millis), "{millis}");
    assert_eq!(server.set(b"m", FAR, PLACE, [b"", b"", b"12345678"]), DONE);
    assert_eq!(server.generation(b"m").0, ahead + 2);
    assert_eq!(server.ask(&[b"TTL", b"m"]), Said::Line(Reply::Integer(-1)));
}

#[test]
fn what_has_no_place_for_a_generation_stays_as_it_is() {
    let Some(mut server) = Server::start() else { return };
    for value in [&b""[..], b"short", b"sixteen bytes or", b"more than sixteen bytes"] {
        assert_eq!(server.set(b"m", FAR, value, [b"", b"", b"12345678"]), DONE);
        assert_eq!(server.bytes(&[b"GET", b"m"]), value);
        // What ends in text has no generation to leave.
        assert_eq!(server.run(&script::DELETE, &[b"m"], FAR, &[b"M"]).0, DONE);
        assert_eq!(server.ask(&[b"EXISTS", b"m"]), Said::Line(Reply::Integer(0)));
    }
    // A chunk has none either.
    assert_eq!(server.set(b"c", FAR, PLACE, [b"", b"NX", b""]), DONE);
    assert_eq!(server.bytes(&[b"GET", b"c"]), PLACE);
}
