//! The library under other names and at other places, with the components that it finds there.

use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;

/// A folder laid out as a vendor would: `lib/libkv_store_redis.so`, made by `place`.
fn vendor(place: impl FnOnce(&Path)) -> tempfile::TempDir {
    let folder = scratch();
    let lib = folder.path().join("lib");
    std::fs::create_dir(&lib).expect("a fresh folder");
    place(&lib.join("libkv_store_redis.so"));
    folder
}

fn linked() -> tempfile::TempDir {
    vendor(|path| symlink(library_path(), path).expect("a link"))
}

fn copied() -> tempfile::TempDir {
    vendor(|path| assert!(std::fs::copy(library_path(), path).is_ok(), "a copy of the library"))
}

/// Put local-fs's component into a folder below the vendor's.
fn ship(vendor: &tempfile::TempDir, folder: &str) {
    let components = vendor.path().join(folder);
    std::fs::create_dir_all(&components).expect("a fresh folder");
    std::fs::copy(dist().join("components/local-fs.wasm"), components.join("local-fs.wasm")).expect("the component");
}

fn under(vendor: &tempfile::TempDir, arguments: &[&str]) -> Command {
    let mut command = consumer("state");
    command.env("KV_STORE_LIBRARY", vendor.path().join("lib/libkv_store_redis.so")).args(arguments);
    command
}

fn saves_and_restores(vendor: &tempfile::TempDir, component_path: Option<&Path>) {
    let directory = scratch();
    let uri = local_fs(directory.path());
    for what in ["save", "restore"] {
        let mut command = under(vendor, &[what, &uri, "n", "300000"]);
        succeed(command.envs(component_path.map(|path| ("KV_STORE_WASM_PATH", path))));
    }
}

#[test]
fn a_link_finds_the_components_of_the_library_that_it_leads_to() {
    saves_and_restores(&linked(), None);
}

#[test]
fn a_copy_finds_the_components_beside_it_and_beside_its_folder() {
    for folder in ["lib/components", "components"] {
        let vendor = copied();
        ship(&vendor, folder);
        saves_and_restores(&vendor, None);
    }
}

#[test]
fn components_beside_a_link_come_before_those_where_it_leads() {
    let (vendor, directory) = (linked(), scratch());
    ship(&vendor, "components");
    saves_and_restores(&vendor, None);
    // It is this one that is taken: damaged, it is the one that is complained of.
    let component = vendor.path().join("lib/../components/local-fs.wasm");
    std::fs::write(&component, "no component").expect("a file of this test");
    let refused = finish(&mut under(&vendor, &["save", &local_fs(directory.path()), "n", "1"]));
    assert!(!refused.status.success());
    assert!(refused.stderr.contains(&*component.to_string_lossy()), "{refused:?}");
    assert!(refused.stderr.contains("a text file, not a component"), "{refused:?}");
}

#[test]
fn a_copy_alone_says_where_it_looked_and_the_path_variable_helps() {
    let (vendor, directory) = (copied(), scratch());
    let refused = finish(&mut under(&vendor, &["save", &local_fs(directory.path()), "n", "1"]));
    assert!(!refused.status.success());
    let beside = vendor.path().join("lib/components");
    for said in ["local-fs.wasm", &*beside.to_string_lossy(), "KV_STORE_WASM_PATH"] {
        assert!(refused.stderr.contains(said), "{said} is missing in {refused:?}");
    }
    saves_and_restores(&vendor, Some(&dist().join("components")));
}

#[test]
fn the_path_variable_comes_before_what_lies_beside_the_library() {
    let (vendor, other, directory) = (copied(), scratch(), scratch());
    ship(&vendor, "components");
    std::fs::write(other.path().join("local-fs.wasm"), "no component").expect("a file of this test");
    let mut command = under(&vendor, &["save", &local_fs(directory.path()), "n", "1"]);
    let refused = finish(command.env("KV_STORE_WASM_PATH", other.path()));
    assert!(!refused.status.success());
    assert!(refused.stderr.contains(&*other.path().to_string_lossy()), "{refused:?}");
}
