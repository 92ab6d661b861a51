//! Where the state of a sequence is cut into chunks.
//!
//! A state is what `llama_state_seq_get_data` writes, little-endian:
//!
//! ```text
//! u32 magic, i32 sequence                                      once
//! u32 streams                                                  for each cache (two with sliding windows)
//!   u32 cells; nothing else of the stream if it is 0           for each stream
//!   i32 position, u32 sequences (1), i32 sequence              for each cell
//!   u32 v_transposed, u32 layers                               once
//!   u32, u32                                                   once, since version 4 of the sequence files
//!   i32 type, u64 row_bytes, cells rows                        K of each layer
//!   i32 type, u64 row_bytes, cells rows                        V of each layer; or, transposed:
//!   i32 type, u32 element_bytes, u32 columns, columns x cells  V of each layer
//! ```
//!
//! A row of K or V depends on nothing that comes after its token, so rows are cut at multiples of [`TOKENS`] positions: the
//! state of a longer conversation has the same rows at the same places. A chunk holds such a run of rows of one or more
//! neighbouring layers, about [`CHUNK_BYTES`] together. V that is transposed, and a state of any other layout, is cut where
//! its content says (FastCDC). What is neither stays in the manifest: 12 bytes a token, and a few for each layer.
//!
//! Invariant: whatever the bytes are, a [`Cut`] covers them once; so a state that is cut in an unforeseen way shares fewer
//! chunks and is whole all the same.

use std::ops::Range;

/// The last version of llama.cpp's sequence files whose states are known. Those of later ones are cut by content.
pub const LAST_VERSION: u32 = 4;
/// Positions that a run of rows ends at multiples of.
pub const TOKENS: u64 = 64;
/// Rows of so many neighbouring layers make a chunk as have at most this size together, but at least those of one.
pub const CHUNK_BYTES: u64 = 1 << 20;
/// Content-defined chunks: least, average and most bytes.
const CONTENT: (usize, usize, usize) = (64 << 10, 256 << 10, 1 << 20);
/// The magic and the sequence, before the caches.
const HEADER_BYTES: usize = 8;
/// More than any model has: what says so is of another layout.
const MAX_STREAMS: u32 = 4096;
const MAX_LAYERS: u32 = 4096;
const MAX_ROW_BYTES: u64 = 1 << 24;

/// Rows of one size that lie one after another: K or V of a layer, or bytes (rows of one byte).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Where the first row begins, in bytes from the start of the state.
    pub offset: u64,
    /// Bytes of a row.
    pub row: u64,
}

/// Sections of as many rows each, which are cut at the same rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// In the order of their offsets.
    pub sections: Vec<Section>,
    /// How many sections, from the first, share chunks: the sum is the number of sections.
    pub groups: Vec<u32>,
    /// How many rows are in each run: the sum is the number of rows.
    pub runs: Vec<u64>,
}

/// A state as chunks, and the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// In the order of their offsets.
    pub blocks: Vec<Block>,
}

impl Block {
    fn rows(&self) -> Option<u64> {
        self.runs.iter().try_fold(0_u64, |sum, run| sum.checked_add(*run))
    }

    /// The chunks: of each run, those of each group.
    fn chunks(&self) -> impl Iterator<Item = Vec<Range<usize>>> {
        let mut first_row = 0;
        self.runs.iter().flat_map(move |run| {
            let rows = first_row..first_row + run;
            first_row = rows.end;
            let mut sections = self.sections.as_slice();
            self.groups.iter().map(move |group| {
                let (now, later) = sections.split_at_checked(*group as usize).unwrap_or((sections, &[]));
                sections = later;
                let piece = |section: &Section| {
                    let at = |row: u64| (section.offset + row * section.row) as usize;
                    at(rows.start)..at(rows.end)
                };
                now.iter().map(piece).collect()
            })
        })
    }
}

impl Cut {
    /// Cut a state of a version of llama.cpp's sequence files.
    pub fn new(state: &[u8], version: u32) -> Cut {
        Walk::over(state, version).map_or_else(|| Cut::by_content(state), |walk| Cut { blocks: walk.blocks })
    }

    /// Cut bytes of any kind.
    pub fn by_content(bytes: &[u8]) -> Cut {
        Cut { blocks: vec![by_content(bytes, 0..bytes.len())] }
    }

    /// How many chunks there are; `None` if the number has no meaning.
    pub fn len(&self) -> Option<usize> {
        self.blocks
            .iter()
            .try_fold(0_usize, |sum, block| sum.checked_add(block.groups.len().checked_mul(block.runs.len())?))
    }

    /// The pieces of each chunk, as ranges of the state.
    pub fn chunks(&self) -> impl Iterator<Item = Vec<Range<usize>>> {
        self.blocks.iter().flat_map(Block::chunks)
    }

    /// The ranges of a state of `size` bytes that are in no chunk. `None`: the cut is not one of such a state, because
    /// something lies outside it, overlaps, or does not add up.
    pub fn rest(&self, size: u64) -> Option<Vec<Range<usize>>> {
        let mut rest = Vec::new();
        let mut done = 0_u64;
        for block in &self.blocks {
            let rows = block.rows().filter(|rows| *rows > 0)?;
            let grouped = block.groups.iter().try_fold(0_u64, |sum, group| sum.checked_add(u64::from(*group)))?;
            let whole = grouped == block.sections.len() as u64;
            if !whole || block.groups.contains(&0) || block.runs.contains(&0) {
                return None;
            }
            for section in &block.sections {
                let end = section.row.checked_mul(rows)?.checked_add(section.offset)?;
                if section.row == 0 || section.offset < done || end > size {
                    return None;
                }
                rest.push(done as usize..section.offset as usize);
                done = end;
            }
        }
        rest.push(done as usize..size as usize);
        rest.retain(|range| !range.is_empty());
        Some(rest)
    }
}

/// How many streams the cache has that a state is of; 1 where it says nothing that makes sense.
pub fn streams(state: &[u8]) -> u32 {
    let bytes = state.get(HEADER_BYTES..).and_then(<[u8]>::first_chunk::<4>);
    bytes.map(|bytes| u32::from_le_bytes(*bytes)).filter(|streams| (1..=MAX_STREAMS).contains(streams)).unwrap_or(1)
}

/// What a state says of the cache that it is of. States of one context have the same words, whatever their tokens are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Form {
    /// For each cache and stream that is not empty: whether V is transposed, the layers, and the type and size of each row.
    pub words: Vec<u64>,
    /// The positions of the cells, for each stream that is not empty, in the order of the state.
    pub positions: Vec<Vec<u32>>,
}

impl Form {
    /// Of a state of a version of llama.cpp's sequence files; `None` if its layout is not known.
    pub fn of(state: &[u8], version: u32) -> Option<Form> {
        Walk::over(state, version).map(|walk| walk.form)
    }

    /// Whether the cells are those of a sequence of so many tokens: none is behind it, and a cache without a window has all.
    pub fn has(&self, tokens: usize, all: bool) -> bool {
        let whole = |positions: &Vec<u32>| {
            let mut sorted = positions.clone();
            sorted.sort_unstable();
            let once = sorted.windows(2).all(|pair| pair.first() < pair.last());
            let last = sorted.last().is_some_and(|last| u64::from(*last) + 1 == tokens as u64);
            once && last && (!all || sorted.len() == tokens)
        };
        !self.positions.is_empty() && self.positions.iter().all(whole)
    }
}

/// A walk over a state; `None` from its methods says that the layout is another one.
struct Walk<'a> {
    state: &'a [u8],
    version: u32,
    at: usize,
    blocks: Vec<Block>,
    form: Form,
}

impl<'a> Walk<'a> {
    /// A walk that has come to the end of the state.
    fn over(state: &'a [u8], version: u32) -> Option<Walk<'a>> {
        let mut walk = Walk { state, version, at: HEADER_BYTES, blocks: Vec::new(), form: Form::default() };
        (version <= LAST_VERSION && state.len() > HEADER_BYTES && walk.caches().is_some()).then_some(walk)
    }

    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = self.state.get(self.at..)?.first_chunk::<N>()?;
        self.at += N;
        Some(*bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// Pass over so many bytes; where they begin.
    fn skip(&mut self, bytes: u64) -> Option<usize> {
        let begin = self.at;
        let end = begin.checked_add(usize::try_from(bytes).ok()?)?;
        if end > self.state.len() {
            return None;
        }
        self.at = end;
        Some(begin)
    }

    /// The caches, to the end of the state.
    fn caches(&mut self) -> Option<()> {
        while self.at < self.state.len() {
            let streams = self.u32().filter(|streams| (1..=MAX_STREAMS).contains(streams))?;
            self.form.words.push(u64::from(streams));
            for _ in 0..streams {
                let cells = self.u32()?;
                if cells > 0 {
                    self.stream(cells)?;
                }
            }
        }
        Some(())
    }

    fn stream(&mut self, cells: u32) -> Option<()> {
        let runs = self.cells(cells)?;
        let transposed = self.u32().filter(|flag| *flag <= 1)? == 1;
        let layers = self.u32().filter(|layers| (1..=MAX_LAYERS).contains(layers))?;
        self.form.words.extend([u64::from(transposed), u64::from(layers)]);
        if self.version >= 4 {
            let two_more = self.u64()?;
            self.form.words.push(two_more);
        }
        let mut block = Block { runs, ..Block::default() };
        for _ in 0..layers {
            let section = self.rows(cells)?;
            block.sections.push(section);
        }
        // Models with a compressed cache keep no V.
        let keeps_v = self.at < self.state.len();
        if keeps_v && !transposed {
            for _ in 0..layers {
                let section = self.rows(cells)?;
                block.sections.push(section);
            }
        }
        block.groups = groups(&block.sections);
        self.blocks.push(block);
        if keeps_v && transposed {
            for _ in 0..layers {
                let kind = u64::from(self.u32()?);
                let element = u64::from(self.u32()?);
                let columns = u64::from(self.u32()?);
                self.form.words.extend([kind, element, columns]);
                let bytes = element.checked_mul(columns)?.checked_mul(u64::from(cells)).filter(|bytes| *bytes > 0)?;
                let begin = self.skip(bytes)?;
                self.blocks.push(by_content(self.state, begin..self.at));
            }
        }
        Some(())
    }

    /// Pass over the cells' positions; how many rows each run has.
    fn cells(&mut self, cells: u32) -> Option<Vec<u64>> {
        if u64::from(cells) > (self.state.len() - self.at) as u64 / 12 {
            return None;
        }
        let mut runs: Vec<u64> = Vec::new();
        let mut last: Option<u32> = None;
        let mut positions = Vec::with_capacity(cells as usize);
        for _ in 0..cells {
            let position = self.u32().filter(|position| *position <= i32::MAX as u32)?;
            if self.u32()? != 1 {
                return None;
            }
            let _sequence = self.u32()?;
            let same = last.is_some_and(|last| u64::from(last) / TOKENS == u64::from(position) / TOKENS);
            match runs.last_mut().filter(|_| same) {
                Some(run) => *run += 1,
                None => runs.push(1),
            }
            last = Some(position);
            positions.push(position);
        }
        self.form.positions.push(positions);
        // Positions in no order would make a chunk of each row.
        let expected = u64::from(cells).div_ceil(TOKENS) + 2;
        if runs.len() as u64 > 2 * expected {
            let full = std::iter::repeat_n(TOKENS, cells as usize / TOKENS as usize);
            runs = full.chain(Some(u64::from(cells) % TOKENS).filter(|rest| *rest > 0)).collect();
        }
        Some(runs)
    }

    /// Pass over K or V of a layer.
    fn rows(&mut self, cells: u32) -> Option<Section> {
        let kind = u64::from(self.u32()?);
        let row = self.u64().filter(|row| (1..=MAX_ROW_BYTES).contains(row))?;
        self.form.words.extend([kind, row]);
        let offset = self.skip(row * u64::from(cells))? as u64;
        Some(Section { offset, row })
    }
}

/// Neighbouring sections whose full runs make a chunk together. It depends on the sizes of rows only, so a longer
/// conversation has the same groups.
fn groups(sections: &[Section]) -> Vec<u32> {
    let mut groups: Vec<u32> = Vec::new();
    let mut bytes = u64::MAX;
    for section in sections {
        let run = section.row * TOKENS;
        bytes = bytes.saturating_add(run);
        match groups.last_mut().filter(|_| bytes <= CHUNK_BYTES) {
            Some(group) => *group += 1,
            None => {
                groups.push(1);
                bytes = run;
            }
        }
    }
    groups
}

/// A range of bytes that is cut where its content says.
fn by_content(state: &[u8], range: Range<usize>) -> Block {
    let (least, average, most) = CONTENT;
    let bytes = state.get(range.clone()).unwrap_or_default();
    let runs = fastcdc::v2020::FastCDC::new(bytes, least, average, most).map(|chunk| chunk.length as u64).collect();
    Block { sections: vec![Section { offset: range.start as u64, row: 1 }], groups: vec![1], runs }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
pub(crate) mod tests;
