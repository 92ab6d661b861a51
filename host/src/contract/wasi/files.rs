//! What wasmtime-wasi's files do without our bounds: a planted FIFO would hang an open, new files would be readable by
//! others, links could be made, and a listing has no end.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};

use rustix::fs::{Dir as Entries, OFlags};
use rustix::io::Errno;
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, Resource, ResourceType};
use wasmtime_wasi::filesystem::{Descriptor, Dir, WasiFilesystemView};
use wasmtime_wasi::p2::ReaddirIterator;
use wasmtime_wasi::p2::bindings::filesystem::types::{
    DescriptorFlags, ErrorCode, HostDescriptor, OpenFlags, PathFlags,
};
use wasmtime_wasi::{FsPerms, OpenMode};

use super::{State, VERSION};
use crate::budget::{Permit, Share};
use crate::directory::open_below;
use crate::limits;

pub(super) type WasiAnswer<T> = wasmtime::Result<(Result<T, ErrorCode>,)>;
pub(super) type WasiStore<'a> = StoreContextMut<'a, State>;

/// In place of wasmtime-wasi's functions of these names.
pub(super) fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    let mut types = linker.instance(&format!("wasi:filesystem/types@{VERSION}"))?;
    types.func_wrap(
        "[method]descriptor.open-at",
        |mut store: WasiStore, (parent, _follow, path, how, flags): OpenAt| -> WasiAnswer<Resource<Descriptor>> {
            store.data_mut().open_at(&parent, &path, how, flags)
        },
    )?;
    types.func_wrap(
        "[method]descriptor.symlink-at",
        |_: WasiStore, _: (Resource<Descriptor>, String, String)| -> WasiAnswer<()> {
            Ok((Err(ErrorCode::NotPermitted),))
        },
    )?;
    types.func_wrap_async(
        "[method]descriptor.read-directory",
        |mut store: WasiStore, (directory,): (Resource<_>,)| {
            Box::new(async move { store.data_mut().read_directory(directory).await })
        },
    )?;
    types.resource("directory-entry-stream", ResourceType::host::<ReaddirIterator>(), |mut store, listing| {
        let state = store.data_mut();
        let wasi = state.wasi();
        wasi.table.delete(Resource::<ReaddirIterator>::new_own(listing))?;
        let bytes = wasi.listings.remove(&listing).unwrap_or_default();
        state.memory.give_back(bytes);
        Ok(())
    })
}

type OpenAt = (Resource<Descriptor>, PathFlags, String, OpenFlags, DescriptorFlags);

/// The files that are open for an instance, each one of its store's descriptors. A stream keeps a file open without its
/// descriptor, so what counts is the file itself.
#[derive(Default)]
pub(super) struct Open(Vec<(Weak<File>, Permit)>);

impl Open {
    /// Give back the room of those that are closed.
    pub(super) fn forget_closed(&mut self) {
        self.0.retain(|(file, _)| file.strong_count() > 0);
    }

    /// Room for one more.
    fn permit(&mut self, share: &Arc<Share>) -> Result<Permit, ErrorCode> {
        share.permit().or_else(|_| {
            self.forget_closed();
            share.permit().map_err(|_| ErrorCode::Busy)
        })
    }

    fn add(&mut self, descriptor: &Descriptor, permit: Permit) {
        // A guest that opens and closes leaves no more here than it may have open.
        if self.0.len() >= limits::MAX_WASI_HANDLES {
            self.forget_closed();
        }
        let file = match descriptor {
            Descriptor::File(file) => &file.file,
            Descriptor::Dir(directory) => &directory.dir,
        };
        self.0.push((Arc::downgrade(file), permit));
    }
}

impl State {
    fn open_at(
        &mut self,
        parent: &Resource<Descriptor>,
        path: &str,
        how: OpenFlags,
        flags: DescriptorFlags,
    ) -> WasiAnswer<Resource<Descriptor>> {
        let access = self.access.clone();
        let wasi = self.wasi();
        let opened = match wasi.table.get(parent)? {
            Descriptor::Dir(directory) => wasi.open.permit(&access.reach.shares.descriptors).and_then(|permit| {
                let descriptor = open(directory, path, how, flags)?;
                wasi.open.add(&descriptor, permit);
                Ok(descriptor)
            }),
            Descriptor::File(_) => Err(ErrorCode::NotDirectory),
        };
        Ok((match opened {
            Ok(descriptor) => Ok(wasi.table.push(descriptor)?),
            Err(error) => Err(error),
        },))
    }
}

/// Open in one step, following no link and waiting for nobody. What is neither a file nor a directory is refused.
fn open(parent: &Dir, path: &str, how: OpenFlags, flags: DescriptorFlags) -> Result<Descriptor, ErrorCode> {
    let synced = DescriptorFlags::FILE_INTEGRITY_SYNC
        | DescriptorFlags::DATA_INTEGRITY_SYNC
        | DescriptorFlags::REQUESTED_WRITE_SYNC;
    if flags.intersects(synced) {
        return Err(ErrorCode::Unsupported);
    }
    let changes = OpenFlags::CREATE | OpenFlags::TRUNCATE;
    let directory = how.contains(OpenFlags::DIRECTORY);
    if directory && how.intersects(changes | OpenFlags::EXCLUSIVE) {
        return Err(ErrorCode::Invalid);
    }
    let writes = how.intersects(changes) || flags.contains(DescriptorFlags::WRITE);
    if writes && parent.perms == FsPerms::ReadOnly {
        return Err(ErrorCode::NotPermitted);
    }
    let reads = flags.contains(DescriptorFlags::READ) || !writes;
    let mode = [(reads, OpenMode::READ), (writes, OpenMode::WRITE)];
    let mode = mode.into_iter().filter_map(|(is, mode)| is.then_some(mode)).collect();

    let mut os = match (reads, writes) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    } | OFlags::NONBLOCK
        | OFlags::NOCTTY;
    os.set(OFlags::CREATE, how.contains(OpenFlags::CREATE));
    os.set(OFlags::EXCL, how.contains(OpenFlags::EXCLUSIVE));
    os.set(OFlags::TRUNC, how.contains(OpenFlags::TRUNCATE));
    os.set(OFlags::DIRECTORY, directory);
    let opened = open_below(parent.dir.as_fd(), path, os).map(File::from).map_err(refused)?;
    let kind = opened.metadata()?.file_type();
    if kind.is_dir() {
        Ok(Descriptor::Dir(Dir::new(opened, parent.perms, mode, true)))
    } else if kind.is_file() {
        Ok(Descriptor::File(wasmtime_wasi::filesystem::File::new(opened, parent.perms, mode, true)))
    } else {
        Err(ErrorCode::NotPermitted)
    }
}

/// wasmtime-wasi has no word of its own for a file system that is not reached.
pub(super) fn refused(errno: Errno) -> ErrorCode {
    match errno {
        Errno::XDEV => ErrorCode::CrossDevice,
        errno => std::io::Error::from(errno).into(),
    }
}

impl State {
    /// wasmtime-wasi takes all entries into memory at once, so they are counted first.
    async fn read_directory(&mut self, directory: Resource<Descriptor>) -> WasiAnswer<Resource<ReaddirIterator>> {
        let wasi = self.wasi();
        if wasi.listings.len() >= limits::MAX_WASI_LISTINGS {
            return Ok((Err(ErrorCode::InsufficientMemory),));
        }
        let counted = match wasi.table.get(&directory)? {
            Descriptor::Dir(directory) => count(directory),
            Descriptor::File(_) => Err(ErrorCode::NotDirectory),
        };
        let bytes = match counted {
            Ok(bytes) => bytes,
            Err(error) => return Ok((Err(error),)),
        };
        if self.memory.take(bytes).is_err() {
            return Ok((Err(ErrorCode::InsufficientMemory),));
        }
        match self.filesystem().read_directory(directory).await {
            Ok(listing) => {
                self.wasi().listings.insert(listing.rep(), bytes);
                Ok((Ok(listing),))
            }
            Err(error) => {
                self.memory.give_back(bytes);
                Ok((Err(error.downcast()?),))
            }
        }
    }
}

/// What a listing takes, as the directory is now.
fn count(directory: &Dir) -> Result<usize, ErrorCode> {
    let (mut bytes, mut entries) = (0, 0);
    for entry in Entries::read_from(&*directory.dir).map_err(refused)? {
        entries += 1;
        if entries > limits::MAX_WASI_LISTING_ENTRIES {
            return Err(ErrorCode::Overflow);
        }
        bytes += limits::LISTED_BYTES + entry.map_err(refused)?.file_name().to_bytes().len();
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_system_of_the_kernel_is_opened() {
        let root = Dir::new(File::open("/").unwrap(), FsPerms::ReadWrite, OpenMode::READ | OpenMode::WRITE, true);
        let memory = format!("proc/{}/mem", std::process::id());
        for path in ["proc", &memory, "proc/version", "sys/kernel", "dev", "dev/null", "etc/../proc/version"] {
            let opened = open(&root, path, OpenFlags::empty(), DescriptorFlags::READ);
            assert_eq!(opened.map(drop).unwrap_err(), ErrorCode::CrossDevice, "{path}");
        }
        let made = open(&root, "dev/new", OpenFlags::CREATE, DescriptorFlags::WRITE);
        assert_eq!(made.map(drop).unwrap_err(), ErrorCode::CrossDevice);
        assert!(open(&root, "dev/shm", OpenFlags::DIRECTORY, DescriptorFlags::READ).is_ok());
    }
}
