//! Changes that may still be carried out though they failed: what a component says of them reaches the next change of the same key. How
//! long that one waits is tested in `core/src/backend/holding_tests.rs`, on a clock of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use kv_store_tests::{Handle, library};

/// What the ABI answers for `unavailable`.
const UNAVAILABLE: i32 = -1;

/// Publish the manifest of which the component says that it sends it under a token, with how it ends. Answers the tokens of former
/// changes that it was told of.
fn change(store: &Handle, text: &str) -> (i32, String) {
    let status = store.put_manifest("late", text.as_bytes()).unwrap();
    (status, String::from_utf8(store.get_manifest("told").unwrap().unwrap()).unwrap())
}

#[test]
fn a_component_that_settles_is_told_what_ended_unknown() {
    let store = library().open("probe-settles://x").unwrap();
    assert_eq!(change(&store, "?one"), (UNAVAILABLE, String::new()));
    // All handles and instances know of it.
    let other = library().open("probe-settles://x").unwrap();
    assert_eq!(change(&other, "?two"), (UNAVAILABLE, "one".to_owned()));
    assert_eq!(store.put_manifest("another", b"").unwrap(), 0);
    assert_eq!(change(&store, "=three"), (0, "one two".to_owned()));
    assert_eq!(change(&store, "-four"), (UNAVAILABLE, String::new()), "that was done, and so they are settled");
    assert_eq!(change(&store, "=five"), (0, String::new()), "and what was not done is not told");
}

#[test]
fn without_that_the_next_change_comes_after_the_deadline_of_the_former() {
    let store = library().open("probe-late://x").unwrap();
    assert_eq!(change(&store, "?one"), (UNAVAILABLE, String::new()));
    // Before that it would be told of it. The first that waits may have no time left when it is its turn.
    let ended = (0..100).map(|_| change(&store, "=two")).find(|(status, told)| *status == 0 || !told.is_empty());
    assert_eq!(ended, Some((0, String::new())));
}
