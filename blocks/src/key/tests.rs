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
