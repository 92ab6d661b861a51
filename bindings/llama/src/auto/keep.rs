//! The store of the automatic cache: the key of a context's states, questions, and states that are stored while the program goes on.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kv_platform::sync::Mutex;

use super::asker::Asker;
use super::index::{self, IndexedState};
use super::llama::Llama;
use super::policy::Credit;
use super::search::Manifests;
use crate::copied::Copied;
use crate::engine::{Context, Engine, Token};
use crate::settings::{MODEL, Settings};
use crate::slot::Slot;
use crate::states::States;
use crate::{background, layout, log, model, preload};

impl Manifests for States {
    fn manifest(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        States::manifest(self, name)
    }
}

/// Ask the store, and wait no longer than this.
pub fn ask<T: Send + 'static>(
    patience: Duration,
    question: impl FnOnce(&States) -> Result<T, String> + Send + 'static,
) -> Option<T> {
    static ASKER: OnceLock<Asker> = OnceLock::new();
    ASKER.get_or_init(Asker::new).ask(patience, || question(&*preload::store()?))
}

/// The version of the layout of a context's states, and the key that they are stored under.
///
/// # Errors
/// It cannot be known which model it is.
pub fn key(engine: &Engine, llama: &Llama, context: Context) -> Result<(u32, [u8; 32]), String> {
    let named = Settings::get().model.as_deref();
    // SAFETY: the context is the caller's, and only asked.
    let (version, shape, positions, streams) = unsafe {
        let version = engine.version(context).ok_or("this libllama writes states of an unknown version")?;
        (version, engine.shape(context), (llama.n_ctx)(context), engine.streams(context, 0))
    };
    let build = match version {
        ..=layout::LAST_VERSION => None,
        _ => Some(engine.build()?),
    };
    let fingerprint = model::fingerprint(&shape, version, build, named)
        .map_err(|error| format!("{error}: name the model with {MODEL}"))?;
    Ok((version, model::auto_key(&fingerprint, positions, streams)))
}

/// A state to be stored.
pub struct Kept {
    copied: Arc<Copied>,
    key: [u8; 32],
    /// Tokens whose beginnings have their index records.
    indexed: usize,
    credit: Arc<Mutex<Credit>>,
}

impl Kept {
    /// Copy the state of a sequence.
    ///
    /// # Safety
    /// What `llama_state_seq_get_data` asks for holds for the slot.
    pub unsafe fn copy(
        slot: &Slot,
        made: (u32, [u8; 32]),
        tokens: Vec<Token>,
        indexed: usize,
        credit: Arc<Mutex<Credit>>,
    ) -> Option<Kept> {
        let key = made.1;
        let name = index::state_name(&key, tokens.len(), &index::hash(&tokens));
        let said = format!("a beginning of {} tokens", tokens.len());
        // SAFETY: by this function's own condition.
        match unsafe { Copied::of(slot, &said, |_| name, made, &tokens) } {
            Ok(copied) => Some(Kept { copied: Arc::new(copied), key, indexed, credit }),
            Err(error) => {
                log::line(format_args!("automatic cache: not stored: {error}"));
                None
            }
        }
    }

    /// The state. It is held until the store has it.
    pub fn state(&self) -> &Arc<Copied> {
        &self.copied
    }

    /// Store it while the program goes on.
    pub fn store_later(self) {
        background::later(self.copied.bytes(), move || {
            let length = self.copied.tokens.len();
            if let Err(error) = preload::store().and_then(|states| self.store(&states)) {
                log::line(format_args!("automatic cache: not stored: a beginning of {length} tokens: {error}"));
            }
        });
    }

    fn store(self, states: &States) -> Result<(), String> {
        let Kept { copied, key, indexed, credit } = self;
        let tokens = copied.tokens.as_slice();
        let stored = states.store(&copied);
        let written = stored.as_ref().map_or(0, |stored| stored.new_bytes);
        // A failure has written something, too: what, is not known.
        credit.lock().written(written);
        stored?;
        let entry = IndexedState { tokens: u32::try_from(tokens.len()).unwrap_or(u32::MAX), hash: index::hash(tokens) };
        let lengths = index::listed(tokens.len(), indexed);
        let hashes = index::hashes(tokens, lengths.iter().copied());
        for (length, hash) in lengths.iter().zip(&hashes) {
            let name = index::index_name(&key, *length, hash);
            let former = states.manifest(&name)?.and_then(|bytes| index::decode(&bytes)).unwrap_or_default();
            states.put_manifest(&name, &index::encode(&index::with(former, entry)))?;
        }
        Ok(())
    }
}
