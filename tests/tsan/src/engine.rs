//! The threads of queues.

#[path = "../../../host/src/engine/helpers.rs"]
mod helpers;

use std::sync::OnceLock;

pub(crate) use helpers::Helpers;

use crate::error::Error;
use crate::limits;

pub(crate) struct Runtime {
    pub queues: Helpers,
}

pub(crate) fn runtime() -> Result<&'static Runtime, Error> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    Ok(RUNTIME.get_or_init(|| Runtime { queues: Helpers::new(limits::MAX_QUEUE_THREADS) }))
}
