//! Arguments that nobody sane passes. Each must be a negative answer, never a crash.

use std::ffi::{CString, c_int};
use std::ptr::{null, null_mut};

use super::{expect, expect_failure};
use crate::{Case, Needs, Subject, Verdict};

pub const CASES: &[Case] = &[
    Case {
        name: "vtable",
        asks: "version 1 or 2, and every function of that version is there",
        needs: Needs::Nothing,
        run: vtable,
    },
    Case {
        name: "open-nonsense",
        asks: "open returns NULL for a malformed URI",
        needs: Needs::Nothing,
        run: open_nonsense,
    },
    Case {
        name: "null-handle",
        asks: "close(NULL) is fine, and every other call on NULL is negative",
        needs: Needs::Nothing,
        run: null_handle,
    },
    Case {
        name: "null-data",
        asks: "NULL data is legal with length 0 and negative with more",
        needs: Needs::Nothing,
        run: null_data,
    },
    Case { name: "null-key", asks: "a NULL hash, name or output is negative", needs: Needs::Nothing, run: null_key },
    Case {
        name: "bad-names",
        asks: "an empty name, one over 4096 bytes and one that is no UTF-8 are negative",
        needs: Needs::Nothing,
        run: bad_names,
    },
    Case {
        name: "bad-prefetch",
        asks: "a prefetch with impossible sizes fails",
        needs: Needs::Prefetch,
        run: bad_prefetch,
    },
];

fn vtable(subject: &Subject) -> Verdict {
    let vtable = subject.library.vtable();
    if vtable.version == 0 || vtable.version > 2 {
        return Err(format!("version is {}", vtable.version));
    }
    let present = [
        ("open", vtable.open.is_some()),
        ("close", vtable.close.is_some()),
        ("put_chunk", vtable.put_chunk.is_some()),
        ("get_chunk", vtable.get_chunk.is_some()),
        ("put_manifest", vtable.put_manifest.is_some()),
        ("get_manifest", vtable.get_manifest.is_some()),
        ("delete_manifest", vtable.delete_manifest.is_some()),
        ("prefetch_chunks", vtable.version < 2 || vtable.prefetch_chunks.is_some()),
    ];
    match present.iter().find(|(_, present)| !present) {
        Some((name, _)) => Err(format!("{name} is NULL")),
        None => Ok(()),
    }
}

fn open_nonsense(subject: &Subject) -> Verdict {
    for uri in ["", "://", "no scheme at all", "/just/a/path"] {
        if subject.library.open(uri).is_some() {
            return Err(format!("open({uri:?}) answered a handle"));
        }
    }
    let open = subject.library.vtable().open.ok_or("open is NULL")?;
    // SAFETY: NULL is what is tested; the second is a C string that is no UTF-8.
    let (nothing, noise) = unsafe { (open(null()), open(c"\xff\xfe://\x80".as_ptr())) };
    expect("open(NULL)", nothing.is_null(), true)?;
    expect("open of bytes that are no UTF-8", noise.is_null(), true)
}

fn null_handle(subject: &Subject) -> Verdict {
    let v = subject.library.vtable();
    let (mut data, mut len) = (null_mut(), 0);
    // SAFETY: a NULL handle is what is tested; everything else is valid.
    let answers: Vec<Option<c_int>> = unsafe {
        if let Some(close) = v.close {
            close(null_mut());
        }
        vec![
            v.put_chunk.map(|f| f(null_mut(), b"h".as_ptr(), 1, b"d".as_ptr(), 1)),
            v.get_chunk.map(|f| f(null_mut(), b"h".as_ptr(), 1, &mut data, &mut len)),
            v.put_manifest.map(|f| f(null_mut(), c"n".as_ptr(), b"d".as_ptr(), 1)),
            v.get_manifest.map(|f| f(null_mut(), c"n".as_ptr(), &mut data, &mut len)),
            v.delete_manifest.map(|f| f(null_mut(), c"n".as_ptr())),
            v.prefetch_chunks.filter(|_| v.version >= 2).map(|f| f(null_mut(), b"h".as_ptr(), 1, 1)),
        ]
    };
    answers.into_iter().flatten().try_for_each(|answer| expect_failure("a call on NULL", answer))
}

fn null_data(subject: &Subject) -> Verdict {
    let (store, v) = (subject.fresh()?, subject.library.vtable());
    let (one, other) = (subject.hash(1), subject.hash(2));
    let [name, wrong_name] = ["n", "o"].map(|name| subject.c_name(name));
    let (Some(put_chunk), Some(put_manifest)) = (v.put_chunk, v.put_manifest) else { return vtable(subject) };
    // SAFETY: NULL data is what is tested; everything else is valid.
    let (empty, wrong, manifest, wrong_manifest) = unsafe {
        (
            put_chunk(store.raw, one.as_ptr(), one.len(), null(), 0),
            put_chunk(store.raw, other.as_ptr(), other.len(), null(), 1),
            put_manifest(store.raw, name.as_ptr(), null(), 0),
            put_manifest(store.raw, wrong_name.as_ptr(), null(), 1),
        )
    };
    expect("put_chunk of NULL and 0", empty, 0)?;
    expect_failure("put_chunk of NULL and 1", wrong)?;
    expect("put_manifest of NULL and 0", manifest, 0)?;
    expect_failure("put_manifest of NULL and 1", wrong_manifest)?;
    expect("get_chunk", store.get_chunk(&one)?, Ok(vec![]))?;
    expect("get_manifest", store.get_manifest(&subject.name("n"))?, Ok(vec![]))
}

fn null_key(subject: &Subject) -> Verdict {
    let (store, v) = (subject.fresh()?, subject.library.vtable());
    let (key, name) = (subject.hash(1), subject.c_name("n"));
    expect("put_chunk", store.put_chunk(&key, b"d")?, 0)?;
    expect("put_manifest", store.put_manifest(&subject.name("n"), b"d")?, 0)?;
    let (mut data, mut len) = (null_mut(), 0);
    // SAFETY: one argument of each call is NULL, which is what is tested; everything else is valid.
    let answers: Vec<(&str, Option<c_int>)> = unsafe {
        vec![
            ("put_chunk with a NULL hash", v.put_chunk.map(|f| f(store.raw, null(), 8, b"d".as_ptr(), 1))),
            ("get_chunk with a NULL hash", v.get_chunk.map(|f| f(store.raw, null(), 8, &mut data, &mut len))),
            (
                "get_chunk with a NULL out_data",
                v.get_chunk.map(|f| f(store.raw, key.as_ptr(), key.len(), null_mut(), &mut len)),
            ),
            (
                "get_chunk with a NULL out_len",
                v.get_chunk.map(|f| f(store.raw, key.as_ptr(), key.len(), &mut data, null_mut())),
            ),
            ("put_manifest with a NULL name", v.put_manifest.map(|f| f(store.raw, null(), b"d".as_ptr(), 1))),
            ("get_manifest with a NULL name", v.get_manifest.map(|f| f(store.raw, null(), &mut data, &mut len))),
            (
                "get_manifest with a NULL out_data",
                v.get_manifest.map(|f| f(store.raw, name.as_ptr(), null_mut(), &mut len)),
            ),
            (
                "get_manifest with a NULL out_len",
                v.get_manifest.map(|f| f(store.raw, name.as_ptr(), &mut data, null_mut())),
            ),
            ("delete_manifest with a NULL name", v.delete_manifest.map(|f| f(store.raw, null()))),
        ]
    };
    answers.into_iter().try_for_each(|(what, answer)| expect_failure(what, answer.unwrap_or(-1)))?;
    expect("data after failed calls", data.is_null(), true)
}

fn bad_names(subject: &Subject) -> Verdict {
    let store = subject.fresh()?;
    let long = CString::new("x".repeat(4097)).map_err(|error| error.to_string())?;
    let v = subject.library.vtable();
    let (mut data, mut len) = (null_mut(), 0);
    for (what, name) in [("empty", c""), ("of 4097 bytes", &long), ("no UTF-8", c"a\xff")] {
        // SAFETY: C strings and valid outputs.
        let answers: [Option<c_int>; 3] = unsafe {
            [
                v.put_manifest.map(|f| f(store.raw, name.as_ptr(), b"d".as_ptr(), 1)),
                v.get_manifest.map(|f| f(store.raw, name.as_ptr(), &mut data, &mut len)),
                v.delete_manifest.map(|f| f(store.raw, name.as_ptr())),
            ]
        };
        for answer in answers {
            expect_failure(&format!("a call with a name that is {what}"), answer.unwrap_or(-1))?;
        }
    }
    Ok(())
}

fn bad_prefetch(subject: &Subject) -> Verdict {
    let store = subject.fresh()?;
    let v = subject.library.vtable();
    let Some(prefetch) = v.prefetch_chunks.filter(|_| v.version >= 2) else { return Ok(()) };
    // SAFETY: sizes that make no sense, and NULL, are what is tested: they must be seen before a byte is read.
    unsafe {
        expect_failure("prefetch_chunks with hash_len 0", prefetch(store.raw, b"h".as_ptr(), 0, 1))?;
        expect_failure("prefetch_chunks with hash_len 65", prefetch(store.raw, [0; 65].as_ptr(), 65, 1))?;
        expect_failure("prefetch_chunks of NULL", prefetch(store.raw, null(), 8, 1))?;
        expect_failure("prefetch_chunks of more than memory", prefetch(store.raw, b"h".as_ptr(), 8, usize::MAX / 4))?;
        expect("prefetch_chunks of NULL and 0", prefetch(store.raw, null(), 8, 0), 0)
    }
}
