//! WASI 0.2 for components whose language brings it, within the same grants and bounds as the contract's own interfaces.
//!
//! wasmtime-wasi does the work. What it would take from the process, or do without a bound, is replaced here: the root
//! directory is the URI's, the environment holds what was granted, and [`files`], [`paths`], [`sockets`] and [`output`] say what else.
//! All of it is linked for every component, and nothing of it is made before a component uses it. Why each piece is as it
//! is: `docs/decisions/wasi.md`.

mod clock;
mod files;
mod output;
mod paths;
mod sockets;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use wasmtime::component::{HasSelf, Linker, Resource, ResourceTable};
use wasmtime_wasi::filesystem::{Descriptor, Dir};
use wasmtime_wasi::p2::bindings::{cli, clocks, filesystem, random};
use wasmtime_wasi::{FsPerms, OpenMode, WasiCtx, WasiCtxView, WasiView};

use super::{Access, State};
use crate::limits;
use crate::log::Level;

/// The version whose functions are replaced: wasmtime-wasi's own, for it is found by its full name.
const VERSION: &str = "0.2.12";

/// WASI's side of one instance.
pub(super) struct Wasi {
    ctx: WasiCtx,
    /// Apart from the contract's handles, because each of these may be a file descriptor or a buffer.
    table: ResourceTable,
    sockets: sockets::Sockets,
    open: files::Open,
    /// Listings of directories that the guest holds, and what each counts for.
    listings: HashMap<u32, usize>,
}

/// The granted directories of a store, each with its name, as all instances of it have them.
#[derive(Default)]
pub(crate) struct Roots(OnceLock<Vec<(Dir, String)>>);

impl Wasi {
    fn new(access: &Arc<Access>) -> Box<Self> {
        let mut table = ResourceTable::new();
        table.set_max_capacity(limits::MAX_WASI_HANDLES);
        let sockets = sockets::Sockets::new(access.clone());
        let mut ctx = WasiCtx::builder();
        ctx.allow_blocking_current_thread(true)
            .stdout(output::Output::new(Level::Info, access.clone()))
            .stderr(output::Output::new(Level::Warn, access.clone()))
            // Refused when it connects, with a line in the log, and not when it makes a socket.
            .allow_tcp(true)
            .allow_ip_name_lookup(true)
            .socket_addr_check(sockets.check());
        let open = files::Open::default();
        Box::new(Wasi { ctx: ctx.build(), table, sockets, open, listings: HashMap::new() })
    }

    /// Whether the instance has a socket.
    pub(super) fn has_sockets(&self) -> bool {
        self.sockets.any()
    }

    /// Give back the room of files that are closed by now.
    pub(super) fn forget_closed(&mut self) {
        self.open.forget_closed();
    }
}

impl State {
    fn wasi(&mut self) -> &mut Wasi {
        let access = &self.access;
        self.wasi.get_or_insert_with(|| Wasi::new(access))
    }
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let wasi = self.wasi();
        WasiCtxView { ctx: &mut wasi.ctx, table: &mut wasi.table }
    }
}

/// Offer WASI to components.
pub(crate) fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    wasmtime_wasi::p2::add_to_linker_async(linker)?;
    linker.allow_shadowing(true);
    fn own(state: &mut State) -> &mut State {
        state
    }
    cli::environment::add_to_linker::<State, HasSelf<State>>(linker, own)?;
    cli::exit::add_to_linker::<State, HasSelf<State>>(linker, own)?;
    clocks::monotonic_clock::add_to_linker::<State, HasSelf<State>>(linker, own)?;
    filesystem::preopens::add_to_linker::<State, HasSelf<State>>(linker, own)?;
    random::random::add_to_linker::<State, HasSelf<State>>(linker, own)?;
    random::insecure::add_to_linker::<State, HasSelf<State>>(linker, own)?;
    random::insecure_seed::add_to_linker::<State, HasSelf<State>>(linker, own)?;
    files::add_to_linker(linker)?;
    paths::add_to_linker(linker)?;
    sockets::add_to_linker(linker)?;
    linker.allow_shadowing(false);
    Ok(())
}

impl filesystem::preopens::Host for State {
    fn get_directories(&mut self) -> wasmtime::Result<Vec<(Resource<Descriptor>, String)>> {
        let access = self.access.clone();
        let roots = match access.roots.0.get() {
            Some(roots) => roots,
            None => {
                let roots = access.open_roots()?;
                access.roots.0.get_or_init(|| roots)
            }
        };
        let table = &mut self.wasi().table;
        roots.iter().map(|(root, path)| Ok((table.push(Descriptor::Dir(root.clone()))?, path.clone()))).collect()
    }
}

impl Access {
    fn open_roots(&self) -> wasmtime::Result<Vec<(Dir, String)>> {
        let own = self.reach.directory.iter().map(|directory| ("/".to_owned(), directory));
        let named = self.reach.folders.iter().map(|(name, directory)| (format!("/{name}"), directory));
        own.chain(named)
            .map(|(path, directory)| {
                let (perms, mode) = match directory.is_read_only() {
                    true => (FsPerms::ReadOnly, OpenMode::READ),
                    false => (FsPerms::ReadWrite, OpenMode::READ | OpenMode::WRITE),
                };
                Ok((Dir::new(directory.try_clone()?, perms, mode, true), path))
            })
            .collect()
    }
}

impl cli::environment::Host for State {
    fn get_environment(&mut self) -> wasmtime::Result<Vec<(String, String)>> {
        let names = self.access.reach.grants.environment().iter();
        // What is not UTF-8 cannot be said in WASI.
        Ok(names.filter_map(|name| Some((name.clone(), std::env::var(name).ok()?))).collect())
    }

    fn get_arguments(&mut self) -> wasmtime::Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn initial_cwd(&mut self) -> wasmtime::Result<Option<String>> {
        Ok(None)
    }
}

impl cli::exit::Host for State {
    fn exit(&mut self, _status: Result<(), ()>) -> wasmtime::Result<()> {
        Err(wasmtime::Error::msg("it called exit, which ends the instance; answer an error instead"))
    }

    fn exit_with_code(&mut self, code: u8) -> wasmtime::Result<()> {
        cli::exit::Host::exit(self, if code == 0 { Ok(()) } else { Err(()) })
    }
}

impl random::random::Host for State {
    fn get_random_bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        if len > limits::MAX_RANDOM_BYTES {
            let limit = limits::MAX_RANDOM_BYTES;
            return Err(wasmtime::Error::msg(format!("it asked for {len} random bytes; one call gives {limit}")));
        }
        // Of the kernel, and so not the same in a forked child.
        let mut bytes = vec![0; len as usize];
        getrandom::fill(&mut bytes).map_err(|error| wasmtime::Error::msg(error.to_string()))?;
        Ok(bytes)
    }

    fn get_random_u64(&mut self) -> wasmtime::Result<u64> {
        getrandom::u64().map_err(|error| wasmtime::Error::msg(error.to_string()))
    }
}

impl random::insecure::Host for State {
    fn get_insecure_random_bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        random::random::Host::get_random_bytes(self, len)
    }

    fn get_insecure_random_u64(&mut self) -> wasmtime::Result<u64> {
        random::random::Host::get_random_u64(self)
    }
}

impl random::insecure_seed::Host for State {
    fn insecure_seed(&mut self) -> wasmtime::Result<(u64, u64)> {
        let mut next = || random::random::Host::get_random_u64(self);
        Ok((next()?, next()?))
    }
}
