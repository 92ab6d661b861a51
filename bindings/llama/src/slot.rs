//! A sequence of a context.

use crate::engine::{Context, Engine, SequenceId};

/// Made by the caller of a function that has llama.cpp's own conditions.
#[derive(Clone, Copy)]
pub struct Slot {
    pub engine: Engine,
    pub context: Context,
    pub sequence: SequenceId,
}
