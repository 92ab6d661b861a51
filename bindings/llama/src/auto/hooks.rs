//! The functions that change sequences, take and put states, and say what a context computes. Each has the name and the type of the one in
//! `llama.h`, and does what that one does. Without `KV_STORE_LLAMA_AUTO` it is that one.

use std::ffi::{c_char, c_void};

use super::llama::Memory;
use super::stand_in::{inside, stand_in};
use super::{Outcome, context::Tracked, with, with_memory};
use crate::engine::{Context, Token};

// Memory.

stand_in!("llama_memory_clear": fn memory_clear(memory: Memory, data: bool), without Default::default(), |original| {
    inside(|| original(memory, data));
    with_memory(memory, Tracked::cleared);
});

stand_in!("llama_memory_seq_rm": fn memory_remove(memory: Memory, sequence: i32, first: i32, end: i32) -> bool, without false, |original| {
    let removed = with_memory(memory, |tracked| {
        if !tracked.before_removal(sequence, first, end) {
            return true;
        }
        let removed = original(memory, sequence, first, end);
        if removed {
            tracked.removed(sequence, first, end);
        }
        removed
    });
    match removed {
        Outcome::Done(removed) => removed,
        Outcome::NotFollowed | Outcome::Panicked => original(memory, sequence, first, end),
    }
});

stand_in!("llama_memory_seq_cp": fn memory_copy(memory: Memory, from: i32, to: i32, first: i32, end: i32), without Default::default(), |original| {
    with_memory(memory, |tracked| {
        tracked.fulfil(from);
        tracked.fulfil(to);
        tracked.changed(Some(to));
    });
    inside(|| original(memory, from, to, first, end));
});

stand_in!("llama_memory_seq_keep": fn memory_keep(memory: Memory, sequence: i32), without Default::default(), |original| {
    with_memory(memory, |tracked| {
        tracked.fulfil(sequence);
        tracked.only(sequence);
    });
    inside(|| original(memory, sequence));
});

stand_in!("llama_memory_seq_add": fn memory_add(memory: Memory, sequence: i32, first: i32, end: i32, delta: i32), without Default::default(), |original| {
    with_memory(memory, |tracked| {
        tracked.fulfil_moved(sequence);
        tracked.changed((sequence >= 0).then_some(sequence));
    });
    inside(|| original(memory, sequence, first, end, delta));
});

stand_in!("llama_memory_seq_div": fn memory_divide(memory: Memory, sequence: i32, first: i32, end: i32, by: i32), without Default::default(), |original| {
    with_memory(memory, |tracked| {
        tracked.fulfil_moved(sequence);
        tracked.changed((sequence >= 0).then_some(sequence));
    });
    inside(|| original(memory, sequence, first, end, by));
});

stand_in!("llama_memory_seq_pos_max": fn memory_last(memory: Memory, sequence: i32) -> i32, without -1, |original| {
    match with_memory(memory, |tracked| tracked.promised_end(sequence)) {
        Outcome::Done(Some(last)) => last,
        _ => inside(|| original(memory, sequence)),
    }
});

stand_in!("llama_memory_seq_pos_min": fn memory_least(memory: Memory, sequence: i32) -> i32, without -1, |original| {
    // A sequence that is loaded later has all of its positions.
    match with_memory(memory, |tracked| tracked.promised_end(sequence)) {
        Outcome::Done(Some(_)) => 0,
        _ => inside(|| original(memory, sequence)),
    }
});

// States that the program takes and puts.

const PARTIAL: u32 = 1;

stand_in!("llama_state_seq_get_size": fn state_size(context: Context, sequence: i32) -> usize, without 0, |original| {
    with(context, |tracked| tracked.fulfil(sequence));
    inside(|| original(context, sequence))
});

stand_in!("llama_state_seq_get_size_ext": fn state_size_ext(context: Context, sequence: i32, flags: u32) -> usize, without 0, |original| {
    with(context, |tracked| tracked.fulfil(sequence));
    inside(|| original(context, sequence, flags))
});

/// A state was taken out.
///
/// # Safety
/// `state` has as many bytes; the rest as [`compute`].
unsafe fn taken(context: Context, sequence: i32, state: *const u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: by this function's own condition.
        unsafe { with(context, |tracked| tracked.taken(sequence, std::slice::from_raw_parts(state, bytes))) };
    }
}

stand_in!("llama_state_seq_get_data": fn state_get(context: Context, state: *mut u8, size: usize, sequence: i32) -> usize, without 0, |original| {
    with(context, |tracked| tracked.fulfil(sequence));
    let bytes = inside(|| original(context, state, size, sequence));
    taken(context, sequence, state, bytes.min(size));
    bytes
});

stand_in!("llama_state_seq_get_data_ext":
    fn state_get_ext(context: Context, state: *mut u8, size: usize, sequence: i32, flags: u32) -> usize, without 0, |original| {
    with(context, |tracked| {
        tracked.fulfil(sequence);
        tracked.keep_checkpoint(sequence);
    });
    let bytes = inside(|| original(context, state, size, sequence, flags));
    // With other flags the bytes are not all of the state.
    if flags & !PARTIAL == 0 {
        taken(context, sequence, state, bytes.min(size));
    }
    bytes
});

/// Put a state into a sequence, and note what the sequence is then.
///
/// # Safety
/// `state` has as many bytes; the rest as [`compute`].
unsafe fn put(
    context: Context,
    sequence: i32,
    state: *const u8,
    size: usize,
    flags: u32,
    put: impl FnOnce() -> usize,
) -> usize {
    // SAFETY: by this function's own condition.
    unsafe {
        with(context, |tracked| tracked.fulfil(sequence));
        let read = inside(put);
        with(context, |tracked| match read > 0 && flags & !PARTIAL == 0 {
            true => tracked.put(sequence, std::slice::from_raw_parts(state, size), flags & PARTIAL != 0),
            false => tracked.changed(Some(sequence)),
        });
        read
    }
}

stand_in!("llama_state_seq_set_data": fn state_set(context: Context, state: *const u8, size: usize, sequence: i32) -> usize, without 0, |original| {
    put(context, sequence, state, size, 0, || original(context, state, size, sequence))
});

stand_in!("llama_state_seq_set_data_ext":
    fn state_set_ext(context: Context, state: *const u8, size: usize, sequence: i32, flags: u32) -> usize, without 0, |original| {
    put(context, sequence, state, size, flags, || original(context, state, size, sequence, flags))
});

/// All of a context's state is read.
///
/// # Safety
/// As [`compute`].
unsafe fn whole_read(context: Context) {
    // SAFETY: by this function's own condition.
    unsafe { with(context, Tracked::fulfil_all) };
}

/// All of a context's state is replaced.
///
/// # Safety
/// As [`compute`].
unsafe fn whole_replaced(context: Context) {
    // SAFETY: by this function's own condition.
    unsafe { with(context, |tracked| tracked.turn_off("all of its state was replaced")) };
}

macro_rules! whole_states {
    ($($symbol:literal: $name:ident($($arg:ident: $type:ty),*) -> $answer:ty, without $missing:expr, before $before:ident;)*) => {
        $(stand_in!($symbol: fn $name(context: Context $(, $arg: $type)*) -> $answer, without $missing, |original| {
            $before(context);
            inside(|| original(context $(, $arg)*))
        });)*
    };
}

whole_states! {
    "llama_state_get_size": whole_size() -> usize, without 0, before whole_read;
    "llama_get_state_size": whole_size_former() -> usize, without 0, before whole_read;
    "llama_state_get_data": whole_get(state: *mut u8, size: usize) -> usize, without 0, before whole_read;
    "llama_copy_state_data": whole_get_former(state: *mut u8) -> usize, without 0, before whole_read;
    "llama_state_save_file": whole_save(path: *const c_char, tokens: *const Token, count: usize) -> bool, without false, before whole_read;
    "llama_save_session_file": whole_save_former(path: *const c_char, tokens: *const Token, count: usize) -> bool, without false, before whole_read;
    "llama_state_set_data": whole_set(state: *const u8, size: usize) -> usize, without 0, before whole_replaced;
    "llama_set_state_data": whole_set_former(state: *const u8) -> usize, without 0, before whole_replaced;
    "llama_state_load_file": whole_load(path: *const c_char, tokens: *mut Token, room: usize, count: *mut usize) -> bool, without false, before whole_replaced;
    "llama_load_session_file": whole_load_former(path: *const c_char, tokens: *mut Token, room: usize, count: *mut usize) -> bool, without false, before whole_replaced;
}

// What a context computes.

stand_in!("llama_set_embeddings": fn set_embeddings(context: Context, embeddings: bool), without Default::default(), |original| {
    with(context, |tracked| tracked.set_embeddings(embeddings));
    inside(|| original(context, embeddings));
});

/// Not to be followed from here on, if so.
///
/// # Safety
/// As [`compute`].
unsafe fn off_if(off: bool, context: Context, why: &str) {
    if off {
        // SAFETY: by this function's own condition.
        unsafe { with(context, |tracked| tracked.turn_off(why)) };
    }
}

stand_in!("llama_set_causal_attn": fn set_causal(context: Context, causal: bool), without Default::default(), |original| {
    off_if(!causal, context, "its tokens look ahead");
    inside(|| original(context, causal));
});

stand_in!("llama_set_sampler": fn set_sampler(context: Context, sequence: i32, sampler: *mut c_void) -> bool, without false, |original| {
    off_if(!sampler.is_null(), context, "it samples where it computes");
    inside(|| original(context, sequence, sampler))
});

stand_in!("llama_set_adapters_lora":
    fn set_adapters(context: Context, adapters: *mut *mut c_void, count: usize, scales: *mut f32) -> i32, without -1, |original| {
    off_if(count > 0, context, "it uses LoRA adapters");
    inside(|| original(context, adapters, count, scales))
});

stand_in!("llama_set_adapter_lora":
    fn set_adapter(context: Context, adapter: *mut c_void, scale: f32) -> i32, without -1, |original| {
    off_if(true, context, "it uses LoRA adapters");
    inside(|| original(context, adapter, scale))
});

stand_in!("_Z26llama_set_embeddings_nextnP13llama_contextbb":
    fn set_embeddings_nextn(context: Context, value: bool, masked: bool), without Default::default(), |original| {
    off_if(value, context, "a draft model reads what it computes");
    inside(|| original(context, value, masked));
});

stand_in!("_Z30llama_set_embeddings_layer_inpP13llama_contextjb":
    fn set_embeddings_layer(context: Context, layer: u32, value: bool), without Default::default(), |original| {
    off_if(value, context, "a draft model reads what it computes");
    inside(|| original(context, layer, value));
});
