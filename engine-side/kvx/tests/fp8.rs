//! FP8 through the Rust API, against the definition of the formats: every code, every F16, ties,
//! saturation, NaN and signs; scales at every granularity; write and gather together.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

mod common;

use common::{decode, encode_fp8, encode_wide, noise, read_bits, size_of_dtype};
use kvx::ffi::*;
use kvx::*;

const FP8: [(DType, u32); 2] = [(DType::F8E4M3, KVX_DTYPE_F8_E4M3), (DType::F8E5M2, KVX_DTYPE_F8_E5M2)];
const WIDE: [(DType, u32); 3] =
    [(DType::F16, KVX_DTYPE_F16), (DType::BF16, KVX_DTYPE_BF16), (DType::F32, KVX_DTYPE_F32)];

fn line(dim: u32) -> CacheShape {
    CacheShape { num_blocks: 1, block_size: 1, num_kv_heads: 1, head_dim: dim }
}

/// Quantises bits of `wide`, as the single head of a single token.
fn quantise(narrow: DType, wide: DType, bits: &[u32], scale: f32) -> Vec<u8> {
    let io: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()[..wide.size()].to_vec()).collect();
    let (mut k, mut v) = (vec![0; bits.len()], vec![0; bits.len()]);
    let shape = line(bits.len() as u32);
    let mut cache = KvCacheMut::new(shape, narrow, [Layout::Nhd; 2], &mut k, &mut v).unwrap();
    let scale = Scale::per_tensor(scale);
    Write {
        slots: Slots { slots: [0][..].into(), invalid_slot: -1 },
        scales: Some(KvScales { k: scale, v: scale }),
        threads: 1,
    }
    .run(&mut cache, &KvTokens { key: &io, value: &io, dtype: wide })
    .unwrap();
    assert_eq!(k, v);
    k
}

/// Dequantises codes to bits of `wide`.
fn dequantise(narrow: DType, wide: DType, codes: &[u8], scale: f32) -> Vec<u32> {
    let shape = line(codes.len() as u32);
    let cache = KvCache::new(shape, narrow, [Layout::Nhd; 2], codes, codes).unwrap();
    let (mut key, mut value) = (vec![0; codes.len() * wide.size()], vec![0; codes.len() * wide.size()]);
    let scale = Scale::per_tensor(scale);
    Gather {
        table: BlockTable::Packed { indices: [0][..].into(), max_blocks_per_seq: 1 },
        seq_lens: [1][..].into(),
        max_seq_len: 1,
        scales: Some(KvScales { k: scale, v: scale }),
        threads: 1,
    }
    .run(&cache, &mut KvTokensMut { key: &mut key, value: &mut value, dtype: wide })
    .unwrap();
    assert_eq!(key, value);
    key.chunks(wide.size()).map(read_bits).collect()
}

/// Both NaN of either sign and payload, or the same bits.
fn assert_same(wide: u32, got: u32, want: f64, what: &str) {
    if want.is_nan() {
        assert!(decode(wide, got).is_nan(), "{what}: {got:#x} is no NaN");
    } else {
        assert_eq!(got, encode_wide(wide, want), "{what}: want {want}");
    }
}

#[test]
fn the_reference_itself_knows_published_values() {
    let e4m3 = |code| decode(KVX_DTYPE_F8_E4M3, code);
    let e5m2 = |code| decode(KVX_DTYPE_F8_E5M2, code);
    assert_eq!([e4m3(0x7e), e4m3(0x08), e4m3(0x01), e4m3(0xb8)], [448.0, 2f64.powi(-6), 2f64.powi(-9), -1.0]);
    assert_eq!(
        [e5m2(0x7b), e5m2(0x04), e5m2(0x01), e5m2(0xfc)],
        [57344.0, 2f64.powi(-14), 2f64.powi(-16), f64::NEG_INFINITY]
    );
    assert!(e4m3(0x7f).is_nan() && e5m2(0x7d).is_nan() && !e5m2(0x7c).is_nan());
    assert_eq!(decode(KVX_DTYPE_F16, 0x7bff), 65504.0);
    assert_eq!(decode(KVX_DTYPE_F32, 1f32.to_bits()), 1.0);
    // Halfway between 16 (even) and 18 (odd) goes to even, and what is past the largest stays there.
    assert_eq!([encode_fp8(KVX_DTYPE_F8_E4M3, 17.0), encode_fp8(KVX_DTYPE_F8_E4M3, 19.0)], [0x58, 0x5a]);
    assert_eq!(encode_fp8(KVX_DTYPE_F8_E4M3, f64::NEG_INFINITY), 0xfe);
}

#[test]
fn every_code_dequantises_to_every_type() {
    let codes: Vec<u8> = (0..=255).collect();
    for (narrow, narrow_id) in FP8 {
        for (wide, wide_id) in WIDE {
            for scale in [1.0f32, 0.37, 3.0, 200.0, 1e-7, 1e-20, 1e30] {
                let got = dequantise(narrow, wide, &codes, scale);
                for (code, got) in codes.iter().zip(got) {
                    let product = decode(narrow_id, u32::from(*code)) as f32 * scale;
                    let what = format!("{narrow:?} {code:#x} * {scale} to {wide:?}");
                    assert_same(wide_id, got, f64::from(product), &what);
                }
            }
        }
    }
}

#[test]
fn every_16_bit_number_quantises() {
    let bits: Vec<u32> = (0..=0xffff).collect();
    for (narrow, narrow_id) in FP8 {
        for (wide, wide_id) in &WIDE[..2] {
            // Inside and outside of the range that the vector kernels divide for by multiplying.
            for scale in [1.0f32, 0.37, 1.0 / 3.0, 448.0, 1.7e-9, 5e8, 1e-10, 2e9, 1e-38, 1e38] {
                let got = quantise(narrow, *wide, &bits, scale);
                for (bits, got) in bits.iter().zip(got) {
                    let quotient = decode(*wide_id, *bits) as f32 / scale;
                    let want = encode_fp8(narrow_id, f64::from(quotient)) as u8;
                    assert_eq!(got, want, "{narrow:?} of {wide:?} {bits:#x} / {scale}");
                }
            }
        }
    }
}

/// F32 around every rounding boundary, and at the ends of its range.
#[test]
fn f32_quantises_at_ties_and_extremes() {
    for (narrow, narrow_id) in FP8 {
        for scale in [1.0f32, 0.1, 3.3, 1e-9, 1e9, 1e-30, 1e30] {
            let mut bits = vec![0, 1, 0x7fffff, 0x800000, 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fc00000];
            for code in 0..0x7b {
                let (a, b) = (decode(narrow_id, code), decode(narrow_id, code + 1));
                let tie = ((a + b) / 2.0 * f64::from(scale)) as f32;
                bits.extend((tie.to_bits().saturating_sub(3)..).take(7));
            }
            let with_signs: Vec<u32> = bits.iter().flat_map(|b| [*b, *b | 1 << 31]).collect();
            let got = quantise(narrow, DType::F32, &with_signs, scale);
            for (bits, got) in with_signs.iter().zip(got) {
                let quotient = f32::from_bits(*bits) / scale;
                let want = encode_fp8(narrow_id, f64::from(quotient)) as u8;
                assert_eq!(got, want, "{narrow:?} of {bits:#x} / {scale}");
            }
        }
    }
}

/// Every layout and granularity: what is written and gathered again is each element's own
/// round trip, with the scale of its own block and head.
#[test]
fn round_trips_use_the_scale_of_their_block_and_head() {
    let shape = CacheShape { num_blocks: 5, block_size: 6, num_kv_heads: 3, head_dim: 40 };
    let by_block: Vec<f32> = (1..=5).map(|b| b as f32 * 0.3).collect();
    let by_head = [0.7f32, 1.9, 0.01];
    let by_both: Vec<f32> = (1..=15).map(|i| i as f32 * 0.11).collect();
    type Lookup<'a> = Box<dyn Fn(usize, usize) -> f32 + 'a>;
    let scales: [(Scale<'_>, Lookup<'_>); 4] = [
        (Scale::per_tensor(0.77), Box::new(|_, _| 0.77)),
        (Scale::per_block(&by_block), Box::new(|b, _| by_block[b])),
        (Scale::per_head(&by_head), Box::new(|_, h| by_head[h])),
        (Scale::per_block_head(&by_both, 3).unwrap(), Box::new(|b, h| by_both[b * 3 + h])),
    ];
    // Tokens of two sequences: 13 in blocks 3, 0, 4 and 2 in block 1.
    let blocks = [3i32, 0, 4, 1, -1, -1];
    let slots: Vec<i64> = (0..15)
        .map(|i| if i < 13 { i64::from(blocks[i / 6]) * 6 + (i % 6) as i64 } else { 6 + (i - 13) as i64 })
        .collect();
    let token = 3 * 40;
    for layout in [
        Layout::Nhd,
        Layout::Hnd,
        Layout::HndPacked { pack: 1 },
        Layout::HndPacked { pack: 8 },
        Layout::HndPacked { pack: 5 },
        Layout::Custom { strides: [6 * 3 * 40, 1, 6, 18] },
    ] {
        for (narrow, narrow_id) in FP8 {
            for (wide, wide_id) in WIDE {
                for (scale, lookup) in &scales {
                    let size = size_of_dtype(wide_id);
                    let mut key = noise(15 * token * size, 7);
                    // Exponents near zero, so that most codes come up.
                    key.chunks_mut(size).for_each(|e| e[size - 1] = 0x38 | e[size - 1] & 0x87);
                    let scales = Some(KvScales { k: *scale, v: *scale });
                    let (mut k, mut v) = (vec![0; 5 * 6 * token], vec![0; 5 * 6 * token]);
                    let mut cache = KvCacheMut::new(shape, narrow, [layout; 2], &mut k, &mut v).unwrap();
                    let slots = Slots { slots: slots[..].into(), invalid_slot: -1 };
                    let tokens = KvTokens { key: &key, value: &key, dtype: wide };
                    Write { slots, scales, threads: 1 }.run(&mut cache, &tokens).unwrap();
                    let mut out = [(); 2].map(|()| vec![0xEE; 2 * 14 * token * size]);
                    let [out_k, out_v] = &mut out;
                    Gather {
                        table: BlockTable::Packed { indices: blocks[..].into(), max_blocks_per_seq: 3 },
                        seq_lens: [13, 2][..].into(),
                        max_seq_len: 14,
                        scales,
                        threads: 1,
                    }
                    .run(&cache.shared(), &mut KvTokensMut { key: out_k, value: out_v, dtype: wide })
                    .unwrap();
                    assert_eq!(out[0], out[1]);
                    for i in 0..2 * 14 * token {
                        let (row, h) = (i / token, i % token / 40);
                        let got = read_bits(&out[0][i * size..][..size]);
                        // Row 13 is padding of the first sequence, 16 and on of the second.
                        let (source, block) = match row {
                            0..=12 => (row, blocks[row / 6] as usize),
                            14..=15 => (row - 1, 1),
                            _ => {
                                assert!(out[0][i * size..][..size].iter().all(|b| *b == 0xEE));
                                continue;
                            }
                        };
                        let bits = read_bits(&key[(source * token + i % token) * size..][..size]);
                        let scale = lookup(block, h);
                        let quotient = decode(wide_id, bits) as f32 / scale;
                        let code = encode_fp8(narrow_id, f64::from(quotient));
                        let want = decode(narrow_id, code) as f32 * scale;
                        let what = format!("{layout:?} {narrow:?} {wide:?} row {row} head {h}");
                        assert_same(wide_id, got, f64::from(want), &what);
                    }
                }
            }
        }
    }
}

#[test]
fn scales_that_do_not_fit_are_refused() {
    let shape = CacheShape { num_blocks: 2, block_size: 1, num_kv_heads: 2, head_dim: 1 };
    let (mut k, mut v) = (vec![9; 4], vec![9; 4]);
    let mut cache = KvCacheMut::new(shape, DType::F8E4M3, [Layout::Nhd; 2], &mut k, &mut v).unwrap();
    let tokens = KvTokens { key: &[0; 4], value: &[0; 4], dtype: DType::F16 };
    let one = Scale::per_tensor(1.0);
    assert!(Scale::per_block_head(&[1.0; 3], 2).is_err());
    let mut refused = |scales| {
        let slots = Slots { slots: [0][..].into(), invalid_slot: -1 };
        let write = Write { slots, scales, threads: 1 };
        write.run(&mut cache, &tokens).unwrap_err().kind()
    };
    for bad in [
        Scale::per_tensor(0.0),
        Scale::per_tensor(-1.0),
        Scale::per_tensor(f32::NAN),
        Scale::per_block(&[1.0]),
        Scale::per_block(&[0.0, 1.0]),
        Scale::per_head(&[1.0, f32::INFINITY]),
        Scale::per_head(&[1.0; 3]),
        Scale::per_block_head(&[1.0; 6], 2).unwrap(),
    ] {
        assert_eq!(refused(Some(KvScales { k: bad, v: one })), ErrorKind::InvalidArgument, "{bad:?}");
        assert_eq!(refused(Some(KvScales { k: one, v: bad })), ErrorKind::InvalidArgument, "{bad:?}");
    }
    assert_eq!(refused(None), ErrorKind::InvalidArgument);
    assert_eq!((k, v), (vec![9; 4], vec![9; 4]));
}

/// Blocks of more tokens than are converted at once where a layout scatters them: the same
/// tokens as through a layout that does not.
#[test]
fn long_blocks_convert_like_short_ones() {
    let shape = CacheShape { num_blocks: 2, block_size: 200, num_kv_heads: 2, head_dim: 96 };
    let row = 2 * 96;
    let mut key = noise(390 * row * 2, 11);
    key.chunks_mut(2).for_each(|e| e[1] &= 0xbf); // small, and no NaN
    let slots: Vec<i32> = (5..395).collect();
    let scales = Some(KvScales { k: Scale::per_tensor(0.01), v: Scale::per_head(&[0.02, 0.03]) });
    let through = |layout| {
        let (mut k, mut v) = (vec![0; 400 * row], vec![0; 400 * row]);
        let mut cache = KvCacheMut::new(shape, DType::F8E5M2, [layout; 2], &mut k, &mut v).unwrap();
        let slots = Slots { slots: slots[..].into(), invalid_slot: -1 };
        let tokens = KvTokens { key: &key, value: &key, dtype: DType::F16 };
        Write { slots, scales, threads: 1 }.run(&mut cache, &tokens).unwrap();
        let mut out = [(); 2].map(|()| vec![0xEE; 400 * row * 2]);
        let [out_k, out_v] = &mut out;
        Gather {
            table: BlockTable::Packed { indices: [0, 1][..].into(), max_blocks_per_seq: 2 },
            seq_lens: [400][..].into(),
            max_seq_len: 400,
            scales,
            threads: 1,
        }
        .run(&cache.shared(), &mut KvTokensMut { key: out_k, value: out_v, dtype: DType::F16 })
        .unwrap();
        out
    };
    let want = through(Layout::Nhd);
    assert!(want[0] != want[1] && want[0].iter().any(|b| *b != 0));
    for layout in [Layout::HndPacked { pack: 16 }, Layout::HndPacked { pack: 3 }] {
        assert!(through(layout) == want, "{layout:?}");
    }
}

/// Writes that are large enough for a table of codes and for tiles of them, in blocks that tiles fill and that they do
/// not, by runs that start anywhere in them: the codes that a small write gives each number, where the layout has them.
#[test]
fn large_writes_put_every_code_in_its_place() {
    let number: Vec<u16> = (0..4096u32).map(|i| (i * 1021 % 0x7c00) as u16 | ((i as u16 & 1) << 15)).collect();
    let codes = quantise(DType::F8E4M3, DType::F16, &number.iter().map(|n| (*n).into()).collect::<Vec<_>>(), 0.7);
    for (block_size, dim, gap) in [(16, 128, 0), (20, 64, 0), (64, 96, 24)] {
        let blocks = (1 << 21) / (2 * dim) / block_size / 2 + 3;
        let shape = CacheShape { num_blocks: blocks, block_size, num_kv_heads: 2, head_dim: dim };
        let row = 2 * dim as usize;
        // All slots but the first and the last of the pool, so that no run of them starts or ends with a block.
        let slots: Vec<i64> = (1..i64::from(blocks * block_size) - 1).collect();
        let at = |token: usize, element: usize| (token * 131 + element * 7) % 4096;
        let mut key = vec![0u8; slots.len() * row * 2];
        for (i, bits) in key.chunks_exact_mut(2).enumerate() {
            bits.copy_from_slice(&number[at(i / row, i % row)].to_le_bytes());
        }
        let mut pools = [(); 2].map(|()| vec![0xEE; (blocks * block_size) as usize * row + gap]);
        let [k, v] = &mut pools;
        let mut cache =
            KvCacheMut::new(shape, DType::F8E4M3, [Layout::HndPacked { pack: 8 }; 2], &mut k[gap..], &mut v[gap..])
                .unwrap();
        let scale = Scale::per_tensor(0.7);
        Write {
            slots: Slots { slots: slots[..].into(), invalid_slot: -1 },
            scales: Some(KvScales { k: scale, v: scale }),
            threads: 1,
        }
        .run(&mut cache, &KvTokens { key: &key, value: &key, dtype: DType::F16 })
        .unwrap();
        let (size, dim) = (block_size as usize, dim as usize);
        let mut want = vec![0xEE; pools[0].len()];
        for (token, slot) in slots.iter().enumerate() {
            let (block, offset) = (*slot as usize / size, *slot as usize % size);
            for element in 0..row {
                let (head, inside) = (element / dim, element % dim);
                let group = (block * 2 + head) * (dim / 8) + inside / 8;
                want[gap + (group * size + offset) * 8 + inside % 8] = codes[at(token, element)];
            }
        }
        assert!(pools[0] == want && pools[1] == want, "blocks of {block_size} tokens, heads of {dim}");
    }
}
