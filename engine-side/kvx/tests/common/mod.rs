//! What the tests share: descriptors, guarded buffers, and a naive reference.
//!
//! Nothing here calls the library. Addresses come from the stride formulas of the specification,
//! floats from the definition of their formats, and roundings from a search among all values.

#![allow(dead_code)]

pub mod calls;

use kvx::ffi::*;
use std::ffi::c_void;

pub const POISON: u8 = 0xEE;
const GUARD: usize = 96;

/// Bytes with poison on both sides, at any alignment.
pub struct Guarded {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Guarded {
    /// `len` bytes of poison, `shift` bytes past a multiple of 64.
    pub fn new(len: usize, shift: usize) -> Self {
        let memory = vec![POISON; len + 2 * GUARD + 64 + shift];
        let start = GUARD + memory[GUARD..].as_ptr().align_offset(64) + shift;
        Guarded { memory, start, len }
    }

    pub fn from(bytes: &[u8], shift: usize) -> Self {
        let mut new = Guarded::new(bytes.len(), shift);
        new.bytes().copy_from_slice(bytes);
        new
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }

    pub fn ptr(&mut self) -> *mut c_void {
        self.bytes().as_mut_ptr().cast()
    }

    /// Everything as expected, the guards untouched.
    pub fn assert_is(&mut self, want: &[u8], what: &str) {
        let (start, len) = (self.start, self.len);
        let first_wrong = self.bytes().iter().zip(want).position(|(a, b)| a != b);
        assert_eq!(first_wrong, None, "{what}: first wrong byte");
        assert_eq!(len, want.len());
        let guards = self.memory[..start].iter().chain(&self.memory[start + len..]);
        assert!(guards.into_iter().all(|b| *b == POISON), "{what}: written outside");
    }
}

/// Deterministic bytes that differ from poison and from each other.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Blocks, tokens, heads, elements.
#[derive(Clone, Copy, Debug)]
pub struct Dims {
    pub blocks: u32,
    pub tokens: u32,
    pub heads: u32,
    pub dim: u32,
}

impl Dims {
    pub fn row(&self) -> usize {
        (self.heads * self.dim) as usize
    }
}

pub fn size_of_dtype(dtype: u32) -> usize {
    match dtype {
        KVX_DTYPE_F32 => 4,
        KVX_DTYPE_F16 | KVX_DTYPE_BF16 => 2,
        _ => 1,
    }
}

pub fn zeroed<T>() -> T {
    // SAFETY: only used for the C structs, for which zeros are valid.
    unsafe { std::mem::zeroed() }
}

/// Row-major strides.
pub fn dense(shape: &[i64]) -> [i64; 5] {
    let mut strides = [0; 5];
    for i in 0..shape.len() {
        strides[i] = shape[i + 1..].iter().product();
    }
    strides
}

pub fn tensor(dtype: u32, layout: u32, shape: &[i64], stride: [i64; 5], data: *mut c_void) -> kvx_tensor_desc_t {
    let mut padded = [0; 5];
    padded[..shape.len()].copy_from_slice(shape);
    kvx_tensor_desc_t {
        size: 112,
        dtype,
        layout,
        memory: KVX_MEMORY_HOST,
        ndim: shape.len() as u32,
        shape: padded,
        stride,
        data,
    }
}

/// A pool without data. `custom`: strides of CUSTOM.
pub fn pool(dtype: u32, layout: u32, d: &Dims, pack: u32, custom: [i64; 4]) -> kvx_tensor_desc_t {
    let [b, t, h, e, p] = [d.blocks, d.tokens, d.heads, d.dim, pack].map(i64::from);
    let shape: Vec<i64> = match layout {
        KVX_LAYOUT_BLOCK_HND => vec![b, h, t, e],
        KVX_LAYOUT_BLOCK_HND_PACKED => vec![b, h, e / p, t, p],
        _ => vec![b, t, h, e],
    };
    let mut strides = dense(&shape);
    if layout == KVX_LAYOUT_BLOCK_CUSTOM {
        strides[..4].copy_from_slice(&custom);
    }
    tensor(dtype, layout, &shape, strides, std::ptr::null_mut())
}

/// Element offset of an element, as section 4.2 has it.
pub fn offset(p: &kvx_tensor_desc_t, b: u64, t: u64, h: u64, e: u64) -> usize {
    let s = p.stride.map(|s| s as u64);
    (match p.layout {
        KVX_LAYOUT_BLOCK_HND => b * s[0] + h * s[1] + t * s[2] + e * s[3],
        KVX_LAYOUT_BLOCK_HND_PACKED => {
            let pack = p.shape[4] as u64;
            b * s[0] + h * s[1] + e / pack * s[2] + t * s[3] + e % pack * s[4]
        }
        _ => b * s[0] + t * s[1] + h * s[2] + e * s[3],
    }) as usize
}

/// Bytes from the first to the last element.
pub fn span(p: &kvx_tensor_desc_t) -> usize {
    let last: i64 = (0..p.ndim as usize).map(|i| (p.shape[i] - 1) * p.stride[i]).sum();
    (last as usize + 1) * size_of_dtype(p.dtype)
}

pub fn cache(d: &Dims, k: kvx_tensor_desc_t, v: kvx_tensor_desc_t) -> kvx_cache_desc_t {
    kvx_cache_desc_t {
        size: 280,
        num_blocks: d.blocks,
        block_size: d.tokens,
        num_kv_heads: d.heads,
        head_dim: d.dim,
        k,
        v,
        pool: zeroed(),
    }
}

/// `leading` are the dimensions before heads and elements.
pub fn io(dtype: u32, leading: &[i64], d: &Dims, key: *mut c_void, value: *mut c_void) -> kvx_kv_io_desc_t {
    let shape = [leading, &[i64::from(d.heads), i64::from(d.dim)]].concat();
    let side = |data| tensor(dtype, KVX_LAYOUT_BLOCK_CUSTOM, &shape, dense(&shape), data);
    kvx_kv_io_desc_t {
        size: 248,
        key: side(key),
        value: side(value),
        num_tokens: leading.iter().product::<i64>() as u32,
        num_kv_heads: d.heads,
        head_dim: d.dim,
    }
}

/// Tokens that start `step` elements apart, and strides of dimensions of extent 1 that mean nothing.
pub fn spread(t: &mut kvx_tensor_desc_t, step: usize, junk: i64) {
    let before = t.ndim as usize - 2;
    for i in 0..before {
        t.stride[i] = t.shape[i + 1..before].iter().product::<i64>() * step as i64;
    }
    junk_strides(t, junk);
}

pub fn junk_strides(t: &mut kvx_tensor_desc_t, junk: i64) {
    for i in (0..t.ndim as usize).filter(|i| t.shape[*i] == 1) {
        t.stride[i] = junk;
    }
}

/// Elements from the first of `tokens` tokens to the end of the last.
pub fn spread_len(tokens: usize, step: usize, row: usize) -> usize {
    tokens.checked_sub(1).map_or(0, |last| last * step + row)
}

/// S32 or S64 in memory.
pub fn indices(values: &[i64], wide: bool) -> Vec<u8> {
    if wide {
        values.iter().flat_map(|v| v.to_ne_bytes()).collect()
    } else {
        values.iter().flat_map(|v| (*v as i32).to_ne_bytes()).collect()
    }
}

pub fn index_dtype(wide: bool) -> u32 {
    if wide { KVX_DTYPE_S64 } else { KVX_DTYPE_S32 }
}

pub fn write_desc(io: kvx_kv_io_desc_t, wide: bool, slots: *const c_void) -> kvx_write_desc_t {
    kvx_write_desc_t {
        size: 512,
        io,
        slots: kvx_slot_mapping_t {
            size: 32,
            dtype: index_dtype(wide),
            token_count: io.num_tokens,
            invalid_slot: -1,
            slots,
        },
        k_scale: std::ptr::null(),
        v_scale: std::ptr::null(),
        k_scale_desc: zeroed(),
        v_scale_desc: zeroed(),
    }
}

// --- Floats, by definition -------------------------------------------------------------------

/// Value of the code of a format with `exp` exponent and `man` mantissa bits, sign left out.
/// The largest exponent is an ordinary one.
fn value(code: u32, exp: u32, man: u32) -> f64 {
    let bias = (1i32 << (exp - 1)) - 1;
    let (e, m) = ((code >> man) as i32, f64::from(code & ((1 << man) - 1)));
    let unit = 2f64.powi(-(man as i32));
    if e == 0 { m * unit * 2f64.powi(1 - bias) } else { (1.0 + m * unit) * 2f64.powi(e - bias) }
}

/// The code nearest to `x >= 0` among `0..=max`, the even one where two are.
fn nearest(x: f64, max: u32, exp: u32, man: u32) -> u32 {
    let (mut low, mut high) = (0, max);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if value(middle, exp, man) <= x { low = middle } else { high = middle - 1 }
    }
    if low == max {
        return max;
    }
    let (below, above) = (x - value(low, exp, man), value(low + 1, exp, man) - x);
    if below < above || (below == above && low.is_multiple_of(2)) { low } else { low + 1 }
}

/// Exponent and mantissa bits, and the code from which on there are no numbers.
fn format(dtype: u32) -> (u32, u32, u32) {
    match dtype {
        KVX_DTYPE_F16 => (5, 10, 0x7c00),
        KVX_DTYPE_BF16 => (8, 7, 0x7f80),
        KVX_DTYPE_F32 => (8, 23, 0x7f80_0000),
        KVX_DTYPE_F8_E4M3 => (4, 3, 0x7f),
        KVX_DTYPE_F8_E5M2 => (5, 2, 0x7c),
        _ => unreachable!(),
    }
}

/// What the bits of `dtype` mean.
pub fn decode(dtype: u32, bits: u32) -> f64 {
    let (exp, man, special) = format(dtype);
    let code = bits & ((1 << (exp + man)) - 1);
    let magnitude = if code < special {
        value(code, exp, man)
    } else if code == special && dtype != KVX_DTYPE_F8_E4M3 {
        f64::INFINITY
    } else {
        f64::NAN
    };
    if bits >> (exp + man) & 1 == 1 { -magnitude } else { magnitude }
}

/// `x` to FP8, saturating. NaN becomes 0x7f.
pub fn encode_fp8(dtype: u32, x: f64) -> u32 {
    let (exp, man, special) = format(dtype);
    let sign = u32::from(x.is_sign_negative()) << 7;
    let code = if x.is_nan() { 0x7f } else { nearest(x.abs(), special - 1, exp, man) };
    sign | code
}

/// `x` to F16, BF16 or F32; to infinity where it is too large. Not for NaN.
pub fn encode_wide(dtype: u32, x: f64) -> u32 {
    let (exp, man, special) = format(dtype);
    let sign = u32::from(x.is_sign_negative()) << (exp + man);
    sign | nearest(x.abs(), special, exp, man)
}

pub fn read_bits(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |bits, b| bits << 8 | u32::from(*b))
}
