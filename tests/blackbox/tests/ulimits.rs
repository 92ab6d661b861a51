//! Consumers whose process was given little, and whose standard error nobody reads.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use kv_store_tests::consumer::{consumer, start, succeed};

/// Let a process write no file longer than so many bytes.
fn bound_files(command: &mut Command, bytes: u64) -> &mut Command {
    let bound = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: `bound` is whole and outlives the call.
    let set = move || match unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &bound) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    // SAFETY: one system call.
    unsafe { command.pre_exec(set) }
}

#[test]
fn a_file_that_may_not_be_so_long_is_an_error_and_no_signal() {
    let long = "x".repeat(100_000);
    for scheme in ["local-fs", "std-fs", "c-fs"] {
        let scratch = tempfile::tempdir().unwrap();
        let uri = format!("{scheme}://{}", scratch.path().display());
        // The compile helper cannot work under such a bound: compiled code has to be there.
        succeed(consumer("calls").arg(&uri));
        let calls =
            [&uri, "put", "aa", &long, "put", "bb", "short", "publish", "name", &long, "publish", "name", "short"];
        let said = succeed(bound_files(consumer("calls").args(calls), 50_000)).stdout;
        let answers: Vec<&str> = said.lines().collect();
        let [opened, put_long, put_short, publish_long, publish_short] = answers[..] else { panic!("{said}") };
        assert_eq!([opened, put_short, publish_short], ["open ok", "put 0", "publish 0"], "{scheme}");
        assert!(put_long.starts_with("put -") && publish_long.starts_with("publish -"), "{scheme}: {said}");
    }
}

#[test]
fn a_standard_error_that_nobody_reads_holds_up_no_call() {
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    // SAFETY: it changes nothing.
    let room = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_GETPIPE_SZ) };
    // No byte more has room in it.
    writer.write_all(&vec![b'.'; usize::try_from(room).unwrap()]).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let uri = format!("local-fs://{}", scratch.path().display());
    // Calls that fail and say so, each for a cause of its own.
    let mut command = consumer("calls");
    command.arg(&uri).args(["put", "aa", "data", "put", "", "data", "get", "", "publish", "", "data", "get", "aa"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(OwnedFd::from(writer));
    let mut running = start(&mut command);
    let mut stdout = running.0.stdout.take().unwrap();
    drop(command);
    assert!(running.wait().is_some_and(|status| status.success()), "it waits for who reads its standard error");
    let (mut said, mut logged) = (String::new(), String::new());
    stdout.read_to_string(&mut said).unwrap();
    assert!(said.ends_with("get 0 64617461\n"), "{said}");
    reader.read_to_string(&mut logged).unwrap();
    let whole = logged.trim_start_matches('.');
    assert!(whole.is_empty(), "what had no room is left out: {whole}");
}
