//! Standard output and error: each line is a line of the log, cleaned, cut and bounded like those of `host.log`.

use std::sync::Arc;

use bytes::Bytes;
use kv_platform::sync::Mutex;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

use super::super::Access;
use crate::limits;
use crate::log::{self, Level};

/// One of the two; its streams share the line that has not ended.
#[derive(Clone)]
pub(super) struct Output(Arc<Lines>);

struct Lines {
    level: Level,
    access: Arc<Access>,
    begun: Mutex<Vec<u8>>,
}

impl Output {
    pub(super) fn new(level: Level, access: Arc<Access>) -> Self {
        Output(Arc::new(Lines { level, access, begun: Mutex::default() }))
    }
}

impl Lines {
    fn write(&self, bytes: &[u8]) {
        let mut begun = self.begun.lock();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ended) = match piece {
                [text @ .., b'\n'] => (text, true),
                text => (text, false),
            };
            // One byte more than a line of the log has, which shows there that it was cut.
            let room = (limits::MAX_LOG_LINE_BYTES + 1).saturating_sub(begun.len());
            begun.extend_from_slice(text.get(..room).unwrap_or(text));
            if ended {
                self.end(&mut begun);
            }
        }
    }

    fn end(&self, line: &mut Vec<u8>) {
        if !line.is_empty() {
            let text = String::from_utf8_lossy(line);
            log::component_line(self.level, &self.access.reach.name, &text, &self.access.log);
            line.clear();
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let mut begun = std::mem::take(self.begun.get_mut());
        self.end(&mut begun);
    }
}

impl IsTerminal for Output {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Output {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        // WASI 0.2 takes the other one.
        Box::new(tokio::io::empty())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Output {
    async fn ready(&mut self) {}
}

impl OutputStream for Output {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.0.write(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(limits::WASI_STREAM_BYTES)
    }
}
