//! Mooncake's master: which objects there are, and where their replicas lie.

use kv_store_sdk::payloads::Part;
use kv_store_sdk::{Conversation, Error, Peer, Result, system};

use crate::calls::{self, Call};
use crate::wire::{self, ANSWER_HEAD, Head, Reader, Writer};

/// Objects of one call. The master takes more; a longer list would need another width of lengths in its answer.
pub const MAX_OBJECTS: usize = 128;
/// More than the answer about [`MAX_OBJECTS`] objects of eight replicas has.
const MAX_ANSWER_BYTES: u32 = 1 << 20;
/// The most of a listing that is taken at once. Below 65,536 objects, so that lengths in it have two bytes.
const MAX_LISTING_BYTES: u32 = 4 << 20;
/// One request is under way on a connection at any time.
const SEQUENCE: u32 = 1;
/// Kinds of replicas that a call is about: those in memory.
const ALL_REPLICAS: [u8; 4] = 4_u32.to_le_bytes();
const SOFT_PIN: u8 = 1;
/// Kinds of replicas in an answer.
const MEMORY: u8 = 0;
const REMOTE_DISK: u8 = 1;
const FILE: u8 = 2;
const LOCAL_DISK: u8 = 3;
const NANOSECONDS_PER_MILLISECOND: u64 = 1_000_000;
/// Which tenant of Mooncake's own the objects belong to.
const TENANT: &str = "default";

/// Numbers of the master's errors (Mooncake, `mooncake-store/include/types.h`).
pub const NOT_READY: i32 = -703;
pub const NOT_FOUND: i32 = -704;
pub const ALREADY_EXISTS: i32 = -705;
const NO_AVAILABLE_HANDLE: i32 = -200;
const INVALID_PARAMS: i32 = -600;

/// What the master says of an object, or why not.
pub type Answer<T> = std::result::Result<T, i32>;

/// A copy of an object in the memory of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Bytes.
    pub size: u64,
    pub address: u64,
    /// `host:port` where the node tells what it speaks.
    pub endpoint: String,
}

/// Objects by key, and where they lie.
pub type Listing = Vec<(String, Vec<Replica>)>;

/// Where an object lies, for so long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    pub replicas: Vec<Replica>,
    /// Nanoseconds from the moment of the answer.
    pub lease: u64,
}

/// How objects are placed.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    pub replicas: u64,
    /// Evicted after what is not pinned.
    pub soft_pin: bool,
}

/// As whom objects are put: only the client that began a put ends it, or gives it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client(pub [u8; 16]);

impl Client {
    /// One that nobody was before. Each change is one of its own: an end of a put that comes late then ends no later put of the same
    /// object, and who knows the client of a change can give back what it began.
    pub fn new() -> Self {
        let mut id = [0; 16];
        id.chunks_mut(8).for_each(|eight| eight.copy_from_slice(&system::random().to_le_bytes()));
        Client(id)
    }
}

pub struct Master {
    peer: Peer,
}

impl Master {
    pub fn new(authority: &str) -> Result<Self> {
        Ok(Master { peer: Peer::new(authority, false, "coro_rpc")? })
    }

    /// The version of the protocol, which must be the one that [`calls`] is the table of.
    pub fn check_version(&self) -> Result<()> {
        let answer = self.ask(&calls::SERVICE_READY, Vec::new())?;
        let mut reader = Reader::new(&answer, calls::SERVICE_READY.answer)?;
        match reader
            .expected(|reader| reader.text())
            .ok_or_else(|| Error::corrupt("the master's version is cut off"))?
        {
            Ok(version) if version == calls::PROTOCOL => Ok(()),
            Ok(version) => Err(Error::unsupported(format!(
                "the master speaks protocol {version}, this component {}: install a Mooncake of that version, or a component \
                 for yours",
                calls::VERSIONS
            ))),
            Err(code) => Err(explain(code)),
        }
    }

    /// Reserve memory for objects of these lengths.
    pub fn put_start(
        &self,
        client: Client,
        keys: &[String],
        lens: &[u64],
        placement: Placement,
    ) -> Result<Vec<Answer<Vec<Replica>>>> {
        self.batch(&calls::BATCH_PUT_START, keys, replicas, |writer| {
            writer.raw(&client.0);
            writer.list(keys, |writer, key| writer.text(key));
            writer.list(lens, |writer, len| writer.u64(*len));
            writer.u64(placement.replicas);
            // No replicas of other kinds.
            writer.raw(&[0; 16]);
            match placement.soft_pin {
                true => {
                    writer.raw(&[SOFT_PIN, 1]);
                    // For as long as the master's own default.
                    writer.u64(0);
                }
                false => writer.raw(&[0, 0]),
            }
            writer.raw(&[0; 8]);
        })
    }

    /// Make written objects visible.
    pub fn put_end(&self, client: Client, keys: &[String]) -> Result<Vec<Answer<()>>> {
        self.batch(&calls::BATCH_PUT_END, keys, nothing, |writer| {
            writer.raw(&client.0);
            writer.list(keys, |writer, key| {
                writer.text(key);
                writer.len(0);
            });
            writer.raw(&ALL_REPLICAS);
        })
    }

    /// Give back what a client began and has not ended. What is whole, or another client's, stays.
    pub fn put_revoke(&self, client: Client, keys: &[String]) -> Result<Vec<Answer<()>>> {
        self.batch(&calls::BATCH_PUT_REVOKE, keys, nothing, |writer| {
            writer.raw(&client.0);
            writer.list(keys, |writer, key| writer.text(key));
            writer.raw(&ALL_REPLICAS);
        })
    }

    /// Where objects lie. What is answered may be read until its lease ends.
    pub fn locate(&self, keys: &[String]) -> Result<Vec<Answer<Located>>> {
        self.batch(&calls::BATCH_GET_REPLICA_LIST, keys, located, |writer| {
            writer.list(keys, |writer, key| writer.text(key));
        })
    }

    /// Which objects there are. Those get a lease.
    pub fn exist(&self, keys: &[String]) -> Result<Vec<Answer<bool>>> {
        self.batch(
            &calls::BATCH_EXIST_KEY,
            keys,
            |reader| reader.bool(),
            |writer| {
                writer.list(keys, |writer, key| writer.text(key));
            },
        )
    }

    /// Remove objects, whoever reads them.
    pub fn remove(&self, keys: &[String]) -> Result<Vec<Answer<()>>> {
        self.batch(&calls::BATCH_REMOVE, keys, nothing, |writer| {
            writer.list(keys, |writer, key| writer.text(key));
            writer.raw(&[1]);
        })
    }

    /// Objects whose keys match a pattern, in no order, but for those that are being written. Those get a lease. None: there are too many for
    /// one answer.
    pub fn list(&self, pattern: &str) -> Result<Option<Listing>> {
        let mut writer = Writer::new(calls::LIST_BY_REGEX.request, pattern.len());
        writer.text(pattern);
        writer.text(TENANT);
        let body = self.ask_at_most(&calls::LIST_BY_REGEX, writer.finish(), MAX_LISTING_BYTES)?;
        body.map(|body| read_listing(&body)?.map_err(explain)).transpose()
    }

    /// A call about these objects, whose answer has a value or an error for each.
    fn batch<T>(
        &self,
        call: &Call,
        keys: &[String],
        value: impl Fn(&mut Reader) -> Option<T>,
        fields: impl Fn(&mut Writer),
    ) -> Result<Vec<Answer<T>>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let longest = keys.iter().map(String::len).chain([keys.len()]).max().unwrap_or_default();
        let mut writer = Writer::new(call.request, longest);
        fields(&mut writer);
        writer.text(TENANT);
        let answers = read_batch(&self.ask(call, writer.finish())?, call, value)?;
        if answers.len() != keys.len() {
            let message = format!("the master answered {} of {} objects", answers.len(), keys.len());
            return Err(Error::corrupt(message));
        }
        Ok(answers)
    }

    /// The answer's body.
    fn ask(&self, call: &Call, body: Vec<u8>) -> Result<Vec<u8>> {
        let body = self.ask_at_most(call, body, MAX_ANSWER_BYTES)?;
        body.ok_or_else(|| Error::corrupt("the master's answer is longer than all that was asked for"))
    }

    /// The answer's body. None: it is longer than that.
    fn ask_at_most(&self, call: &Call, body: Vec<u8>, most: u32) -> Result<Option<Vec<u8>>> {
        let request = wire::frame(call.function, SEQUENCE, &body);
        Conversation::hold(
            &self.peer,
            |_| Ok(()),
            |conversation| {
                conversation.send(&[Part::Bytes(request.clone())])?;
                let head = conversation.receive_exact(ANSWER_HEAD as u32)?;
                let head = Head::parse(&head).filter(|head| head.sequence == SEQUENCE);
                let head =
                    head.ok_or_else(|| conversation.corrupt("the answer is not coro_rpc: is this a Mooncake master?"))?;
                if head.len > most {
                    conversation.leave();
                    return Ok(None);
                }
                let body = conversation.receive_exact(head.len)?;
                if head.error != 0 {
                    return Err(Error::unsupported(format!(
                        "the master does not know a call of {} (error {} of coro_rpc)",
                        calls::VERSIONS,
                        head.error
                    )));
                }
                Ok(Some(body))
            },
        )
    }
}

/// The answer to a listing.
fn read_listing(bytes: &[u8]) -> Result<Answer<Listing>> {
    let mut reader = Reader::new(bytes, calls::LIST_BY_REGEX.answer)?;
    let object = |reader: &mut Reader| Some((reader.text()?, replicas(reader)?));
    let answer = reader.expected(|reader| reader.list(object)).filter(|_| reader.is_done());
    answer.ok_or_else(|| Error::corrupt("the master's listing ends too early, or too late"))
}

/// The answer to a call about several objects: a value or an error for each.
fn read_batch<T>(bytes: &[u8], call: &Call, value: impl Fn(&mut Reader) -> Option<T>) -> Result<Vec<Answer<T>>> {
    let mut reader = Reader::new(bytes, call.answer)?;
    let answers = reader.list(|reader| reader.expected(&value)).filter(|_| reader.is_done());
    answers.ok_or_else(|| Error::corrupt("the master's answer ends too early, or too late"))
}

fn nothing(_: &mut Reader) -> Option<()> {
    Some(())
}

fn located(reader: &mut Reader) -> Option<Located> {
    let replicas = replicas(reader)?;
    let lease = reader.u64()?.saturating_mul(NANOSECONDS_PER_MILLISECOND);
    // A number that may follow; it concerns other kinds of replicas.
    if reader.bool()? {
        reader.u64()?;
    }
    Some(Located { replicas, lease })
}

/// The replicas of an object. Those that do not lie in memory reached over TCP are left out.
fn replicas(reader: &mut Reader) -> Option<Vec<Replica>> {
    let replicas = reader.list(|reader| {
        let _id = reader.u64()?;
        let kind = reader.u8()?;
        let replica = match kind {
            MEMORY | REMOTE_DISK => {
                let (size, address, protocol, endpoint) =
                    (reader.u64()?, reader.u64()?, reader.text()?, reader.text()?);
                (kind == MEMORY && protocol == "tcp").then_some(Replica { size, address, endpoint })
            }
            FILE => {
                let (_path, _size) = (reader.text()?, reader.u64()?);
                None
            }
            LOCAL_DISK => {
                let (_client, _size, _endpoint) = ([reader.u64()?, reader.u64()?], reader.u64()?, reader.text()?);
                None
            }
            _ => return None,
        };
        let _status = reader.u32()?;
        Some(replica)
    })?;
    Some(replicas.into_iter().flatten().collect())
}

/// Which objects there are. One that the master cannot tell of may be there: it is no loss, and there is no answer.
pub fn known(answers: Vec<Answer<bool>>) -> Result<Vec<bool>> {
    answers.into_iter().map(|answer| answer.map_err(explain)).collect()
}

/// What an error of the master means.
pub fn explain(code: i32) -> Error {
    let error = match code {
        NOT_READY => Error::unavailable("the object is being written by another client"),
        NO_AVAILABLE_HANDLE => Error::exhausted("no node of Mooncake has room"),
        INVALID_PARAMS => Error::invalid("the master refuses the request: more replicas than it has nodes?"),
        _ => Error::other("the master refuses the request"),
    };
    Error { code: Some(code.to_string()), ..error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kv_store_sdk::ErrorKind;

    /// What a master of Mooncake 0.3.13 said, after the head of a frame.
    fn said(call: &Call, fields: &str) -> Vec<u8> {
        let mut bytes = Writer::new(call.answer, 0).finish();
        let digits: Vec<u8> = fields.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pairs = digits.chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap());
        bytes.extend(pairs);
        bytes
    }

    fn replica(size: u64, address: u64) -> Replica {
        Replica { size, address, endpoint: "127.0.0.1:15445".into() }
    }

    #[test]
    fn answers_are_read_as_they_came() {
        let one = "01 0100000000000000 00 0a00000000000000 0000 95917f000000 03746370 0f3132372e302e302e313a3135343435";
        let read = read_batch(
            &said(&calls::BATCH_PUT_START, &format!("02 01 {one} 02000000 00 3ffdffff")),
            &calls::BATCH_PUT_START,
            replicas,
        );
        assert_eq!(read.unwrap(), [Ok(vec![replica(10, 0x007f_9195_0000)]), Err(ALREADY_EXISTS)]);
        let lease = format!("02 01 {one} 03000000 d007000000000000 00 00 40fdffff");
        let read = read_batch(&said(&calls::BATCH_GET_REPLICA_LIST, &lease), &calls::BATCH_GET_REPLICA_LIST, located);
        let there = Located { replicas: vec![replica(10, 0x007f_9195_0000)], lease: 2_000_000_000 };
        assert_eq!(read.unwrap(), [Ok(there), Err(NOT_FOUND)]);
        let read = read_batch(&said(&calls::BATCH_PUT_END, "03 01 01 00 40fdffff"), &calls::BATCH_PUT_END, nothing);
        assert_eq!(read.unwrap(), [Ok(()), Ok(()), Err(NOT_FOUND)]);
        let exist = said(&calls::BATCH_EXIST_KEY, "03 0101 0100 0101");
        let read = read_batch(&exist, &calls::BATCH_EXIST_KEY, |reader| reader.bool());
        assert_eq!(read.unwrap(), [Ok(true), Ok(false), Ok(true)]);
    }

    #[test]
    fn a_listing_is_read_as_it_came() {
        let replicas = "01 0100000000000000 00 0a00000000000000 0000 95917f000000 03746370 0f3132372e302e302e313a3135343435 03000000";
        let two = said(&calls::LIST_BY_REGEX, &format!("01 02 0161 {replicas} 026262 {replicas}"));
        let there = vec![replica(10, 0x007f_9195_0000)];
        let listed = [("a".to_owned(), there.clone()), ("bb".to_owned(), there)];
        assert_eq!(read_listing(&two).unwrap(), Ok(listed.to_vec()));
        assert_eq!(read_listing(&said(&calls::LIST_BY_REGEX, "00 a8fdffff")).unwrap(), Err(INVALID_PARAMS));
        for len in 0..two.len() {
            assert!(read_listing(&two[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn what_the_master_cannot_tell_of_is_not_gone() {
        assert_eq!(known(vec![Ok(true), Ok(false)]).unwrap(), [true, false]);
        let error = known(vec![Ok(true), Err(-1), Ok(false)]).unwrap_err();
        assert_eq!((error.kind, error.code.as_deref()), (ErrorKind::Other, Some("-1")));
    }

    #[test]
    fn answers_that_are_cut_or_of_another_type_are_refused() {
        let whole = said(&calls::BATCH_EXIST_KEY, "03 0101 0100 0101");
        let read = |bytes: &[u8], call| read_batch(bytes, call, |reader| reader.bool()).map_err(|error| error.kind);
        for len in 0..whole.len() {
            assert!(read(&whole[..len], &calls::BATCH_EXIST_KEY).is_err(), "{len}");
        }
        assert_eq!(read(&[&whole[..], b"x"].concat(), &calls::BATCH_EXIST_KEY), Err(ErrorKind::Corrupt));
        assert_eq!(read(&whole, &calls::BATCH_PUT_END), Err(ErrorKind::Unsupported));
    }
}
