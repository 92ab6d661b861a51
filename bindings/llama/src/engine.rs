//! libllama, found in the process at run time: nothing here is linked to it.
//!
//! The functions are public ones of `llama.h`. Those that this library takes the place of are found behind it (`RTLD_NEXT`),
//! or in a libllama that was loaded apart from the program's own libraries.

use std::ffi::{CStr, c_char, c_void};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::layout;
use crate::memory::StateMemory;

/// `llama_context`, `llama_model` and the like: only ever passed on.
pub type Context = *mut c_void;
pub type SequenceId = i32;
pub type Token = i32;

pub type SaveFile = unsafe extern "C" fn(Context, *const c_char, SequenceId, *const Token, usize) -> usize;
pub type LoadFile = unsafe extern "C" fn(Context, *const c_char, SequenceId, *mut Token, usize, *mut usize) -> usize;

/// `LLAMA_STATE_SEQ_MAGIC` of `llama.h`.
const FILE_MAGIC: u32 = u32::from_be_bytes(*b"ggsq");
/// Versions of the sequence file that are asked for. The first is the first whose reader answers the number of tokens alone.
const VERSIONS: std::ops::RangeInclusive<u32> = 3..=16;
/// Bytes of the sequence file before the tokens: its magic, its version, the number of tokens.
pub const FILE_HEADER_BYTES: usize = 12;
/// What the state in memory has in front of the one in a file: a magic and the sequence.
pub const MEMORY_HEADER_BYTES: usize = 8;

/// The functions of a libllama.
#[derive(Clone, Copy)]
pub struct Engine {
    pub save_file: SaveFile,
    pub load_file: LoadFile,
    pub state_size: unsafe extern "C" fn(Context, SequenceId) -> usize,
    pub state_get: unsafe extern "C" fn(Context, *mut u8, usize, SequenceId) -> usize,
    pub state_set: unsafe extern "C" fn(Context, *const u8, usize, SequenceId) -> usize,
    pub get_memory: unsafe extern "C" fn(Context) -> *mut c_void,
    pub memory_remove: unsafe extern "C" fn(*mut c_void, SequenceId, i32, i32) -> bool,
    pub get_model: unsafe extern "C" fn(Context) -> *const c_void,
    model_params: unsafe extern "C" fn(*const c_void) -> u64,
    model_layers: unsafe extern "C" fn(*const c_void) -> i32,
    model_embd: unsafe extern "C" fn(*const c_void) -> i32,
    model_kv_heads: unsafe extern "C" fn(*const c_void) -> i32,
    /// What follows is of help only.
    sequences: Option<unsafe extern "C" fn(Context) -> u32>,
    last_position: Option<unsafe extern "C" fn(*mut c_void, SequenceId) -> i32>,
}

/// What a model is, as far as its shape goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Numbers in all of its tensors.
    pub params: u64,
    pub layers: i32,
    pub embd: i32,
    pub kv_heads: i32,
}

impl Engine {
    /// The libllama of this process. The error names a function that it lacks.
    pub fn find() -> Result<Engine, String> {
        static FOUND: OnceLock<Engine> = OnceLock::new();
        if let Some(engine) = FOUND.get() {
            return Ok(*engine);
        }
        let engine = Engine::look()?;
        Ok(*FOUND.get_or_init(|| engine))
    }

    fn look() -> Result<Engine, String> {
        let find = |name: &'static CStr| function(name).ok_or_else(|| format!("it has no {}", name.to_string_lossy()));
        macro_rules! functions {
            ($($member:ident: $name:literal,)*) => {
                // SAFETY: each is the function of that name of llama.h, and has the type that is declared for it there.
                Ok(unsafe {
                    Engine {
                        $($member: as_function(find($name)?),)*
                        sequences: function(c"llama_n_seq_max").map(|found| as_function(found)),
                        last_position: function(c"llama_memory_seq_pos_max").map(|found| as_function(found)),
                    }
                })
            };
        }
        functions! {
            save_file: c"llama_state_seq_save_file",
            load_file: c"llama_state_seq_load_file",
            state_size: c"llama_state_seq_get_size",
            state_get: c"llama_state_seq_get_data",
            state_set: c"llama_state_seq_set_data",
            get_memory: c"llama_get_memory",
            memory_remove: c"llama_memory_seq_rm",
            get_model: c"llama_get_model",
            model_params: c"llama_model_n_params",
            model_layers: c"llama_model_n_layer",
            model_embd: c"llama_model_n_embd",
            model_kv_heads: c"llama_model_n_head_kv",
        }
    }

    /// The file that this libllama was loaded from.
    pub fn path(&self) -> Option<PathBuf> {
        use std::os::unix::ffi::OsStrExt;
        let name = library_of(self.save_file as *const c_void)?.dli_fname;
        // SAFETY: the name is the loader's, a C string or NULL.
        let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })?;
        Some(PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())))
    }

    /// The version of the sequence files that it reads and writes; `None` if it is none of [`VERSIONS`]. It is asked with
    /// files that have a token and no state, for the number of tokens alone: this changes no sequence.
    ///
    /// # Safety
    /// The context is one of this libllama, and no other thread uses it.
    pub unsafe fn version(&self, context: Context) -> Option<u32> {
        static VERSION: OnceLock<Option<u32>> = OnceLock::new();
        *VERSION.get_or_init(|| {
            let accepts = |version: &u32| {
                let file = kv_platform::memory::file(c"kv-store-llama").ok()?;
                let header = [FILE_MAGIC, *version, 1, 0].map(u32::to_le_bytes).concat();
                rustix::io::write(&file, &header).ok()?;
                let path = std::ffi::CString::new(kv_platform::paths::of_descriptor(file.as_fd())).ok()?;
                let mut tokens = 0;
                // SAFETY: by this function's own condition; without memory for tokens nothing is loaded.
                let read = unsafe { (self.load_file)(context, path.as_ptr(), 0, std::ptr::null_mut(), 0, &mut tokens) };
                (read == FILE_HEADER_BYTES && tokens == 1).then_some(())
            };
            // llama.cpp logs an error for each that it does not know: today's is asked for first.
            let others = VERSIONS.filter(|version| *version != layout::LAST_VERSION);
            std::iter::once(layout::LAST_VERSION).chain(others).find(|version| accepts(version).is_some())
        })
    }

    /// Forget a sequence, as a load does that fails half-way.
    ///
    /// # Safety
    /// As [`Engine::version`].
    pub unsafe fn forget(&self, context: Context, sequence: SequenceId) {
        // SAFETY: by this function's own condition.
        unsafe {
            let memory = (self.get_memory)(context);
            if !memory.is_null() {
                (self.memory_remove)(memory, sequence, -1, -1);
            }
        }
    }

    /// How many positions a sequence has; `None` if it is not known.
    ///
    /// # Safety
    /// As [`Engine::version`].
    pub unsafe fn positions(&self, context: Context, sequence: SequenceId) -> Option<usize> {
        let last_position = self.last_position?;
        // SAFETY: by this function's own condition.
        let last = unsafe {
            let memory = (self.get_memory)(context);
            if memory.is_null() { -1 } else { last_position(memory, sequence) }
        };
        usize::try_from(last).ok().map(|last| last + 1)
    }

    /// How many streams the cache of a context has, as its states say. An empty sequence has a short one.
    ///
    /// # Safety
    /// As [`Engine::version`].
    pub unsafe fn streams(&self, context: Context, sequence: SequenceId) -> u32 {
        // SAFETY: by this function's own condition.
        unsafe {
            let sequences = self.sequences.map_or(1, |sequences| sequences(context));
            if sequences <= 1 {
                return 1;
            }
            let mut all = 0..i32::try_from(sequences).unwrap_or(i32::MAX);
            let asked = all.find(|one| self.positions(context, *one).is_none()).unwrap_or(sequence);
            let size = (self.state_size)(context, asked);
            let Ok(mut state) = StateMemory::new(size) else { return 1 };
            let written = (self.state_get)(context, state.as_mut_ptr(), size, asked);
            layout::streams(state.get(..written).unwrap_or_default())
        }
    }

    /// What tells this build of libllama from others.
    pub fn build(&self) -> Result<u64, String> {
        static BUILD: OnceLock<Result<u64, String>> = OnceLock::new();
        let read = || {
            let path = self.path().ok_or("the file of libllama is not known")?;
            let bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            crate::log::line(
                "this libllama writes states of a version that is not known: they are cut by content, and only the same build restores them",
            );
            Ok(twox_hash::XxHash3_64::oneshot(&bytes))
        };
        BUILD.get_or_init(read).clone()
    }

    /// # Safety
    /// As [`Engine::version`].
    pub unsafe fn shape(&self, context: Context) -> Shape {
        // SAFETY: by this function's own condition; a context has a model.
        unsafe {
            let model = (self.get_model)(context);
            Shape {
                params: (self.model_params)(model),
                layers: (self.model_layers)(model),
                embd: (self.model_embd)(model),
                kv_heads: (self.model_kv_heads)(model),
            }
        }
    }
}

/// An address as a function pointer, which is what it is on every platform of POSIX.
///
/// # Safety
/// `F` is the type of the function at the address.
pub unsafe fn as_function<F: Copy>(address: *mut c_void) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the sizes are equal; the rest by this function's own condition.
    unsafe { std::mem::transmute_copy(&address) }
}

/// Whether a function of this name is libllama's own.
pub fn is_of_libllama(name: &CStr) -> bool {
    let base = |found: *mut c_void| library_of(found).map(|library| library.dli_fbase);
    let own = function(c"llama_get_model").and_then(base);
    own.is_some() && function(name).and_then(base) == own
}

/// The library that an address lies in.
fn library_of(address: *const c_void) -> Option<libc::Dl_info> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: dladdr takes any address, and fills `info` where it does not answer 0.
    unsafe { (libc::dladdr(address, info.as_mut_ptr()) != 0).then(|| info.assume_init()) }
}

/// A function of libllama: of the first library behind this one that has it, or of a libllama that was loaded for itself.
pub fn function(name: &CStr) -> Option<*mut c_void> {
    // The address of an exported function of this library could be that of libllama's, if that was loaded first.
    let own = library_of(library_of as *const c_void).map(|library| library.dli_fbase);
    let base = |found: *mut c_void| library_of(found).map(|library| library.dli_fbase);
    let usable = |found: *mut c_void| (!found.is_null() && base(found) != own).then_some(found);
    // SAFETY: dlsym and dlopen take C strings; NOLOAD loads nothing, so no code runs.
    unsafe {
        usable(libc::dlsym(libc::RTLD_NEXT, name.as_ptr()))
            .or_else(|| usable(libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr())))
            .or_else(|| {
                [c"libllama.so.0", c"libllama.so"].into_iter().find_map(|file| {
                    let library = libc::dlopen(file.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
                    if library.is_null() { None } else { usable(libc::dlsym(library, name.as_ptr())) }
                })
            })
    }
}
