use super::*;

/// The names of manifests.
#[test]
fn golden_manifest_names() {
    let fingerprint = std::array::from_fn(|n| n as u8);
    assert_eq!(manifest_name("slot.bin", &fingerprint, 1), "slot.bin@000102030405060708090a0b0c0d0e0f");
    assert_eq!(manifest_name("slot.bin", &fingerprint, 2), "slot.bin@000102030405060708090a0b0c0d0e0f-2");
    assert_eq!(appendix_name("slot.bin@00"), "slot.bin@00.checkpoints");
}
