//! The functions that this library takes the place of, and the line that it says at its start.
//!
//! Each has the name and the type of the one in `llama.h`. It does what that one does, but that the state goes to a store; where
//! nothing is configured, or the path is left out, it is that one.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use kv_platform::sync::Mutex;

use crate::adapters;
use crate::auto;
use crate::background;
use crate::engine::{Context, Engine, LoadFile, SaveFile, SequenceId, Token, function};
use crate::local::Local;
use crate::log;
use crate::settings::{MODEL, Settings, URI};
use crate::slot::Slot;
use crate::states::{Loaded, NotLoaded, States};

/// As in `llama.h`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_state_seq_save_file(
    context: Context,
    path: *const c_char,
    sequence: SequenceId,
    tokens: *const Token,
    count: usize,
) -> usize {
    // SAFETY: by this function's own condition.
    unsafe { auto::before_file(context, sequence) };
    let kept = guarded(|| {
        // SAFETY: by this function's own condition, a C string.
        let Ours { states, name, path, engine } = unsafe { ours(context, path)? };
        let tokens = match count {
            0 => &[][..],
            // SAFETY: by this function's own condition.
            count => unsafe { std::slice::from_raw_parts(tokens, count) },
        };
        let slot = Slot { engine, context, sequence };
        let saved = states.and_then(|states| {
            // SAFETY: by this function's own condition.
            let copied = unsafe { states.copy(&slot, &name, tokens)? };
            let bytes = copied.file_bytes();
            let local = Local::for_save(&path, bytes as u64)?;
            states.store_later(copied, local);
            Ok(bytes)
        });
        Some(saved.unwrap_or_else(|error| {
            log::line(format_args!("not saved: {name}: {error}"));
            0
        }))
    });
    kept.unwrap_or_else(|| {
        let Some(original) = function(c"llama_state_seq_save_file") else { return 0 };
        // SAFETY: it is the function of this name and type; the conditions are this function's own.
        unsafe { std::mem::transmute::<*mut c_void, SaveFile>(original)(context, path, sequence, tokens, count) }
    })
}

/// As in `llama.h`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_state_seq_load_file(
    context: Context,
    path: *const c_char,
    sequence: SequenceId,
    tokens: *mut Token,
    room: usize,
    count: *mut usize,
) -> usize {
    if !tokens.is_null() {
        // SAFETY: by this function's own condition.
        unsafe { auto::changed_by_file(context, sequence) };
    }
    let loaded = guarded(|| {
        // SAFETY: by this function's own condition, a C string.
        let Ours { states, name, path, engine } = unsafe { ours(context, path)? };
        let slot = Slot { engine, context, sequence };
        let target = (!tokens.is_null()).then_some(room);
        let loaded = states.map_err(NotLoaded::Untouched).and_then(|states| {
            // SAFETY: by this function's own condition.
            unsafe { states.load(&slot, &name, target) }
        });
        let loaded = loaded.and_then(|loaded| {
            if let Loaded::State { bytes, appendix, .. } = &loaded
                && let Some(local) = Local::for_load(&path, *bytes as u64, appendix).map_err(NotLoaded::Broken)?
            {
                background::remove(local);
            }
            Ok(loaded)
        });
        // SAFETY: by this function's own condition: `tokens` has room for `room` tokens.
        Some(unsafe { answer(&slot, &name, loaded, tokens, count) })
    });
    loaded.unwrap_or_else(|| {
        let Some(original) = function(c"llama_state_seq_load_file") else { return 0 };
        // SAFETY: it is the function of this name and type; the conditions are this function's own.
        unsafe { std::mem::transmute::<*mut c_void, LoadFile>(original)(context, path, sequence, tokens, room, count) }
    })
}

/// Answer a load as llama.cpp's own function does.
///
/// # Safety
/// `tokens` has room for what was loaded, and `count` for a number.
pub unsafe fn answer(
    slot: &Slot,
    name: &str,
    loaded: Result<Loaded, NotLoaded>,
    tokens: *mut Token,
    count: *mut usize,
) -> usize {
    match loaded {
        Ok(Loaded::Count(found)) => {
            // SAFETY: by this function's own condition.
            unsafe { *count = found };
            crate::engine::FILE_HEADER_BYTES
        }
        Ok(Loaded::State { tokens: found, bytes, .. }) => {
            // SAFETY: by this function's own condition.
            unsafe {
                std::ptr::copy_nonoverlapping(found.as_ptr(), tokens, found.len());
                *count = found.len();
            }
            bytes
        }
        Err(NotLoaded::Missing(error) | NotLoaded::TooLong(error) | NotLoaded::Untouched(error)) => {
            log::line(format_args!("not loaded: {name}: {error}"));
            0
        }
        Err(NotLoaded::Broken(error)) => {
            log::line(format_args!("not loaded: {name}: {error}"));
            // SAFETY: the slot is the caller's.
            unsafe { slot.engine.forget(slot.context, slot.sequence) };
            0
        }
    }
}

/// A file whose state goes to the store.
struct Ours {
    states: Result<Arc<States>, String>,
    /// Of its state in the store.
    name: String,
    path: PathBuf,
    engine: Engine,
}

/// What a file's state is kept with. `None`: the file is llama.cpp's.
///
/// # Safety
/// `path` is a C string.
unsafe fn ours(context: Context, path: *const c_char) -> Option<Ours> {
    static UNKNOWN: AtomicBool = AtomicBool::new(false);
    let settings = Settings::get();
    let uri = settings.uri.as_deref()?;
    // SAFETY: by this function's own condition.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
    if !settings.covers(path) {
        return None;
    }
    let engine = Engine::find().ok();
    // SAFETY: the context is the caller's.
    let Some(engine) = engine.filter(|engine| unsafe { engine.version(context) }.is_some()) else {
        if !UNKNOWN.swap(true, Relaxed) {
            log::line("this libllama writes sequence files of an unknown version: they stay files");
        }
        return None;
    };
    let name = path.file_name().unwrap_or_default();
    let states = match name.to_str().filter(|name| !name.is_empty()) {
        Some(_) => opened(uri, settings.model.as_deref()),
        None => Err("its name is not UTF-8".to_owned()),
    };
    Some(Ours { states, name: name.to_string_lossy().into_owned(), path: path.to_owned(), engine })
}

/// The store of the process, as the environment names it.
pub fn store() -> Result<Arc<States>, String> {
    let settings = Settings::get();
    let uri = settings.uri.as_deref().ok_or_else(|| format!("{URI} is not set"))?;
    opened(uri, settings.model.as_deref())
}

/// The store of the process. One that cannot be opened is tried again with the next state.
fn opened(uri: &str, model: Option<&str>) -> Result<Arc<States>, String> {
    static OPENED: Mutex<Option<Arc<States>>> = Mutex::new(None);
    let mut opened = OPENED.lock();
    if let Some(states) = &*opened {
        return Ok(Arc::clone(states));
    }
    let states = Arc::new(States::open(uri, model)?);
    Ok(Arc::clone(opened.insert(states)))
}

/// No panic leaves this library; one is a failed save or load.
pub fn guarded(work: impl FnOnce() -> Option<usize>) -> Option<usize> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        log::line("a panic in this library: the state is not kept, or not loaded");
        Some(0)
    })
}

/// As in `llama.h`; that it was called is noted.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_adapter_lora_init(model: *mut c_void, path: *const c_char) -> *mut c_void {
    adapters::note();
    let Some(original) = function(c"llama_adapter_lora_init") else { return std::ptr::null_mut() };
    type LoraInit = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    // SAFETY: it is the function of this name and type; the conditions are this function's own.
    unsafe { std::mem::transmute::<*mut c_void, LoraInit>(original)(model, path) }
}

/// As in `llama.h`; that it was called is noted.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_adapter_lora_init_from_file_ptr(model: *mut c_void, file: *mut c_void) -> *mut c_void {
    adapters::note();
    let Some(original) = function(c"llama_adapter_lora_init_from_file_ptr") else { return std::ptr::null_mut() };
    type LoraInitFromFilePtr = unsafe extern "C" fn(*mut c_void, *mut c_void) -> *mut c_void;
    // SAFETY: it is the function of this name and type; the conditions are this function's own.
    unsafe { std::mem::transmute::<*mut c_void, LoraInitFromFilePtr>(original)(model, file) }
}

/// As in `llama.h`; that it was called with data is noted, and the automatic cache is off then.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_set_adapter_cvec(
    context: Context,
    data: *const f32,
    len: usize,
    embd: i32,
    first_layer: i32,
    last_layer: i32,
) -> i32 {
    if !data.is_null() {
        adapters::note();
        // SAFETY: by this function's own condition.
        unsafe { auto::adapted(context) };
    }
    let Some(original) = function(c"llama_set_adapter_cvec") else { return -1 };
    type SetAdapterCvec = unsafe extern "C" fn(Context, *const f32, usize, i32, i32, i32) -> i32;
    // SAFETY: it is the function of this name and type; the conditions are this function's own.
    unsafe {
        std::mem::transmute::<*mut c_void, SetAdapterCvec>(original)(context, data, len, embd, first_layer, last_layer)
    }
}

/// Runs when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static ANNOUNCE: extern "C" fn() = announce;

/// Say whether there is a libllama whose states can be kept. It opens nothing: programs that are started by others are loaded
/// with this library too.
extern "C" fn announce() {
    let Some(uri) = &Settings::get().uri else { return };
    let uri = match kv_store_core::uri::StoreUri::parse(uri) {
        Ok(uri) => uri,
        Err(error) => return log::line(format_args!("{URI}: {error}")),
    };
    match Engine::find() {
        Ok(engine) => {
            let path = engine.path().unwrap_or_default();
            let model = match &Settings::get().model {
                Some(_) => format!(", with the model's name from {MODEL}"),
                None => String::new(),
            };
            log::line(format_args!("states of {} are kept in {}{model}", path.display(), uri.as_str()));
        }
        Err(error) if function(c"llama_state_seq_save_file").is_some() => {
            log::line(format_args!("this libllama is not supported, so no state is kept in the store: {error}"));
        }
        Err(_) => {
            let program = std::env::args_os().next().unwrap_or_default();
            log::line(format_args!(
                "{} has no shared libllama, so no state is kept in the store; one that is linked statically is not supported",
                program.display()
            ));
        }
    }
}
