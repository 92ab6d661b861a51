//! The counters, as a C program reads them.

use kv_store_tests::consumer::{consumer, succeed};
use kv_store_tests::{compile, root};

use super::{local_fs, scratch};

fn value(text: &str, name: &str) -> u64 {
    let line = text.lines().find(|line| line.split(' ').next() == Some(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in\n{text}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

#[test]
fn a_program_reads_what_it_did() {
    let directory = scratch();
    let text = succeed(consumer("metrics").arg(local_fs(directory.path()))).stdout;
    let of = |name: &str, more: &str| value(&text, &format!("kv_store_{name}{{backend=\"local-fs\"{more}}}"));
    let calls = |operation: &str| of("calls_total", &format!(",operation=\"{operation}\""));
    assert_eq!((calls("open"), calls("put_chunk"), calls("get_chunk"), calls("put_manifest")), (1, 2, 3, 1));
    assert_eq!((of("errors_total", ",kind=\"invalid\""), of("errors_total", ",kind=\"denied\"")), (1, 0));
    assert_eq!((of("put_bytes_total", ""), of("got_bytes_total", "")), (15, 5));
    assert_eq!((of("duplicate_chunks_total", ""), of("misses_total", "")), (1, 1));
    assert_eq!((of("instances_total", ""), of("traps_total", "")), (1, 0));
    assert_eq!((value(&text, "kv_store_payload_bytes"), value(&text, "kv_store_connections")), (0, 0));
}

#[test]
fn the_header_is_c_and_cpp() {
    let folder = scratch();
    let source = root().join("target/test-consumers/wasm_header.c");
    std::fs::write(
        &source,
        "#include \"kv_store_wasm.h\"\nint main(void) { return sizeof(kv_store_wasm_get_vtable_fn) == 0; }\n",
    )
    .expect("the target folder can be written to");
    for language in ["c", "c++"] {
        compile(source.to_str().expect("a plain path"), language, &folder.path().join(language));
    }
}
