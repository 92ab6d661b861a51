//! Every layout, dtype and table format against an index-by-index reference, over the C functions:
//! whole pools and outputs are compared, gaps and guards included.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

mod common;

use common::*;
use kvx::ffi::*;
use proptest::prelude::*;

const LAYOUTS: [u32; 4] =
    [KVX_LAYOUT_BLOCK_NHD, KVX_LAYOUT_BLOCK_HND, KVX_LAYOUT_BLOCK_HND_PACKED, KVX_LAYOUT_BLOCK_CUSTOM];

/// K and V pools of one cache, empty.
#[derive(Clone, Debug)]
struct Pools {
    dims: Dims,
    k: kvx_tensor_desc_t,
    v: kvx_tensor_desc_t,
    shift: usize,
}

fn pools() -> impl Strategy<Value = Pools> {
    let dim = prop::sample::select(vec![1u32, 2, 3, 4, 8, 12, 16, 32, 33, 48, 64, 96, 128]);
    let dims = (1u32..6, 1u32..20, 1u32..5, dim);
    let custom = || (Just([0usize, 1, 2, 3]).prop_shuffle(), [0i64..4, 0..4, 0..4, 0..4]);
    (dims, 0..4usize, 1..6u32, any::<prop::sample::Index>(), [custom(), custom()], 0..3usize).prop_map(
        |((blocks, tokens, heads, dim), layout, dtype, pack, customs, shift)| {
            let dims = Dims { blocks, tokens, heads, dim };
            let packs: Vec<u32> = (1..=dim).filter(|p| dim % p == 0).collect();
            let pack = *pack.get(&packs);
            let [k, v] = customs.map(|(order, gaps)| {
                // From the last dimension of `order` up, each stride passes what is inside, by a gap.
                let extents = [blocks, tokens, heads, dim].map(i64::from);
                let (mut strides, mut step) = ([0; 4], 1);
                for i in order {
                    step += gaps[i];
                    strides[i] = step;
                    step *= extents[i];
                }
                pool(dtype, LAYOUTS[layout], &dims, pack, strides)
            });
            Pools { dims, k, v, shift }
        },
    )
}

/// Types of the tokens: the cache's, or for FP8 any wide one.
fn token_dtype(cache: u32, pick: usize) -> u32 {
    match cache {
        KVX_DTYPE_F8_E4M3 | KVX_DTYPE_F8_E5M2 => [cache, KVX_DTYPE_F16, KVX_DTYPE_BF16, KVX_DTYPE_F32][pick % 4],
        _ => cache,
    }
}

/// One element from tokens to cache: `scale` where it is quantised.
fn stored(cache: u32, tokens: u32, bytes: &[u8], scale: f32) -> Vec<u8> {
    if cache == tokens {
        return bytes.to_vec();
    }
    let quotient = decode(tokens, read_bits(bytes)) as f32 / scale;
    vec![encode_fp8(cache, f64::from(quotient)) as u8]
}

const SCALES: [f32; 7] = [1.0, 0.5, 0.37, 3.3, 0.011, 1e-12, 700.0];

/// A scale desc over `values`, with strides that leave gaps, and its lookup.
fn scale(kind: u32, d: &Dims, values: &[f32]) -> (kvx_scale_desc_t, impl Fn(u64, u64) -> f32) {
    let (b, h) = (i64::from(d.blocks), i64::from(d.heads));
    let (shape, stride): (&[i64], &[i64]) = match kind {
        KVX_SCALE_PER_BLOCK => (&[b], &[3]),
        KVX_SCALE_PER_HEAD => (&[h], &[2]),
        KVX_SCALE_PER_BLOCK_HEAD => (&[b, h], &[1, b + 1]),
        _ => (&[], &[]),
    };
    let mut desc = kvx_scale_desc_t {
        size: 104,
        dtype: KVX_DTYPE_F32,
        granularity: kind,
        ndim: shape.len() as u32,
        data: values.as_ptr().cast(),
        ..zeroed()
    };
    desc.shape[..shape.len()].copy_from_slice(shape);
    desc.stride[..stride.len()].copy_from_slice(stride);
    let values = values.to_vec();
    let lookup = move |block: u64, head: u64| {
        values[match kind {
            KVX_SCALE_PER_BLOCK => 3 * block,
            KVX_SCALE_PER_HEAD => 2 * head,
            KVX_SCALE_PER_BLOCK_HEAD => block + (b as u64 + 1) * head,
            _ => 0,
        } as usize]
    };
    (desc, lookup)
}

/// Elements between the rows of key and of value, and a stride for dimensions of extent 1.
fn gaps() -> impl Strategy<Value = ([usize; 2], i64)> {
    let gap = || prop_oneof![2 => Just(0usize), 1 => 1..70usize];
    ([gap(), gap()], prop::sample::select(vec![0i64, 1, -7, 33, i64::MAX, i64::MIN]))
}

/// Slots with runs, repeats, padding of both kinds, in any order.
fn slots() -> impl Strategy<Value = Vec<(bool, i64, i64)>> {
    prop::collection::vec((prop::bool::weighted(0.8), -2..400i64, 1..24i64), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(768))]

    #[test]
    fn write_matches(
        pools in pools(),
        pick in 0..4usize,
        pieces in slots(),
        wide in any::<bool>(),
        (kind, from) in (1..5u32, 0..7usize),
        fallback in any::<bool>(),
        (gaps, junk) in gaps(),
    ) {
        let Pools { dims, mut k, mut v, shift } = pools;
        let limit = i64::from(dims.blocks * dims.tokens);
        let invalid_slot = 1.min(limit - 1); // a slot that exists, to be skipped all the same
        let slots: Vec<i64> = pieces
            .iter()
            .flat_map(|(run, start, len)| (0..*len).map(move |i| if *run { start + i } else { *start }))
            .map(|s| if s < 0 { s } else { s % limit })
            .collect();
        let tokens = token_dtype(k.dtype, pick);
        let (io_size, size) = (size_of_dtype(tokens), size_of_dtype(k.dtype));
        let steps = gaps.map(|gap| dims.row() + gap);
        let mut sources = [0, 1].map(|side| {
            let len = spread_len(slots.len(), steps[side], dims.row()) * io_size;
            Guarded::from(&noise(len, side as u64 + 1), shift)
        });
        let mut targets = [&k, &v].map(|p| Guarded::from(&noise(span(p), 3), shift));
        let mut slot_bytes = Guarded::from(&indices(&slots, wide), shift);
        let values: Vec<f32> = SCALES.iter().cycle().skip(from).take(64).copied().collect();
        let kind = if fallback { KVX_SCALE_PER_TENSOR } else { kind };
        let (scale_desc, lookup) = scale(kind, &dims, &values);

        let mut want = [noise(span(&k), 3), noise(span(&v), 3)];
        for (i, slot) in slots.iter().enumerate().filter(|(_, s)| **s >= 0 && **s != invalid_slot) {
            let (b, t) = (*slot as u64 / u64::from(dims.tokens), *slot as u64 % u64::from(dims.tokens));
            for (h, e) in (0..dims.heads).flat_map(|h| (0..dims.dim).map(move |e| (h, e))) {
                for (side, p) in [&k, &v].into_iter().enumerate() {
                    let at = (i * steps[side] + (h * dims.dim + e) as usize) * io_size;
                    let to = offset(p, b, t, h.into(), e.into()) * size;
                    let bytes = &sources[side].bytes()[at..at + io_size];
                    let bytes = stored(k.dtype, tokens, bytes, lookup(b, h.into()));
                    want[side][to..to + size].copy_from_slice(&bytes);
                }
            }
        }

        k.data = targets[0].ptr();
        v.data = targets[1].ptr();
        let [key, value] = sources.each_mut().map(Guarded::ptr);
        let mut io = io(tokens, &[slots.len() as i64], &dims, key, value);
        spread(&mut io.key, steps[0], junk);
        spread(&mut io.value, steps[1], junk);
        junk_strides(&mut k, junk);
        junk_strides(&mut v, junk);
        let mut desc = write_desc(io, wide, slot_bytes.ptr());
        desc.slots.invalid_slot = invalid_slot;
        if tokens != k.dtype {
            if fallback {
                desc.k_scale = values.as_ptr().cast();
                desc.v_scale = values.as_ptr().cast();
            } else {
                (desc.k_scale_desc, desc.v_scale_desc) = (scale_desc, scale_desc);
            }
        }
        let cache = cache(&dims, k, v);
        // SAFETY: the descriptors name the buffers above, with their sizes.
        let status = unsafe { kvx_write_kv(&cache, &desc, std::ptr::null_mut()) };
        prop_assert_eq!(status, KVX_STATUS_OK);
        targets[0].assert_is(&want[0], "K");
        targets[1].assert_is(&want[1], "V");
    }

    #[test]
    fn gather_matches(
        pools in pools(),
        format in 1..4u32,
        wide in any::<bool>(),
        lens in prop::collection::vec(0..50u32, 0..5),
        (max_len, beams) in (0..40u32, 1..4u32),
        seed in any::<u64>(),
        leading_kind in 0..3usize,
        (gaps, junk) in gaps(),
    ) {
        let Pools { mut dims, mut k, mut v, shift } = pools;
        let offsets = format == KVX_BLOCK_TABLE_KV_OFFSETS;
        if offsets && !dims.tokens.is_power_of_two() {
            // The nearest that is; shapes and strides follow by making the pools anew.
            dims.tokens = dims.tokens.next_power_of_two() / 2;
            let pack = if k.layout == KVX_LAYOUT_BLOCK_HND_PACKED { k.shape[4] as u32 } else { 1 };
            let strides = dense(&[dims.blocks, dims.tokens, dims.heads, dims.dim].map(i64::from));
            let strides: [i64; 4] = strides[..4].try_into().unwrap();
            k = pool(k.dtype, k.layout, &dims, pack, strides);
            v = pool(v.dtype, v.layout, &dims, pack, strides);
        }
        let (wide, beams) = (wide && !offsets, if offsets { beams } else { 1 });
        let seqs = lens.len() as u32;
        let size = size_of_dtype(k.dtype);
        let random = noise(1 << 16, seed | 1);
        let mut random = random.iter().cycle().map(|b| i64::from(*b));
        let max_blocks = max_len.min(50).div_ceil(dims.tokens) + 1;
        let blocks = i64::from(dims.blocks);

        // Entries: mostly valid, some negative, and rubbish where no sequence reaches.
        let mut indptr = vec![0i64];
        let mut entries = Vec::new();
        for len in &lens {
            let (rows, reach, width) = match format {
                KVX_BLOCK_TABLE_RAGGED => (1, *len.min(&max_len), *len),
                _ => (beams * if offsets { 2 } else { 1 }, len.min(&max_len).div_ceil(dims.tokens), max_blocks),
            };
            for _ in 0..rows {
                for i in 0..width {
                    entries.push(match random.next().unwrap() {
                        r if i >= reach => r * 0x0101_0101,
                        r if offsets => (r % blocks) | (r / 128) << 31,
                        r if r > 230 => -1,
                        r => r % blocks,
                    });
                }
            }
            indptr.push(indptr.last().unwrap() + i64::from(*len));
        }

        // For KV offsets, K and V share two pools with a bit more than a block per block.
        let inner = |p: &kvx_tensor_desc_t| {
            let mut one = *p;
            one.shape[0] = 1;
            span(&one)
        };
        let bytes_per_block = inner(&k).max(inner(&v)) + shift;
        let mut sources = if offsets {
            [5, 6].map(|seed| Guarded::from(&noise(bytes_per_block * dims.blocks as usize, seed), shift))
        } else {
            [Guarded::from(&noise(span(&k), 5), shift), Guarded::from(&noise(span(&v), 6), shift)]
        };
        let tokens = (seqs * beams * max_len) as usize;
        let steps = gaps.map(|gap| dims.row() + gap);
        let lens_of_out = steps.map(|step| spread_len(tokens, step, dims.row()) * size);
        let mut want = lens_of_out.map(|len| vec![POISON; len]);
        for (s, len) in lens.iter().enumerate() {
            for beam in 0..beams as usize {
                for t in 0..*len.min(&max_len) {
                    for side in 0..2 {
                        let p = [&k, &v][side];
                        let logical = (t / dims.tokens) as usize;
                        let entry = match format {
                            KVX_BLOCK_TABLE_PACKED => entries[s * max_blocks as usize + logical],
                            KVX_BLOCK_TABLE_RAGGED => entries[indptr[s] as usize + t as usize],
                            _ => entries[((s * beams as usize + beam) * 2 + side) * max_blocks as usize + logical],
                        };
                        if entry < 0 {
                            continue;
                        }
                        let from = if offsets { (entry >> 31) as usize } else { side };
                        let block = (entry & 0x7fff_ffff) as u64;
                        let (base, b) = if offsets { (block as usize * bytes_per_block, 0) } else { (0, block) };
                        let row = (s * beams as usize + beam) * max_len as usize + t as usize;
                        for (h, e) in (0..dims.heads).flat_map(|h| (0..dims.dim).map(move |e| (h, e))) {
                            let at = base + offset(p, b, u64::from(t % dims.tokens), h.into(), e.into()) * size;
                            let to = (row * steps[side] + (h * dims.dim + e) as usize) * size;
                            let bytes = sources[from].bytes()[at..at + size].to_vec();
                            want[side][to..to + size].copy_from_slice(&bytes);
                        }
                    }
                }
            }
        }

        let mut targets = lens_of_out.map(|len| Guarded::new(len, shift));
        k.data = sources[0].ptr();
        v.data = sources[1].ptr();
        let mut cache = cache(&dims, k, v);
        if offsets {
            cache.pool = kvx_pool_desc_t {
                size: 32,
                memory: KVX_MEMORY_UNIFIED,
                bytes_per_block: bytes_per_block as u32,
                primary: k.data,
                secondary: v.data,
            };
        }
        let mut entry_bytes = Guarded::from(&indices(&entries, wide), shift);
        let mut indptr_bytes = Guarded::from(&indices(&indptr, !wide), shift);
        let lens: Vec<i64> = lens.iter().map(|l| i64::from(*l)).collect();
        let mut lens_bytes = Guarded::from(&indices(&lens, wide), shift);
        let (s, b, m) = (i64::from(seqs), i64::from(beams), i64::from(max_len));
        let leading: &[i64] = match leading_kind {
            0 => &[s * b * m],
            1 => &[s * b, m],
            _ if offsets => &[s, b, m],
            _ => &[s, m],
        };
        let ragged = format == KVX_BLOCK_TABLE_RAGGED;
        let [key, value] = targets.each_mut().map(Guarded::ptr);
        let mut io = io(k.dtype, leading, &dims, key, value);
        spread(&mut io.key, steps[0], junk);
        spread(&mut io.value, steps[1], junk);
        junk_strides(&mut cache.k, junk);
        junk_strides(&mut cache.v, junk);
        let desc = kvx_gather_desc_t {
            size: 352,
            io,
            block_table: kvx_block_table_t {
                size: 64,
                format,
                index_dtype: index_dtype(wide),
                indptr_dtype: if ragged { index_dtype(!wide) } else { 0 },
                seq_count: seqs,
                beam_width: beams,
                max_blocks_per_seq: if ragged { 0 } else { max_blocks },
                indices: entry_bytes.ptr(),
                indptr: if ragged { indptr_bytes.ptr() } else { std::ptr::null_mut() },
                indices_count: entries.len() as u32,
                indptr_count: if ragged { seqs + 1 } else { 0 },
                flags: u32::from(offsets),
            },
            seq_lens: kvx_seq_lens_t { size: 24, dtype: index_dtype(wide), seq_count: seqs, lengths: lens_bytes.ptr() },
            max_seq_len: max_len,
        };
        // SAFETY: the descriptors name the buffers above, with their sizes.
        let status = unsafe { kvx_gather_kv(&cache, &desc, std::ptr::null_mut()) };
        prop_assert_eq!(status, KVX_STATUS_OK);
        targets[0].assert_is(&want[0], "key");
        targets[1].assert_is(&want[1], "value");
    }
}
