//! FarmHash's `Fingerprint128`, which is CityHash128 1.1: the hash of AIBrix's keys. Not for prompts of people who may want them
//! to collide.

const K0: u64 = 0xc3a5_c85c_97cb_3127;
const K1: u64 = 0xb492_b66f_be98_f273;
const K2: u64 = 0x9ae1_6a3b_2f90_404f;
const PAIR: u64 = 0x9ddf_ea08_eb38_2d69;

/// The first word of the hash is the high one, as AIBrix writes it.
pub(super) fn farm128(bytes: &[u8]) -> u128 {
    let (first, second) = match bytes.split_at_checked(16) {
        Some((head, rest)) => with_seed(rest, word(head, 0), word(head, 8).wrapping_add(K0)),
        None => with_seed(bytes, K0, K1),
    };
    u128::from(first) << 64 | u128::from(second)
}

/// The 8 bytes at a place, or what there is of them and zeros.
fn word(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        Some(word) => u64::from_le_bytes(*word),
        None => 0,
    }
}

fn half(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |half| u64::from(u32::from_le_bytes(*half)))
}

fn fold(value: u64) -> u64 {
    value ^ (value >> 47)
}

fn mix(low: u64, high: u64, by: u64) -> u64 {
    let a = fold((low ^ high).wrapping_mul(by));
    fold((high ^ a).wrapping_mul(by)).wrapping_mul(by)
}

fn pair(low: u64, high: u64) -> u64 {
    mix(low, high, PAIR)
}

/// Of at most 16 bytes.
fn tiny(bytes: &[u8]) -> u64 {
    let len = bytes.len() as u64;
    let by = K2.wrapping_add(len.wrapping_mul(2));
    match bytes {
        [] => K2,
        _ if bytes.len() >= 8 => {
            let (a, b) = (word(bytes, 0).wrapping_add(K2), word(bytes, bytes.len() - 8));
            let c = b.rotate_right(37).wrapping_mul(by).wrapping_add(a);
            let d = a.rotate_right(25).wrapping_add(b).wrapping_mul(by);
            mix(c, d, by)
        }
        _ if bytes.len() >= 4 => mix(len.wrapping_add(half(bytes, 0) << 3), half(bytes, bytes.len() - 4), by),
        [first, .., last] | [first @ last] => {
            let middle = bytes.get(bytes.len() / 2).copied().unwrap_or_default();
            let y = u64::from(*first) + (u64::from(middle) << 8);
            let z = len + (u64::from(*last) << 2);
            fold(y.wrapping_mul(K2) ^ z.wrapping_mul(K0)).wrapping_mul(K2)
        }
    }
}

fn with_seed(bytes: &[u8], low: u64, high: u64) -> (u64, u64) {
    if bytes.len() < 128 { short(bytes, low, high) } else { long(bytes, low, high) }
}

/// Of fewer than 128 bytes.
fn short(bytes: &[u8], low: u64, high: u64) -> (u64, u64) {
    let len = bytes.len();
    let (mut a, mut b, mut c, mut d) = (low, high, 0_u64, 0_u64);
    if len <= 16 {
        a = fold(a.wrapping_mul(K1)).wrapping_mul(K1);
        c = b.wrapping_mul(K1).wrapping_add(tiny(bytes));
        d = fold(a.wrapping_add(if len >= 8 { word(bytes, 0) } else { c }));
    } else {
        c = c.wrapping_add(pair(word(bytes, len - 8).wrapping_add(K1), a));
        d = d.wrapping_add(pair(b.wrapping_add(len as u64), c.wrapping_add(word(bytes, len - 16))));
        a = a.wrapping_add(d);
        // The last whole or partial 16 bytes are in what was hashed above.
        let spread = |value: u64| fold(value.wrapping_mul(K1)).wrapping_mul(K1);
        for at in (0..len - 16).step_by(16) {
            a = (a ^ spread(word(bytes, at))).wrapping_mul(K1);
            b ^= a;
            c = (c ^ spread(word(bytes, at + 8))).wrapping_mul(K1);
            d ^= c;
        }
    }
    let (a, b) = (pair(a, c), pair(d, b));
    (a ^ b, pair(b, a))
}

/// A state of two words, stirred with 32 bytes.
fn stir(bytes: &[u8], at: usize, a: u64, b: u64) -> (u64, u64) {
    let last = word(bytes, at + 24);
    let start = a.wrapping_add(word(bytes, at));
    let b = b.wrapping_add(start).wrapping_add(last).rotate_right(21);
    let sum = start.wrapping_add(word(bytes, at + 8)).wrapping_add(word(bytes, at + 16));
    (sum.wrapping_add(last), b.wrapping_add(sum.rotate_right(44)).wrapping_add(start))
}

/// Of 128 bytes and more.
fn long(bytes: &[u8], low: u64, high: u64) -> (u64, u64) {
    let (mut x, mut y) = (low, high);
    let mut z = (bytes.len() as u64).wrapping_mul(K1);
    let v0 = (y ^ K1).rotate_right(49).wrapping_mul(K1).wrapping_add(word(bytes, 0));
    let mut v = (v0, v0.rotate_right(42).wrapping_mul(K1).wrapping_add(word(bytes, 8)));
    let mut w = (
        y.wrapping_add(z).rotate_right(35).wrapping_mul(K1).wrapping_add(x),
        x.wrapping_add(word(bytes, 88)).rotate_right(53).wrapping_mul(K1),
    );
    let whole = bytes.len() / 128 * 128;
    for at in (0..whole).step_by(64) {
        x = x.wrapping_add(y).wrapping_add(v.0).wrapping_add(word(bytes, at + 8)).rotate_right(37).wrapping_mul(K1);
        y = y.wrapping_add(v.1).wrapping_add(word(bytes, at + 48)).rotate_right(42).wrapping_mul(K1);
        x ^= w.1;
        y = y.wrapping_add(v.0).wrapping_add(word(bytes, at + 40));
        z = z.wrapping_add(w.0).rotate_right(33).wrapping_mul(K1);
        v = stir(bytes, at, v.1.wrapping_mul(K1), x.wrapping_add(w.0));
        w = stir(bytes, at + 32, z.wrapping_add(w.1), y.wrapping_add(word(bytes, at + 16)));
        (x, z) = (z, x);
    }
    x = x.wrapping_add(v.0.wrapping_add(z).rotate_right(49).wrapping_mul(K0));
    y = y.wrapping_mul(K0).wrapping_add(w.1.rotate_right(37));
    z = z.wrapping_mul(K0).wrapping_add(w.0.rotate_right(27));
    w.0 = w.0.wrapping_mul(9);
    v.0 = v.0.wrapping_mul(K0);
    // The rest in steps of 32 bytes from the end, the last step reaching back into what was hashed.
    for done in (0..bytes.len() - whole).step_by(32) {
        let at = bytes.len() - done - 32;
        y = x.wrapping_add(y).rotate_right(42).wrapping_mul(K0).wrapping_add(v.1);
        w.0 = w.0.wrapping_add(word(bytes, at + 16));
        x = x.wrapping_mul(K0).wrapping_add(w.0);
        z = z.wrapping_add(w.1).wrapping_add(word(bytes, at));
        w.1 = w.1.wrapping_add(v.0);
        v = stir(bytes, at, v.0.wrapping_add(z), v.1);
        v.0 = v.0.wrapping_mul(K0);
    }
    let (x, y) = (pair(x, v.0), pair(y.wrapping_add(z), w.0));
    (pair(x.wrapping_add(v.1), w.1).wrapping_add(y), pair(x.wrapping_add(w.1), y.wrapping_add(v.1)))
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::farm128;

    /// Hashes of so many bytes by pyfarmhash 0.4, which is Google's own code.
    const KNOWN: &[(usize, u128)] = &[
        (0, 0x3df09dfc64c09a2b3cb540c392e51e29),
        (1, 0x2fbf70079ceacfa3c07d4481a0365e29),
        (3, 0x2b69fc3ed41198b7e790b62640ccbc72),
        (7, 0xa005b34966a21179ec4153fd25797ea4),
        (8, 0x14c960bbfb57cae57efdf237dd4e0b48),
        (15, 0x1a8140115c255aba495164771698c6ee),
        (16, 0x18426ccd5e25e594d15ea5dc06aca4bd),
        (17, 0x62cd32aba496735b339c7c635b669be7),
        (33, 0x76863d0578a1e93282e0386ef896afdf),
        (64, 0x8772d1b69a32beb9d45e4b8e2a8eecef),
        (143, 0x5681be8aaea1ebf6b8b92677283405f4),
        (144, 0xb1fe5dae326ad7ac52c9b2aea60cabc9),
        (145, 0x1e11b2f01ff57d84654a4f7cb863032c),
        (272, 0x29966c39002acbb41508fef556c9b110),
        (4096, 0x6b6f123915603a958deaa4ba919bac75),
    ];

    #[test]
    fn it_is_farmhash() {
        let bytes: Vec<u8> = (0..4096_usize).map(|n| (n * 131 + (n >> 8) * 17 + 7) as u8).collect();
        for (len, hash) in KNOWN {
            assert_eq!(farm128(&bytes[..*len]), *hash, "of {len} bytes");
        }
        // All lengths to 1,024, as one hash.
        let mut all = Sha256::new();
        (0..=1024).for_each(|len| all.update(farm128(&bytes[..len]).to_be_bytes()));
        let all = hex::encode(all.finalize());
        assert_eq!(all, "d17be5ad359dfea1ff8409746b65d252d992ea578fc8ae383dfac2982b07ac6a");
    }
}
