//! Changes that the storage system may carry out late, as the host knows of them.
//!
//! A change is what the contract's interface `changes` calls so: a manifest that is published or removed, chunks that are removed or
//! replaced, and a chunk that is put whose hash is not 8 bytes wide. Built for another target than WebAssembly, as in a test, no former
//! change is known.

/// Say that the changes of these items are about to be sent: numbers of the running `put_chunks` or `delete_chunks`, 0 for the manifest of
/// `commit` and `delete_manifest`. `token`, 0 to 64 bytes: what a later change of the same key needs to settle this one. Said again for an
/// item, it takes the place of the former.
///
/// Answers the tokens of former changes of the same keys that ended unknown, each once. A backend that is
/// [`Properties::SETTLES`](crate::Properties::SETTLES) settles those with this change; for others the host has waited until they were over.
pub fn begin(items: &[u32], token: &[u8]) -> Vec<Vec<u8>> {
    #[cfg(target_family = "wasm")]
    return crate::bindings::kv_store::backend::changes::begin(items, token);
    #[cfg(all(not(target_family = "wasm"), feature = "native-host"))]
    return crate::native::changes::begin(items, token);
    #[cfg(not(any(target_family = "wasm", feature = "native-host")))]
    {
        let _ = (items, token);
        Vec::new()
    }
}

/// Say that the changes of these items were not carried out and will not be: refused, or no byte of them was sent.
pub fn not_done(items: &[u32]) {
    #[cfg(target_family = "wasm")]
    crate::bindings::kv_store::backend::changes::not_done(items);
    #[cfg(all(not(target_family = "wasm"), feature = "native-host"))]
    crate::native::changes::not_done(items);
    #[cfg(not(any(target_family = "wasm", feature = "native-host")))]
    let _ = items;
}
