//! The functions of `include/kv_store_llama.h`.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::engine::{Context, Engine, Sequence, Token};
use crate::preload::answer;
use crate::states::{Loaded, NotLoaded, Slot, States};

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

fn failed(error: &str) {
    let text: Vec<u8> = error.bytes().filter(|byte| *byte != 0).collect();
    LAST_ERROR.with_borrow_mut(|last| *last = CString::new(text).unwrap_or_default());
}

fn guarded<T>(of_failure: T, work: impl FnOnce() -> Result<T, String>) -> T {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(answer)) => return answer,
        Ok(Err(error)) => failed(&error),
        Err(_) => failed("a panic in this library"),
    }
    of_failure
}

/// # Safety
/// NULL or a C string.
unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>, String> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: by this function's own condition.
    unsafe { CStr::from_ptr(text) }.to_str().map(Some).map_err(|_| "a text is not UTF-8".to_owned())
}

/// The name and the slot of a call.
///
/// # Safety
/// `name` is NULL or a C string.
unsafe fn slot<'a>(context: Context, name: *const c_char, sequence: Sequence) -> Result<(&'a str, Slot), String> {
    // SAFETY: by this function's own condition.
    let name = unsafe { text(name)? }.filter(|name| !name.is_empty()).ok_or("a state needs a name")?;
    if context.is_null() {
        return Err("the context is NULL".to_owned());
    }
    let engine = Engine::find().map_err(|error| format!("no libllama in this process: {error}"))?;
    Ok((name, Slot { engine, context, sequence }))
}

/// See the header.
///
/// # Safety
/// `uri` is a C string, `model` one or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_store_llama_open(uri: *const c_char, model: *const c_char) -> *mut States {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: by this function's own condition.
        let (uri, model) = unsafe { (text(uri)?.ok_or("the URI is NULL")?, text(model)?) };
        Ok(Box::into_raw(Box::new(States::open(uri, model.filter(|model| !model.is_empty()))?)))
    })
}

/// See the header.
///
/// # Safety
/// `states` is of `kv_store_llama_open` and not closed; the rest as for `llama_state_seq_save_file`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_store_llama_save(
    states: *const States,
    context: Context,
    name: *const c_char,
    sequence: Sequence,
    tokens: *const Token,
    count: usize,
) -> usize {
    guarded(0, || {
        // SAFETY: by this function's own condition.
        let (states, (name, slot)) =
            unsafe { (states.as_ref().ok_or("the store is NULL")?, slot(context, name, sequence)?) };
        let tokens = match count {
            0 => &[][..],
            _ if tokens.is_null() => return Err("tokens is NULL".to_owned()),
            // SAFETY: by this function's own condition.
            count => unsafe { std::slice::from_raw_parts(tokens, count) },
        };
        // SAFETY: by this function's own condition.
        unsafe { states.save(&slot, name, tokens) }
    })
}

/// See the header.
///
/// # Safety
/// As [`kv_store_llama_save`]; `tokens` is NULL or has room for so many, `count` for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_store_llama_load(
    states: *const States,
    context: Context,
    name: *const c_char,
    sequence: Sequence,
    tokens: *mut Token,
    room: usize,
    count: *mut usize,
) -> usize {
    guarded(0, || {
        // SAFETY: by this function's own condition.
        let (states, (name, slot)) =
            unsafe { (states.as_ref().ok_or("the store is NULL")?, slot(context, name, sequence)?) };
        if count.is_null() {
            return Err("the pointer to the number of tokens is NULL".to_owned());
        }
        // SAFETY: by this function's own condition.
        let loaded: Result<Loaded, NotLoaded> =
            unsafe { states.load(&slot, name, (!tokens.is_null()).then_some(room)) };
        if let Err(NotLoaded::Untouched(error) | NotLoaded::Broken(error)) = &loaded {
            failed(error);
        }
        // SAFETY: by this function's own condition; what was loaded fits in `room`.
        Ok(unsafe { answer(&slot, name, loaded, tokens, count) })
    })
}

/// See the header.
///
/// # Safety
/// `states` is NULL, or of `kv_store_llama_open` and not used after this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_store_llama_close(states: *mut States) {
    guarded((), || {
        if !states.is_null() {
            // SAFETY: by this function's own condition it is a box of `kv_store_llama_open`.
            drop(unsafe { Box::from_raw(states) });
        }
        Ok(())
    });
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn kv_store_llama_last_error() -> *const c_char {
    LAST_ERROR.with_borrow(|last| last.as_ptr())
}
