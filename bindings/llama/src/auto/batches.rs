//! The functions that fill batches, compute them and read their outputs. Each has the name and the type of the one in `llama.h`, and does
//! what that one does. Without `KV_STORE_LLAMA_AUTO` it is that one.

use std::collections::HashMap;
use std::ffi::c_void;

use kv_platform::sync::{Mutex, MutexGuard};

use super::batch::{Batch, Entry};
use super::compute::FATAL;
use super::llama::{BatchExt, DECODE, LlamaBatch};
use super::stand_in::{inside, stand_in};
use super::{Outcome, context::Tracked, forget, with};
use crate::engine::{Context, Token};

/// Batches of the program, by their addresses.
static BATCHES: Mutex<Option<HashMap<usize, Batch>>> = Mutex::new(None);

fn batches() -> MutexGuard<'static, Option<HashMap<usize, Batch>>> {
    BATCHES.lock()
}

fn in_batch(batch: BatchExt, change: impl FnOnce(&mut Batch)) {
    if let Some(batch) = batches().as_mut().and_then(|all| all.get_mut(&(batch as usize))) {
        change(batch);
    }
}

fn in_entry(batch: BatchExt, index: i32, change: impl FnOnce(&mut Entry)) {
    in_batch(batch, |batch| match usize::try_from(index).ok().and_then(|index| batch.entries.get_mut(index)) {
        Some(entry) => change(entry),
        None => batch.odd = true,
    });
}

stand_in!("llama_batch_ext_init": fn batch_init(context: Context) -> BatchExt, without std::ptr::null_mut(), |original| {
    let batch = original(context);
    batches().get_or_insert_default().insert(batch as usize, Batch::default());
    batch
});

stand_in!("llama_batch_ext_free": fn batch_free(batch: BatchExt), without Default::default(), |original| {
    batches().as_mut().map(|all| all.remove(&(batch as usize)));
    original(batch);
});

stand_in!("llama_batch_ext_clear": fn batch_clear(batch: BatchExt), without Default::default(), |original| {
    in_batch(batch, |batch| {
        batch.entries.clear();
        batch.others.clear();
        batch.odd = false;
    });
    original(batch);
});

stand_in!("llama_batch_ext_add_token": fn batch_add_token(batch: BatchExt, sequence: i32, token: Token) -> i32, without -1, |original| {
    let index = original(batch, sequence, token);
    in_batch(batch, |batch| {
        if usize::try_from(index) == Ok(batch.entries.len()) {
            batch.entries.push(Entry { token, sequence, position: None, output: false });
        } else if index >= 0 {
            batch.odd = true;
        }
    });
    index
});

/// A row that is no token, if it was added.
fn odd_row(batch: BatchExt, sequence: i32, index: i32) {
    if index < 0 {
        return;
    }
    in_batch(batch, |batch| {
        batch.odd = true;
        batch.others.push(sequence);
        // Rows behind it have the indices that libllama gives them.
        batch.entries.push(Entry { token: -1, sequence, position: None, output: false });
    });
}

stand_in!("llama_batch_ext_add": fn batch_add(batch: BatchExt, sequence: i32) -> i32, without -1, |original| {
    let index = original(batch, sequence);
    odd_row(batch, sequence, index);
    index
});

/// `llama_embd` of `llama.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LlamaEmbd {
    data: *const f32,
    n_rows: usize,
    n_embd: usize,
}

stand_in!("llama_batch_ext_add_embd": fn batch_add_embd(batch: BatchExt, sequence: i32, embd: LlamaEmbd) -> i32, without -1, |original| {
    let index = original(batch, sequence, embd);
    odd_row(batch, sequence, index);
    index
});

stand_in!("llama_batch_ext_add_seq": fn batch_add_seq(batch: BatchExt, index: i32, sequence: i32) -> bool, without false, |original| {
    let added = original(batch, index, sequence);
    if added {
        in_batch(batch, |batch| {
            batch.odd = true;
            batch.others.push(sequence);
        });
    }
    added
});

stand_in!("llama_batch_ext_set_embd_token": fn batch_set_embd_token(batch: BatchExt, index: i32, embd: LlamaEmbd) -> bool, without false, |original| {
    // A context that takes none refuses it, and nothing has changed.
    let set = original(batch, index, embd);
    if set {
        in_batch(batch, |batch| batch.odd = true);
    }
    set
});

stand_in!("llama_batch_ext_set_embd_state": fn batch_set_embd_state(batch: BatchExt, index: i32, embd: LlamaEmbd) -> bool, without false, |original| {
    // A context that takes none refuses it, and nothing has changed.
    let set = original(batch, index, embd);
    if set {
        in_batch(batch, |batch| batch.odd = true);
    }
    set
});

stand_in!("_Z34llama_batch_ext_set_decision_orderP15llama_batch_exti20llama_decision_order":
    fn batch_set_decision_order(batch: BatchExt, index: i32, order: i32) -> bool, without false, |original| {
    in_batch(batch, |batch| batch.odd = true);
    original(batch, index, order)
});

stand_in!("llama_batch_ext_set_output_embd": fn batch_set_output_embd(batch: BatchExt, index: i32, output: bool) -> bool, without false, |original| {
    let set = original(batch, index, output);
    if set {
        in_entry(batch, index, |entry| entry.output = output);
    }
    set
});

stand_in!("llama_batch_ext_set_output_logits": fn batch_set_output_logits(batch: BatchExt, index: i32, output: bool) -> bool, without false, |original| {
    let set = original(batch, index, output);
    if set {
        in_entry(batch, index, |entry| entry.output = output);
    }
    set
});

stand_in!("llama_batch_ext_set_pos": fn batch_set_pos(batch: BatchExt, index: i32, position: *const i32) -> bool, without false, |original| {
    let set = original(batch, index, position);
    if set {
        in_entry(batch, index, |entry| entry.position = (!position.is_null()).then(|| *position));
    }
    set
});

// Computing.

/// Compute a batch on a context.
///
/// # Safety
/// The context is one of this process's libllama, and no other thread uses it.
unsafe fn compute(context: Context, batch: Option<Batch>, mut whole: impl FnMut() -> i32) -> i32 {
    // SAFETY: by this function's own condition.
    let done = unsafe {
        with(context, |tracked| match &batch {
            Some(batch) => tracked.process(batch, &mut whole),
            None => {
                tracked.turn_off("it computes something that is no batch of tokens");
                whole()
            }
        })
    };
    match done {
        Outcome::Done(status) => status,
        Outcome::NotFollowed => whole(),
        Outcome::Panicked => FATAL,
    }
}

stand_in!("llama_process": fn process(context: Context, kind: i32, batch: BatchExt) -> i32, without -1, |original| {
    let known = batches().as_ref().and_then(|all| all.get(&(batch as usize)).cloned()).filter(|_| kind == DECODE);
    compute(context, known, || original(context, kind, batch))
});

stand_in!("llama_decode": fn decode(context: Context, batch: LlamaBatch) -> i32, without -1, |original| {
    compute(context, Some(classic(&batch)), || original(context, batch))
});

stand_in!("llama_encode": fn encode(context: Context, batch: LlamaBatch) -> i32, without -1, |original| {
    compute(context, None, || original(context, batch))
});

/// What a batch of `llama_decode` has.
///
/// # Safety
/// Its arrays are NULL, or have as many items as it says.
unsafe fn classic(batch: &LlamaBatch) -> Batch {
    let count = usize::try_from(batch.n_tokens).unwrap_or(0);
    let mut own = Batch { odd: batch.token.is_null() || !batch.embd.is_null(), ..Batch::default() };
    for index in 0..count {
        // SAFETY: by this function's own condition.
        let (token, position, counted, output) = unsafe {
            (
                (!batch.token.is_null()).then(|| *batch.token.add(index)),
                (!batch.pos.is_null()).then(|| *batch.pos.add(index)),
                if batch.n_seq_id.is_null() || batch.seq_id.is_null() { 0 } else { *batch.n_seq_id.add(index) },
                if batch.logits.is_null() { index + 1 == count } else { *batch.logits.add(index) != 0 },
            )
        };
        let sequences: Vec<i32> = (0..usize::try_from(counted).unwrap_or(0))
            // SAFETY: the same.
            .map(|at| unsafe { *(*batch.seq_id.add(index)).add(at) })
            .collect();
        own.odd |= sequences.len() > 1;
        own.others.extend(sequences.get(1..).unwrap_or_default());
        // Without sequences it is the first.
        let sequence = sequences.first().copied().unwrap_or(0);
        own.entries.push(Entry { token: token.unwrap_or(-1), sequence, position, output });
    }
    own
}

stand_in!("llama_synchronize": fn synchronize(context: Context), without Default::default(), |original| {
    original(context);
    with(context, Tracked::synchronized);
});

stand_in!("llama_free": fn free(context: Context), without Default::default(), |original| {
    forget(context);
    original(context);
});

// Outputs, by their index in the program's batch.

/// The index to ask the context for.
///
/// # Safety
/// As [`compute`].
unsafe fn output(context: Context, index: i32) -> i32 {
    // SAFETY: by this function's own condition.
    match unsafe { with(context, |tracked| tracked.output(index)) } {
        Outcome::Done(index) => index,
        Outcome::NotFollowed | Outcome::Panicked => index,
    }
}

macro_rules! outputs {
    ($($symbol:literal: $name:ident -> $answer:ty, without $missing:expr;)*) => {
        $(stand_in!($symbol: fn $name(context: Context, index: i32) -> $answer, without $missing, |original| {
            let index = output(context, index);
            let found = inside(|| original(context, index));
            with(context, Tracked::synchronized);
            found
        });)*
    };
}

outputs! {
    "llama_get_logits_ith": logits -> *mut f32, without std::ptr::null_mut();
    "llama_get_embeddings_ith": embeddings -> *mut f32, without std::ptr::null_mut();
    "llama_get_sampled_token_ith": sampled_token -> Token, without -1;
    "llama_get_sampled_probs_ith": sampled_probs -> *mut f32, without std::ptr::null_mut();
    "llama_get_sampled_probs_count_ith": sampled_probs_count -> u32, without 0;
    "llama_get_sampled_logits_ith": sampled_logits -> *mut f32, without std::ptr::null_mut();
    "llama_get_sampled_logits_count_ith": sampled_logits_count -> u32, without 0;
    "llama_get_sampled_candidates_ith": sampled_candidates -> *mut Token, without std::ptr::null_mut();
    "llama_get_sampled_candidates_count_ith": sampled_candidates_count -> u32, without 0;
}

stand_in!("llama_sampler_sample": fn sample(sampler: *mut c_void, context: Context, index: i32) -> Token, without -1, |original| {
    // What it calls is not mapped again.
    let index = output(context, index);
    let token = inside(|| original(sampler, context, index));
    with(context, Tracked::synchronized);
    token
});
