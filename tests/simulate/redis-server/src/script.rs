//! The scripts of the shipped backend, as Rust. A server knows them by their SHA-1, and so does this one: a script that was changed is one
//! that it does not know, and ends the history with a panic. Then what it does is to be written anew here.

use std::sync::Arc;

use sha1::{Digest, Sha1};

use crate::db::{Db, Value, number};
use crate::resp::{array, error, integer};

/// Carries one out, with its keys and arguments.
type Run = fn(&mut Db, &[Vec<u8>], &[Vec<u8>]) -> Vec<u8>;

/// One that the server knows.
#[derive(Clone, Copy)]
pub struct Script {
    pub sha1: &'static str,
    pub name: &'static str,
    run: Run,
}

const SCRIPTS: &[Script] = &[
    Script { sha1: "306b2c4cc82b9978b6dc33f4ab92685196fe0563", name: "set", run: set },
    Script { sha1: "2850cfcef4f74d1b80c760289780e1bc176eca99", name: "rename", run: rename },
    Script { sha1: "82b2e6b8fa2ccab6e332a845c37da34493318756", name: "delete", run: delete },
    Script { sha1: "c8213c091415ee66ad550308c9d602b8c014cd1c", name: "probe", run: |db, _, _| db.time() },
];

const DONE: i64 = 0;
const EXISTED: i64 = 1;
const LATE: i64 = 2;
const NO_VALUE: i64 = 3;

/// First of the list that a deleted manifest leaves.
const DELETED: &[u8] = b"kv-store: deleted";
const DELETED_FOR_MS: u64 = 600_000;
/// From here on Lua has no number exactly.
const NOT_EXACT: f64 = 9_007_199_254_740_991.0;

pub fn of_text(text: &[u8]) -> Script {
    let sha1 = hex::encode(Sha1::digest(text));
    of_name(sha1.as_bytes()).unwrap_or_else(|| {
        panic!(
            "the backend sends a script that the simulated redis-server does not know, {sha1}: write in {} what it does:\n{}",
            file!(),
            String::from_utf8_lossy(text)
        )
    })
}

pub fn of_name(sha1: &[u8]) -> Option<Script> {
    SCRIPTS.iter().find(|script| script.sha1.as_bytes() == sha1).copied()
}

/// `rest`: the number of keys, keys, and arguments.
pub fn run(db: &mut Db, script: Script, rest: &[Vec<u8>]) -> Vec<u8> {
    let (count, rest) = rest.split_first().expect("a script is told how many keys it has");
    let (keys, arguments) = rest.split_at(number(count) as usize);
    (script.run)(db, keys, arguments)
}

fn answer(db: &Db, code: i64) -> Vec<u8> {
    array(&[integer(code), integer(db.now as i64)])
}

/// `late` of each script: Lua has numbers of 53 bits.
fn is_late(db: &Db, script: &str, arguments: &[Vec<u8>]) -> bool {
    let end: f64 =
        std::str::from_utf8(&arguments[0]).ok().and_then(|end| end.parse().ok()).expect("an end is a number");
    db.now as f64 >= end && db.carries_out_late != Some(script)
}

/// `generation()` of each script.
fn generation(db: &Db, key: &[u8]) -> Option<u64> {
    let bytes: &[u8] = match db.keys.get(key).map(|item| &item.value) {
        Some(Value::String(value)) => value.len().checked_sub(16).map_or(&[][..], |at| &value[at..at + 8]),
        Some(Value::List(items)) if items.first().is_some_and(|first| first == DELETED) => {
            items.get(1).map_or(&[][..], Vec::as_slice)
        }
        _ => &[],
    };
    let byte = |place: usize| f64::from(bytes.get(place).copied().unwrap_or(0));
    let number = (0..8).rev().fold(0.0, |number, place| number * 256.0 + byte(place));
    (number > 0.0 && number < NOT_EXACT).then_some(number as u64)
}

/// The end of those that set: a manifest gets its generation.
fn mark(db: &mut Db, key: &[u8], nonce: &[u8], former: Option<u64>) -> Vec<u8> {
    let value = db.string(key).expect("it was just set");
    if !nonce.is_empty() && value.ends_with(&[0; 16]) {
        let at = value.len() - 16;
        let mut marked = value[..at].to_vec();
        marked.extend(db.now.max(former.unwrap_or(0) + 1).to_le_bytes());
        marked.extend(nonce);
        if let Some(item) = db.keys.get_mut(key) {
            item.value = Value::String(Arc::new(marked));
        }
    }
    answer(db, DONE)
}

/// Key; end, value, seconds to live or nothing, NX or nothing, nonce or nothing.
fn set(db: &mut Db, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> Vec<u8> {
    let ([key], [_, value, seconds, only_new, nonce]) = (keys, arguments) else { panic!("other arguments") };
    if is_late(db, "set", arguments) {
        return answer(db, LATE);
    }
    let former = if nonce.is_empty() { None } else { generation(db, key) };
    if let Some(refusal) = db.refuses() {
        return error(refusal);
    }
    let millis = (!seconds.is_empty()).then(|| 1000 * number(seconds));
    match db.store(key, value, only_new == b"NX", millis) {
        false => answer(db, EXISTED),
        true => mark(db, key, nonce, former),
    }
}

/// Key, and the one under which the value was put; end, seconds, NX, nonce.
fn rename(db: &mut Db, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> Vec<u8> {
    let ([key, value], [_, seconds, only_new, nonce]) = (keys, arguments) else { panic!("other arguments") };
    if is_late(db, "rename", arguments) {
        db.remove(value);
        return answer(db, LATE);
    }
    if !db.keys.contains_key(&value[..]) {
        return answer(db, NO_VALUE);
    }
    let former = if nonce.is_empty() { None } else { generation(db, key) };
    if !only_new.is_empty() && db.keys.contains_key(&key[..]) {
        db.remove(value);
        return answer(db, EXISTED);
    }
    if let Some(mut item) = db.keys.remove(&value[..]) {
        item.expires = None;
        db.keys.insert(key[..].into(), item);
    }
    if !seconds.is_empty() {
        db.expire(key, 1000 * number(seconds));
    }
    mark(db, key, nonce, former)
}

/// Key; end, and M or nothing.
fn delete(db: &mut Db, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> Vec<u8> {
    let ([key], [_, is_manifest]) = (keys, arguments) else { panic!("other arguments") };
    if is_late(db, "delete", arguments) {
        return answer(db, LATE);
    }
    let former = if is_manifest.is_empty() { None } else { generation(db, key) };
    db.remove(key);
    if let Some(former) = former {
        let left = vec![DELETED.to_vec(), former.to_le_bytes().to_vec()];
        db.put(key, Value::List(left), Some(db.now / 1000 + DELETED_FOR_MS));
    }
    answer(db, DONE)
}
