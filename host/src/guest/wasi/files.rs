//! What wasmtime-wasi's files do without our bounds: a planted FIFO would hang an open, new files would be readable by
//! others, links could be made, and a listing has no end.

use std::fs::File;
use std::os::fd::AsFd;

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

use super::{State, VERSION, Wasi};
use crate::directory::open_below;
use crate::limits;

pub(super) type Answer<T> = wasmtime::Result<(Result<T, ErrorCode>,)>;
pub(super) type Store<'a> = StoreContextMut<'a, State>;

/// In place of wasmtime-wasi's functions of these names.
pub(super) fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    let mut types = linker.instance(&format!("wasi:filesystem/types@{VERSION}"))?;
    types.func_wrap(
        "[method]descriptor.open-at",
        |mut store: Store, (parent, _follow, path, how, flags): OpenAt| -> Answer<Resource<Descriptor>> {
            store.data_mut().wasi().open_at(&parent, &path, how, flags)
        },
    )?;
    types.func_wrap(
        "[method]descriptor.symlink-at",
        |_: Store, _: (Resource<Descriptor>, String, String)| -> Answer<()> { Ok((Err(ErrorCode::NotPermitted),)) },
    )?;
    types.func_wrap_async("[method]descriptor.read-directory", |mut store: Store, (directory,): (Resource<_>,)| {
        Box::new(async move { store.data_mut().read_directory(directory).await })
    })?;
    types.resource("directory-entry-stream", ResourceType::host::<ReaddirIterator>(), |mut store, listing| {
        let wasi = store.data_mut().wasi();
        wasi.listings = wasi.listings.saturating_sub(1);
        wasi.table.delete(Resource::<ReaddirIterator>::new_own(listing))?;
        Ok(())
    })
}

type OpenAt = (Resource<Descriptor>, PathFlags, String, OpenFlags, DescriptorFlags);

impl Wasi {
    fn open_at(
        &mut self,
        parent: &Resource<Descriptor>,
        path: &str,
        how: OpenFlags,
        flags: DescriptorFlags,
    ) -> Answer<Resource<Descriptor>> {
        let opened = match self.table.get(parent)? {
            Descriptor::Dir(directory) => open(directory, path, how, flags),
            Descriptor::File(_) => Err(ErrorCode::NotDirectory),
        };
        Ok((match opened {
            Ok(descriptor) => Ok(self.table.push(descriptor)?),
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
    async fn read_directory(&mut self, directory: Resource<Descriptor>) -> Answer<Resource<ReaddirIterator>> {
        let wasi = self.wasi();
        if wasi.listings >= limits::MAX_WASI_LISTINGS {
            return Ok((Err(ErrorCode::InsufficientMemory),));
        }
        let counted = match wasi.table.get(&directory)? {
            Descriptor::Dir(directory) => count(directory),
            Descriptor::File(_) => Err(ErrorCode::NotDirectory),
        };
        if let Err(error) = counted {
            return Ok((Err(error),));
        }
        match self.filesystem().read_directory(directory).await {
            Ok(listing) => {
                self.wasi().listings += 1;
                Ok((Ok(listing),))
            }
            Err(error) => Ok((Err(error.downcast()?),)),
        }
    }
}

fn count(directory: &Dir) -> Result<(), ErrorCode> {
    let entries = Entries::read_from(&*directory.dir).map_err(std::io::Error::from)?;
    match entries.take(limits::MAX_WASI_LISTING_ENTRIES + 1).count() {
        more if more > limits::MAX_WASI_LISTING_ENTRIES => Err(ErrorCode::Overflow),
        _ => Ok(()),
    }
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
