use super::*;

#[test]
fn files_that_are_mapped_are_found_once_and_code_is_left_out() {
    let maps = "\
55d0-55d1 r--p 00000000 fe:00 12  /models/a b.gguf\n\
55d1-55d2 r--p 00001000 fe:00 12  /models/a b.gguf\n\
7f00-7f01 r-xp 00000000 fe:00 13  /usr/lib/libllama.so.0\n\
7f01-7f02 rw-p 00000000 00:00 0 \n\
7f02-7f03 rw-p 00000000 00:00 0  [heap]\n\
7f03-7f04 r--s 00000000 fe:00 14  /models/gone.gguf (deleted)\n";
    let found = mapped_files(maps);
    assert_eq!(found, ["/models/a b.gguf", "/models/gone.gguf (deleted)"].map(PathBuf::from));
}

#[test]
fn parts_of_a_model_belong_together() {
    let parts = ["/m/x-00002-of-00002.gguf", "/m/y.gguf", "/m/x-00001-of-00002.gguf", "/m/z-00001-of-00003.gguf"];
    let models = models_of(&parts.map(PathBuf::from));
    let found: Vec<(usize, usize)> = models.iter().map(|model| (model.parts.len(), model.expected)).collect();
    assert_eq!(found, [(1, 1), (2, 2), (1, 3)]);
    assert!(models[1].parts[0].ends_with("x-00001-of-00002.gguf"));
    assert!(models[2].read().is_none(), "parts are missing");
}

#[test]
fn options_that_change_rope_count_with_their_values() {
    let words = b"llama-server\0-m\0model.gguf\0--rope-freq-base\x005e5\0-c\x004096\0--yarn-ext-factor\x001\0";
    assert_eq!(options(words, OPTIONS), [&b"--rope-freq-base"[..], b"5e5", b"--yarn-ext-factor", b"1"]);
    assert!(options(b"llama-server\0-m\0model.gguf\0", OPTIONS).is_empty());
}

/// It is part of the name of each state. Computed with Python's hashlib, not with this code. Where a variable of llama.cpp is set, it
/// is part of the fingerprint too.
#[test]
fn golden_fingerprint() {
    let set: Vec<_> = std::env::vars().filter(|(name, _)| VARIABLES.iter().any(|of| name.starts_with(of))).collect();
    assert!(set.is_empty(), "unset these for the test: {set:?}");
    let shape = Shape { params: 123_456, layers: 2, embd: 64, kv_heads: 4 };
    let hex = hex::encode(fingerprint(&shape, 3, None, Some("tiny")).unwrap());
    assert_eq!(hex, "1117e8311fbb8f51c8f312e64c5c6e372657dcc2e48e3125bf0cae6df5b57ae2");
    // Of a model in files: the hash of their fingerprints, each of which `kv_cache` has a golden value for.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.gguf");
    std::fs::write(&file, [b"GGUF".as_slice(), &[3, 0, 0, 0], &[0; 16], &[7; 8]].concat()).unwrap();
    let own = Fingerprint::of_gguf(&file).unwrap().0.bytes;
    let parts = Files { parts: vec![file.clone(), file.clone()], expected: 2 }.read().unwrap();
    assert_eq!(parts.fingerprint, <[u8; 32]>::from(Sha256::digest([own, own].concat())));
}

/// It is part of the name of each state of the automatic cache. Computed with Python's hashlib, not with this code.
#[test]
fn golden_auto_key() {
    let fingerprint = std::array::from_fn(|n| n as u8);
    let key = auto_key(&fingerprint, 4096, 1);
    let hex = hex::encode(key);
    assert_eq!(hex, "ad7c304a512f99ebcf02d0829f30228fe036dc9f7f713e7a5536d3f27809d541");
    assert_ne!(key, auto_key(&fingerprint, 2048, 1));
    assert_ne!(key, auto_key(&fingerprint, 4096, 2));
    assert_ne!(key, auto_key(&[0; 32], 4096, 1));
}

#[test]
fn a_model_that_is_not_mapped_is_refused_unless_it_is_named() {
    let shape = Shape { params: 12_345, layers: 2, embd: 64, kv_heads: 2 };
    let refused = fingerprint(&shape, 3, None, None).unwrap_err();
    assert!(refused.contains("mapped"), "{refused}");
    let one = fingerprint(&shape, 3, None, Some("one")).unwrap();
    assert_eq!(one, fingerprint(&shape, 3, None, Some("one")).unwrap());
    assert_ne!(one, fingerprint(&shape, 3, None, Some("two")).unwrap());
    assert_ne!(one, fingerprint(&shape, 4, None, Some("one")).unwrap());
    assert_ne!(one, fingerprint(&shape, 3, Some(1), Some("one")).unwrap());
    assert_ne!(one, fingerprint(&Shape { layers: 3, ..shape }, 3, None, Some("one")).unwrap());
}
