//! Histories made by hand: each kind of violation is found, and what is odd and allowed passes.

use std::time::Duration;

use super::*;

/// Milliseconds.
const DEADLINE: Duration = Duration::from_millis(1000);

/// A history whose times are milliseconds: a line is `PROCESS KIND KEY VALUE INVOKED ANSWERED OUTCOME REST`, with thread and handle 1.
fn history(lines: &[&str]) -> History {
    let line = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ms = |word: &str| if word == "-" { word.to_owned() } else { format!("{word}000000") };
        match words.as_slice() {
            ["killed", process, time] => format!("killed {process} {}\n", ms(time)),
            [process, kind, key, value, invoked, answered, outcome, rest] => {
                format!("{process} 1 1 {kind} {key} {value} {} {} {outcome} {rest}\n", ms(invoked), ms(answered))
            }
            _ => panic!("{line}"),
        }
    };
    History::parse(&lines.iter().map(line).collect::<String>()).unwrap()
}

fn promise(scheme: &str) -> Promise {
    Promise::of(scheme, DEADLINE).unwrap()
}

/// The rules that are broken.
fn found(scheme: &str, lines: &[&str]) -> Vec<&'static str> {
    found_by(&promise(scheme), lines)
}

fn found_by(promise: &Promise, lines: &[&str]) -> Vec<&'static str> {
    let report = check(&history(lines), promise);
    assert_eq!(report.undecided, [""; 0]);
    report.violations.iter().map(|violation| violation.rule).collect()
}

const SHARED: [&str; 6] = ["local-fs", "segments", "redis", "memkv", "s3", "mooncake"];

#[test]
fn what_every_backend_promises() {
    let old = ["1 set m/1 a 0 1 done -", "2 set m/1 b 2 3 done -"];
    for scheme in SHARED {
        let with = |line: &'static str| found(scheme, &[old[0], old[1], line]);
        assert_eq!(with("3 get m/1 - 4 5 done b"), [""; 0], "{scheme}");
        assert_eq!(with("3 get m/1 - 4 5 failed -1"), [""; 0], "{scheme}: an error says nothing");
        assert_eq!(with("3 get m/1 - 4 5 done a"), [BROUGHT_BACK], "{scheme}");
        assert_eq!(with("3 get m/1 - 4 5 done c"), [WRONG_BYTES], "{scheme}");
        assert_eq!(with("3 get m/1 - 4 - unknown -"), [""; 0], "{scheme}");
        let chunk = ["1 put c/1 a 0 1 done -", "1 remove c/1 - 2 3 done -", "2 get c/1 - 4 5 done a"];
        assert_eq!(found(scheme, &chunk), [BROUGHT_BACK], "{scheme}");
        assert_eq!(found(scheme, &["1 put c/1 a 0 1 done -", "2 get c/1 - 4 5 done f"]), [WRONG_BYTES], "{scheme}");
    }
}

#[test]
fn what_is_sent_again_where_connections_break_may_be_there_twice() {
    // While its call runs: seen, removed, and there again.
    let twice =
        ["1 set m/1 a 0 10 done -", "2 get m/1 - 1 2 done a", "2 remove m/1 - 3 4 done -", "3 get m/1 - 5 6 done a"];
    // And after it has returned.
    let later = ["1 set m/1 a 0 1 done -", "2 remove m/1 - 2 3 done -", "3 get m/1 - 4 5 done a"];
    let chunk = later.map(|line| line.replace("set m/1", "put w/1").replace("m/1", "w/1"));
    let chunk: Vec<&str> = chunk.iter().map(String::as_str).collect();
    for scheme in SHARED {
        let breaking = promise(scheme).breaking(scheme);
        let repeats = ["memkv", "s3"].contains(&scheme);
        let expected: &[&str] = if repeats { &[] } else { &[NO_ORDER] };
        assert_eq!(found_by(&breaking, &twice), expected, "{scheme}");
        assert_eq!(found(scheme, &twice), [NO_ORDER], "{scheme}: where none breaks");
        assert_eq!(found_by(&breaking, &later), [BROUGHT_BACK], "{scheme}");
        let expected: &[&str] = if scheme == "s3" { &[] } else { &[BROUGHT_BACK] };
        assert_eq!(found_by(&breaking, &chunk), expected, "{scheme}");
    }
}

#[test]
fn what_is_not_evicted_is_there() {
    for scheme in SHARED {
        let lost = [
            ["1 set m/1 a 0 1 done -", "2 get m/1 - 2 3 missing -"],
            ["1 put c/1 a 0 1 done -", "2 get c/1 - 2 3 missing -"],
        ];
        for lines in lost {
            let expected: &[&str] = if scheme == "mooncake" { &[] } else { &[LOST] };
            assert_eq!(found(scheme, &lines), expected, "{scheme}");
            assert_eq!(found_by(&promise(scheme).losing(), &lines), [""; 0], "{scheme}");
            let back = [lines[0], lines[1], &lines[1].replace("2 3 missing -", "4 5 done a")];
            let expected: &[&str] = if expected.is_empty() { &[NO_ORDER] } else { &[LOST] };
            assert_eq!(found(scheme, &back), expected, "{scheme}: evicted, and back");
        }
    }
}

#[test]
fn a_late_manifest_does_not_undo_what_its_process_published_later() {
    let late = |kind: &str, after: &str| {
        [
            "1 set m/1 a 0 1 done -".to_owned(),
            format!("1 {kind} 10 1010 failed -1"),
            "1 set m/1 c 1020 1030 done -".to_owned(),
            format!("2 get m/1 - 1040 1050 {after}"),
        ]
    };
    for scheme in SHARED {
        for (kind, after) in [("set m/1 b", "done b"), ("remove m/1 -", "missing -")] {
            let lines = late(kind, after);
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            // What Mooncake evicted is a miss.
            let evicted = scheme == "mooncake" && after == "missing -";
            assert_eq!(found(scheme, &lines).is_empty(), evicted, "{scheme}: {kind}");
        }
        let lines = late("set m/1 b", "done c");
        assert_eq!(found(scheme, &lines.iter().map(String::as_str).collect::<Vec<&str>>()), [""; 0], "{scheme}");
    }
}

#[test]
fn a_late_manifest_may_be_seen_by_others_until_its_deadline() {
    // Process 1 was told nothing; process 2 publishes, and then the change of process 1 is seen.
    let holds = |scheme, seen: &[&str]| {
        let former = ["1 set m/1 a 0 500 failed -1", "2 set m/1 b 510 520 done -"];
        found(scheme, &[&former, seen].concat()).is_empty()
    };
    for (scheme, early, after) in [
        ("local-fs", false, false),
        ("segments", false, false),
        ("redis", true, false),
        ("memkv", true, false),
        // Which compares.
        ("s3", false, false),
        ("mooncake", true, true),
    ] {
        assert_eq!(holds(scheme, &["3 get m/1 - 530 531 done a"]), early, "{scheme}");
        let late = ["3 get m/1 - 4000 4001 done b", "3 get m/1 - 4100 4101 done a"];
        assert_eq!(holds(scheme, &late), after, "{scheme}: after the deadline");
    }
}

#[test]
fn what_a_killed_process_has_begun_is_there_or_not_and_nothing_between() {
    for scheme in SHARED {
        let lines = |seen: [&'static str; 2]| {
            found(
                scheme,
                &[
                    "1 set m/1 a 0 1 done -",
                    "1 set m/1 b 2 - unknown -",
                    "killed 1 3",
                    &format!("2 get m/1 - 4 5 done {}", seen[0]),
                    &format!("2 get m/1 - 6 7 done {}", seen[1]),
                ],
            )
        };
        assert_eq!(lines(["a", "a"]), [""; 0], "{scheme}");
        assert_eq!(lines(["b", "b"]), [""; 0], "{scheme}");
        assert_eq!(lines(["b", "a"]), [NO_ORDER], "{scheme}");
        // What a server was sent may come after the client's death; what a file system does not do is not done.
        let later = !["local-fs", "segments"].contains(&scheme);
        assert_eq!(lines(["a", "b"]).is_empty(), later, "{scheme}");
    }
}

#[test]
fn a_late_put_of_content_may_bring_a_chunk_back_and_a_late_replacement_not() {
    let chunk = |kind, key| {
        let tried = format!("1 {kind} {key} a 0 1000 failed -1");
        [
            tried,
            format!("1 remove {key} - 1010 1020 done -"),
            format!("2 get {key} - 1030 1040 missing -"),
            format!("2 get {key} - 9000 9010 done a"),
        ]
    };
    for (scheme, content, other) in
        [("local-fs", false, false), ("redis", true, false), ("memkv", true, false), ("s3", true, true)]
    {
        for (kind, key, may) in [("put", "c/1", content), ("set", "w/1", other)] {
            let lines = chunk(kind, key);
            let found = found(scheme, &lines.iter().map(String::as_str).collect::<Vec<&str>>());
            assert_eq!(found.is_empty(), may, "{scheme}: {key}");
        }
    }
}

#[test]
fn a_put_that_its_handle_keeps_is_there_with_the_next_manifest() {
    let with =
        |last: &'static str| ["1 buffer c/1 a 0 1 done -", "2 get c/1 - 2 3 missing -", "1 set m/1 b 4 9 done -", last];
    assert_eq!(found("redis", &with("2 get c/1 - 10 11 done a")), [""; 0]);
    assert_eq!(found("redis", &with("2 get c/1 - 5 6 missing -")), [""; 0], "while it is published");
    assert_eq!(found("redis", &with("2 get c/1 - 10 11 missing -")), [LOST]);
    let failed = ["1 buffer c/1 a 0 1 done -", "1 set m/1 b 4 9 failed -1", "2 get c/1 - 10 11 missing -"];
    assert_eq!(found("redis", &failed), [""; 0], "it is kept on");
    // A backend that buffers nothing has it at once.
    assert_eq!(found("local-fs", &with("2 get c/1 - 10 11 done a")), [LOST]);
}

#[test]
fn what_others_removed_shortly_before_a_manifest_may_be_missing_under_it() {
    let removed = |process, at: u32| {
        [
            "1 put c/1 a 0 1 done -".to_owned(),
            format!("{process} remove c/1 - {at} {} done -", at + 1),
            "1 buffer c/1 a 5000 5001 done -".to_owned(),
            "1 set m/1 b 5002 5003 done -".to_owned(),
            "2 get c/1 - 5004 5005 missing -".to_owned(),
        ]
    };
    let holds = |scheme, lines: [String; 5]| found(scheme, &lines.each_ref().map(String::as_str)).is_empty();
    assert!(holds("redis", removed(3, 3500)) && holds("s3", removed(3, 3500)));
    assert!(!holds("redis", removed(1, 3500)), "its own process knows of it");
    assert!(!holds("redis", removed(3, 2500)), "long before");
    assert!(!holds("memkv", removed(3, 3500)), "which is durable");
}

#[test]
fn a_violation_is_shown_with_the_calls_that_make_it_one() {
    let mut lines: Vec<String> = (0..40)
        .flat_map(|at| {
            let begin = at * 10;
            [
                format!("1 set m/1 {:x} {begin} {} done -", at + 1, begin + 5),
                format!("2 get m/1 - {} {} done {:x}", begin + 6, begin + 7, at + 1),
            ]
        })
        .collect();
    lines.push("3 get m/1 - 1000 1001 done 5".to_owned());
    let history = history(&lines.iter().map(String::as_str).collect::<Vec<&str>>());
    let report = check(&history, &promise("redis"));
    assert_eq!((report.violations.len(), report.acknowledged, report.seen, report.keys), (1, 40, 41, 1));
    let shown = ShownViolation(&history, &report.violations[0]).to_string();
    assert_eq!(shown.lines().count(), 4, "{shown}");
    assert!(shown.contains("brought-back: m/1") && shown.contains("-> 0000000000000005"), "{shown}");
}
