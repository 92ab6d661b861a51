//! Sequences saved and restored from C.

use super::*;

#[test]
fn a_paged_engine_saves_and_restores() {
    let directory = scratch();
    for uri in [local_fs(directory.path()), "memory://paged".to_owned(), "probe-buffered://paged".to_owned()] {
        let ran = succeed(consumer("paged").arg(&uri));
        assert_eq!(ran.stdout, "ok\n");
        let lines: Vec<&str> = ran.stderr.lines().collect();
        let says = |what: &[&str]| lines.iter().filter(|line| what.iter().all(|part| line.contains(part))).count();
        // The first of the restores that do not fit says how; another one, by its model, is of the same cause.
        assert_eq!(says(&["kv_store_kvx_restore", &uri, "saved from"]), 1, "{lines:#?}");
        // A miss is normal, and device memory is spoken of once for all calls besides the call's own line.
        assert_eq!(says(&["nothing was saved"]), 0, "{lines:#?}");
        assert_eq!(
            says(&["KVX_MEMORY_DEVICE"]) - says(&["KVX_MEMORY_DEVICE", "kv_store_kvx_restore"]),
            1,
            "{lines:#?}"
        );
    }
}

#[test]
fn with_the_log_off_nothing_is_written() {
    let ran = succeed(consumer("paged").arg("memory://quiet").env("KV_STORE_WASM_LOG", "off"));
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("ok\n", ""));
}

#[test]
fn the_header_is_complete_in_both_languages() {
    let folder = scratch();
    let source = folder.path().join("only.c");
    std::fs::write(&source, "#include \"kv_store_kvx.h\"\nint main(void) { return 0; }\n").unwrap();
    for (language, compiler) in [("-std=c11", "c"), ("-std=c++17", "c++")] {
        let mut cc = Command::new("cc");
        cc.args([language, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", compiler]);
        let built = cc.arg("-I").arg(dist().join("include")).arg(&source).output().expect("cc runs: install gcc");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    }
}
