//! The functions of `include/kv_store_llama.h`. Types and constants are those of the crate `kv-store-abi`.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use kv_store_abi::llama::{KV_STORE_LLAMA_VTABLE_VERSION, kv_store_llama_t, kv_store_llama_vtable_t, llama_context};
use kv_store_abi::status::{KV_STORE_CORRUPT, KV_STORE_INVALID, KV_STORE_MISSING, KV_STORE_OTHER, KV_STORE_TOO_LONG};

use crate::engine::{Context, Engine, SequenceId, Token};
use crate::preload::answer;
use crate::slot::Slot;
use crate::states::{Loaded, NotLoaded, States};

static VTABLE: kv_store_llama_vtable_t = kv_store_llama_vtable_t {
    size: size_of::<kv_store_llama_vtable_t>() as u32,
    version: KV_STORE_LLAMA_VTABLE_VERSION,
    open,
    save,
    load,
    close,
    last_error,
};

/// The vtable of states. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kv_store_llama_get_vtable() -> *const kv_store_llama_vtable_t {
    &VTABLE
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

fn failed(error: &str) {
    let text: Vec<u8> = error.bytes().filter(|byte| *byte != 0).collect();
    LAST_ERROR.with_borrow_mut(|last| *last = CString::new(text).unwrap_or_default());
}

/// A status below 0, and why.
type Failure = (c_int, String);

fn invalid(what: &str) -> Failure {
    (KV_STORE_INVALID, what.to_owned())
}

fn other(error: String) -> Failure {
    (KV_STORE_OTHER, error)
}

fn guarded<T>(of_failure: impl FnOnce(c_int) -> T, work: impl FnOnce() -> Result<T, Failure>) -> T {
    let (status, error) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(answer)) => return answer,
        Ok(Err(failure)) => failure,
        Err(_) => other("a panic in this library".to_owned()),
    };
    failed(&error);
    of_failure(status)
}

/// # Safety
/// NULL or a C string.
unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: by this function's own condition.
    unsafe { CStr::from_ptr(text) }.to_str().map(Some).map_err(|_| invalid("a text is not UTF-8"))
}

/// The store, the name and the slot of a call.
///
/// # Safety
/// `states` is NULL, or of `open` and not closed; `name` is NULL or a C string.
unsafe fn slot<'a>(
    states: *const kv_store_llama_t,
    context: *mut llama_context,
    name: *const c_char,
    sequence: SequenceId,
) -> Result<(&'a States, &'a str, Slot), Failure> {
    // SAFETY: by this function's own condition.
    let (states, name) = unsafe { (states.cast::<States>().as_ref(), text(name)?) };
    let states = states.ok_or_else(|| invalid("the store is NULL"))?;
    let name = name.filter(|name| !name.is_empty()).ok_or_else(|| invalid("a state needs a name"))?;
    if context.is_null() {
        return Err(invalid("the context is NULL"));
    }
    let engine = Engine::find().map_err(|error| other(format!("no libllama in this process: {error}")))?;
    let context: Context = context.cast();
    Ok((states, name, Slot { engine, context, sequence }))
}

/// # Safety
/// `uri` is NULL or a C string, and so is `model`.
pub unsafe extern "C" fn open(uri: *const c_char, model: *const c_char) -> *mut kv_store_llama_t {
    guarded(
        |_| std::ptr::null_mut(),
        || {
            // SAFETY: by this function's own condition.
            let (uri, model) = unsafe { (text(uri)?.ok_or_else(|| invalid("the URI is NULL"))?, text(model)?) };
            let states = States::open(uri, model.filter(|model| !model.is_empty())).map_err(other)?;
            Ok(Box::into_raw(Box::new(states)).cast())
        },
    )
}

/// # Safety
/// `states` is NULL, or of `open` and not closed; the rest as for `llama_state_seq_save_file`.
pub unsafe extern "C" fn save(
    states: *const kv_store_llama_t,
    context: *mut llama_context,
    name: *const c_char,
    sequence: SequenceId,
    tokens: *const Token,
    count: usize,
) -> i64 {
    guarded(i64::from, || {
        // SAFETY: by this function's own condition.
        let (states, name, slot) = unsafe { slot(states, context, name, sequence)? };
        let tokens = match count {
            0 => &[][..],
            _ if tokens.is_null() => return Err(invalid("tokens is NULL")),
            // SAFETY: by this function's own condition.
            count => unsafe { std::slice::from_raw_parts(tokens, count) },
        };
        // SAFETY: by this function's own condition.
        let copied = unsafe { states.copy(&slot, name, tokens) }.map_err(other)?;
        let bytes = copied.file_bytes();
        states.store(&copied).map_err(other)?;
        Ok(bytes as i64)
    })
}

/// # Safety
/// As [`save`]; `tokens` is NULL or has room for so many, `count` is NULL or has room for a number.
pub unsafe extern "C" fn load(
    states: *const kv_store_llama_t,
    context: *mut llama_context,
    name: *const c_char,
    sequence: SequenceId,
    tokens: *mut Token,
    room: usize,
    count: *mut usize,
) -> i64 {
    guarded(i64::from, || {
        // SAFETY: by this function's own condition.
        let (states, name, slot) = unsafe { slot(states, context, name, sequence)? };
        if count.is_null() {
            return Err(invalid("the pointer to the number of tokens is NULL"));
        }
        // SAFETY: by this function's own condition.
        let loaded: Result<Loaded, NotLoaded> =
            unsafe { states.load(&slot, name, (!tokens.is_null()).then_some(room)) };
        let failure = loaded.as_ref().err().map(|error| match error {
            NotLoaded::Missing(error) => (KV_STORE_MISSING, error.clone()),
            NotLoaded::TooLong(error) => (KV_STORE_TOO_LONG, error.clone()),
            NotLoaded::Untouched(error) => (KV_STORE_OTHER, error.clone()),
            NotLoaded::Broken(error) => (KV_STORE_CORRUPT, error.clone()),
        });
        // SAFETY: by this function's own condition; what was loaded fits in `room`.
        let bytes = unsafe { answer(&slot, name, loaded, tokens, count) };
        failure.map_or(Ok(bytes as i64), Err)
    })
}

/// # Safety
/// `states` is NULL, or of `open` and not used after this.
pub unsafe extern "C" fn close(states: *mut kv_store_llama_t) {
    guarded(
        |_| (),
        || {
            if !states.is_null() {
                // SAFETY: by this function's own condition it is a box of `open`.
                drop(unsafe { Box::from_raw(states.cast::<States>()) });
            }
            Ok(())
        },
    );
}

/// # Safety
/// None: it takes nothing.
pub unsafe extern "C" fn last_error() -> *const c_char {
    LAST_ERROR.with_borrow(|last| last.as_ptr())
}
