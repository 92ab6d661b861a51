//! What shows only in many calls: time that adds up, and what is never given back.

use super::{bytes, expect};
use crate::{Case, Held, Needs, Subject, Verdict};

pub const CASES: &[Case] = &[
    Case {
        name: "short-answers",
        asks: "64 chunks go through one put_manifest within its time, however few of them a batch answers",
        needs: Needs::Nothing,
        run: short_answers,
    },
    Case {
        name: "leaks",
        asks: "a backend drops payloads and handles: 2000 restores hold no more of them than 20",
        needs: Needs::Held,
        run: leaks,
    },
];

fn short_answers(subject: &Subject) -> Verdict {
    let store = subject.fresh()?;
    let chunks = 0..64;
    for n in chunks.clone() {
        expect("put_chunk", store.put_chunk(&subject.hash(n), &bytes(n, 1000))?, 0)?;
    }
    let put = store.put_manifest(&subject.name("m"), b"m")?;
    if put != 0 {
        return Err(format!(
            "put_manifest after {} chunks answered {put}. A short answer is legal, and the time of a call is not renewed for the \
             rest: answer more items of a batch at once, or faster",
            chunks.end
        ));
    }
    for n in chunks {
        expect("get_chunk", store.get_chunk(&subject.hash(n))?, Ok(bytes(n, 1000)))?;
    }
    Ok(())
}

/// What the host's own bookkeeping and the allocator of a component may add in so many rounds.
const SLACK: Held = Held { payload_bytes: 1 << 20, memory_bytes: 256 << 10 };
/// How often so many rounds may end with another amount. The heap of a language that collects grows until it is first collected: that
/// of componentize-js in 24 of them, to 88 MB.
const TRIES: usize = 40;

fn leaks(subject: &Subject) -> Verdict {
    let held = subject.facts.held.ok_or("what the backend holds is not known")?;
    let (store, key, data) = (subject.fresh()?, subject.hash(1), bytes(1, 4096));
    expect("put_chunk", store.put_chunk(&key, &data)?, 0)?;
    expect("put_manifest", store.put_manifest(&subject.name("m"), &data)?, 0)?;
    let rounds = |count: u32| -> Verdict {
        for _ in 0..count {
            expect("get_manifest", store.get_manifest(&subject.name("m"))?.as_ref(), Ok(&data))?;
            expect("get_chunk", store.get_chunk(&key)?.as_ref(), Ok(&data))?;
        }
        Ok(())
    };
    rounds(20)?;
    let mut found = None;
    for _ in 0..TRIES {
        let before = held();
        rounds(2000)?;
        let after = held();
        // The host replaces an instance that holds too much: less than before is no sign that nothing leaks.
        match (grown(before, after), grown(after, before)) {
            (None, None) => return Ok(()),
            (grown, _) => found = grown.or(found),
        }
    }
    found.map_or(Ok(()), Err)
}

/// What instances hold more of, if it is more than the slack.
fn grown(before: Held, after: Held) -> Option<String> {
    let all = [
        ("payload bytes", before.payload_bytes, after.payload_bytes, SLACK.payload_bytes),
        ("bytes of memory and handles", before.memory_bytes, after.memory_bytes, SLACK.memory_bytes),
    ];
    let (what, before, after, _) =
        all.into_iter().find(|(_, before, after, slack)| *after > before.saturating_add(*slack))?;
    Some(format!(
        "its instances hold {after} {what} after 2000 restores, and {before} before: drop each payload, directory and \
         connection that a call was lent"
    ))
}
