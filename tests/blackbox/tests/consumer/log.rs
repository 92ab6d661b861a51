//! Lines of the log, as a C program takes them.

use kv_store_tests::consumer::{consumer, succeed};

use super::{lines, local_fs, scratch};

#[test]
fn a_program_takes_the_lines_of_the_log() {
    let directory = scratch();
    let uri = local_fs(directory.path());
    let finished = succeed(consumer("log").arg(&uri));
    let taken: Vec<&str> = finished.stdout.lines().collect();
    assert!(taken.iter().any(|line| line.starts_with(&format!("3: opened {uri}: "))), "{finished:?}");
    assert!(taken.iter().any(|line| line.starts_with(&format!("1: put_chunk {uri}: "))), "{finished:?}");
    assert_eq!(taken.last().map(|line| line.starts_with("1: put_chunk memory://log: ")), Some(true), "{finished:?}");
    // Before a function was set, in the child, and after it was taken away.
    let left = lines(&finished);
    let said = ["set_log: the level is 9", "opened before a fork", "put_chunk memory://log: "];
    assert_eq!(left.len(), said.len(), "{finished:?}");
    for (line, said) in left.iter().zip(said) {
        assert!(line.starts_with("kv-store-wasm: error: ") && line.contains(said), "{line}");
    }
}
