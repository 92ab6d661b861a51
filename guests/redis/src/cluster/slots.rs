//! Which node of a cluster serves which key: the 16,384 hash slots (Redis Cluster specification, "Key distribution model"), and
//! the redirections that move them.

use kv_store_sdk::{Error, Result};

use crate::resp::Value;

const SLOTS: usize = 16_384;
/// More nodes than the Redis Cluster specification recommends (1,000) by far.
const MAX_NODES: usize = 4_096;
const NONE: u16 = u16::MAX;
const POLYNOMIAL: u16 = 0x1021;

/// The slot of a key: CRC-16/XMODEM of the key, or of its hash tag, modulo 16,384.
pub fn slot_of(key: &[u8]) -> u16 {
    crc(tagged(key)) % SLOTS as u16
}

fn crc(bytes: &[u8]) -> u16 {
    let step = |sum: u16| if sum & 0x8000 == 0 { sum << 1 } else { sum << 1 ^ POLYNOMIAL };
    bytes.iter().fold(0, |sum, byte| (0..8).fold(sum ^ (u16::from(*byte) << 8), |sum, _| step(sum)))
}

/// A key with two bytes more, by which it has this slot; unless it has a hash tag.
pub fn with_slot(mut key: Vec<u8>, slot: u16) -> Vec<u8> {
    // Two bytes take the sum to any other: the steps that they make are taken back from where it is to end.
    let back = |sum: u16| if sum & 1 == 1 { (sum ^ POLYNOMIAL) >> 1 | 0x8000 } else { sum >> 1 };
    let start = (0..16).fold(slot, |sum, _| back(sum));
    let bytes = start ^ crc(&key);
    key.extend(bytes.to_be_bytes());
    key
}

/// What is hashed: the bytes between the first `{` and the first `}` after it, unless there are none.
fn tagged(key: &[u8]) -> &[u8] {
    let tag = || {
        let (_, after) = split(key, b'{')?;
        let (tag, _) = split(after, b'}')?;
        (!tag.is_empty()).then_some(tag)
    };
    tag().unwrap_or(key)
}

fn split(bytes: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let position = bytes.iter().position(|byte| *byte == at)?;
    Some((bytes.get(..position)?, bytes.get(position + 1..)?))
}

/// The masters, and the slots that each serves.
#[derive(Debug, PartialEq, Eq)]
pub struct Slots {
    /// `host:port`.
    masters: Vec<String>,
    /// For each slot the number of its master, or [`NONE`].
    owners: Vec<u16>,
}

impl Slots {
    /// The map in a reply to CLUSTER SLOTS; `asked`: the `host:port` that sent it, whose host stands for one that is not announced.
    pub fn parse(reply: &Value, asked: &str) -> Result<Self> {
        let mut slots = Slots { masters: Vec::new(), owners: vec![NONE; SLOTS] };
        let ranges = reply.list().ok_or_else(|| malformed("is not a list"))?;
        for range in ranges {
            let [start, end, master, ..] = range.list().unwrap_or_default() else {
                return Err(malformed("has a range without a master"));
            };
            let bound = |value: &Value| usize::try_from(value.integer()?).ok();
            let owners = match (bound(start), bound(end)) {
                (Some(start), Some(end)) => slots.owners.get_mut(start..=end),
                _ => None,
            };
            let Some(owners) = owners else { return Err(malformed("has a range of slots that do not exist")) };
            let [host, port, ..] = master.list().unwrap_or_default() else {
                return Err(malformed("has a node without host and port"));
            };
            let port = port.integer().and_then(|port| u16::try_from(port).ok());
            let port = port.ok_or_else(|| malformed("has a node without a port"))?;
            let authority = announced(host.text().unwrap_or_default(), port, asked)?;
            let number = match slots.masters.iter().position(|known| *known == authority) {
                Some(number) => number,
                None if slots.masters.len() == MAX_NODES => return Err(malformed("has too many nodes")),
                None => {
                    slots.masters.push(authority);
                    slots.masters.len() - 1
                }
            };
            owners.fill(number as u16);
        }
        Ok(slots)
    }

    /// `host:port` of the masters, each once.
    pub fn masters(&self) -> &[String] {
        &self.masters
    }

    /// Who serves a slot.
    pub fn owner(&self, slot: u16) -> Option<&str> {
        let number = *self.owners.get(usize::from(slot))?;
        self.masters.get(usize::from(number)).map(String::as_str)
    }

    /// A node said that another one serves this slot now.
    pub fn moved(&mut self, slot: u16, authority: &str) {
        let number = self.masters.iter().position(|known| known == authority);
        let number = number.or_else(|| {
            (self.masters.len() < MAX_NODES).then(|| {
                self.masters.push(authority.to_owned());
                self.masters.len() - 1
            })
        });
        if let (Some(owner), Some(number)) = (self.owners.get_mut(usize::from(slot)), number) {
            *owner = number as u16;
        }
    }
}

fn malformed(what: &str) -> Error {
    Error::corrupt(format!("the reply to CLUSTER SLOTS {what}"))
}

/// `host:port` as it was announced. No host: the one that was asked.
fn announced(host: &str, port: u16, asked: &str) -> Result<String> {
    match host {
        "?" => Err(Error::unsupported(
            "the cluster announces no hostnames: set cluster-announce-hostname, or cluster-preferred-endpoint-type ip",
        )),
        "" => {
            let host = asked.rsplit_once(':').map_or(asked, |(host, _)| host);
            Ok(format!("{host}:{port}"))
        }
        host if host.contains(':') && !host.starts_with('[') => Ok(format!("[{host}]:{port}")),
        host => Ok(format!("{host}:{port}")),
    }
}

/// Where a node sends a client instead of answering.
#[derive(Debug, PartialEq, Eq)]
pub enum Redirection {
    /// For good.
    Moved { slot: u16, authority: String },
    /// Once, after ASKING.
    Ask { authority: String },
}

impl Redirection {
    /// The redirection that a refusal is: `MOVED 3999 127.0.0.1:6381`, `ASK 3999 :6381`. None: it is another refusal.
    pub fn parse(refusal: &str, asked: &str) -> Option<Result<Self>> {
        let mut words = refusal.split(' ');
        let (kind @ ("MOVED" | "ASK"), slot, place) = (words.next()?, words.next()?, words.next()?) else {
            return None;
        };
        let slot = slot.parse::<u16>().ok().filter(|slot| usize::from(*slot) < SLOTS)?;
        let (host, port) = place.rsplit_once(':')?;
        let port = port.parse().ok()?;
        Some(announced(host, port, asked).map(|authority| match kind {
            "MOVED" => Redirection::Moved { slot, authority },
            _ => Redirection::Ask { authority },
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kv_store_sdk::ErrorKind;
    use proptest::prelude::*;

    fn node(host: Value, port: i64) -> Value {
        Value::List(vec![host, Value::Integer(port), Value::Text("id".into()), Value::List(vec![])])
    }

    fn range(start: i64, end: i64, master: Value) -> Value {
        Value::List(vec![Value::Integer(start), Value::Integer(end), master, node(Value::Text("replica".into()), 1)])
    }

    #[test]
    fn keys_have_the_slots_of_the_specification() {
        // From the specification, and as `CLUSTER KEYSLOT` of Redis 7.0 answers.
        for (key, slot) in [("123456789", 0x31c3), ("foo", 12182), ("{user1000}.following", 3443), ("", 0)] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
        assert_eq!(slot_of(b"{user1000}.followers"), slot_of(b"user1000"));
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
        assert_ne!(slot_of(b"foo{}{bar}"), slot_of(b"bar"));
    }

    #[test]
    fn a_map_names_masters_and_moves() {
        let text = |text: &str| Value::Text(text.into());
        let reply = Value::List(vec![
            range(0, 5460, node(text("10.0.0.1"), 7001)),
            range(5461, 10922, node(text(""), 7002)),
            range(10923, 16383, node(Value::Nothing, 7001)),
        ]);
        let mut slots = Slots::parse(&reply, "10.0.0.1:7009").unwrap();
        assert_eq!(slots.masters(), ["10.0.0.1:7001", "10.0.0.1:7002"]);
        assert_eq!(slots.owner(16383), Some("10.0.0.1:7001"));
        slots.moved(16383, "10.0.0.9:1");
        assert_eq!((slots.owner(16383), slots.owner(16382)), (Some("10.0.0.9:1"), Some("10.0.0.1:7001")));
        let part = Slots::parse(&Value::List(vec![range(5, 5, node(text("2001:db8::1"), 7))]), "h:1").unwrap();
        assert_eq!((part.owner(5), part.owner(6)), (Some("[2001:db8::1]:7"), None));
    }

    #[test]
    fn what_is_no_map_is_refused() {
        let good = || node(Value::Text("h".into()), 1);
        for wrong in [
            Value::Nothing,
            Value::List(vec![Value::Integer(1)]),
            Value::List(vec![range(0, 16384, good())]),
            Value::List(vec![range(-1, 5, good())]),
            Value::List(vec![range(7, 5, good())]),
            Value::List(vec![range(0, 5, Value::Nothing)]),
            Value::List(vec![range(0, 5, node(Value::Text("h".into()), 65536))]),
        ] {
            assert_eq!(Slots::parse(&wrong, "h:1").unwrap_err().kind, ErrorKind::Corrupt, "{wrong:?}");
        }
        let unnamed = Value::List(vec![range(0, 5, node(Value::Text("?".into()), 1))]);
        assert_eq!(Slots::parse(&unnamed, "h:1").unwrap_err().kind, ErrorKind::Unsupported);
    }

    #[test]
    fn redirections_are_told_from_other_refusals() {
        let parse = |refusal| Redirection::parse(refusal, "seed:7000").map(Result::unwrap);
        let moved = |slot, authority: &str| Some(Redirection::Moved { slot, authority: authority.into() });
        assert_eq!(parse("MOVED 3999 127.0.0.1:6381"), moved(3999, "127.0.0.1:6381"));
        assert_eq!(parse("MOVED 3999 :6381"), moved(3999, "seed:6381"));
        assert_eq!(parse("MOVED 1 ::1:6381"), moved(1, "[::1]:6381"));
        assert_eq!(parse("ASK 3999 host:1"), Some(Redirection::Ask { authority: "host:1".into() }));
        for other in ["MOVED", "MOVED 3999", "MOVED 16384 h:1", "MOVED x h:1", "ASK 1 h", "ASK 1 h:99999", "ERR no", ""]
        {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn nothing_that_a_node_says_panics(refusal in "(MOVED|ASK)? ?[0-9]{0,6} ?[a-z?:\\[\\]0-9]{0,12}", asked in "\\PC{0,8}") {
            let _ = Redirection::parse(&refusal, &asked);
        }

        #[test]
        fn a_name_is_found_in_any_slot(key in "[a-z:{]{0,40}", slot in 0..SLOTS as u16) {
            let name = with_slot(key.into_bytes(), slot);
            let closes = name.ends_with(b"}") || name.get(name.len() - 2) == Some(&b'}');
            prop_assert!(closes || slot_of(&name) == slot);
        }

        #[test]
        fn every_key_has_a_slot(key in proptest::collection::vec(any::<u8>(), 0..80)) {
            prop_assert!(usize::from(slot_of(&key)) < SLOTS);
        }
    }
}
