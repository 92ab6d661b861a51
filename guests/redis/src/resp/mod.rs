//! RESP2: commands as they are sent, and the replies that are not payloads ([`reply`]).

mod keys;
mod reply;

use std::ops::Range;

use kv_store_sdk::payloads::Part;

pub use keys::Keys;
pub use reply::{Reply, Value, explain, line};

pub const LINE_END: &[u8] = b"\r\n";

/// A command of small arguments.
pub fn command(arguments: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let room: usize = arguments.iter().map(|argument| argument.as_ref().len() + 16).sum();
    let mut bytes = Vec::with_capacity(room + 16);
    push_count(&mut bytes, b'*', arguments.len() as u64);
    for argument in arguments {
        push_bulk(&mut bytes, &[argument.as_ref()]);
    }
    bytes
}

/// A command about one key.
pub fn one_key(name: &str, key: &[u8]) -> Part<'static> {
    Part::Bytes(command(&[name.as_bytes(), key]))
}

/// A command of these words and then some keys of a batch.
pub fn push_of_keys(all: &mut Vec<u8>, words: &[&[u8]], keys: &Keys, which: Range<usize>) {
    push_count(all, b'*', (words.len() + which.len()) as u64);
    words.iter().for_each(|word| push_bulk(all, &[word]));
    all.extend_from_slice(keys.arguments(which));
}

/// One command of these words and then all keys.
pub fn of_keys(words: &[&[u8]], keys: &Keys) -> Part<'static> {
    let mut all = Vec::with_capacity(keys.arguments(0..keys.len()).len() + 64);
    push_of_keys(&mut all, words, keys, 0..keys.len());
    Part::Bytes(all)
}

/// One command after another, for each key one: the words before it, and those behind it. One part, because a batch has hundreds.
pub fn for_each(keys: &Keys, before: &[&[u8]], after: &[&[u8]]) -> Part<'static> {
    let (mut head, mut tail) = (Vec::new(), Vec::new());
    push_count(&mut head, b'*', (before.len() + 1 + after.len()) as u64);
    before.iter().for_each(|word| push_bulk(&mut head, &[word]));
    after.iter().for_each(|word| push_bulk(&mut tail, &[word]));
    let room = keys.arguments(0..keys.len()).len() + keys.len() * (head.len() + tail.len());
    let mut all = Vec::with_capacity(room);
    for number in 0..keys.len() {
        all.extend_from_slice(&head);
        all.extend_from_slice(keys.arguments(number..number + 1));
        all.extend_from_slice(&tail);
    }
    Part::Bytes(all)
}

/// `LINDEX key 0`.
pub fn first_of(key: &[u8]) -> Part<'static> {
    Part::Bytes(command(&[b"LINDEX", key, b"0"]))
}

/// `EXPIRE key seconds`.
pub fn expire(key: &[u8], seconds: u64) -> Part<'static> {
    Part::Bytes(command(&[b"EXPIRE", key, itoa::Buffer::new().format(seconds).as_bytes()]))
}

/// `SET key value [NX] [EX seconds]`, around a value that stays in the host.
pub fn set<'a>(value: &crate::NewValue<'a>, only_new: bool) -> [Part<'a>; 3] {
    let mut rest = Vec::new();
    rest.extend(only_new.then(|| b"NX".to_vec()));
    if let Some(seconds) = value.seconds {
        rest.extend([b"EX".to_vec(), itoa::Buffer::new().format(seconds).into()]);
    }
    let (before, after) = around(&[b"SET", &value.key], Some(value.len), &rest);
    [Part::Bytes(before), value.part.clone(), Part::Bytes(after)]
}

/// `SET key value PX milliseconds`, the same.
pub fn set_for<'a>(key: &[u8], value: &crate::NewValue<'a>, millis: u64) -> [Part<'a>; 3] {
    let rest = [b"PX".to_vec(), itoa::Buffer::new().format(millis).into()];
    let (before, after) = around(&[b"SET", key], Some(value.len), &rest);
    [Part::Bytes(before), value.part.clone(), Part::Bytes(after)]
}

/// What comes before and after the bytes of a value of that length, which follows the words of a command. Without a value all of it comes
/// before.
pub fn around(words: &[&[u8]], value: Option<u64>, rest: &[Vec<u8>]) -> (Vec<u8>, Vec<u8>) {
    let room: usize = words.iter().map(|word| word.len() + 16).sum();
    let mut before = Vec::with_capacity(room + 32);
    push_count(&mut before, b'*', (words.len() + usize::from(value.is_some()) + rest.len()) as u64);
    for word in words {
        push_bulk(&mut before, &[word]);
    }
    let mut after = Vec::new();
    let tail = match value {
        None => &mut before,
        Some(len) => {
            push_count(&mut before, b'$', len);
            after.extend_from_slice(LINE_END);
            &mut after
        }
    };
    for argument in rest {
        push_bulk(tail, &[argument]);
    }
    (before, after)
}

/// The argument that these parts are.
pub fn push_bulk(bytes: &mut Vec<u8>, parts: &[&[u8]]) {
    push_count(bytes, b'$', parts.iter().map(|part| part.len() as u64).sum());
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes.extend_from_slice(LINE_END);
}

/// A kind of reply or argument, and how much of it there is.
fn push_count(bytes: &mut Vec<u8>, kind: u8, count: u64) {
    bytes.push(kind);
    // A batch has hundreds of these, and `format!` takes as long for one as all the rest of its argument.
    bytes.extend_from_slice(itoa::Buffer::new().format(count).as_bytes());
    bytes.extend_from_slice(LINE_END);
}

#[cfg(test)]
mod tests {
    use super::*;
    use kv_store_sdk::ErrorKind;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn commands_are_binary_safe() {
        let bytes = command(&[&b"EXISTS"[..], b"a\r\n\0b"]);
        assert_eq!(bytes, b"*2\r\n$6\r\nEXISTS\r\n$5\r\na\r\n\0b\r\n");
    }

    #[test]
    fn replies_are_told_apart() {
        for (line, reply) in [
            (&b"+OK"[..], Reply::Status("OK".into())),
            (b":-3", Reply::Integer(-3)),
            (b"$5", Reply::Bulk(5)),
            (b"$-1", Reply::Nothing),
            (b"*-1", Reply::Nothing),
            (b"*2", Reply::Array(2)),
            (b"-OOM no", Reply::Refused("OOM no".into())),
        ] {
            assert_eq!(Reply::parse(line).unwrap(), reply);
        }
        for line in [&b""[..], b"HTTP/1.1 400", b"$", b"$x", b"$-2", b"*-2", b":", b"$99999999999999999999"] {
            assert_eq!(Reply::parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn each_refusal_says_what_would_help() {
        for (refusal, kind, said) in [
            ("NOAUTH Authentication required.", ErrorKind::Denied, "REDIS_PASSWORD"),
            ("WRONGPASS invalid username-password pair", ErrorKind::Denied, "REDIS_PASSWORD"),
            ("OOM command not allowed", ErrorKind::Exhausted, "maxmemory"),
            ("LOADING Redis is loading", ErrorKind::Busy, "loading"),
            ("BUSY Redis is busy running a script", ErrorKind::Busy, "busy"),
            ("READONLY You can't write", ErrorKind::Denied, "primary"),
            ("MOVED 3999 127.0.0.1:6381", ErrorKind::Unavailable, "Cluster"),
            ("CLUSTERDOWN Hash slot not served", ErrorKind::Unavailable, "cluster"),
            ("WRONGTYPE Operation", ErrorKind::Corrupt, "prefix"),
            ("ERR SELECT is not allowed in cluster mode", ErrorKind::Invalid, "database 0 only"),
            ("ERR DB index is out of range", ErrorKind::Invalid, "database"),
        ] {
            let error = explain(refusal);
            assert!(error.kind == kind && error.message.contains(said), "{refusal}: {error:?}");
            assert_eq!(error.code.as_deref(), refusal.split(' ').next());
        }
    }

    /// The arguments of the one command that these bytes are, as a server takes them apart.
    fn arguments(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
        fn number(bytes: &[u8], kind: u8) -> Option<(usize, &[u8])> {
            let end = bytes.windows(2).position(|two| two == b"\r\n")?;
            let digits = bytes.get(..end)?.strip_prefix(&[kind])?;
            let canonical = digits.iter().all(u8::is_ascii_digit) && (digits == b"0" || !digits.starts_with(b"0"));
            let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
            canonical.then_some((number, bytes.get(end + 2..)?))
        }
        let (count, mut rest) = number(bytes, b'*')?;
        let mut arguments = Vec::new();
        for _ in 0..count {
            let (len, after) = number(rest, b'$')?;
            arguments.push(after.get(..len)?.to_vec());
            rest = after.get(len..)?.strip_prefix(b"\r\n")?;
        }
        rest.is_empty().then_some(arguments)
    }

    /// Bytes of which many mean something in the protocol.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        vec(prop_oneof![any::<u8>(), prop::sample::select(&b"\r\n$*+-:0123456789"[..])], 0..40)
    }

    /// The first byte of a reply, and then anything.
    fn line() -> impl Strategy<Value = Vec<u8>> {
        (prop::sample::select(&b"+-:$*"[..]), bytes()).prop_map(|(kind, rest)| [vec![kind], rest].concat())
    }

    proptest! {
        #[test]
        fn no_line_panics_and_each_is_what_it_says(line in prop_oneof![bytes(), line()]) {
            let expected = line.split_first().and_then(|(kind, rest)| {
                let text = String::from_utf8_lossy(rest).into_owned();
                Some(match (kind, text.parse::<i64>()) {
                    (b'+', _) => Reply::Status(text),
                    (b'-', _) => Reply::Refused(text),
                    (b':', Ok(number)) => Reply::Integer(number),
                    (b'$' | b'*', Ok(-1)) => Reply::Nothing,
                    (b'$', Ok(len @ 0..)) => Reply::Bulk(len as u64),
                    (b'*', Ok(count @ 0..)) => Reply::Array(count as usize),
                    _ => return None,
                })
            });
            prop_assert_eq!(Reply::parse(&line), expected);
        }

        #[test]
        fn numbers_of_replies_are_read(number in any::<i64>()) {
            let parsed = |kind: char| Reply::parse(format!("{kind}{number}").as_bytes());
            prop_assert_eq!(parsed(':'), Some(Reply::Integer(number)));
            let there = (number >= 0).then_some(Reply::Bulk(number as u64));
            prop_assert_eq!(parsed('$'), if number == -1 { Some(Reply::Nothing) } else { there });
        }

        #[test]
        fn a_command_is_taken_apart_again(given in vec(bytes(), 1..6)) {
            prop_assert_eq!(arguments(&command(&given)), Some(given));
        }

        #[test]
        fn a_command_for_each_key_is_what_each_would_be_by_itself(
            keys in vec(bytes(), 0..5), before in vec(bytes(), 1..3), after in vec(bytes(), 0..3),
        ) {
            let single = |key: &Vec<u8>| command(&[&before[..], std::slice::from_ref(key), &after].concat());
            let words = [&before, &after].map(|words| words.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let all: Keys = keys.iter().collect();
            let Part::Bytes(all) = for_each(&all, &words[0], &words[1]) else { panic!("other bytes") };
            prop_assert_eq!(all, keys.iter().flat_map(single).collect::<Vec<u8>>());
        }

        #[test]
        fn a_command_around_a_value_is_taken_apart_again(
            words in vec(bytes(), 1..5), value in any::<Option<bool>>(), content in bytes(), rest in vec(bytes(), 0..4),
        ) {
            let value = value.map(|_| content);
            let given: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            let (before, after) = around(&given, value.as_ref().map(|value| value.len() as u64), &rest);
            let sent = [before, value.clone().unwrap_or_default(), after].concat();
            prop_assert_eq!(arguments(&sent), Some([words, value.into_iter().collect(), rest].concat()));
        }
    }
}
