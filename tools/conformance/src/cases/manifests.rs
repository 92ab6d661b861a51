//! Manifests: mutable bytes under a name, published whole.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{bytes, expect, expect_failure};
use crate::{Case, Handle, Needs, Subject, Verdict};

pub const CASES: &[Case] = &[
    Case {
        name: "manifest-roundtrip",
        asks: "a manifest is replaced by the next one under its name",
        needs: Needs::Nothing,
        run: roundtrip,
    },
    Case {
        name: "manifest-delete",
        asks: "delete_manifest is success, also if there is none",
        needs: Needs::Nothing,
        run: delete,
    },
    Case {
        name: "manifest-names",
        asks: "a name is any UTF-8 of 1 to 4096 bytes, and two names never collide",
        needs: Needs::Nothing,
        run: names,
    },
    Case {
        name: "manifest-atomic",
        asks: "a reader sees the former manifest or the next one, whole",
        needs: Needs::Nothing,
        run: atomic,
    },
    Case {
        name: "manifest-apart",
        asks: "a manifest and a chunk never collide, whatever their names",
        needs: Needs::Nothing,
        run: apart,
    },
];

fn roundtrip(subject: &Subject) -> Verdict {
    let store = subject.fresh()?;
    for len in [5, 0, 1 << 20, 3] {
        let data = bytes(len as u64, len);
        expect("put_manifest", store.put_manifest(&subject.name("slot"), &data)?, 0)?;
        expect("get_manifest", store.get_manifest(&subject.name("slot"))?, Ok(data))?;
    }
    Ok(())
}

fn delete(subject: &Subject) -> Verdict {
    let store = subject.fresh()?;
    expect("delete_manifest of what never was", store.delete_manifest(&subject.name("slot"))?, 0)?;
    expect("put_manifest", store.put_manifest(&subject.name("slot"), b"x")?, 0)?;
    expect("delete_manifest", store.delete_manifest(&subject.name("slot"))?, 0)?;
    let found = store.get_manifest(&subject.name("slot"))?;
    expect_failure("get_manifest after delete_manifest", found.map_or_else(|answer| answer, |_| 0))?;
    expect("delete_manifest again", store.delete_manifest(&subject.name("slot"))?, 0)?;
    expect("put_manifest again", store.put_manifest(&subject.name("slot"), b"y")?, 0)?;
    expect("get_manifest", store.get_manifest(&subject.name("slot"))?, Ok(b"y".to_vec()))
}

/// Names that a file system, a shell or a server might take for something else.
fn strange_names() -> Vec<String> {
    let names = [
        "a",
        "A",
        "slot-0.bin",
        "chunks",
        "chunks/a",
        "Chunks",
        "manifests",
        ".",
        "..",
        "...",
        ".hidden",
        "../a",
        "../../etc/passwd",
        "/",
        "/a",
        "a/",
        "a/b",
        "a//b",
        "a/../b",
        "a\\b",
        "a:b",
        "a b",
        " a",
        "a ",
        "-a",
        "--help",
        "*",
        "?",
        "%",
        "%2f",
        "%2F",
        "a%2fb",
        "%61",
        "a\nb",
        "a\r\nb",
        "a\tb",
        "\u{1}",
        "\u{7f}",
        "~",
        "$HOME",
        "`id`",
        "'",
        "\"",
        "con",
        "nul.txt",
        "é",
        "e\u{301}",
        "🦀",
        "日本語",
        ".kv-tmp",
        ".kv-tmp/x",
        "{a}",
        "a,b",
        "a;b",
        "null",
    ];
    let long =
        ["x".repeat(255), "x".repeat(256), "x".repeat(1000), "y/".repeat(500), "🦀".repeat(250), "z".repeat(4096)];
    let long_tail = format!("{}a", "x".repeat(999));
    names.iter().map(|name| name.to_string()).chain(long).chain([long_tail]).collect()
}

fn names(subject: &Subject) -> Verdict {
    let store = subject.fresh()?;
    let names = strange_names().into_iter().map(|name| subject.name(&name)).filter(|name| name.len() <= 4096);
    let names: Vec<String> = names.collect();
    for (number, name) in names.iter().enumerate() {
        let what = format!("put_manifest under {:?}", name.chars().take(20).collect::<String>());
        expect(&what, store.put_manifest(name, number.to_string().as_bytes())?, 0)?;
    }
    for (number, name) in names.iter().enumerate() {
        let what = format!("get_manifest under {:?}", name.chars().take(20).collect::<String>());
        expect(&what, store.get_manifest(name)?, Ok(number.to_string().into_bytes()))?;
    }
    for name in names.iter().step_by(2) {
        expect("delete_manifest", store.delete_manifest(name)?, 0)?;
    }
    for (number, name) in names.iter().enumerate() {
        let expected = if number % 2 == 0 { None } else { Some(number.to_string().into_bytes()) };
        let what =
            format!("get_manifest under {:?} after others were deleted", name.chars().take(20).collect::<String>());
        expect(&what, store.get_manifest(name)?.ok(), expected)?;
    }
    Ok(())
}

fn atomic(subject: &Subject) -> Verdict {
    let uri = subject.uri();
    let (store, elsewhere) = (subject.open(&uri)?, subject.open(&uri)?);
    let versions = [0u8, 1, 2, 3].map(|n| vec![n; 50_000 * (1 + usize::from(n))]);
    expect("put_manifest", store.put_manifest(&subject.name("m"), &versions[0])?, 0)?;
    let stop = AtomicBool::new(false);
    let reader = |store: &Handle| {
        while !stop.load(Ordering::Acquire) {
            let found = store
                .get_manifest(&subject.name("m"))?
                .map_err(|answer| format!("get_manifest answered {answer} during a put"))?;
            if !versions.contains(&found) {
                return Err(format!("a reader saw a torn manifest of {} bytes", found.len()));
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let put = |version: &Vec<u8>| expect("put_manifest", store.put_manifest(&subject.name("m"), version)?, 0);
            let written = versions.iter().cycle().take(200).try_for_each(put);
            stop.store(true, Ordering::Release);
            written
        });
        let (reader, here, elsewhere) = (&reader, &store, &elsewhere);
        let readers = [scope.spawn(move || reader(here)), scope.spawn(move || reader(elsewhere))];
        readers
            .into_iter()
            .chain([writer])
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())))
    })
}

fn apart(subject: &Subject) -> Verdict {
    let store = subject.fresh()?;
    // Text, so that a name can be the same bytes.
    let key = format!("{:016x}", u64::from_le_bytes(*b"same-key") ^ subject.salt());
    let hex = hex::encode(&key);
    let key = key.as_bytes();
    let text = String::from_utf8_lossy(key).into_owned();
    let names = [text, format!("chunks/{}/{hex}", &hex[..1]), format!("c:{hex}"), hex];
    let names = names.map(|name| subject.name(&name));
    expect("put_chunk", store.put_chunk(key, b"chunk")?, 0)?;
    for name in &names {
        expect("put_manifest", store.put_manifest(name, b"manifest")?, 0)?;
    }
    expect("get_chunk", store.get_chunk(key)?, Ok(b"chunk".to_vec()))?;
    for name in &names {
        expect("delete_manifest", store.delete_manifest(name)?, 0)?;
    }
    expect("get_chunk after the manifests were deleted", store.get_chunk(key)?, Ok(b"chunk".to_vec()))
}
