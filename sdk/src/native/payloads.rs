//! The contract's `payloads`: bytes in the memory of the process.

use std::rc::Rc;

use sha2::{Digest, Sha256};

use super::host;
use crate::{Error, Result};

/// An immutable run of bytes.
#[derive(Debug)]
pub struct Payload(Rc<[u8]>);

#[derive(Debug)]
pub struct Range<'a> {
    pub payload: &'a Payload,
    pub offset: u64,
    pub len: u64,
}

#[derive(Debug)]
pub struct ItemRange {
    pub item: u32,
    pub offset: u64,
    pub len: u64,
}

#[derive(Debug)]
pub enum Part<'a> {
    Bytes(Vec<u8>),
    Payload(&'a Payload),
    Range(Range<'a>),
    Item(u32),
    ItemRange(ItemRange),
}

fn within(bytes: &[u8], offset: u64, len: u64) -> Result<&[u8]> {
    let range = usize::try_from(offset).ok().zip(offset.checked_add(len).and_then(|end| usize::try_from(end).ok()));
    let part = range.and_then(|(from, to)| bytes.get(from..to));
    part.ok_or_else(|| Error::invalid(format!("{len} bytes from {offset}, of {}", bytes.len())))
}

fn item(number: u32) -> Result<Rc<[u8]>> {
    host(|host| host.item(number)).ok_or_else(|| Error::invalid(format!("the running call has no item {number}")))
}

/// The bytes of parts, one after another.
pub(super) fn joined(parts: &[Part]) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    for part in parts {
        match part {
            Part::Bytes(bytes) => all.extend_from_slice(bytes),
            Part::Payload(payload) => all.extend_from_slice(&payload.0),
            Part::Range(range) => all.extend_from_slice(within(&range.payload.0, range.offset, range.len)?),
            Part::Item(number) => all.extend_from_slice(&item(*number)?),
            Part::ItemRange(range) => all.extend_from_slice(within(&item(range.item)?, range.offset, range.len)?),
        }
    }
    Ok(all)
}

impl Payload {
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        Ok(Payload(bytes.into()))
    }

    pub fn from_parts(parts: &[Part]) -> Result<Self> {
        Ok(Payload(joined(parts)?.into()))
    }

    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.0.len() as u64
    }

    pub fn read(&self, offset: u64, len: u32) -> Result<Vec<u8>> {
        within(&self.0, offset, len.into()).map(<[u8]>::to_vec)
    }

    pub fn share(&self) -> Result<Self> {
        Ok(Payload(self.0.clone()))
    }

    /// All of its bytes, for the host.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// What generated code of components asks for, which is not run natively.
    #[doc(hidden)]
    pub fn handle(&self) -> u32 {
        unreachable!("a payload has no handle natively")
    }

    /// # Safety
    /// Never called.
    #[doc(hidden)]
    pub unsafe fn from_handle(_: u32) -> Self {
        unreachable!("a payload has no handle natively")
    }

    #[doc(hidden)]
    pub fn take_handle(&self) -> u32 {
        unreachable!("a payload has no handle natively")
    }
}

pub fn crc32c(parts: &[Part]) -> Result<u32> {
    Ok(crc32c::crc32c(&joined(parts)?))
}

pub fn xxh3(parts: &[Part]) -> Result<u64> {
    Ok(xxhash_rust::xxh3::xxh3_64(&joined(parts)?))
}

pub fn sha256(parts: &[Part]) -> Result<Vec<u8>> {
    Ok(Sha256::digest(joined(parts)?).to_vec())
}

/// RFC 2104.
pub fn hmac_sha256(key: &[u8], parts: &[Part]) -> Result<Vec<u8>> {
    const BLOCK: usize = 64;
    let mut block = [0_u8; BLOCK];
    let digest;
    let key = match key.len() > BLOCK {
        true => {
            digest = Sha256::digest(key);
            &digest[..]
        }
        false => key,
    };
    block.iter_mut().zip(key).for_each(|(byte, key)| *byte = *key);
    let inner = Sha256::new().chain_update(block.map(|byte| byte ^ 0x36)).chain_update(joined(parts)?).finalize();
    Ok(Sha256::new().chain_update(block.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231, cases 1 and 6.
    #[test]
    fn the_hmac_is_that_of_the_rfc() {
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let parts = [Part::Bytes(b"Hi ".to_vec()), Part::Bytes(b"There".to_vec())];
        assert_eq!(
            hex(hmac_sha256(&[0x0b; 20], &parts).unwrap()),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
        let long = [Part::Bytes(b"Test Using Larger Than Block-Size Key - Hash Key First".to_vec())];
        assert_eq!(
            hex(hmac_sha256(&[0xaa; 131], &long).unwrap()),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }

    /// RFC 3720, B.4, and the first test vector of xxHash.
    #[test]
    fn the_checksums_are_those_of_others() {
        let parts = |bytes: &[u8]| [Part::Bytes(bytes[..5].to_vec()), Part::Bytes(bytes[5..].to_vec())];
        assert_eq!(crc32c(&parts(&[0; 32])).unwrap(), 0x8a91_36aa);
        assert_eq!(crc32c(&parts(&[0xff; 32])).unwrap(), 0x62a8_ab43);
        assert_eq!(xxh3(&[]).unwrap(), 0x2d06_8005_38d3_94c2);
    }

    #[test]
    fn what_reaches_past_the_end_is_invalid() {
        let payload = Payload::from_bytes(b"abc").unwrap();
        assert_eq!(payload.read(1, 2).unwrap(), b"bc");
        for (offset, len) in [(2, 2), (4, 0), (u64::MAX, 1)] {
            let range = Range { payload: &payload, offset, len };
            assert!(Payload::from_parts(&[Part::Range(range)]).is_err(), "{len} from {offset}");
        }
    }
}
