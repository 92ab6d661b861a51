//! Descriptors (`kv_store_describe.h`): a value is found only by who says the same of it.

use kv_store_abi::status::KV_STORE_MISMATCH;

use super::{bytes, expect, expect_failure};
use crate::{Case, Handle, Needs, Restart, Subject, Verdict};

pub const CASES: &[Case] = &[Case {
    name: "descriptors",
    asks: "a value under one descriptor is missing under another, is left alone, and is not put over",
    needs: Needs::Descriptors,
    run: descriptors,
}];

/// A process remembers whose values it has met: one that has met none must learn it from what is stored.
pub const RESTART: Restart = Restart {
    name: "restart-descriptors",
    asks: "another process does not find, nor put over, what lies under another descriptor",
    before: leave_described,
    after: meet_described,
};

/// A handle whose engine says this of its values.
fn of<'a>(subject: &'a Subject, uri: &str, model: &str) -> Result<Handle<'a>, String> {
    let store = subject.open(uri)?;
    expect("describe", store.describe(model)?, 0)?;
    Ok(store)
}

fn descriptors(subject: &Subject) -> Verdict {
    let (uri, key, name) = (subject.uri(), subject.hash(1), subject.name("described"));
    let (first, second) = (bytes(1, 1000), bytes(2, 1000));
    let one = of(subject, &uri, "one")?;
    expect("put_chunk", one.put_chunk(&key, &first)?, 0)?;
    expect("put_manifest", one.put_manifest(&name, &first)?, 0)?;

    let other = of(subject, &uri, "another")?;
    for turn in ["", ", again"] {
        let found = other.get_chunk(&key)?.map_or_else(|answer| answer, |_| 0);
        expect_failure(&format!("get_chunk under another descriptor{turn}"), found)?;
        let found = other.get_manifest(&name)?.map_or_else(|answer| answer, |_| 0);
        expect_failure(&format!("get_manifest under another descriptor{turn}"), found)?;
        if let Some(batches) = other.batches() {
            let save = batches.save().ok_or("save_begin failed")?;
            let refused = save.put_many(&[(&key, &second)])?;
            expect(&format!("put_many over a chunk of another descriptor{turn}"), refused, vec![KV_STORE_MISMATCH])?;
        }
        let refused = other.put_manifest(&name, &second)?;
        expect(&format!("put_manifest over one of another descriptor{turn}"), refused, KV_STORE_MISMATCH)?;
    }
    // Nothing was lost by it; and who says nothing has everything.
    for (who, store) in [("its own descriptor", of(subject, &uri, "one")?), ("no descriptor", subject.open(&uri)?)] {
        expect(&format!("get_chunk under {who}"), store.get_chunk(&key)?.as_ref(), Ok(&first))?;
        expect(&format!("get_manifest under {who}"), store.get_manifest(&name)?.as_ref(), Ok(&first))?;
    }
    Ok(())
}

fn leave_described(subject: &Subject) -> Verdict {
    if !subject.library.describes() {
        return Ok(());
    }
    let one = of(subject, &subject.uri(), "one")?;
    expect("put_chunk", one.put_chunk(&subject.hash(1), &bytes(1, 1000))?, 0)?;
    expect("put_manifest", one.put_manifest(&subject.name("described"), b"one's")?, 0)
}

fn meet_described(subject: &Subject) -> Verdict {
    if !subject.library.describes() {
        return Ok(());
    }
    let (uri, key, name) = (subject.uri(), subject.hash(1), subject.name("described"));
    let other = of(subject, &uri, "another")?;
    if let Some(batches) = other.batches() {
        let save = batches.save().ok_or("save_begin failed")?;
        let refused = save.put_many(&[(&key, &bytes(2, 1000))])?;
        expect("put_many over what another process put under another descriptor", refused, vec![KV_STORE_MISMATCH])?;
    }
    let refused = other.put_manifest(&name, b"another's")?;
    expect("put_manifest over one of another process and descriptor", refused, KV_STORE_MISMATCH)?;
    let found = other.get_chunk(&key)?.map_or_else(|answer| answer, |_| 0);
    expect_failure("get_chunk under another descriptor", found)?;
    let one = of(subject, &uri, "one")?;
    expect("get_chunk under its own descriptor", one.get_chunk(&key)?, Ok(bytes(1, 1000)))?;
    expect("get_manifest under its own descriptor", one.get_manifest(&name)?, Ok(b"one's".to_vec()))
}
