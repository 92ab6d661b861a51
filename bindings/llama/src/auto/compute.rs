//! Batches of this library's own, computed by libllama.

use super::batch::Entry;
use super::llama::{BatchExt, DECODE, LlamaBatch, Process};
use crate::engine::{Context, Token};

/// What a batch answers that could not be made, or of which it is not known what was computed.
pub const FATAL: i32 = -2;

/// Compute entries in a batch of libllama.
///
/// # Safety
/// The context and the batch are of this libllama, and nobody else uses them.
pub unsafe fn run_process(process: &Process, context: Context, batch: BatchExt, entries: &[Entry]) -> i32 {
    if batch.is_null() {
        return FATAL;
    }
    // SAFETY: by this function's own condition.
    unsafe {
        (process.clear)(batch);
        for entry in entries {
            let index = (process.add_token)(batch, entry.sequence, entry.token);
            let position = entry.position.unwrap_or(-1);
            let placed = index >= 0
                && (process.set_pos)(batch, index, &position)
                && (!entry.output || (process.set_output)(batch, index, true));
            if !placed {
                return FATAL;
            }
        }
        (process.process)(context, DECODE, batch)
    }
}

/// Compute entries by the function of older versions.
///
/// # Safety
/// The context is of this libllama, and nobody else uses it.
pub unsafe fn run_decode(
    decode: unsafe extern "C" fn(Context, LlamaBatch) -> i32,
    context: Context,
    entries: &[Entry],
) -> i32 {
    let mut tokens: Vec<Token> = entries.iter().map(|entry| entry.token).collect();
    let mut positions: Vec<i32> = entries.iter().map(|entry| entry.position.unwrap_or(-1)).collect();
    let mut outputs: Vec<i8> = entries.iter().map(|entry| i8::from(entry.output)).collect();
    let mut sequences: Vec<i32> = entries.iter().map(|entry| entry.sequence).collect();
    let mut counts = vec![1; entries.len()];
    let mut each: Vec<*mut i32> = sequences.iter_mut().map(std::ptr::from_mut).collect();
    let batch = LlamaBatch {
        n_tokens: entries.len() as i32,
        token: tokens.as_mut_ptr(),
        embd: std::ptr::null_mut(),
        pos: positions.as_mut_ptr(),
        n_seq_id: counts.as_mut_ptr(),
        seq_id: each.as_mut_ptr(),
        logits: outputs.as_mut_ptr(),
    };
    // SAFETY: by this function's own condition; the arrays have as many items as the batch has tokens.
    unsafe { decode(context, batch) }
}
