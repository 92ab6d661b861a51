//! What each backend promises of the order of changes, as `docs/backends.md` says it.

use std::time::Duration;

/// How late a change may be carried out that its caller was not told the end of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// Until its call has returned, or its process is dead.
    Return,
    /// Until the deadline of its call and so much more, and never after a later change of the key that was acknowledged to the same process.
    Deadline(Duration),
    /// Only as long as nothing else has changed the key: never after a later change that was acknowledged to anybody.
    Unchanged,
    /// At any time.
    Ever,
}

/// What is promised of one kind of keys.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Of values that are stored.
    pub sets: Late,
    pub removes: Late,
    /// Values may be gone at any time. Then they stay gone.
    pub loses: bool,
    /// Where connections break, a change that was acknowledged may have been sent twice, and take effect once more until then.
    pub repeats: Option<Late>,
}

/// What is promised of a store.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    pub manifests: Rule,
    /// Chunks whose keys are the hashes of their contents. A put that comes late brings bytes that are right.
    pub content: Rule,
    /// Chunks with other keys, which are replaced.
    pub others: Rule,
    /// `put_chunk` is answered before the chunk is stored.
    pub buffers: bool,
    /// Chunks that others removed within this time before a `put_manifest`, or during it, may be missing under it though they were put.
    pub believes: Duration,
    /// Deadline of a call, of the config.
    pub deadline: Duration,
}

/// A call has its deadline from when the library has read the clock, which on a busy machine is later than the record says.
const GRACE: Duration = Duration::from_millis(800);
/// For so long a master of Mooncake takes the end of an object that a writer has begun (`put_start_discard_timeout`).
const BEGUN: Duration = Duration::from_secs(30);
/// "Where the backend is not durable and evicts nothing by itself, chunks that another process removes within 2 s before the commit or during it
/// may be missing under the manifest" (`kv_store_batch.h`).
const BELIEVES: Duration = Duration::from_secs(2);

impl Promise {
    /// What the backend of this scheme promises. None: it is none of those that ship and are shared by processes.
    pub fn of(scheme: &str, deadline: Duration) -> Option<Self> {
        let rule = |sets, removes| Rule { sets, removes, loses: false, repeats: None };
        let fenced = rule(Late::Deadline(GRACE), Late::Deadline(GRACE));
        let promise = match scheme {
            // "done by the deadline of their call or not at all, and in order"; the calls are made on the caller's thread.
            "local-fs" | "segments" => {
                let at_return = rule(Late::Return, Late::Return);
                Promise {
                    manifests: at_return,
                    content: at_return,
                    others: at_return,
                    buffers: false,
                    believes: Duration::ZERO,
                    deadline,
                }
            }
            // "from then on the server refuses the change"; "chunks whose key has not 8 bytes".
            "redis" | "memkv" => {
                let content = rule(Late::Ever, Late::Deadline(GRACE));
                // memkv-server with --data is durable.
                let believes = if scheme == "redis" { BELIEVES } else { Duration::ZERO };
                Promise { manifests: fenced, content, others: fenced, buffers: true, believes, deadline }
            }
            // "a change of a manifest is carried out only if the name still has what the writer saw"; "not fenced: chunks".
            "s3" => {
                let manifests = rule(Late::Unchanged, Late::Unchanged);
                let chunks = rule(Late::Ever, Late::Ever);
                Promise { manifests, content: chunks, others: chunks, buffers: true, believes: BELIEVES, deadline }
            }
            // "another client's change that ended unknown may appear up to 30 s later"; "Durability. None".
            "mooncake" => {
                let late = Late::Deadline(GRACE + BEGUN);
                let manifests = Rule { loses: true, ..rule(late, late) };
                let chunks = Rule { loses: true, ..rule(Late::Ever, Late::Ever) };
                Promise { manifests, content: chunks, others: chunks, buffers: true, believes: BELIEVES, deadline }
            }
            _ => return None,
        };
        Some(promise)
    }

    /// The same of a store that evicts, or whose servers lose what they had.
    pub fn losing(mut self) -> Self {
        for rule in [&mut self.manifests, &mut self.content, &mut self.others] {
            rule.loses = true;
        }
        self
    }

    /// The same where connections break before what was sent on them has arrived: what may be repeated is, but on redis. A server of memkv
    /// carries out no more of the session that broke once it has answered the next one, and s3 refuses the second of two manifests.
    pub fn breaking(mut self, scheme: &str) -> Self {
        let chunks = match scheme {
            "memkv" => Late::Return,
            "s3" => Late::Ever,
            _ => return self,
        };
        self.manifests.repeats = Some(Late::Return);
        self.content.repeats = Some(chunks);
        self.others.repeats = Some(chunks);
        self
    }

    /// What is promised of a key, by its first letter.
    pub fn rule(&self, key: &str) -> Rule {
        match key.as_bytes().first() {
            Some(b'm') => self.manifests,
            Some(b'c') => self.content,
            _ => self.others,
        }
    }
}
