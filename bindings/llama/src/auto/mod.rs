//! The automatic prefix cache (`KV_STORE_LLAMA_AUTO=1`): a beginning of a prompt that the store has is loaded, and not computed.
//!
//! - `batches` and `hooks` have the functions that this library stands in for (`stand_in`); each does what the one behind it does, and tells a context.
//! - `context` follows one context: which tokens its sequences have (`sequence`), what of a batch is computed (`batch`, `compute`), what is
//!   loaded and stored. `remembered` knows states that the program itself took out and puts back.
//! - `search` finds the longest beginning by the names of `index`; `policy` says which states are stored, `rates` which loads are worth it.
//! - `keep` stores and asks, `asker` bounds how long a question is waited for. `fresh` has what is not stored yet.
//! - `imports` finds functions that this library does not know.
//!
//! `docs/decisions/automatic-prefix-cache.md` has the reasons.

mod asker;
mod batch;
mod batches;
mod compute;
mod context;
mod fresh;
mod hooks;
mod imports;
mod index;
mod keep;
mod llama;
mod policy;
mod rates;
mod remembered;
mod search;
mod sequence;
mod stand_in;

use std::cell::Cell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use kv_platform::sync::{Mutex, MutexGuard};

use self::context::Tracked;
use self::policy::{BYTES_A_TOKEN, Credit};
use crate::engine::Context;
use crate::log;
use crate::settings::{AUTO_BYTES, Settings};

/// A context of the program; `None`: it is not followed.
type Followed = Arc<Mutex<Option<Tracked>>>;

/// Contexts by their addresses.
static CONTEXTS: Mutex<Option<HashMap<usize, Followed>>> = Mutex::new(None);
/// A panic was caught: nothing is followed any more.
static BROKEN: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// This thread is inside a function that this library stands in for: what libllama calls from there is its own affair.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the automatic cache is on, here.
pub fn is_on() -> bool {
    let settings = Settings::get();
    settings.auto && settings.uri.is_some() && !BROKEN.load(Relaxed) && !INSIDE.get()
}

/// What came of the wish to work on a context.
pub enum Outcome<T> {
    Done(T),
    /// The context is not followed.
    NotFollowed,
    /// A panic: what was done of it is not known.
    Panicked,
}

struct Inside;

impl Inside {
    fn enter() -> Inside {
        INSIDE.set(true);
        Inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

fn contexts() -> MutexGuard<'static, Option<HashMap<usize, Followed>>> {
    CONTEXTS.lock()
}

/// Work on a context that is followed. One that is not known yet is followed from here on.
///
/// # Safety
/// The context is one of this process's libllama, and no other thread uses it.
pub unsafe fn with<T>(context: Context, work: impl FnOnce(&mut Tracked) -> T) -> Outcome<T> {
    let _inside = Inside::enter();
    let done = catch_unwind(AssertUnwindSafe(|| {
        let followed = Arc::clone(contexts().get_or_insert_default().entry(context as usize).or_insert_with(|| {
            // SAFETY: by this function's own condition.
            Arc::new(Mutex::new(unsafe { follow(context) }))
        }));
        let mut followed = followed.lock();
        let done = followed.as_mut().map(work);
        if followed.as_ref().is_some_and(Tracked::is_off) {
            *followed = None;
        }
        done
    }));
    match done {
        Ok(Some(done)) => Outcome::Done(done),
        Ok(None) => Outcome::NotFollowed,
        Err(_) => {
            BROKEN.store(true, Relaxed);
            log::line("a panic in this library: the automatic cache is off");
            Outcome::Panicked
        }
    }
}

/// Work on the context that has this memory, if it is followed.
///
/// # Safety
/// As [`with`].
pub unsafe fn with_memory<T>(memory: llama::Memory, work: impl FnOnce(&mut Tracked) -> T) -> Outcome<T> {
    let has = |followed: &Followed| {
        // One that another thread works on is not that of this memory's context.
        let followed = followed.try_lock();
        followed.is_some_and(|followed| followed.as_ref().is_some_and(|tracked| tracked.memory() == memory))
    };
    let found = contexts().as_ref().and_then(|all| all.iter().find(|(_, one)| has(one)).map(|(context, _)| *context));
    match found {
        // SAFETY: by this function's own condition.
        Some(context) => unsafe { with(context as Context, work) },
        None => Outcome::NotFollowed,
    }
}

/// A sequence of a context is about to be written to a file.
///
/// # Safety
/// As [`with`].
pub unsafe fn before_file(context: Context, sequence: i32) {
    if is_on() {
        // SAFETY: by this function's own condition.
        unsafe { with(context, |tracked| tracked.fulfil(sequence)) };
    }
}

/// A sequence of a context is about to be read from a file.
///
/// # Safety
/// As [`with`].
pub unsafe fn changed_by_file(context: Context, sequence: i32) {
    if is_on() {
        // SAFETY: by this function's own condition.
        unsafe { with(context, |tracked| tracked.changed(Some(sequence))) };
    }
}

/// A control vector is used.
///
/// # Safety
/// As [`with`].
pub unsafe fn adapted(context: Context) {
    if is_on() {
        // SAFETY: by this function's own condition.
        unsafe { with(context, |tracked| tracked.turn_off("it uses a control vector")) };
    }
}

/// A context is freed.
///
/// # Safety
/// As [`with`].
pub unsafe fn forget(context: Context) {
    let _inside = Inside::enter();
    let followed = contexts().as_mut().and_then(|all| all.remove(&(context as usize)));
    if let Some(tracked) = followed.as_ref().and_then(|followed| followed.lock().take()) {
        let mut tracked = tracked;
        tracked.free();
    }
}

/// # Safety
/// As [`with`].
unsafe fn follow(context: Context) -> Option<Tracked> {
    let unknown = match imports::unknown_function() {
        Ok(None) => None,
        Ok(Some(function)) => Some(format!("this library does not know {function}")),
        Err(error) => Some(error),
    };
    let adapted = || match crate::adapters::were_loaded() {
        true => Err("a LoRA adapter or control vector was loaded".to_owned()),
        false => Ok(()),
    };
    // SAFETY: by this function's own condition.
    let tracked = unknown
        .map_or(Ok(()), Err)
        .and_then(|()| adapted())
        .and_then(|()| unsafe { Tracked::new(context, Arc::clone(credit())) });
    tracked.map_err(|why| log::line(format_args!("automatic cache: off for a context: {why}"))).ok()
}

/// What may be written, of all contexts together.
fn credit() -> &'static Arc<Mutex<Credit>> {
    static CREDIT: OnceLock<Arc<Mutex<Credit>>> = OnceLock::new();
    CREDIT.get_or_init(|| {
        let set = Settings::get().auto_bytes.as_deref();
        let bytes = match set.map(kv_size::Bytes::flag) {
            Some(Ok(bytes)) => bytes,
            Some(Err(error)) => {
                log::line(format_args!("{AUTO_BYTES}: {error}"));
                BYTES_A_TOKEN
            }
            None => BYTES_A_TOKEN,
        };
        Arc::new(Mutex::new(Credit::new(bytes)))
    })
}
