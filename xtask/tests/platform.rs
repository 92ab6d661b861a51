//! What one operating system has and others do not is asked for in `core/platform/` alone, and what others lack is written down.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::path::{Path, PathBuf};

/// The folders of what is built for every system.
const FOLDERS: &[&str] = &[
    "engine-side/blocks/src",
    "tools/cli/src",
    "tools/compiler/src",
    "tools/conformance/src",
    "core/src",
    "ffi/abi/src",
    "ffi/src",
    "host/src",
    "core/http-wire/src",
    "engine-side/kv-cache/src",
    "engine-side/kvx/src",
    "ffi/library/src",
    "guests/memkv/server/src",
    "guests/memkv/wire/src",
    "bindings/python/src",
    "core/size/src",
];

/// What only some systems have.
const WORDS: &[&str] = &[
    "target_os",
    "target_vendor",
    "linux_kernel",
    "os::linux",
    "os::macos",
    "\"/proc",
    "\"/sys/",
    "Boottime",
    "MSG_NOSIGNAL",
    "MemfdFlags",
    "O_PATH",
    "OFlags::PATH",
    "O_TMPFILE",
    "RenameFlags",
    "ResolveFlags",
    "ReadWriteFlags",
    "SO_PEERCRED",
    "SYS_",
    "SealFlags",
    "__errno_location",
    "close_range",
    "copy_file_range",
    "epoll",
    "eventfd",
    "fallocate",
    "fdatasync",
    "fs::fsync",
    "gettid",
    "inotify",
    "libc::ppoll",
    "madvise",
    "malloc_usable_size",
    "memfd_create",
    "off64_t",
    "openat2",
    "pidfd",
    "posix_fadvise",
    "prctl",
    "preadv2",
    "pread64",
    "pwritev2",
    "rustls_native_certs",
    "security_framework",
    "sigtimedwait",
    "statx",
    "sync_file_range",
    "syncfs",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(sources(&path)),
            false => found.push(path),
        }
    }
    found
}

/// What is built into libraries and programs: neither tests nor comments.
fn built(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    if !name.ends_with(".rs") || name.ends_with("tests.rs") || path.iter().any(|part| part == "tests") {
        return None;
    }
    let text = std::fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]\nmod tests").next()?;
    Some(text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n"))
}

#[test]
fn only_the_platform_knows_the_operating_system() {
    let mut found = Vec::new();
    let mut seen = 0;
    for path in FOLDERS.iter().flat_map(|folder| sources(&root().join(folder))) {
        let Some(text) = built(&path) else { continue };
        seen += 1;
        for word in WORDS.iter().filter(|word| text.contains(*word)) {
            found.push(format!("{}: {word}", path.strip_prefix(root()).unwrap().display()));
        }
    }
    assert!(seen > 200, "{seen} sources");
    assert!(found.is_empty(), "to be asked for in platform/:\n{}", found.join("\n"));
}

/// Each of the words is something that there is: in the way of Linux, or in what was once used.
#[test]
fn the_way_of_linux_would_be_found() {
    let of_linux = sources(&root().join("core/platform/src/linux"));
    let without = of_linux.iter().filter(|path| {
        let name = path.file_name().unwrap();
        let text = built(path).unwrap();
        name != "mod.rs" && !WORDS.iter().any(|word| text.contains(word))
    });
    let without: Vec<_> = without.collect();
    assert!(without.is_empty(), "{without:?}");
}

/// What each build lacks is explained to operators under the same name, and nothing else is.
#[test]
fn what_is_lacking_is_in_the_threat_model() {
    let source = std::fs::read_to_string(root().join("core/platform/src/portable/mod.rs")).unwrap();
    let named: Vec<&str> = source.split("name: \"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let page = std::fs::read_to_string(root().join("docs/threat-model.md")).unwrap();
    let (_, table) = page.split_once("## What other systems than Linux do not promise").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let mut explained: Vec<&str> =
        table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let mut expected = named.clone();
    expected.sort_unstable();
    explained.sort_unstable();
    assert_eq!(explained, expected);
    assert!(expected.len() > 8);
}
