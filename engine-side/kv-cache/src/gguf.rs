//! As much of the GGUF format (versions 2 and 3, little-endian) as a fingerprint needs: where the metadata ends and where
//! the tensors begin.
//!
//! The file is a stranger's: every length is checked against the file, and nothing is kept but the tensors' offsets.

use std::fs::File;
use std::io::{self, BufReader, Read};

use crate::limits::{GGUF_SAMPLE_BYTES, MAX_GGUF_METADATA_BYTES};

pub(crate) enum Wrong {
    Format(&'static str),
    Io(io::Error),
}

impl From<io::Error> for Wrong {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Wrong::Format("its metadata does not end"),
            _ => Wrong::Io(error),
        }
    }
}

/// What a file is known by.
pub(crate) struct Outline {
    /// The ranges (offset, length) that stand for it: the metadata, then both ends of each tensor.
    pub parts: Vec<(u64, u64)>,
    /// The numbers in all of its tensors.
    pub elements: u64,
}

/// The outline of a file of so many bytes.
pub(crate) fn outline(file: &mut File, length: u64) -> Result<Outline, Wrong> {
    let limit = length.min(MAX_GGUF_METADATA_BYTES);
    let mut reader = Reader { file: BufReader::new(Read::by_ref(file).take(limit)), at: 0, limit };
    if reader.bytes::<4>()? != *b"GGUF" {
        return Err(Wrong::Format("it does not begin with GGUF"));
    }
    if !(2..=3).contains(&reader.u32()?) {
        return Err(Wrong::Format("it is of an unknown version"));
    }
    let (tensors, pairs) = (reader.u64()?, reader.u64()?);
    let mut alignment = 32;
    for _ in 0..pairs {
        let key = reader.text()?;
        let kind = reader.u32()?;
        if key == b"general.alignment" && kind == 4 {
            alignment = u64::from(reader.u32()?);
        } else {
            reader.skip_value(kind)?;
        }
    }
    if !alignment.is_power_of_two() {
        return Err(Wrong::Format("its alignment is no power of two"));
    }
    let mut offsets = Vec::new();
    let mut elements = 0_u64;
    for _ in 0..tensors {
        reader.text()?;
        let mut of_tensor = 1_u64;
        for _ in 0..reader.u32()? {
            of_tensor = of_tensor.saturating_mul(reader.u64()?);
        }
        elements = elements.saturating_add(of_tensor);
        let _type = reader.u32()?;
        offsets.push(reader.u64()?);
    }
    let data = reader.at.next_multiple_of(alignment);
    offsets.sort_unstable();
    let mut parts = vec![(0, reader.at)];
    for (i, offset) in offsets.iter().enumerate() {
        let begin = data.checked_add(*offset).filter(|begin| *begin < length);
        let begin = begin.ok_or(Wrong::Format("a tensor lies past its end"))?;
        let end = offsets.get(i + 1).map_or(length, |next| data.saturating_add(*next).min(length));
        let sample = GGUF_SAMPLE_BYTES.min(end - begin);
        parts.extend([(begin, sample), (end - sample, sample)]);
    }
    Ok(Outline { parts, elements })
}

struct Reader<R> {
    file: R,
    at: u64,
    limit: u64,
}

impl<R: Read> Reader<R> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Wrong> {
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes)?;
        self.at += N as u64;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, Wrong> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Wrong> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn skip(&mut self, bytes: u64) -> Result<(), Wrong> {
        if bytes > self.limit - self.at.min(self.limit) {
            return Err(Wrong::Format("a length leads past its end"));
        }
        if io::copy(&mut Read::by_ref(&mut self.file).take(bytes), &mut io::sink())? != bytes {
            return Err(Wrong::Format("its metadata does not end"));
        }
        self.at += bytes;
        Ok(())
    }

    /// A short text; what is longer is no name that we look for, and comes back empty.
    fn text(&mut self) -> Result<Vec<u8>, Wrong> {
        let length = self.u64()?;
        if length > 64 {
            self.skip(length)?;
            return Ok(Vec::new());
        }
        let mut text = vec![0; length as usize];
        self.file.read_exact(&mut text)?;
        self.at += length;
        Ok(text)
    }

    fn skip_value(&mut self, kind: u32) -> Result<(), Wrong> {
        match kind {
            8 => self.text().map(drop),
            9 => {
                let (kind, count) = (self.u32()?, self.u64()?);
                match scalar_bytes(kind) {
                    Some(bytes) => self.skip(count.saturating_mul(bytes)),
                    None if kind == 8 => (0..count).try_for_each(|_| self.text().map(drop)),
                    None => Err(Wrong::Format("an array is of an unknown type")),
                }
            }
            _ => self.skip(scalar_bytes(kind).ok_or(Wrong::Format("a value is of an unknown type"))?),
        }
    }
}

fn scalar_bytes(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}
