//! The functions of libllama that the automatic cache calls, beside those of [`Engine`]: all of the library behind this one.

use std::ffi::{CStr, c_void};

use crate::engine::{Context, Token, as_function, function};

pub type Memory = *mut c_void;
pub type BatchExt = *mut c_void;

/// `LLAMA_PROCESS_TYPE_DECODE`.
pub const DECODE: i32 = 1;

/// `llama_batch` of `llama.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LlamaBatch {
    pub n_tokens: i32,
    pub token: *mut Token,
    pub embd: *mut f32,
    pub pos: *mut i32,
    pub n_seq_id: *mut i32,
    pub seq_id: *mut *mut i32,
    pub logits: *mut i8,
}

/// How batches are computed: since llama.cpp 0.7.0 by `llama_process`, before by `llama_decode`.
#[derive(Clone, Copy)]
pub enum Compute {
    Process(Process),
    Decode(unsafe extern "C" fn(Context, LlamaBatch) -> i32),
}

#[derive(Clone, Copy)]
pub struct Process {
    pub process: unsafe extern "C" fn(Context, i32, BatchExt) -> i32,
    pub init: unsafe extern "C" fn(Context) -> BatchExt,
    pub free: unsafe extern "C" fn(BatchExt),
    pub clear: unsafe extern "C" fn(BatchExt),
    pub add_token: unsafe extern "C" fn(BatchExt, i32, Token) -> i32,
    pub set_pos: unsafe extern "C" fn(BatchExt, i32, *const i32) -> bool,
    pub set_output: unsafe extern "C" fn(BatchExt, i32, bool) -> bool,
}

#[derive(Clone, Copy)]
pub struct Llama {
    pub compute: Compute,
    pub n_batch: unsafe extern "C" fn(Context) -> u32,
    pub n_ubatch: unsafe extern "C" fn(Context) -> u32,
    /// Positions of a sequence; of older versions, of the context.
    pub n_ctx: unsafe extern "C" fn(Context) -> u32,
    pub pooling: unsafe extern "C" fn(Context) -> i32,
    pub n_swa: unsafe extern "C" fn(*const c_void) -> i32,
    pub is_recurrent: unsafe extern "C" fn(*const c_void) -> bool,
    pub is_hybrid: unsafe extern "C" fn(*const c_void) -> bool,
    pub has_encoder: unsafe extern "C" fn(*const c_void) -> bool,
    pub is_diffusion: unsafe extern "C" fn(*const c_void) -> bool,
    pub pos_min: unsafe extern "C" fn(Memory, i32) -> i32,
    pub pos_max: unsafe extern "C" fn(Memory, i32) -> i32,
    /// Not of older versions.
    pub other_context: Option<unsafe extern "C" fn(Context) -> Context>,
}

impl Llama {
    /// The error names a function that this libllama lacks.
    pub fn find() -> Result<Llama, String> {
        macro_rules! needed {
            ($name:literal) => {
                match function($name) {
                    // SAFETY: it is the function of that name of llama.h, and has the type that is declared for it there.
                    Some(found) => unsafe { as_function(found) },
                    None => return Err(format!("this libllama has no {}", CStr::to_string_lossy($name))),
                }
            };
        }
        let compute = match function(c"llama_process") {
            Some(process) => Compute::Process(Process {
                // SAFETY: as above.
                process: unsafe { as_function(process) },
                init: needed!(c"llama_batch_ext_init"),
                free: needed!(c"llama_batch_ext_free"),
                clear: needed!(c"llama_batch_ext_clear"),
                add_token: needed!(c"llama_batch_ext_add_token"),
                set_pos: needed!(c"llama_batch_ext_set_pos"),
                set_output: needed!(c"llama_batch_ext_set_output_logits"),
            }),
            None => Compute::Decode(needed!(c"llama_decode")),
        };
        let positions = function(c"llama_n_ctx_seq").or_else(|| function(c"llama_n_ctx"));
        Ok(Llama {
            compute,
            n_batch: needed!(c"llama_n_batch"),
            n_ubatch: needed!(c"llama_n_ubatch"),
            // SAFETY: as above.
            n_ctx: unsafe { as_function(positions.ok_or("this libllama has no llama_n_ctx")?) },
            pooling: needed!(c"llama_pooling_type"),
            n_swa: needed!(c"llama_model_n_swa"),
            is_recurrent: needed!(c"llama_model_is_recurrent"),
            is_hybrid: needed!(c"llama_model_is_hybrid"),
            has_encoder: needed!(c"llama_model_has_encoder"),
            is_diffusion: needed!(c"llama_model_is_diffusion"),
            pos_min: needed!(c"llama_memory_seq_pos_min"),
            pos_max: needed!(c"llama_memory_seq_pos_max"),
            // SAFETY: as above; it is a function of C++ that takes and answers a pointer.
            other_context: function(c"_Z19llama_get_ctx_otherP13llama_context")
                .map(|found| unsafe { as_function(found) }),
        })
    }
}
