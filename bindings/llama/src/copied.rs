//! The state of a sequence, copied out of llama.cpp while the program waits.

use std::time::Instant;

use crate::engine::{FILE_HEADER_BYTES, MEMORY_HEADER_BYTES, Token};
use crate::memory::StateMemory;
use crate::slot::Slot;

/// A state that was copied, and is not stored yet.
pub struct Copied {
    pub name: String,
    pub manifest: String,
    pub fingerprint: [u8; 32],
    pub version: u32,
    pub tokens: Vec<Token>,
    /// Tokens, for people.
    pub said: usize,
    pub state: StateMemory,
    pub begun: Instant,
}

impl Copied {
    /// Copy the state of a sequence. `manifest` names it, and `made` is what made it: a version of the layout and a fingerprint.
    ///
    /// # Safety
    /// What `llama_state_seq_get_data` asks for holds for the slot.
    pub unsafe fn of(
        slot: &Slot,
        name: &str,
        manifest: impl FnOnce(&[u8]) -> String,
        (version, fingerprint): (u32, [u8; 32]),
        tokens: &[Token],
    ) -> Result<Copied, String> {
        let begun = Instant::now();
        let Slot { engine, context, sequence } = *slot;
        // SAFETY: by this function's own condition.
        let size = unsafe { (engine.state_size)(context, sequence) };
        if size < MEMORY_HEADER_BYTES {
            return Err("llama.cpp gives no state".to_owned());
        }
        let mut state = StateMemory::new(size).map_err(|error| format!("no memory for {size} bytes: {error}"))?;
        // SAFETY: the same; the memory has `size` bytes.
        let written = unsafe { (engine.state_get)(context, state.as_mut_ptr(), size, sequence) };
        if written != size {
            return Err(format!("llama.cpp wrote {written} bytes of a state of {size} bytes"));
        }
        // Newer servers pass more words than tokens; each token has a position.
        // SAFETY: the same.
        let positions = unsafe { engine.positions(context, sequence) };
        let said = positions.unwrap_or(tokens.len()).min(tokens.len());
        let (name, manifest, tokens) = (name.to_owned(), manifest(&state), tokens.to_vec());
        Ok(Copied { name, manifest, fingerprint, version, tokens, said, state, begun })
    }

    /// What a context never made.
    #[cfg(test)]
    pub fn for_tests(tokens: &[Token]) -> Copied {
        Copied {
            name: String::new(),
            manifest: String::new(),
            fingerprint: [0; 32],
            version: 0,
            tokens: tokens.to_vec(),
            said: tokens.len(),
            state: StateMemory::new(1).unwrap(),
            begun: Instant::now(),
        }
    }

    /// The state, as llama.cpp wrote it.
    pub fn state(&self) -> &[u8] {
        &self.state
    }

    /// Bytes that the sequence file would have.
    pub fn file_bytes(&self) -> usize {
        file_bytes(&self.tokens, self.state.len())
    }

    /// Bytes of memory that it holds.
    pub fn bytes(&self) -> usize {
        self.state.len() + size_of_val(self.tokens.as_slice())
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn manifest_name(&self) -> &str {
        &self.manifest
    }
}

/// Bytes of the sequence file of a state of so many bytes.
pub fn file_bytes(tokens: &[Token], state: usize) -> usize {
    FILE_HEADER_BYTES + size_of_val(tokens) + state.saturating_sub(MEMORY_HEADER_BYTES)
}
