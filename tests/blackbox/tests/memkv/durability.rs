//! What the server has the kernel make durable, and in which order: read off its system calls.

use std::path::Path;

use kv_store_tests::memkv::MemkvServer;

use sha2::Digest;

use super::raw::*;
use super::{open, save};

/// The calls that sync and rename below a folder, one a line, in order, with paths.
fn calls(trace: &Path, folder: &Path) -> Vec<String> {
    let trace = std::fs::read_to_string(trace).unwrap();
    trace.lines().filter(|line| line.contains(&folder.display().to_string())).map(str::to_owned).collect()
}

/// Where a call is that names this, after `from`.
fn position(calls: &[String], from: usize, call: &str, named: &str) -> usize {
    let found = calls.iter().skip(from).position(|line| line.contains(call) && line.contains(named));
    from + found.unwrap_or_else(|| panic!("no {call} of {named} after call {from} of:\n{}", calls.join("\n")))
}

#[test]
fn a_manifest_appears_when_its_chunks_are_durable() {
    let folder = tempfile::tempdir().unwrap();
    let (data, trace) = (folder.path().join("data"), folder.path().join("trace"));
    // -y: descriptors are shown with their paths.
    let strace = ["strace", "-f", "-y", "-qq", "-e", "trace=fsync,fdatasync,rename,renameat,renameat2", "-o"];
    let under = [&strace[..], &[trace.to_str().unwrap()]].concat();
    let server = MemkvServer::start_under(&under, &["--data", data.to_str().unwrap()]);
    save(&open(&server), "m", &[(b"hash", b"chunk")]);
    drop(server);

    let calls = calls(&trace, &data.join("objects"));
    // The chunk, then the manifest: each is written below `new` and renamed to its place.
    let renamed: Vec<usize> = (0..calls.len()).filter(|at| calls[*at].contains("rename")).collect();
    let [chunk, manifest] = renamed.as_slice() else { panic!("{calls:#?}") };
    let place = |at: usize| calls[at].split('"').nth(3).unwrap().to_owned();
    let folder_of = |at: usize| Path::new(&place(at)).parent().unwrap().display().to_string() + ">";
    let synced = position(&calls, *chunk, "fsync", &(place(*chunk) + ">"));
    assert!(position(&calls, synced, "fsync", &folder_of(*chunk)) < *manifest, "{calls:#?}");
    position(&calls, *manifest, "fsync", &folder_of(*manifest));
    // Its own bytes before its name.
    let all = self::calls(&trace, &data);
    let appears = position(&all, 0, "rename", &place(*manifest));
    assert!(position(&all, 0, "fsync", "/new/1>") < appears, "{all:#?}");
}

/// A disk that fails once: the sync of a chunk's file, or of the folder that it is in. A second sync would succeed and prove nothing.
#[test]
fn what_could_not_be_synced_is_gone_and_the_next_save_puts_it_again() {
    for fails in ["file", "folder"] {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        // As the server names it: kind, length of the namespace, namespace and key. The key is no hash of the content: it lies in an envelope.
        let key = b"hash\x02kv2\x02";
        let name = [&[1, 4][..], b"test", key].concat();
        let digest = hex::encode(sha2::Sha256::digest(name));
        let place = data.join("objects").join(&digest[..2]);
        let file = place.join(&digest);
        let path = if fails == "file" { &file } else { &place };
        let inject = ["-e", "trace=fsync", "-e", "inject=fsync:error=EIO:when=1", "-o", "/dev/null"];
        let strace = [&["strace", "-f", "-qqq", "-P", path.to_str().unwrap()][..], &inject].concat();
        let server = MemkvServer::start_under(&strace, &["--data", data.to_str().unwrap()]);
        let store = open(&server);
        assert!(store.put_chunk(b"hash", b"chunk").unwrap() >= 0);
        assert!(store.put_manifest("m", b"m").unwrap() < 0, "{fails}");
        assert!(!file.exists(), "{fails}: the file is left");
        // It is not there for anybody, and so the next save puts it again. (strace has each thread of the server fail once.)
        let mut client = Client::connect(server.port, [1; 32]);
        assert_eq!(client.ask(GET, get_fields(key), b"").status, MISSING, "{fails}: the entry is left");
        assert_eq!(client.ask(PUT, put_fields(key), b"chunk").status, OK, "{fails}");
        assert!(file.exists(), "{fails}");
    }
}
