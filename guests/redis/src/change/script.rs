//! The scripts that carry out a change unless it is late, and how they are called.
//!
//! Each looks at the server's clock, compares, and changes, in one step: whatever is acknowledged afterwards began afterwards. Each answers
//! what became of the change, and the server's time in microseconds.
//!
//! A manifest whose last 16 bytes are zeros gets its generation there: the server's time in microseconds, or one more than the former
//! generation if that is not less, in 8 bytes, little-endian, and then 8 random bytes that come with the change. A manifest that is
//! deleted leaves its generation for ten minutes, in a list under its key: no string, so that nobody takes it for a manifest.

use kv_store_sdk::payloads::Part;

use crate::NewValue;
use crate::resp;

/// What a script answers.
pub const DONE: i64 = 0;
pub const EXISTED: i64 = 1;
pub const LATE: i64 = 2;
/// The value was to be renamed, and is not there.
pub const NO_VALUE: i64 = 3;

/// What the first item of the list is that a deleted manifest leaves. The second one is its generation, in 8 bytes.
pub const DELETED: &str = "kv-store: deleted";

/// A script, by the name under which the server keeps it: its SHA-1.
pub struct Script {
    pub text: &'static str,
    pub sha1: &'static str,
}

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident: $sha1:literal, $($text:expr),+;)+) => {
        $($(#[$doc])* pub const $name: Script = Script { text: concat!($($text),+), sha1: $sha1 };)+
        #[cfg(test)]
        const ALL: &[Script] = &[$($name),+];
    };
}

/// ARGV[1] is the end of each change.
macro_rules! begin {
    () => {
        "if redis.replicate_commands then redis.replicate_commands() end
local key, time = KEYS[1], redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local late = now >= tonumber(ARGV[1])
"
    };
}

/// The generation of what lies under the key; none where it is no number that Lua has exactly.
macro_rules! generation {
    () => {
        "local function generation()
  local bytes, kind = '', redis.call('TYPE', key).ok
  if kind == 'string' and redis.call('STRLEN', key) >= 16 then bytes = redis.call('GETRANGE', key, -16, -9)
  elseif kind == 'list' and redis.call('LINDEX', key, 0) == 'kv-store: deleted' then bytes = redis.call('LINDEX', key, 1) or '' end
  local number = 0
  for place = 8, 1, -1 do number = number * 256 + (string.byte(bytes, place) or 0) end
  return number > 0 and number < 9007199254740991 and number or nil
end
local function bytes(number)
  local text = ''
  for place = 1, 8 do
    text = text .. string.char(number % 256)
    number = math.floor(number / 256)
  end
  return text
end
"
    };
}

/// Write the generation into the place that a manifest has for it. `nonce` is empty for what is no manifest.
macro_rules! mark {
    () => {
        "if nonce ~= '' and redis.call('GETRANGE', key, -16, -1) == string.rep('\\0', 16) then
  redis.call('SETRANGE', key, redis.call('STRLEN', key) - 16, bytes(math.max(now, (former or 0) + 1)) .. nonce)
end
return {0, now}
"
    };
}

scripts! {
    /// Key; end, value, seconds to live or nothing, NX or nothing, nonce or nothing.
    SET: "306b2c4cc82b9978b6dc33f4ab92685196fe0563", begin!(), generation!(), "if late then return {2, now} end
local nonce = ARGV[5]
local former = nonce ~= '' and generation()
local command = {'SET', key, ARGV[2]}
if ARGV[3] ~= '' then command[4] = 'EX' command[5] = ARGV[3] end
if ARGV[4] ~= '' then command[#command + 1] = ARGV[4] end
local set = redis.pcall(unpack(command))
if not set then return {1, now} end
if set.err then return set end
", mark!();
    /// Key, and the one under which the value was put; end, seconds, NX, nonce.
    MOVE: "2850cfcef4f74d1b80c760289780e1bc176eca99", begin!(), generation!(), "local value = KEYS[2]
if late then
  redis.pcall('DEL', value)
  return {2, now}
end
if redis.call('EXISTS', value) == 0 then return {3, now} end
local nonce = ARGV[4]
local former = nonce ~= '' and generation()
if ARGV[3] ~= '' and redis.call('EXISTS', key) == 1 then
  redis.pcall('DEL', value)
  return {1, now}
end
local renamed = redis.pcall('RENAME', value, key)
if renamed.err then return renamed end
if ARGV[2] ~= '' then redis.call('EXPIRE', key, ARGV[2]) else redis.call('PERSIST', key) end
", mark!();
    /// Key; end, and whether it is a manifest, which leaves its generation, or nothing.
    DELETE: "82b2e6b8fa2ccab6e332a845c37da34493318756", begin!(), generation!(), "if late then return {2, now} end
local former = ARGV[2] ~= '' and generation()
local deleted = redis.pcall('DEL', key)
if type(deleted) == 'table' and deleted.err then return deleted end
if former then
  redis.call('RPUSH', key, 'kv-store: deleted', bytes(former))
  redis.call('PEXPIRE', key, 600000)
end
return {0, now}
";
}

/// A script with its keys and arguments, whose value, if it has one, stays in the host.
pub struct Call<'k, 'a> {
    pub script: &'static Script,
    pub keys: Vec<&'k [u8]>,
    pub end: u64,
    pub value: Option<&'k NewValue<'a>>,
    /// What follows.
    pub rest: Vec<Vec<u8>>,
}

impl<'a> Call<'_, 'a> {
    /// The command. `whole`: with the script's text, because the server does not have it.
    pub fn parts(&self, whole: bool) -> Vec<Part<'a>> {
        let (before, after) = self.around(whole, self.value.map(|value| value.len));
        let value = self.value.map(|value| value.part.clone());
        let after = value.is_some().then_some(Part::Bytes(after));
        [Part::Bytes(before)].into_iter().chain(value).chain(after).collect()
    }

    /// What comes before and after the value's bytes.
    pub(super) fn around(&self, whole: bool, value: Option<u64>) -> (Vec<u8>, Vec<u8>) {
        let count = itoa::Buffer::new().format(self.keys.len()).to_owned();
        let end = itoa::Buffer::new().format(self.end).to_owned();
        let (name, script) = if whole { ("EVAL", self.script.text) } else { ("EVALSHA", self.script.sha1) };
        let first = [name.as_bytes(), script.as_bytes(), count.as_bytes()];
        let words: Vec<&[u8]> = first.into_iter().chain(self.keys.iter().copied()).chain([end.as_bytes()]).collect();
        resp::around(&words, value, &self.rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha1::{Digest, Sha1};

    #[test]
    fn scripts_are_called_by_their_own_names() {
        let digest = |text: &str| Sha1::digest(text).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let named: Vec<&str> = ALL.iter().map(|script| script.sha1).collect();
        assert_eq!(named, ALL.iter().map(|script| digest(script.text)).collect::<Vec<String>>());
        assert!(ALL.iter().all(|script| script.text.contains(DELETED)));
    }
}
