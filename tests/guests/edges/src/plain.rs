//! `payloads` without items, and `system`.

use kv_store_sdk::payloads::{Part, Range, crc32c, hmac_sha256, sha256, xxh3};
use kv_store_sdk::{Payload, changes, system};

use crate::{content, done, kind, row, text};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

pub fn ask() {
    let Ok(payload) = Payload::from_bytes(b"0123456789") else { return };
    row("from-bytes: len", Ok(payload.len()));
    row("from-bytes of nothing: len", Payload::from_bytes(b"").map(|empty| empty.len()));
    row("read: all", payload.read(0, 10).map(|bytes| text(&bytes)));
    row("read: nothing at the end", payload.read(10, 0).map(|bytes| text(&bytes)));
    row("read: one byte past the end", payload.read(10, 1).map(|bytes| text(&bytes)));
    row("read: to past the end", payload.read(5, 6).map(|bytes| text(&bytes)));
    row("read: from far past the end", payload.read(u64::MAX, 1).map(|bytes| text(&bytes)));
    row("share", payload.share().and_then(|shared| content(&shared)));

    let range = |offset, len| Part::Range(Range { payload: &payload, offset, len });
    let joined = |parts: &[Part]| Payload::from_parts(parts).and_then(|joined| content(&joined));
    row("from-parts: none", joined(&[]));
    row(
        "from-parts: bytes, a payload, a range",
        joined(&[Part::Bytes(b"a".to_vec()), Part::Payload(&payload), range(2, 3)]),
    );
    row("from-parts: a range of nothing at the end", joined(&[range(10, 0)]));
    row("from-parts: a range past the end", joined(&[range(8, 3)]));
    row("from-parts: a range whose end does not fit 64 bits", joined(&[range(2, u64::MAX)]));
    row("crc32c", crc32c(&[Part::Payload(&payload)]).map(|sum| format!("{sum:08x}")));
    row("crc32c of nothing", crc32c(&[]));
    row("xxh3", xxh3(&[range(0, 4), range(4, 6)]).map(|sum| format!("{sum:016x}")));
    row("sha256", sha256(&[Part::Bytes(b"abc".to_vec())]).map(|sum| hex(&sum)));
    row("hmac-sha256", hmac_sha256(b"key", &[Part::Bytes(b"abc".to_vec())]).map(|sum| hex(&sum)));
    row("hmac-sha256 with a key of nothing", hmac_sha256(b"", &[]).map(|sum| hex(&sum)));
    row("sha256 past the end", sha256(&[range(1, 10)]).map(|sum| hex(&sum)));

    row("secret: not set", system::secret("edges-not-set").map(|secret| secret.unwrap_or_else(|| "none".into())));
    for (what, name) in [("nothing", String::new()), ("capitals", "Password".into()), ("65 bytes", "a".repeat(65))] {
        row(&format!("secret: a name of {what}"), done(system::secret(&name)));
    }
    let (then, since) = (system::monotonic(), system::now());
    row("sleep: nothing", done(system::sleep(0)));
    row("sleep: a millisecond", done(system::sleep(1_000_000)));
    row("monotonic: it goes on by that", Ok(system::monotonic() - then >= 1_000_000));
    row("now: it is not before 2024, and goes on", Ok(since > 1_704_000_000_000_000_000 && system::now() >= since));
    row("sleep: past the deadline", done(system::sleep(u64::MAX)));
    row("sleep: past the deadline, at once", Ok(system::monotonic() - then < 5_000_000_000));
    row("remaining: at most the deadline", Ok(system::remaining() <= 60_000_000_000 && system::remaining() > 0));
    row("random: not twice the same", Ok(system::random() != system::random()));
    row("fact: contract", Ok(system::fact("contract").unwrap_or_default()));
    row("fact: host is known", Ok(system::fact("host").is_some()));
    for name in ["memory-bytes", "payload-bytes", "connections", "patience-ms", "batch-items"] {
        row(
            &format!("fact: {name} is a number"),
            Ok(system::fact(name).is_some_and(|fact| fact.parse::<u64>().is_ok())),
        );
    }
    row("fact: unknown", Ok(system::fact("no-such-fact").unwrap_or_else(|| "none".into())));
    row("fact: of an empty name", Ok(system::fact("").unwrap_or_else(|| "none".into())));
    row("changes: begin of a put that is none", Ok(changes::begin(&[0], b"token").len()));
    row("changes: begin of an item that is not there", Ok(changes::begin(&[99], b"").len()));
    changes::not_done(&[0, 99]);
    let Err(error) = payload.read(11, 1) else { return };
    row(
        "error: a message of one line",
        Ok(!error.message.is_empty() && !error.message.contains('\n') && kind(&error) == "invalid"),
    );
}
