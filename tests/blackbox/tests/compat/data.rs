//! What former versions wrote is read, and every byte of it is checked. `tests/compat/data/README.md` says what there is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kv_store_tests::compat::{Installation, LIST, PartAccess, folder_of, parts};
use kv_store_tests::memkv::MemkvServer;
use kv_store_tests::redis::RedisServer;
use kv_store_tests::{dist, root};

/// What each version consists of.
const FILES: [&str; 5] = ["local-fs.tar.zst", "redis.tar.zst", "memkv.tar.zst", "rows.tar.zst", LIST];

/// The versions that have data, each with its parts.
fn versions() -> BTreeMap<String, Vec<String>> {
    let folders = std::fs::read_dir(root().join("tests/compat/data")).unwrap().map(|entry| entry.unwrap().path());
    let versions =
        folders.filter(|path| path.is_dir()).map(|path| path.file_name().unwrap().to_str().unwrap().to_owned());
    let parts_of = |version: &String| std::fs::read_to_string(folder_of(version).join(LIST)).unwrap();
    versions.map(|version| (version.clone(), parts_of(&version).lines().map(str::to_owned).collect())).collect()
}

/// A copy of what a version wrote: a read may note when a row was used, and puts what is there.
fn unpacked(version: &str, name: &str, folder: &Path) -> PathBuf {
    let copy = folder.join(version);
    std::fs::create_dir(&copy).unwrap();
    let archive = std::fs::File::open(folder_of(version).join(format!("{name}.tar.zst"))).unwrap();
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(archive).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg("-").arg("-C").arg(&copy).arg("--no-same-owner");
    let mut tar = tar.stdin(Stdio::piped()).spawn().expect("tar is installed");
    std::io::copy(&mut decoder, &mut tar.stdin.take().unwrap()).unwrap();
    assert!(tar.wait().unwrap().success());
    copy
}

/// Read what each version wrote under a name.
fn each_version(name: &str, read: impl Fn(&Installation, &[&str], &Path)) {
    let folder = tempfile::tempdir().unwrap();
    let installation = Installation::at(&dist());
    for (version, parts) in versions() {
        let copy = unpacked(&version, name, folder.path());
        eprintln!("{name} of {version}");
        read(&installation, &parts.iter().map(String::as_str).collect::<Vec<_>>(), &copy);
    }
}

#[test]
fn files_of_each_version_are_read() {
    each_version("local-fs", |installation, parts, copy| {
        let folders = std::fs::read_dir(copy).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let (folders, listed): (BTreeSet<_>, BTreeSet<_>) =
            (folders.collect(), parts.iter().map(|part| part.to_string()).collect());
        assert_eq!(folders, listed, "{LIST} names what was written, and nothing is left out of it");
        installation.files(PartAccess::Read, parts, copy);
    });
}

#[test]
fn databases_of_each_version_are_read() {
    each_version("redis", |installation, parts, copy| {
        let server = RedisServer::start(&["--dir", copy.to_str().unwrap()]);
        installation.redis(PartAccess::Read, parts, &server);
    });
}

#[test]
fn memkv_data_of_each_version_is_read() {
    each_version("memkv", |installation, parts, copy| {
        let server = MemkvServer::start(&["--data", copy.to_str().unwrap()]);
        installation.memkv(PartAccess::Read, parts, &server);
    });
}

#[test]
fn rows_of_each_version_are_read() {
    each_version("rows", |installation, _, copy| installation.rows(PartAccess::Read, copy));
}

/// This version, and each that the CHANGELOG says was released.
#[test]
fn every_version_has_data_of_its_own() {
    let this = env!("CARGO_PKG_VERSION");
    let changelog = std::fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let released = changelog.lines().filter_map(|line| line.strip_prefix("## [")?.split_once(']'));
    let released = released
        .map(|(version, _)| version)
        .filter(|version| version.starts_with(|first: char| first.is_ascii_digit()));
    for version in released.chain([this]) {
        let missing: Vec<&str> = FILES.into_iter().filter(|name| !folder_of(version).join(name).exists()).collect();
        assert!(
            missing.is_empty(),
            "tests/compat/data/{version} lacks {missing:?}: run `cargo xtask compat-data` and commit what it writes, so that later versions \
             are held to what {version} stores"
        );
    }
    assert_eq!(
        versions()[this],
        parts(),
        "tests/compat/data/{this}/{LIST}: remove the folder, if {this} is not released yet, and run `cargo xtask compat-data`"
    );
}
