//! WASI's functions on a path, each on the directory that the path's last part lies in, which is opened as every path of
//! ours is: in one step, following no link, and into no file system of the kernel. wasmtime-wasi then gets a name and no
//! path. It would follow links that stay below the directory, and go into whatever is mounted there.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, FileType, OFlags, statat};
use rustix::io::Errno;
use wasmtime::component::{Linker, Resource};
use wasmtime_wasi::filesystem::{Descriptor, Dir, WasiFilesystemView};
use wasmtime_wasi::p2::bindings::filesystem::types::{ErrorCode, HostDescriptor, NewTimestamp, PathFlags};
use wasmtime_wasi::p2::{FsError, FsResult};

use super::files::{WasiAnswer, WasiStore, refused};
use super::{State, VERSION};
use crate::directory::open_below;

/// What a path of a guest names.
#[derive(Debug, PartialEq, Eq)]
struct NamedPath<'a> {
    /// The directory that `name` lies in; none: the one that the path is relative to.
    upper: Option<&'a str>,
    name: &'a str,
    /// It ends in `/`, so it names a directory.
    directory: bool,
}

impl<'a> NamedPath<'a> {
    fn of(path: &'a str) -> Result<Self, ErrorCode> {
        let trimmed = path.trim_end_matches('/');
        if path.starts_with('/') {
            return Err(ErrorCode::NotPermitted);
        }
        let directory = trimmed.len() < path.len();
        Ok(match trimmed.rsplit_once('/') {
            _ if trimmed.is_empty() => return Err(ErrorCode::NoEntry),
            Some((_, "." | "..")) => NamedPath { upper: Some(trimmed), name: ".", directory },
            Some((upper, name)) => NamedPath { upper: Some(upper), name, directory },
            None if matches!(trimmed, "." | "..") => NamedPath { upper: Some(trimmed), name: ".", directory },
            None => NamedPath { upper: None, name: trimmed, directory },
        })
    }
}

/// The directory that a path's last part lies in, and that part.
fn locate(root: &Dir, path: &str) -> Result<(Dir, String), ErrorCode> {
    let place = NamedPath::of(path)?;
    let directory = match place.upper {
        None => root.clone(),
        Some(upper) => {
            let opened = open_below(root.dir.as_fd(), upper, kv_platform::paths::LOOK | OFlags::DIRECTORY);
            let opened = opened.map(File::from).map_err(refused)?;
            Dir::new(opened, root.perms, root.open_mode, true)
        }
    };
    if place.directory {
        match statat(&*directory.dir, place.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Directory => {
                return Err(ErrorCode::NotDirectory);
            }
            Ok(_) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(refused(errno)),
        }
    }
    Ok((directory, place.name.to_owned()))
}

type Handle = Resource<Descriptor>;

impl State {
    /// [`locate`], with a handle of ours to the directory, which [`State::done`] drops.
    fn located(&mut self, root: &Handle, path: &str) -> wasmtime::Result<Result<(Handle, String), ErrorCode>> {
        let table = &mut self.wasi().table;
        let located = match table.get(root)? {
            Descriptor::Dir(root) => locate(root, path),
            Descriptor::File(_) => Err(ErrorCode::NotDirectory),
        };
        Ok(located.and_then(|(directory, name)| {
            let handle = table.push(Descriptor::Dir(directory)).map_err(|_| ErrorCode::InsufficientMemory)?;
            Ok((handle, name))
        }))
    }

    fn done<T>(&mut self, directory: Handle, outcome: FsResult<T>) -> WasiAnswer<T> {
        self.wasi().table.delete(directory)?;
        answer(outcome)
    }
}

fn answer<T>(outcome: Result<T, FsError>) -> WasiAnswer<T> {
    Ok((match outcome {
        Ok(answer) => Ok(answer),
        Err(error) => Err(error.downcast()?),
    },))
}

/// One of WASI's functions: its name, what it is given, and wasmtime-wasi's own with a name in place of the path.
macro_rules! on_path {
    ($types:ident, $function:literal, $given:pat in $type:ty, ($root:ident, $path:ident),
     |$view:ident, $at:ident, $name:ident| $call:expr) => {
        $types.func_wrap_async(concat!("[method]descriptor.", $function), |mut store: WasiStore, $given: $type| {
            Box::new(async move {
                let state = store.data_mut();
                let (located, $name) = match state.located(&$root, &$path)? {
                    Ok(located) => located,
                    Err(error) => return Ok((Err(error),)),
                };
                let $at = borrowed(&located);
                let mut $view = state.filesystem();
                let outcome = $call.await;
                state.done(located, outcome)
            })
        })?
    };
}

fn borrowed(handle: &Handle) -> Handle {
    Resource::new_borrow(handle.rep())
}

/// No link is followed, whatever a guest says.
fn no_links() -> PathFlags {
    PathFlags::empty()
}

/// In place of wasmtime-wasi's functions of these names.
pub(super) fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    let mut types = linker.instance(&format!("wasi:filesystem/types@{VERSION}"))?;
    on_path!(types, "create-directory-at", (root, path) in (Handle, String), (root, path), |view, at, name| {
        view.create_directory_at(at, name)
    });
    on_path!(types, "remove-directory-at", (root, path) in (Handle, String), (root, path), |view, at, name| {
        view.remove_directory_at(at, name)
    });
    on_path!(types, "unlink-file-at", (root, path) in (Handle, String), (root, path), |view, at, name| {
        view.unlink_file_at(at, name)
    });
    on_path!(types, "readlink-at", (root, path) in (Handle, String), (root, path), |view, at, name| {
        view.readlink_at(at, name)
    });
    on_path!(types, "stat-at", (root, _, path) in (Handle, PathFlags, String), (root, path), |view, at, name| {
        view.stat_at(at, no_links(), name)
    });
    on_path!(types, "metadata-hash-at", (root, _, path) in (Handle, PathFlags, String), (root, path), |view, at, name| {
        view.metadata_hash_at(at, no_links(), name)
    });
    type Times = (Handle, PathFlags, String, NewTimestamp, NewTimestamp);
    on_path!(types, "set-times-at", (root, _, path, read, written) in Times, (root, path), |view, at, name| {
        view.set_times_at(at, no_links(), name, read, written)
    });
    type Two = (Handle, String, Handle, String);
    types.func_wrap_async("[method]descriptor.rename-at", |mut store: WasiStore, (from, old, to, new): Two| {
        Box::new(async move { store.data_mut().on_two(Both::Rename, (&from, &old), (&to, &new)).await })
    })?;
    type LinkArguments = (Handle, PathFlags, String, Handle, String);
    types.func_wrap_async(
        "[method]descriptor.link-at",
        |mut store: WasiStore, (from, flags, old, to, new): LinkArguments| {
            Box::new(async move { store.data_mut().on_two(Both::Link(flags), (&from, &old), (&to, &new)).await })
        },
    )?;
    Ok(())
}

/// What is done with two paths.
enum Both {
    Rename,
    Link(PathFlags),
}

impl State {
    async fn on_two(&mut self, what: Both, from: (&Handle, &str), to: (&Handle, &str)) -> WasiAnswer<()> {
        let (from, old) = match self.located(from.0, from.1)? {
            Ok(located) => located,
            Err(error) => return Ok((Err(error),)),
        };
        let (to, new) = match self.located(to.0, to.1)? {
            Ok(located) => located,
            Err(error) => return self.done(from, Err(error.into())),
        };
        let (at, other) = (borrowed(&from), borrowed(&to));
        let outcome = match what {
            Both::Rename => self.filesystem().rename_at(at, old, other, new).await,
            Both::Link(flags) => self.filesystem().link_at(at, flags, old, other, new).await,
        };
        self.wasi().table.delete(to)?;
        self.done(from, outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wasmtime_wasi::{FsPerms, OpenMode};

    fn place(path: &str) -> (Option<&str>, &str, bool) {
        let NamedPath { upper, name, directory } = NamedPath::of(path).unwrap();
        (upper, name, directory)
    }

    #[test]
    fn a_path_is_taken_apart_at_its_last_part() {
        assert_eq!(place("a"), (None, "a", false));
        assert_eq!(place("a//"), (None, "a", true));
        assert_eq!(place("a/b"), (Some("a"), "b", false));
        assert_eq!(place("a/b/"), (Some("a"), "b", true));
        assert_eq!(place("a/.."), (Some("a/.."), ".", false));
        assert_eq!(place("."), (Some("."), ".", false));
        assert_eq!(place("../b"), (Some(".."), "b", false));
        assert_eq!(NamedPath::of("/a").unwrap_err(), ErrorCode::NotPermitted);
        assert_eq!(NamedPath::of("").unwrap_err(), ErrorCode::NoEntry);
    }

    #[test]
    fn no_path_leads_into_a_file_system_of_the_kernel() {
        let root = Dir::new(File::open("/").unwrap(), FsPerms::ReadWrite, OpenMode::READ, true);
        let own = format!("proc/{}/environ", std::process::id());
        for path in [&own, "proc/version", "sys/kernel/x", "tmp/../proc/version", "dev/null", "dev/new"] {
            assert_eq!(locate(&root, path).map(drop).unwrap_err(), ErrorCode::CrossDevice, "{path}");
        }
        // What lies on another file system is reached all the same.
        for path in ["dev/shm/x", "etc/passwd", "proc", "tmp/../etc/."] {
            assert!(locate(&root, path).is_ok(), "{path}");
        }
    }
}
