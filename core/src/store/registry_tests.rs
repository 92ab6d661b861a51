//! What tells stores apart, and what a component says of itself.

use std::path::Path;

use super::*;
use crate::config::Config;
use crate::policy::as_shipped;

#[test]
fn a_bound_that_is_no_number_fails_the_open() {
    let check = |value: &str| check_facts(&[("x".into(), "y".into()), ("max-bytes".into(), value.into())]);
    for good in ["0", "18446744073709551615"] {
        check(good).unwrap();
    }
    for wrong in ["", "a lot", "-1", "+1", "1.5", "18446744073709551616", "1 "] {
        assert_eq!(check(wrong).unwrap_err().kind(), ErrorKind::Component, "{wrong:?}");
    }
}

struct NoLayer;

impl BackendLayer for NoLayer {
    fn open(&self, _: &Opening<'_>) -> Result<Option<Wrap>, Error> {
        Ok(None)
    }
}

#[test]
fn what_is_near_is_found_again_under_other_bounds_and_nothing_else() {
    let uri = StoreUri::parse("local-fs:///kv/store").unwrap();
    let key = |lines: &str, layers| {
        let text = format!("[backend.local-fs]\nroot = '/kv'\n{lines}\n");
        let config = Config::parse(Path::new("/etc/c.toml"), &text).unwrap();
        let served = as_shipped("local-fs");
        let settings = config.settings(&uri, &served).unwrap();
        let target = settings.target(&uri, &served).unwrap();
        StoreKey { component: [0; 32], target, settings, layers }
    };
    let scope = |lines: &str| key(lines, Vec::new()).scope();
    let plain = scope("");
    for bound in [
        "limits.deadline_ms = 50",
        "quota.bytes_in_per_s = 1000000",
        "near = { memory_bytes = 1048576 }",
        "layout1 = 'off'",
        "descriptor = { engine = 'llama.cpp' }",
        "require_descriptor = true",
        "direct = 'off'",
    ] {
        assert!(scope(bound) == plain, "{bound}");
    }
    assert!(key("", vec![SameLayer(Arc::new(NoLayer))]).scope() == plain);
    for other in ["options.durability = 'rename'", "verify = 'off'"] {
        assert!(scope(other) != plain, "{other}");
    }
}

#[test]
fn what_a_component_says_of_itself_is_cut() {
    let mut label = "l".repeat(1 << 20);
    let mut more: Vec<_> = (0..1000).map(|_| ("x".to_owned(), "y".to_owned())).collect();
    cut(&mut label, &mut more);
    assert!(label.len() <= limits::MAX_LOG_LINE_BYTES + 3 && label.capacity() < 4096);
    assert_eq!(more.capacity(), 0);
    let known = [("max-bytes", "7"), (Features::REPLACES_IN_STEPS, "1"), ("x", "y")];
    let mut more = known.map(|(fact, value)| (fact.to_owned(), value.to_owned())).to_vec();
    cut(&mut label, &mut more);
    assert_eq!(more.len(), 2);
    assert!(Features { more, ..Features::default() }.replaces_in_steps());
}
