//! The manifest of a sequence, as bytes. `docs/kvx-manifest.md` is its documentation.
//!
//! Invariant: what [`Manifest::parse`] answers is consistent in itself and no larger than the bytes it came from, whatever
//! they are: counts are those that the length allows, and every size that follows from them fits.

use xxhash_rust::xxh3::xxh3_64;

use super::geometry::{Layer, Order, Sequence, code_of, dtype_of};
use crate::error::{Error, ErrorKind};
use crate::limits;

/// Text that no other manifest of ours starts with; the line ends show a transfer that changed them.
const MAGIC: &[u8; 8] = b"KVXSEQ\r\n";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 40;
const LAYER_BYTES: usize = 20;
const CHUNK_BYTES: usize = 16;
const SEAL_BYTES: usize = 8;

/// A sequence that was saved: what it is, and where its bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    /// What the values belong to.
    pub model: Vec<u8>,
    /// Tokens of a block where it was saved; for information, as chunks do not depend on it.
    pub block_size: u32,
    pub sequence: Sequence,
    /// As many as the sequence has.
    pub chunks: Vec<ChunkId>,
}

/// What tells one chunk from all others: 128 bits of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ChunkId {
    /// XXH3-64, little-endian: the chunk's key in the store.
    pub key: [u8; 8],
    /// The upper half of XXH3-128, little-endian.
    pub check: [u8; 8],
}

impl Manifest {
    /// How long the manifest of a sequence is.
    pub fn len(sequence: &Sequence, model: &[u8]) -> usize {
        let tables = sequence.layers.len() * LAYER_BYTES + sequence.chunks() as usize * CHUNK_BYTES;
        HEADER_BYTES + model.len() + tables + SEAL_BYTES
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::len(&self.sequence, &self.model));
        bytes.extend(MAGIC);
        let counts = [
            VERSION,
            self.model.len() as u32,
            self.sequence.layers.len() as u32,
            self.block_size,
            self.sequence.tokens,
            self.sequence.chunk_tokens,
            self.chunks.len() as u32,
            0,
        ];
        bytes.extend(counts.into_iter().flat_map(u32::to_le_bytes));
        bytes.extend(&self.model);
        for layer in &self.sequence.layers {
            bytes.extend([layer.heads, layer.head_dim].into_iter().flat_map(u32::to_le_bytes));
            let [k, v] = layer.orders.map(Order::code);
            bytes.extend([code_of(layer.stored), code_of(layer.cache), k, v]);
            bytes.extend(layer.orders.into_iter().flat_map(|order| order.pack().to_le_bytes()));
        }
        for chunk in &self.chunks {
            bytes.extend(chunk.key.iter().chain(&chunk.check));
        }
        let seal = xxh3_64(&bytes);
        bytes.extend(seal.to_le_bytes());
        bytes
    }

    /// Read a manifest of any origin.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        if !bytes.starts_with(MAGIC) && !MAGIC.starts_with(bytes) {
            return Err(corrupt("it is no manifest of a sequence"));
        }
        let mut fields = Fields { rest: bytes };
        fields.slice(MAGIC.len())?;
        let version = fields.number()?;
        if version != VERSION {
            let message = format!("the manifest is of version {version}, this library reads version {VERSION}");
            return Err(Error::new(ErrorKind::Version, message));
        }
        // The seal comes before anything is made of what it seals.
        let (sealed, seal) = bytes.split_last_chunk::<SEAL_BYTES>().ok_or_else(|| corrupt("it is cut short"))?;
        if u64::from_le_bytes(*seal) != xxh3_64(sealed) {
            return Err(corrupt("it does not match its hash"));
        }
        let [model_len, layers, block_size, tokens, chunk_tokens, chunks, reserved] = {
            let mut counts = [0; 7];
            for count in &mut counts {
                *count = fields.number()?;
            }
            counts
        };
        let (model_len, layers, chunks) = (model_len as usize, layers as usize, chunks as usize);
        if model_len > limits::MAX_KV_MODEL_BYTES || layers > limits::MAX_KV_LAYERS || reserved != 0 {
            return Err(corrupt("its counts are out of bounds"));
        }
        // At most 2^32 * 16 and a little.
        let len = HEADER_BYTES + model_len + layers * LAYER_BYTES + chunks * CHUNK_BYTES + SEAL_BYTES;
        if len != bytes.len() {
            return Err(corrupt(format_args!("it has {} bytes, its counts ask for {len}", bytes.len())));
        }
        let model = fields.slice(model_len)?.to_vec();
        let layers = (0..layers).map(|_| fields.layer()).collect::<Result<_, _>>()?;
        let sequence = Sequence::new(layers, tokens, chunk_tokens).map_err(|error| corrupt(error.to_string()))?;
        if sequence.chunks() as usize != chunks || block_size == 0 {
            return Err(corrupt(format_args!("{tokens} tokens are not {chunks} chunks of {chunk_tokens}")));
        }
        let chunk = |fields: &mut Fields<'_>| Ok(ChunkId { key: fields.take()?, check: fields.take()? });
        let chunks = (0..chunks).map(|_| chunk(&mut fields)).collect::<Result<_, Error>>()?;
        Ok(Manifest { model, block_size, sequence, chunks })
    }
}

/// What has not been read yet.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn slice(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let (slice, rest) = self.rest.split_at_checked(len).ok_or_else(|| corrupt("it is cut short"))?;
        self.rest = rest;
        Ok(slice)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or_else(|| corrupt("it is cut short"))?;
        self.rest = rest;
        Ok(*taken)
    }

    fn number(&mut self) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn layer(&mut self) -> Result<Layer, Error> {
        let (heads, head_dim) = (self.number()?, self.number()?);
        let [stored, cache, k, v] = self.take()?;
        let packs = [self.number()?, self.number()?];
        let unknown = || corrupt("it names a dtype or a layout that is unknown");
        let dtype = |code| dtype_of(code).ok_or_else(unknown);
        let order = |code, pack| Order::of(code, pack).ok_or_else(unknown);
        let orders = [order(k, packs[0])?, order(v, packs[1])?];
        Ok(Layer { heads, head_dim, stored: dtype(stored)?, cache: dtype(cache)?, orders })
    }
}

fn corrupt(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the manifest can not be used: {what}"))
}

#[cfg(test)]
mod tests {
    use kvx::DType;
    use proptest::prelude::*;

    use super::*;

    fn example(chunks: u32) -> Manifest {
        let layer = |heads, orders| Layer { heads, head_dim: 16, stored: DType::F16, cache: DType::F8E4M3, orders };
        let layers = vec![layer(2, [Order::Nhd, Order::Hnd]), layer(1, [Order::HndPacked(8), Order::Custom])];
        let id = |i: u32| ChunkId { key: [i as u8; 8], check: [!i as u8; 8] };
        Manifest {
            model: b"model".to_vec(),
            block_size: 16,
            sequence: Sequence::new(layers, chunks * 32 - 1, 32).unwrap(),
            chunks: (0..chunks).map(id).collect(),
        }
    }

    /// Change bytes and seal them again, so that what is behind the seal is reached.
    fn resealed(mut bytes: Vec<u8>, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        bytes.truncate(bytes.len() - SEAL_BYTES);
        change(&mut bytes);
        let seal = xxh3_64(&bytes);
        bytes.extend(seal.to_le_bytes());
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let manifest = example(3);
        let bytes = manifest.to_bytes();
        assert_eq!(bytes.len(), Manifest::len(&manifest.sequence, &manifest.model));
        assert_eq!(Manifest::parse(&bytes).unwrap(), manifest);
    }

    /// The format is what `docs/kvx-manifest.md` says. The seal was computed with Python's xxhash, not with this code.
    #[test]
    fn golden_manifest() {
        let layer =
            Layer { heads: 8, head_dim: 128, stored: DType::F16, cache: DType::F16, orders: [Order::HndPacked(8); 2] };
        let manifest = Manifest {
            model: b"m".to_vec(),
            block_size: 16,
            sequence: Sequence::new(vec![layer], 300, 256).unwrap(),
            chunks: vec![ChunkId { key: [1; 8], check: [2; 8] }, ChunkId { key: [3; 8], check: [4; 8] }],
        };
        let bytes = manifest.to_bytes();
        let mut want = b"KVXSEQ\r\n".to_vec();
        for number in [1u32, 1, 1, 16, 300, 256, 2, 0] {
            want.extend(number.to_le_bytes());
        }
        want.extend(b"m");
        want.extend([8, 0, 0, 0, 128, 0, 0, 0, 1, 1, 3, 3, 8, 0, 0, 0, 8, 0, 0, 0]);
        want.extend([[1; 8], [2; 8], [3; 8], [4; 8]].concat());
        assert_eq!(bytes[..bytes.len() - 8], want);
        assert_eq!(bytes[bytes.len() - 8..], [0xd9, 0xd1, 0x33, 0x03, 0xda, 0x6f, 0xfd, 0x2d]);
        let types = [DType::F16, DType::BF16, DType::F32, DType::F8E4M3, DType::F8E5M2];
        assert_eq!(types.map(code_of), [1, 2, 3, 4, 5], "the numbers of kvx_dtype_t");
        let orders = [Order::Nhd, Order::Hnd, Order::HndPacked(8), Order::Custom];
        assert_eq!(orders.map(Order::code), [1, 2, 3, 15], "the numbers of kvx_layout_t");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let bytes = example(2).to_bytes();
        let message = |bytes: &[u8]| Manifest::parse(bytes).unwrap_err().to_string();
        assert!(message(b"").contains("cut short"));
        assert!(message(b"KVXS").contains("cut short"));
        assert!(message(b"short").contains("no manifest of a sequence"));
        assert!(message(b"another format entirely").contains("no manifest of a sequence"));
        let mut flipped = bytes.clone();
        flipped[60] ^= 1;
        assert!(message(&flipped).contains("hash"), "{}", message(&flipped));
        assert!(message(&bytes[..bytes.len() - 1]).contains("hash"));
        let edit = |at: usize, to: u8| resealed(bytes.clone(), |bytes| bytes[at] = to);
        let newer = edit(8, 2);
        assert!(message(&newer).contains("version 2"));
        assert_eq!(Manifest::parse(&newer).unwrap_err().kind(), ErrorKind::Version);
        // model_len, layers, block_size, tokens, chunk_tokens, chunks, reserved
        assert!(message(&edit(12, 6)).contains("bytes, its counts"));
        assert!(message(&edit(16, 3)).contains("bytes, its counts"));
        assert!(message(&edit(20, 0)).contains("chunks"));
        assert!(message(&edit(24, 100)).contains("not 2 chunks"));
        assert!(message(&edit(28, 0)).contains("chunk"));
        assert!(message(&edit(32, 3)).contains("bytes, its counts"));
        assert!(message(&edit(36, 1)).contains("out of bounds"));
        let layer = HEADER_BYTES + 5;
        assert!(message(&edit(layer, 0)).contains("zero"), "{}", message(&edit(layer, 0)));
        assert!(message(&edit(layer + 8, 9)).contains("dtype"));
        assert!(message(&edit(layer + 10, 9)).contains("layout"));
        // A head_dim that makes a chunk larger than any.
        assert!(message(&edit(layer + 7, 0xff)).contains("larger"), "{}", message(&edit(layer + 7, 0xff)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(Manifest::parse(&bytes).is_err());
        }

        /// A seal keeps out accidents, not an attacker: behind a good one, too, nothing panics, and what is answered is
        /// consistent.
        #[test]
        fn any_change_behind_a_good_seal_is_answered(
            edits in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![any::<u8>(), Just(0), Just(255)]), 0..6),
            cut in prop_oneof![4 => Just(0usize), 1 => 0..40usize],
        ) {
            let bytes = resealed(example(3).to_bytes(), |bytes| {
                for (at, to) in &edits {
                    let at = at.index(bytes.len());
                    bytes[at] = *to;
                }
                bytes.truncate(bytes.len() - cut);
            });
            if let Ok(manifest) = Manifest::parse(&bytes) {
                prop_assert_eq!(manifest.chunks.len(), manifest.sequence.chunks() as usize);
                prop_assert!(manifest.sequence.chunk_bytes(0) <= limits::MAX_VALUE_BYTES as u64);
                prop_assert_eq!(manifest.to_bytes(), bytes);
            }
        }
    }
}
