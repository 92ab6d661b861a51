//! What stands behind compiled code in the AOT cache.

use xxhash_rust::xxh3::xxh3_64;

/// What a file of the cache holds, and how that is known to be what was written.
#[derive(Debug, PartialEq, Eq)]
pub struct Seal {
    pub code_len: u64,
    /// XXH3-64 of the code.
    pub code_sum: u64,
    /// SHA-256 of the component.
    pub digest: [u8; 32],
    /// Hash of the engine and its settings.
    pub engine: u64,
}

/// Magic, version, code_len, code_sum, digest, engine, and the XXH3-64 of these; numbers are little-endian.
pub const SEAL_BYTES: usize = 8 + 4 + 8 + 8 + 32 + 8 + 8;
const MAGIC: &[u8; 8] = b"kvs-aot\0";
const VERSION: u32 = 1;

impl Seal {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SEAL_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.code_len.to_le_bytes());
        bytes.extend_from_slice(&self.code_sum.to_le_bytes());
        bytes.extend_from_slice(&self.digest);
        bytes.extend_from_slice(&self.engine.to_le_bytes());
        bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let (sealed, sum) = bytes.split_last_chunk().ok_or("has no seal")?;
        if bytes.len() != SEAL_BYTES || !sealed.starts_with(MAGIC) || u64::from_le_bytes(*sum) != xxh3_64(sealed) {
            return Err("has no seal, or a damaged one".into());
        }
        let mut rest = sealed.get(MAGIC.len()..).unwrap_or_default();
        let version = u32::from_le_bytes(take(&mut rest)?);
        if version != VERSION {
            return Err(format!("is of version {version}, and this host's is {VERSION}"));
        }
        Ok(Seal {
            code_len: u64::from_le_bytes(take(&mut rest)?),
            code_sum: u64::from_le_bytes(take(&mut rest)?),
            digest: take(&mut rest)?,
            engine: u64::from_le_bytes(take(&mut rest)?),
        })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], String> {
    let (first, after) = rest.split_first_chunk().ok_or("has a short seal")?;
    *rest = after;
    Ok(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn no_bytes_are_too_strange(bytes: Vec<u8>) {
            assert!(Seal::parse(&bytes).is_err());
        }

        #[test]
        fn what_was_written_is_read_and_no_flipped_bit_is(
            code_len: u64, code_sum: u64, digest: [u8; 32], engine: u64, bit in 0..SEAL_BYTES * 8, cut in 0..SEAL_BYTES,
        ) {
            let seal = Seal { code_len, code_sum, digest, engine };
            let mut bytes = seal.to_bytes();
            assert_eq!(bytes.len(), SEAL_BYTES);
            assert_eq!(Seal::parse(&bytes).as_ref(), Ok(&seal));
            assert!(Seal::parse(&bytes[..cut]).is_err());
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Seal::parse(&bytes).is_err());
        }
    }

    #[test]
    fn another_version_is_told_from_damage() {
        let mut bytes = Seal { code_len: 1, code_sum: 2, digest: [3; 32], engine: 4 }.to_bytes();
        bytes[8] = 9;
        let sum = xxh3_64(&bytes[..SEAL_BYTES - 8]).to_le_bytes();
        bytes[SEAL_BYTES - 8..].copy_from_slice(&sum);
        assert!(Seal::parse(&bytes).unwrap_err().contains("version 9"));
    }
}
