//! Have a component check a URI and its options, without a connection and without a change to files.
//!
//! What a URI and an option may be only the component knows, so its own `open` is run. In it a connection is refused, which a component
//! tries when it has found both good, and the directory of the URI can be read only.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::budget::Budgets;
use crate::config::{Helper, Settings};
use crate::contract::{Access, Rehearsal};
use crate::directory::Directory;
use crate::error::Error;
use crate::loader;
use crate::policy::OpenTarget;
use crate::process::PerProcess;
use crate::sandbox::Pool;
use crate::setup::Setup;
use crate::store::{Directories, Process, reach};
use crate::threads::Whose;
use crate::until::Until;

/// Check what a component would make of its URI and options. An error is what an open would fail with.
pub(crate) fn rehearse(
    component: &Path,
    helper: &Helper,
    target: &OpenTarget,
    settings: &Settings,
    setup: &Setup,
) -> Result<(), Error> {
    let loaded = loader::components()?.load(
        component,
        settings.sha256,
        &settings.limits,
        helper,
        &setup.places,
        &Whose::default(),
    )?;
    let process = Process::current();
    let counters = process.counters.of(&target.backend, settings.tenant.as_deref());
    let (own, _scratch) = match target.grants.directory.as_deref() {
        None => (None, None),
        Some(path) if path.exists() => (Some(Directory::open_read_only(path, &process.directories)?), None),
        // An open makes it. An empty one in its place is as good for this.
        Some(_) => {
            let scratch = Scratch::new()?;
            (Some(Directory::open_read_only(&scratch.0, &process.directories)?), Some(scratch))
        }
    };
    let folders = target.grants.fs.iter().filter_map(|(name, folder)| {
        let opened = Directory::open_read_only(&folder.path, &process.directories).ok()?;
        Some((name.clone(), Arc::new(opened)))
    });
    let folders = folders.collect::<BTreeMap<_, _>>();
    let directories = Directories { own, folders, segments: process.segments.clone() };
    // Apart from those of the stores: what is rehearsed takes nothing from them.
    static BUDGETS: PerProcess<Arc<Budgets>> = PerProcess::new();
    let reach = reach(target, settings, directories, (BUDGETS.get(), Arc::default()), (&counters, Arc::default()));
    let access = Arc::new(Access { rehearsal: Some(Rehearsal::default()), ..Access::of(Arc::new(reach)) });
    let (uri, options) = (target.store.as_str().to_owned(), settings.options.clone().into_iter().collect());
    match Pool::open(loaded, access.clone(), uri, options, &Until::new(&settings.limits)) {
        Err(error) if !access.rehearsal.as_ref().is_some_and(Rehearsal::went_on) => Err(error),
        _ => Ok(()),
    }
}

/// An empty directory of this process's own, removed with the value.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, Error> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let path = std::env::temp_dir().join(format!("kv-store-doctor-{}-{number}", std::process::id()));
        let made = std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(&path);
        made.map_err(|error| Error::invalid(format!("{}: {error}", path.display())))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}
