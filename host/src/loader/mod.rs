//! From a scheme to a component that can be instantiated: find its file, check what it is, compile it or take it from
//! the AOT cache, and check that the host offers what it imports. A component is known by its SHA-256.
//!
//! Before the compiler sees a byte the component is measured, and refused where it is no backend or is over a bound: the
//! compiler's time and memory follow from what it is given.

mod aot;
mod audit;
mod compile;
mod find;
mod helper;
mod measure;
mod ownership;
mod served;
mod source;
mod stamp;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kv_platform::sync::{Mutex, MutexGuard};
use wasmtime::Engine;
use wasmtime::component::{HasSelf, InstancePre, Linker};

pub(crate) use aot::why_cache_unused;
pub(crate) use audit::{missing_export, outdated, why_not_offered};
pub(crate) use find::{Places, relative_directories, tell_relative_directories};
pub(crate) use helper::find as find_helper;
pub(crate) use measure::Measured;

use crate::config::FileIdentity;
use crate::contract::bindings::{Backend, BackendIndices, maintained};
use crate::engine;
use crate::process::PerProcess;
use compile::Accepted;
use source::Sealed;

use crate::contract::{State, wasi};
use crate::error::{Error, ErrorKind};
use crate::limits::Limits;
use crate::signals::files_are_bounded;
use crate::threads::Whose;
use crate::{config, limits, log};

/// A component, ready to be instantiated.
pub(crate) struct Loaded {
    pub digest: [u8; 32],
    /// What an instance costs before it has run, beside its memories and tables.
    pub instance_bytes: u64,
    /// It imports files of WASI.
    pub uses_wasi_files: bool,
    pub pre: InstancePre<State>,
    pub backend: BackendIndices,
    /// None: the component does not export `maintenance`.
    pub maintenance: Option<maintained::GuestIndices>,
}

/// The components that the process has loaded.
pub(crate) struct Components {
    linker: Linker<State>,
    /// Caches of compiled code by the directory that names each; none where it is not fit for one. There are as many as hosts
    /// have named.
    caches: Mutex<HashMap<PathBuf, Option<&'static aot::Cache>>>,
    compiler: compile::Compiler,
    /// Not locked while one is loaded, which may take long; those who want the same then wait for one compilation.
    loaded: Mutex<HashMap<FileIdentity, Arc<Loaded>>>,
}

/// The components of this process.
pub(crate) fn components() -> Result<&'static Components, Error> {
    static COMPONENTS: PerProcess<Components> = PerProcess::new();
    COMPONENTS.get_or_make(|| Components::new(&engine::runtime()?.engine))
}

impl Components {
    fn new(engine: &Engine) -> Result<Self, Error> {
        let mut linker = Linker::new(engine);
        Backend::add_to_linker::<State, HasSelf<State>>(&mut linker, |state| state)
            .and_then(|()| wasi::add_to_linker(&mut linker))
            .map_err(|error| Error::new(ErrorKind::Other, format!("cannot link the host's interfaces: {error}")))?;
        Ok(Components {
            linker,
            caches: Mutex::default(),
            compiler: compile::Compiler::default(),
            loaded: Mutex::default(),
        })
    }

    /// Load the component in a file, or take the one loaded before. `pinned`: the only one that is accepted; `places`: those of
    /// the host that loads it; `whose`: as whom it is compiled.
    pub(crate) fn load(
        &'static self,
        path: &Path,
        pinned: Option<config::Digest>,
        limits: &Limits,
        helper: &config::Helper,
        places: &Places,
        whose: &Whose,
    ) -> Result<Arc<Loaded>, Error> {
        let doing = |error: Error| error.context(format_args!("component {}", path.display()));
        let meta = std::fs::metadata(path).map_err(|error| doing(Error::new(ErrorKind::Invalid, error.to_string())))?;
        if !meta.is_file() {
            return Err(doing(Error::invalid("not a file")));
        }
        let identity = FileIdentity::of(&meta);
        if let Some(loaded) = self.loaded().get(&identity) {
            check_pin(&loaded.digest, pinned).map_err(doing)?;
            return Ok(loaded.clone());
        }
        let fresh = Arc::new(self.prepare(path, pinned, limits, helper, places, whose).map_err(doing)?);
        let mut loaded = self.loaded();
        if loaded.len() >= limits::MAX_COMPONENTS {
            // Those in use live on in their stores.
            loaded.clear();
        }
        loaded.insert(identity, fresh.clone());
        Ok(fresh)
    }

    fn loaded(&self) -> MutexGuard<'_, HashMap<FileIdentity, Arc<Loaded>>> {
        self.loaded.lock()
    }

    fn prepare(
        &'static self,
        path: &Path,
        pinned: Option<config::Digest>,
        limits: &Limits,
        helper: &config::Helper,
        places: &Places,
        whose: &Whose,
    ) -> Result<Loaded, Error> {
        let source = source::Source::open(path, limits.component_bytes)?;
        let mut digest = source.digest()?;
        check_pin(&digest, pinned)?;
        let engine = self.linker.engine();
        let cache = self.cache(places);
        let (component, instance_bytes) = match cache.and_then(|cache| cache.get(engine, &digest)) {
            // It was measured before it was compiled.
            Some(found) => found,
            None => {
                let program = program(helper, places)?;
                let bytes;
                (digest, bytes) = match program {
                    Some(_) => source.copy()?,
                    // A bound on the length of files holds for files in memory too.
                    None if files_are_bounded() => source.read().map(|(digest, own)| (digest, Sealed::Own(own)))?,
                    None => source.copy()?,
                };
                // It may have been replaced meanwhile.
                check_pin(&digest, pinned)?;
                let found = measure::measure(&bytes, |end| bytes.done_with(end))?;
                audit::check_names(&found.imports, &found.exports)?;
                bytes.done_with(usize::MAX);
                let allowance = helper::Allowance { memory: limits.compile_bytes, milliseconds: limits.compile_ms };
                log::line(log::Level::Info, format_args!("compiling {}", path.display()));
                let accepted = Accepted { digest, bytes, instance_bytes: found.instance_bytes };
                (self.compiler.compile(engine, cache, accepted, allowance, program, whose)?, found.instance_bytes)
            }
        };
        audit::check(&component)?;
        let mismatch = |error: wasmtime::Error| Error::new(ErrorKind::Unsupported, audit::explain_mismatch(&error));
        let pre = self.linker.instantiate_pre(&component).map_err(mismatch)?;
        let backend = BackendIndices::new(&pre).map_err(mismatch)?;
        let maintenance = match audit::exports_maintenance(&component) {
            true => Some(maintained::GuestIndices::new(&pre).map_err(mismatch)?),
            false => None,
        };
        let uses_wasi_files = audit::imports_wasi_files(&component);
        Ok(Loaded { digest, instance_bytes, uses_wasi_files, pre, backend, maintenance })
    }

    /// Whether compiled code of a component is in a host's cache, and sound.
    pub(crate) fn is_cached(&self, digest: &[u8; 32], places: &Places) -> bool {
        self.cache(places).is_some_and(|cache| cache.holds(digest))
    }

    /// The cache of a host.
    fn cache(&self, places: &Places) -> Option<&'static aot::Cache> {
        let directory = places.cache()?;
        let mut caches = self.caches.lock();
        let open = || aot::Cache::open(self.linker.engine(), &directory).map(|cache| &*Box::leak(Box::new(cache)));
        *caches.entry(directory.clone()).or_insert_with(open)
    }
}

fn check_pin(digest: &[u8; 32], pinned: Option<config::Digest>) -> Result<(), Error> {
    match pinned {
        Some(config::Digest(pinned)) if pinned != *digest => {
            let (is, wanted) = (hex::encode(digest), hex::encode(pinned));
            let message = format!("its SHA-256 is {is}, and the config accepts only {wanted} (sha256)");
            Err(Error::new(ErrorKind::Denied, message))
        }
        _ => Ok(()),
    }
}

/// The program to compile with. None: it is done in this process, because the config or the program that embeds the library says so. Nothing
/// else leads there: the compiler's memory and time in this process have no bound.
fn program(helper: &config::Helper, places: &Places) -> Result<Option<helper::Program>, Error> {
    if places.compile_in_process || *helper == config::Helper::InProcess {
        return Ok(None);
    }
    let remedy = "`compile = \"in-process\"` in the config (HostBuilder::compile_in_process), which bounds neither its memory nor its time";
    let refused = |why: String| {
        Error::new(ErrorKind::Unsupported, format!("its compiled code is not in the cache, and {why}, or set {remedy}"))
    };
    // It holds for the files of the helper.
    if files_are_bounded() {
        return Err(refused("the process has a bound on the length of files (ulimit -f), under which the compile helper cannot work: lift it".into()));
    }
    helper::find(helper).map(Some).map_err(|why| match helper {
        config::Helper::At(_) => Error::invalid(format!("compile.helper of the config: {why}")),
        _ => refused(format!(
            "there is no compile helper ({why}): install kv-store-compile, which belongs to the library"
        )),
    })
}

/// What a component's file is, without compiling it: its length, its SHA-256, its outlines, and why it would not compile.
pub(crate) fn look(path: &Path, limit: u64) -> Result<(u64, [u8; 32], Measured, Option<String>), Error> {
    let (digest, bytes) = source::Source::open(path, limit)?.copy()?;
    let found = measure::measure(&bytes, |end| bytes.done_with(end))?;
    let invalid = audit::invalid(&bytes);
    Ok((bytes.len() as u64, digest, found, invalid))
}
