//! Which model a state belongs to.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::gguf;

/// How a fingerprint was made, and so what it can be trusted for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FingerprintMode {
    /// SHA-256 of the whole file. As sure as the hash; reads all of it.
    #[default]
    Safe,
    /// SHA-256 of a GGUF file's metadata, of both ends of each of its tensors, and of its length. A moment for any size;
    /// finds another model, a retrained one and a file cut short, but not a change made to deceive.
    GgufChunked,
    /// SHA-256 of the file's path, length and time of change, or whatever the caller says. Reads nothing of the file.
    FastUnsafe,
}

impl FingerprintMode {
    /// The number of the row file (TLV 0x02).
    pub fn number(self) -> u8 {
        match self {
            FingerprintMode::Safe => 0,
            FingerprintMode::GgufChunked => 1,
            FingerprintMode::FastUnsafe => 2,
        }
    }

    /// The mode of a number of the row file.
    pub fn from_number(number: u8) -> Option<Self> {
        [FingerprintMode::Safe, FingerprintMode::GgufChunked, FingerprintMode::FastUnsafe]
            .into_iter()
            .find(|mode| mode.number() == number)
    }
}

/// A model's fingerprint. Only the bytes are part of a row's key; the mode is written beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// The fingerprint.
    pub bytes: [u8; 32],
    /// How it was made.
    pub mode: FingerprintMode,
}

impl Fingerprint {
    /// A fingerprint that the caller answers for.
    pub fn given(bytes: [u8; 32]) -> Self {
        Fingerprint { bytes, mode: FingerprintMode::FastUnsafe }
    }

    /// The fingerprint of a model file.
    ///
    /// # Errors
    /// The file cannot be read, or is no GGUF file where the mode needs one.
    pub fn of_file(path: &Path, mode: FingerprintMode) -> Result<Self> {
        let cannot = |error| Error::io(format!("cannot read the model {}", path.display()), error);
        let mut hash = Sha256::new();
        match mode {
            FingerprintMode::Safe => {
                let mut file = File::open(path).map_err(cannot)?;
                let mut block = vec![0; crate::limits::BLOCK_BYTES];
                loop {
                    let n = file.read(&mut block).map_err(cannot)?;
                    match block.get(..n) {
                        Some(read) if n > 0 => hash.update(read),
                        _ => break,
                    }
                }
            }
            FingerprintMode::GgufChunked => return Self::of_gguf(path).map(|(fingerprint, _)| fingerprint),
            FingerprintMode::FastUnsafe => {
                let path = path.canonicalize().map_err(cannot)?;
                let meta = path.metadata().map_err(cannot)?;
                hash.update(path.as_os_str().as_encoded_bytes());
                hash.update([0]);
                for number in [meta.len() as i64, meta.mtime(), meta.mtime_nsec()] {
                    hash.update(number.to_le_bytes());
                }
            }
        }
        Ok(Fingerprint { bytes: hash.finalize().into(), mode })
    }

    /// The fingerprint of a GGUF file by [`FingerprintMode::GgufChunked`], and how many numbers its tensors have together.
    ///
    /// # Errors
    /// The file cannot be read, or is no GGUF file.
    pub fn of_gguf(path: &Path) -> Result<(Self, u64)> {
        let cannot = |error| Error::io(format!("cannot read the model {}", path.display()), error);
        let mut file = File::open(path).map_err(cannot)?;
        let length = file.metadata().map_err(cannot)?.len();
        let mut hash = Sha256::new();
        hash.update(b"gguf-chunked");
        hash.update(length.to_le_bytes());
        let outline = gguf::outline(&mut file, length).map_err(|error| match error {
            gguf::Wrong::Format(what) => Error::invalid(format!(
                "{} is no GGUF file that can be sampled: {what}; use the mode safe",
                path.display()
            )),
            gguf::Wrong::Io(error) => cannot(error),
        })?;
        for (offset, bytes) in outline.parts {
            file.seek(SeekFrom::Start(offset)).map_err(cannot)?;
            let copied = std::io::copy(&mut Read::by_ref(&mut file).take(bytes), &mut hash).map_err(cannot)?;
            if copied != bytes {
                return Err(Error::invalid(format!("{} ends while it is read", path.display())));
            }
        }
        Ok((Fingerprint { bytes: hash.finalize().into(), mode: FingerprintMode::GgufChunked }, outline.elements))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// GGUF v3: no metadata but one string, tensors one after another at multiples of 32.
    fn gguf(tensors: &[Vec<u8>]) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend((tensors.len() as u64).to_le_bytes());
        file.extend(2u64.to_le_bytes());
        let text = |file: &mut Vec<u8>, text: &str| {
            file.extend((text.len() as u64).to_le_bytes());
            file.extend(text.as_bytes());
        };
        text(&mut file, "general.architecture");
        file.extend(8u32.to_le_bytes());
        text(&mut file, "llama");
        text(&mut file, "numbers");
        file.extend(9u32.to_le_bytes());
        file.extend(4u32.to_le_bytes());
        file.extend(3u64.to_le_bytes());
        file.extend([0; 12]);
        let mut offset = 0u64;
        for (i, tensor) in tensors.iter().enumerate() {
            text(&mut file, &format!("blk.{i}"));
            file.extend(1u32.to_le_bytes());
            file.extend((tensor.len() as u64).to_le_bytes());
            file.extend(0u32.to_le_bytes());
            file.extend(offset.to_le_bytes());
            offset += (tensor.len() as u64).next_multiple_of(32);
        }
        for tensor in tensors {
            file.resize(file.len().next_multiple_of(32), 0);
            file.extend(tensor);
        }
        file
    }

    fn fingerprint(folder: &Path, bytes: &[u8], mode: FingerprintMode) -> Result<[u8; 32]> {
        let path = folder.join("model.gguf");
        std::fs::write(&path, bytes).unwrap();
        Fingerprint::of_file(&path, mode).map(|fingerprint| fingerprint.bytes)
    }

    /// Each row and each state of llama.cpp is named by one of these. Computed with Python's hashlib, not with this code.
    #[test]
    fn golden_fingerprints() {
        let folder = tempfile::tempdir().unwrap();
        let file = gguf(&[vec![1; 20_000], vec![2; 64], vec![3; 20_000]]);
        let of = |mode| fingerprint(folder.path(), &file, mode).unwrap();
        let chunked = hex::encode(of(FingerprintMode::GgufChunked));
        assert_eq!(chunked, "e49842e32d86f6d6030a40f1b4f0904823fcc91936d48766d38cf99dcd30d342");
        let safe = hex::encode(of(FingerprintMode::Safe));
        assert_eq!(safe, "6bdffbd7a43ecff9ace023a459f6fe31bdff95f61273b2c1fc7cd626fd04ae51");
        // Its path and its times are this test's own, so what is hashed is written out.
        let path = folder.path().join("model.gguf");
        let model = File::options().append(true).open(&path).unwrap();
        model.set_modified(std::time::UNIX_EPOCH + std::time::Duration::new(0x0102_0304, 5)).unwrap();
        let mut hashed = path.canonicalize().unwrap().into_os_string().into_encoded_bytes();
        hashed.push(0);
        let [low, high] = u16::try_from(file.len()).unwrap().to_le_bytes();
        hashed.extend([low, high, 0, 0, 0, 0, 0, 0]);
        hashed.extend([4, 3, 2, 1, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        let fast = Fingerprint::of_file(&path, FingerprintMode::FastUnsafe).unwrap();
        assert_eq!(fast.bytes, <[u8; 32]>::from(Sha256::digest(&hashed)));
    }

    #[test]
    fn safe_is_the_hash_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = vec![5; 700_000];
        let expected: [u8; 32] = Sha256::digest(&bytes).into();
        assert_eq!(fingerprint(folder.path(), &bytes, FingerprintMode::Safe).unwrap(), expected);
    }

    #[test]
    fn chunked_sees_metadata_every_tensor_and_the_length_but_not_what_lies_deep() {
        let folder = tempfile::tempdir().unwrap();
        let of = |bytes: &[u8]| fingerprint(folder.path(), bytes, FingerprintMode::GgufChunked).unwrap();
        let tensors = vec![vec![1; 20_000], vec![2; 64], vec![3; 20_000]];
        let file = gguf(&tensors);
        let whole = of(&file);
        let metadata = file.windows(5).position(|w| w == b"llama").unwrap();
        let first = file.windows(64).position(|w| w == [1; 64]).unwrap();
        let second = file.windows(64).position(|w| w == [2; 64]).unwrap();
        for at in [metadata, first, first + 19_999, second, second + 63, file.len() - 1] {
            let mut changed = file.clone();
            changed[at] ^= 1;
            assert_ne!(of(&changed), whole, "a change at {at} is not seen");
        }
        let mut longer = file.clone();
        longer.push(0);
        assert_ne!(of(&longer), whole);
        let mut deep = file.clone();
        deep[first + 10_000] ^= 1;
        assert_eq!(of(&deep), whole, "only the ends of a tensor are sampled, as documented");
    }

    #[test]
    fn chunked_refuses_what_is_no_gguf_file_and_every_beginning_of_one() {
        let folder = tempfile::tempdir().unwrap();
        let of = |bytes: &[u8]| fingerprint(folder.path(), bytes, FingerprintMode::GgufChunked);
        let message = of(b"not a model").unwrap_err().to_string();
        assert!(message.contains("use the mode safe"), "{message}");
        let file = gguf(&[vec![1; 64]]);
        let data = file.len() - 64;
        for length in 0..data {
            assert!(of(&file[..length]).is_err(), "{length} of {data} bytes of metadata are accepted");
        }
    }

    #[test]
    fn chunked_survives_every_flipped_bit_of_the_metadata() {
        let folder = tempfile::tempdir().unwrap();
        let file = gguf(&[vec![1; 64], vec![2; 64]]);
        for bit in 0..(file.len() - 160) * 8 {
            let mut changed = file.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            // Any answer will do, but for a panic or memory without end.
            let _ = fingerprint(folder.path(), &changed, FingerprintMode::GgufChunked);
        }
    }

    #[test]
    fn fast_changes_with_the_time_of_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, "anything").unwrap();
        let before = Fingerprint::of_file(&path, FingerprintMode::FastUnsafe).unwrap();
        assert_eq!(before, Fingerprint::of_file(&path, FingerprintMode::FastUnsafe).unwrap());
        File::options().append(true).open(&path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        assert_ne!(before, Fingerprint::of_file(&path, FingerprintMode::FastUnsafe).unwrap());
    }
}
