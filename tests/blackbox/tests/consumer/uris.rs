//! URIs that are refused, with a line that says what to do, and what the rest open.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

/// Refused with one line, which has all that is expected of it.
#[track_caller]
fn refused_by(mut command: Command, expected: &[&str]) {
    let finished = succeed(&mut command);
    assert_eq!(finished.stdout, "open NULL\n", "{command:?}: {finished:?}");
    assert_eq!(lines(&finished).len(), 1, "{command:?}: {finished:?}");
    for said in expected {
        assert!(finished.stderr.contains(said), "{command:?}: {said:?} is missing in {}", finished.stderr);
    }
}

#[track_caller]
fn refused(uri: &str, expected: &[&str]) {
    refused_by(calls(uri, []), expected);
}

#[track_caller]
fn opens(uri: &str) {
    let finished = succeed(&mut calls(uri, ["publish", "m", "x", "read", "m"]));
    assert_eq!((&*finished.stdout, &*finished.stderr), ("open ok\npublish 0\nread 0 78\n", ""), "{uri}");
}

#[test]
fn what_is_no_uri_is_refused_with_an_example() {
    for uri in ["", "plain", "/just/a/path", "local-fs:/one/slash", "wasm://"] {
        refused(uri, &["open: ", "scheme", "local-fs:///var/cache/kv"]);
    }
    for uri in ["://x", "Local-fs:///x", "lo cal://x", "wasm://wasm://local-fs:///x"] {
        refused(uri, &["open: ", "scheme"]);
    }
    refused(&format!("local-fs:///{}", "x".repeat(5000)), &["open: ", "URI is longer than"]);
}

#[test]
fn an_unknown_scheme_is_told_where_its_component_was_looked_for() {
    let components = dist().join("lib/../components");
    let other = scratch();
    let mut command = calls("no-such://x", []);
    command.env("KV_STORE_WASM_PATH", other.path());
    let (components, other) = (components.to_string_lossy(), other.path().to_string_lossy());
    refused_by(command, &["open: no-such://x", "no-such.wasm", &components, &other, "KV_STORE_WASM_PATH"]);
}

#[test]
fn a_path_that_is_no_absolute_directory_is_refused() {
    refused("local-fs://relative", &["open: local-fs://relative"]);
    refused("local-fs://relative/path", &["open: local-fs://relative/path"]);
    refused("local-fs://", &["open: local-fs://"]);
    for uri in ["local-fs:///..", "local-fs:///tmp/../etc", "local-fs:///./tmp", "local-fs:///tmp/x/.."] {
        refused(uri, &[uri, "'..'"]);
    }
}

#[test]
fn a_relative_path_makes_no_directory() {
    let folder = scratch();
    let mut command = calls("local-fs://relative", []);
    command.current_dir(folder.path());
    refused_by(command, &["local-fs://relative"]);
    assert!(std::fs::read_dir(folder.path()).expect("the folder").next().is_none());
}

#[test]
fn a_directory_over_what_the_library_relies_on_is_refused() {
    let folder = scratch();
    let cache = folder.path().join("a/cache");
    let guarded = |directory: &Path, what: &str| {
        let mut command = calls(&local_fs(directory), []);
        command.env("KV_STORE_WASM_CACHE", &cache);
        refused_by(command, &["overlaps", what, "another directory"]);
    };
    std::fs::create_dir_all(&cache).expect("a fresh folder");
    std::fs::set_permissions(&cache, std::fs::Permissions::from_mode(0o700)).expect("a fresh folder");
    symlink(&cache, folder.path().join("link")).expect("a link");
    for directory in ["a/cache", "a/cache/below", "a", "link"] {
        guarded(&folder.path().join(directory), "the cache of compiled components");
    }
    guarded(Path::new("/"), "overlaps");
    guarded(&dist().join("components"), "components");
    guarded(&dist().join("components/below"), "components");
    guarded(&dist(), "components");
    assert!(!cache.join("below").exists() && !dist().join("components/below").exists(), "refused before it is made");
    opens(&local_fs(&folder.path().join("a-cache")));
}

#[test]
fn a_directory_to_be_made_over_what_the_library_relies_on_is_refused_through_a_link() {
    let folder = scratch();
    let cache = folder.path().join("cache");
    std::fs::create_dir(&cache).expect("a fresh folder");
    std::fs::set_permissions(&cache, std::fs::Permissions::from_mode(0o700)).expect("a fresh folder");
    symlink(&cache, folder.path().join("link")).expect("a link");
    let mut command = calls(&local_fs(&folder.path().join("link/below")), []);
    command.env("KV_STORE_WASM_CACHE", &cache);
    refused_by(command, &["overlaps", "the cache of compiled components"]);
    assert!(!cache.join("below").exists());
}

#[test]
fn a_missing_last_part_is_made_for_this_user_alone_and_a_missing_upper_one_is_an_error() {
    let folder = scratch();
    let made = folder.path().join("made");
    opens(&local_fs(&made));
    let mode = |path: &Path| std::fs::metadata(path).expect("it was made").permissions().mode() & 0o7777;
    assert_eq!(mode(&made), 0o700);
    assert_eq!(mode(&made.join("m%02")), 0o600, "the manifest");
    refused(&local_fs(&folder.path().join("no/such")), &["No such file", "make the directories above it"]);
    assert!(!folder.path().join("no").exists());
}

#[test]
fn a_directory_that_is_there_keeps_its_mode() {
    let folder = scratch();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o750)).expect("a fresh folder");
    opens(&local_fs(folder.path()));
    let mode = std::fs::metadata(folder.path()).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o7777, 0o750);
}

#[test]
fn a_trailing_slash_and_a_leading_wasm_scheme_change_nothing() {
    let folder = scratch();
    let uri = local_fs(folder.path());
    opens(&uri);
    for same in [format!("{uri}/"), format!("wasm://{uri}"), format!("wasm://{uri}/")] {
        let finished = succeed(&mut calls(&same, ["read", "m"]));
        assert_eq!(finished.stdout, "open ok\nread 0 78\n", "{same}");
    }
}

#[test]
fn bytes_of_a_path_are_kept_as_they_are() {
    let folder = scratch();
    for name in ["with space", "per%20cent", "%2e%2e", "hash#mark", "dots...", "ümläut", "@:"] {
        opens(&local_fs(&folder.path().join(name)));
        assert!(folder.path().join(name).join("m%02").exists(), "{name}");
    }
    // Kept too, but a later version takes it for parameters.
    let name = "quest?ion#mark";
    let finished = succeed(&mut calls(&local_fs(&folder.path().join(name)), ["publish", "m", "x"]));
    assert!(
        finished.stdout == "open ok\npublish 0\n" && folder.path().join(name).join("m%02").exists(),
        "{finished:?}"
    );
    assert!(finished.stderr.contains("?ion#mark has no effect"), "{finished:?}");
}

#[test]
fn a_file_in_the_directorys_place_is_refused_and_untouched() {
    let folder = scratch();
    let file = folder.path().join("file");
    std::fs::write(&file, "mine").expect("a fresh folder");
    let path = file.to_string_lossy();
    refused(&local_fs(&file), &[&path, "Not a directory"]);
    refused(&local_fs(&file.join("below")), &[&path, "Not a directory"]);
    assert_eq!(std::fs::read(&file).expect("it is there"), b"mine");
}

#[test]
fn a_read_only_directory_is_read_and_says_why_it_is_not_written() {
    let folder = scratch();
    let store = folder.path().join("store");
    let uri = local_fs(&store);
    succeed(&mut calls(&uri, ["put", "0102", "x", "publish", "m", "y"]));
    let asked = ["read", "m", "get", "0102", "put", "0304", "x", "publish", "m", "z"];
    // Root writes where the mode forbids it, so for root the directory is mounted read-only, out of others' sight.
    // SAFETY: no arguments, and it cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    let (mut command, cause) = if root {
        let plain = calls(&uri, asked);
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c"]);
        command.arg("mount --bind \"$0\" \"$0\" && mount -o remount,ro,bind \"$0\" || exit 77; exec \"$@\"");
        command.arg(&store).arg(plain.get_program()).args(plain.get_args());
        command.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        (command, "Read-only file system")
    } else {
        std::fs::set_permissions(&store, std::fs::Permissions::from_mode(0o500)).expect("our own directory");
        (calls(&uri, asked), "Permission denied")
    };
    let finished = finish(&mut command);
    if root && !finished.stdout.starts_with("open") && (finished.status.code() != Some(0)) {
        return skipped(format_args!("nothing can be mounted here: {}", finished.stderr));
    }
    if !root {
        std::fs::set_permissions(&store, std::fs::Permissions::from_mode(0o700)).expect("our own directory");
    }
    let answers: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(answers[..3], ["open ok", "read 0 79", "get 0 78"], "{finished:?}");
    assert!(answers[3].starts_with("put -") && answers[4].starts_with("publish -"), "{finished:?}");
    let lines = lines(&finished);
    // Both fail for one cause, which is told once.
    assert_eq!(lines.len(), 1, "{finished:?}");
    assert!(lines.iter().all(|line| line.contains(&uri) && line.contains(cause)), "{finished:?}");
}
