use proptest::prelude::*;

use super::*;

const HASHES: [KeyHash; 3] = [KeyHash::Xxh3, KeyHash::Sha256, KeyHash::Farm128];
const BUILDERS: [KeyBuilder; 3] = [KeyBuilder::Raw, KeyBuilder::Simple, KeyBuilder::Rolling];

fn keys(builder: KeyBuilder, hash: KeyHash, scope: u8, block: usize) -> Keys {
    Keys::for_scope(builder, hash, [scope; SCOPE_BYTES], block)
}

fn hex(key: &Key) -> String {
    format!("{key:?}")[..32].to_owned()
}

#[test]
fn keys_with_farmhash_are_those_of_aibrix() {
    let tokens: Vec<i32> = (0..8).collect();
    let rolling = keys(KeyBuilder::Rolling, KeyHash::Farm128, 1, 4).of(&[], &tokens);
    assert_eq!(hex(&rolling[0]), "caad989f06425b975cf79faea18f3c14");
    assert_eq!(hex(&rolling[1]), "9ea5626a9a6ed3d184d992aea0aaae31");
    let simple = keys(KeyBuilder::Simple, KeyHash::Farm128, 1, 4).of(&[], &tokens);
    assert_eq!(hex(&simple[1]), "815da8dc579b3ba113c9ca6c30bcd88e");
}

/// The second key of two blocks, under a scope of 00 to 0f: of 4 tokens, and of 16, which have a way of their own. Computed with
/// Python's hashlib and xxhash, not with this code; those with FarmHash are in the test above.
#[test]
fn golden_keys() {
    use KeyBuilder::{Raw, Rolling, Simple};
    let shown = |key: &Key, len: usize| format!("{key:?}")[..2 * len].to_owned();
    for (block, expected) in [
        (
            4,
            [
                (Rolling, KeyHash::Xxh3, "7a56b6c75feb439e08d8d7f7661751a8"),
                (Rolling, KeyHash::Sha256, "e26e843efc8d5592d93fd833ad5ff18f6d56eacef4393a3fbb33500247133e98"),
                (Simple, KeyHash::Xxh3, "fe400f6f243f7c69640b87ed9a010b1f"),
                (Simple, KeyHash::Sha256, "7c2ca3ac7289a160221027c3356f4160960b57e83a51000d893f391cd227ac1d"),
                (Raw, KeyHash::Xxh3, "7c2ca3ac7289a160221027c3356f4160960b57e83a51000d893f391cd227ac1d"),
            ],
        ),
        (
            16,
            [
                (Rolling, KeyHash::Xxh3, "f7ec876894a1aa21d4b624535933c54d"),
                (Rolling, KeyHash::Sha256, "b351896494c1b766e029ec506de25ab273a29ed12eca45748f48e6801621a3c3"),
                (Simple, KeyHash::Xxh3, "c150046063c09bfc70fdfd2da089d691"),
                (Simple, KeyHash::Sha256, "69583a9b713174694d6133ff48227aa5bc7cfbbfdc1ea100592c69b0d49d7c38"),
                (Raw, KeyHash::Xxh3, "69583a9b713174694d6133ff48227aa5bc7cfbbfdc1ea100592c69b0d49d7c38"),
            ],
        ),
    ] {
        let tokens: Vec<i32> = (0..2 * block as u32).map(|n| n.wrapping_mul(0x9e37_79b1) as i32).collect();
        for (builder, hash, hex) in expected {
            let keys = Keys::for_scope(builder, hash, std::array::from_fn(|n| n as u8), block);
            let [_, key] = keys.of(&[], &tokens)[..] else { panic!("two blocks") };
            assert_eq!(shown(&key, hex.len() / 2), hex, "{builder:?} {hash:?}, {block} tokens");
            let far = hex::encode(keys.far(&key));
            assert_eq!(far, format!("000102030405060708090a0b0c0d0e0f{hex}"), "{builder:?} {hash:?}");
        }
    }
}

proptest! {
    /// Where a prompt is cut into prefix and query makes no difference, and what is no whole block has no key.
    #[test]
    fn the_prefix_is_part_of_the_prompt(
        tokens in prop::collection::vec(any::<i32>(), 0..200), block in prop_oneof![1_usize..9, Just(16), Just(32), Just(64)], cut in any::<prop::sample::Index>()
    ) {
        let cut = cut.index(tokens.len() / block + 1) * block;
        for (builder, hash) in BUILDERS.into_iter().flat_map(|builder| HASHES.map(|hash| (builder, hash))) {
            let keys = keys(builder, hash, 7, block);
            let whole = keys.of(&[], &tokens);
            prop_assert_eq!(whole.len(), tokens.len() / block);
            let (prefix, query) = tokens.split_at(cut);
            prop_assert_eq!(&keys.of(prefix, query)[..], &whole[cut / block..]);
            prop_assert_eq!(keys.histories(prefix, query).len(), whole.len() - cut / block);
        }
    }

    /// A token that changes changes the keys of its block and of all after it, and of none before.
    #[test]
    fn every_token_counts(
        tokens in prop::collection::vec(any::<i32>(), 8..80), at in any::<prop::sample::Index>(), bit in 0_u32..32
    ) {
        let at = at.index(tokens.len() / 4 * 4);
        let mut changed = tokens.clone();
        changed[at] ^= 1 << bit;
        for (builder, hash) in BUILDERS.into_iter().flat_map(|builder| HASHES.map(|hash| (builder, hash))) {
            let keys = keys(builder, hash, 7, 4);
            let pairs = keys.of(&[], &tokens).into_iter().zip(keys.of(&[], &changed));
            for (block, (one, other)) in pairs.enumerate() {
                prop_assert_eq!(one == other, block < at / 4, "{:?} {:?} block {}", builder, hash, block);
            }
        }
    }
}

/// The lengths that the compiler knows are hashed as all others are.
#[test]
fn usual_block_lengths_have_the_keys_of_the_text() {
    for block in [15, 16, 32, 64] {
        let tokens: Vec<i32> = (0..block as i32 * 3).map(|n| n * 77).collect();
        let mut parent = [9_u8; 16];
        for (key, own) in
            keys(KeyBuilder::Rolling, KeyHash::Xxh3, 9, block).of(&[], &tokens).iter().zip(tokens.chunks(block))
        {
            parent = xxh3_128(&[&parent[..], &le_bytes(own)].concat()).to_le_bytes();
            assert_eq!(key.as_bytes()[..16], parent, "{block} tokens");
        }
    }
}

#[test]
fn scopes_never_share_a_far_key() {
    let tokens: Vec<i32> = (0..32).collect();
    for (builder, hash) in BUILDERS.into_iter().flat_map(|builder| HASHES.map(|hash| (builder, hash))) {
        let (one, other) = (keys(builder, hash, 1, 8), keys(builder, hash, 2, 8));
        for (a, b) in one.of(&[], &tokens).iter().zip(other.of(&[], &tokens)) {
            assert_ne!(one.far(a), other.far(&b));
            assert!(one.far(a).len() <= 64);
            assert_eq!(*a == b, builder != KeyBuilder::Raw && hash == KeyHash::Farm128, "{builder:?} {hash:?}");
        }
    }
}

#[test]
fn a_weakened_hash_collides() {
    let keys = keys(KeyBuilder::Rolling, KeyHash::Weakened(2), 1, 1);
    let distinct: std::collections::HashSet<Key> = (0..100).flat_map(|n| keys.of(&[], &[n])).collect();
    assert!(distinct.len() <= 4);
}
