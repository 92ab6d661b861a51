//! Values of another meaning, from C.

use super::*;

#[test]
fn two_meanings_share_a_store_and_nothing_else() {
    let directory = scratch();
    for uri in [local_fs(directory.path()), "memory://described".to_owned(), "probe-buffered://described".to_owned()] {
        let ran = succeed(consumer("describe").arg(&uri));
        assert_eq!(ran.stdout, "ok\n", "{uri}");
        // Once, whatever is missed.
        assert_eq!(ran.stderr.matches("it is missed and left alone").count(), 1, "{uri}: {}", ran.stderr);
    }
}

#[test]
fn a_later_process_misses_and_shows_what_an_earlier_one_described() {
    let directory = scratch();
    let uri = local_fs(directory.path());
    succeed(consumer("describe").arg(&uri));
    let tool = |arguments: &[&str]| {
        let ran = Command::new(dist().join("bin/kv-store")).args(arguments).output().unwrap();
        assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap()
    };
    let digests = |uri: &str, chunks: &[&str]| -> Vec<String> {
        let arguments = [&["ls", uri, "--descriptors", "--json"], chunks].concat();
        let lines = tool(&arguments);
        let entries = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        entries.map(|entry| entry["descriptor"].as_str().unwrap_or("none").to_owned()).collect()
    };
    let (manifests, chunks) = (digests(&uri, &[]), digests(&uri, &["--chunks"]));
    assert!(manifests.len() == 1 && manifests == chunks && manifests[0].len() == 32, "{manifests:?} {chunks:?}");
    assert!(!tool(&["ls", &uri, "--json"]).contains("descriptor"));
    // A copy is as good as what it is of, though the config of this tool says nothing.
    let other = scratch();
    let copied = local_fs(other.path());
    tool(&["copy", &uri, &copied]);
    assert_eq!((digests(&copied, &[]), digests(&copied, &["--chunks"])), (manifests, chunks));
}
