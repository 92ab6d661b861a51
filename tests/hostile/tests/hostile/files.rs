//! Guests that reach for files outside of their directory, and for what else they were not granted.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Instant;

use kv_store_wasm::ErrorKind::{Denied, Invalid};
use kv_store_wasm::Store;

use super::{Case, PATIENCE, asked, case, fails, folder, goes_on, open, place, text};

/// A directory with a file in it, one beside it, and whatever might lead from the one to the other.
fn planted(scratch: &Path) -> String {
    let granted = scratch.join("granted");
    if granted.exists() {
        std::fs::remove_dir_all(&granted).unwrap();
    }
    std::fs::create_dir_all(granted.join("sub")).unwrap();
    std::fs::write(scratch.join("secret"), "out of reach").unwrap();
    std::fs::write(granted.join("file"), "within").unwrap();
    symlink("../secret", granted.join("leak")).unwrap();
    symlink("..", granted.join("up")).unwrap();
    symlink("file", granted.join("inner")).unwrap();
    let fifo = std::ffi::CString::new(granted.join("fifo").to_str().unwrap()).unwrap();
    // SAFETY: a path that ends in NUL.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    granted.display().to_string()
}

fn untouched(scratch: &Path) {
    let mut names: Vec<_> = std::fs::read_dir(scratch).unwrap().flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    assert_eq!(names, ["granted", "secret"], "something was made outside");
    assert_eq!(std::fs::read(scratch.join("secret")).unwrap(), b"out of reach");
}

/// The guest is told to try each of these, and says that it could not.
fn are_refused(store: &Store, attempts: &[&str]) {
    for what in attempts {
        let answer = asked(store, what);
        assert!(answer.starts_with("error: "), "{what}: {answer}");
    }
}

/// A directory with more files than one listing answers, and one with a hole of a tebibyte.
fn filled() -> &'static Path {
    static FILLED: OnceLock<PathBuf> = OnceLock::new();
    FILLED.get_or_init(|| {
        let path = place("filled");
        std::fs::create_dir(&path).unwrap();
        (0..4200).for_each(|number| std::fs::write(path.join(format!("file-{number}")), "").unwrap());
        std::fs::File::create(path.join("sparse")).unwrap().set_len(1 << 40).unwrap();
        path
    })
}

/// A guest that asks of `files` what no backend would, all of which is refused or bounded.
fn lying(how: &'static str) -> Case {
    case(&format!("probe {how}"), move || {
        let store = open(&format!("hostile-probe://{}", filled().display()));
        fails(Invalid, "refused", || store.get_manifest(&format!("do:{how}")));
        assert!(!filled().join("large").exists(), "it was written");
        goes_on(&store);
    })
}

pub fn cases() -> Vec<Case> {
    vec![
        lying("files-names"),
        lying("files-ranges"),
        lying("files-many"),
        lying("files-large"),
        case("reads-anywhere", reads_anywhere),
        case("file systems of the kernel", file_systems_of_the_kernel),
        case("wasi-probe escapes", wasi_probe_escapes),
        case("wasi-probe read-only", wasi_probe_read_only),
        case("probe denied", probe_denied),
    ]
}

fn reads_anywhere() {
    let scratch = folder();
    let store = open(&format!("reads-anywhere://{}", planted(scratch)));
    assert_eq!(text(store.get_manifest("file").unwrap()), "within");
    for (kind, said, paths) in [
        (
            Invalid,
            "is no path that a component may use",
            &["../secret", "sub/../../secret", "./file", "/etc/passwd", "file/", "sub//x", "a\\b", "c:d", ".kv-tmp"][..],
        ),
        (Denied, "a symbolic link is in the way", &["leak", "up/secret", "inner"]),
        (Invalid, "", &["file/x", "sub"]),
    ] {
        for path in paths {
            let error = store.get_manifest(path).expect_err(path);
            assert!(error.kind() == kind && error.to_string().contains(said), "{path}: {:?} {error}", error.kind());
        }
    }
    let begun = Instant::now();
    assert!(store.get_manifest("fifo").is_err(), "a FIFO is no file");
    assert!(begun.elapsed() < PATIENCE);
    untouched(scratch);
}

fn file_systems_of_the_kernel() {
    // With these it would read the environment of the process and write to its memory.
    for scheme in ["reads-anywhere", "hostile-wasi"] {
        for path in ["/proc", "/proc/self", "/proc/self/task", "/sys", "/sys/made", "/dev", "/dev/pts"] {
            fails(Denied, "a file system of the kernel", || Store::open(&format!("{scheme}://{path}")));
        }
    }
    fails(Denied, "a file system of the kernel", || Store::open("granted-proc://x"));
    // What is mounted there to hold files is a directory like others.
    static SHARED: OnceLock<tempfile::TempDir> = OnceLock::new();
    let shared = SHARED.get_or_init(|| tempfile::tempdir_in("/dev/shm").unwrap());
    std::fs::write(shared.path().join("file"), "within").unwrap();
    let store = open(&format!("reads-anywhere://{}", shared.path().display()));
    assert_eq!(text(store.get_manifest("file").unwrap()), "within");
}

fn wasi_probe_escapes() {
    let scratch = folder();
    let store = open(&format!("hostile-wasi://{}", planted(scratch)));
    assert_eq!(asked(&store, "read file"), "within");
    are_refused(
        &store,
        &[
            "read ../secret",
            "read leak",
            "read leak/",
            "read up/",
            "read file/",
            "read fifo",
            "read /proc/self/environ",
            "list up/",
            "list sub/../..",
            "write ../new",
            "write ../new/",
            "write new/",
            "write up/new",
            "write fifo",
            "make ../new/",
            "rename file ../new",
            "rename file ../new/",
            "rename ../secret mine",
            "rename up/secret mine",
            "rename sub ../sub/",
            "hard-link ../secret mine",
            "hard-link up/secret mine",
            "hard-link file ../new",
            "hard-link file up/new",
            "link ../secret mine",
            "shorten file",
            "shorten leak",
            "truncate leak",
            "truncate up/secret",
            "remove up/secret",
            "remove ../secret",
        ],
    );
    untouched(scratch);
    assert_eq!(asked(&store, "read file"), "within");
}

fn wasi_probe_read_only() {
    let folder = read_only();
    std::fs::write(folder.join("file"), "kept").unwrap();
    let store = open("hostile-wasi-ro://x");
    assert_eq!(asked(&store, "roots"), "/ro");
    assert_eq!(asked(&store, "read /ro/file"), "kept");
    are_refused(
        &store,
        &[
            "truncate /ro/file",
            "shorten /ro/file",
            "write /ro/file",
            "write /ro/new",
            "make /ro/new",
            "remove /ro/file",
            "rename /ro/file /ro/new",
            "hard-link file new",
            "link file new",
        ],
    );
    assert_eq!(asked(&store, "read /ro/file"), "kept");
    let names: Vec<_> = std::fs::read_dir(&folder).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["file"]);
}

fn probe_denied() {
    let store = open("hostile-probe://x");
    for (how, said) in [
        ("directory", "the URI names no directory"),
        ("other-directory", "no directory is granted under the name"),
        ("connect", "grant"),
        ("secret-of-others", "a secret's name is 1 to 64"),
    ] {
        let error = store.get_manifest(&format!("do:{how}")).expect_err(how);
        assert!(matches!(error.kind(), Denied | Invalid) && error.to_string().contains(said), "{how}: {error}");
    }
}

/// A directory that is granted to read only.
pub fn read_only() -> PathBuf {
    let folder = kv_store_tests::granted_folders().join("hostile-ro");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}
