//! Descriptors of any bytes, over buffers that are real: the C functions answer, and touch nothing else.
//!
//! A descriptor that is consistent in itself but claims more memory than there is can not be told from a true one. So the
//! pointers are real, and fields that only make a claim larger are cut to what the buffers hold; all others are the
//! fuzzer's. The sanitizer sees what is read or written outside.
#![no_main]

use std::ffi::c_void;

use arbitrary::{Arbitrary, Unstructured};
use kvx::ffi::*;
use libfuzzer_sys::fuzz_target;

/// Of one pool, of tokens, of indices: more than what passes validation reaches, as the dimensions are cut below.
const BUFFER: usize = 1 << 16;

/// A descriptor whose bits are the fuzzer's: all its fields are integers and pointers, of which every value is valid.
fn any<T>(u: &mut Unstructured<'_>) -> arbitrary::Result<T> {
    let mut bytes = vec![0u8; size_of::<T>()];
    u.fill_buffer(&mut bytes)?;
    // SAFETY: as many bytes as the struct has, and see above.
    Ok(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// A descriptor of zeros.
fn zeros<T>() -> T {
    // SAFETY: as in `any`, every value is valid.
    unsafe { std::mem::zeroed() }
}

/// Mostly a number that can be right.
fn some(u: &mut Unstructured<'_>, likely: u32) -> arbitrary::Result<u32> {
    Ok(if u.ratio(15, 16)? { likely } else { u32::arbitrary(u)? })
}

struct Call {
    dims: [u32; 4],
    layout: u32,
    dtype: u32,
    /// Of the tokens that are written and gathered.
    io_dtype: u32,
    /// Whether indices have 8 bytes, and not 4.
    wide: bool,
}

impl Call {
    fn index_dtype(&self) -> u32 {
        if self.wide { 7 } else { 6 }
    }
}

/// What the descriptors point to.
struct Buffers {
    pools: [Vec<u8>; 2],
    out: [Vec<u8>; 2],
    indices: Vec<u8>,
}

impl Buffers {
    fn new(u: &mut Unstructured<'_>) -> arbitrary::Result<Self> {
        let mut indices = vec![0u8; 4096];
        for index in indices.chunks_exact_mut(4) {
            let number: i32 = if u.ratio(15, 16)? { u.int_in_range(-1..=9)? } else { u.arbitrary()? };
            index.copy_from_slice(&number.to_ne_bytes());
        }
        let pools = [(); 2].map(|()| vec![1u8; BUFFER]);
        Ok(Buffers { pools, out: [(); 2].map(|()| vec![2u8; BUFFER * 4]), indices })
    }
}

fn tensor(
    u: &mut Unstructured<'_>,
    shape: &[i64],
    dtype: u32,
    layout: u32,
    data: *mut u8,
) -> arbitrary::Result<kvx_tensor_desc_t> {
    let mut desc: kvx_tensor_desc_t = if u.ratio(1, 16)? { any(u)? } else { zeros() };
    desc.size = some(u, 112)?;
    desc.dtype = some(u, dtype)?;
    desc.layout = some(u, layout)?;
    desc.memory = some(u, 1)?;
    desc.ndim = some(u, shape.len() as u32)?;
    let mut step = 1i64;
    for (i, extent) in shape.iter().enumerate().rev() {
        desc.shape[i] = *extent;
        // Larger strides would claim memory that is not there.
        desc.stride[i] = if u.ratio(7, 8)? { step } else { u.int_in_range(-2..=8)? };
        step *= extent;
    }
    desc.data = data.cast();
    Ok(desc)
}

fn cache(u: &mut Unstructured<'_>, call: &Call, pools: &mut [Vec<u8>; 2]) -> arbitrary::Result<kvx_cache_desc_t> {
    let [b, t, h, d] = call.dims.map(i64::from);
    let pack = if u.ratio(3, 4)? && d > 0 && d % 2 == 0 { d / 2 } else { 1 };
    let shape = match call.layout {
        2 => vec![b, h, t, d],
        3 => vec![b, h, d / pack, t, pack],
        _ => vec![b, t, h, d],
    };
    let [k, v] = pools.each_mut().map(|pool| pool.as_mut_ptr());
    let mut desc: kvx_cache_desc_t = zeros();
    desc.size = some(u, 280)?;
    desc.num_blocks = call.dims[0];
    desc.block_size = call.dims[1];
    desc.num_kv_heads = call.dims[2];
    desc.head_dim = call.dims[3];
    desc.k = tensor(u, &shape, call.dtype, call.layout, k)?;
    desc.v = tensor(u, &shape, call.dtype, call.layout, v)?;
    desc.pool.size = some(u, 32)?;
    desc.pool.memory = some(u, 1)?;
    // num_blocks of these are in the buffer.
    desc.pool.bytes_per_block = u.int_in_range(0..=(BUFFER / 8) as u32)?;
    desc.pool.primary = k.cast();
    desc.pool.secondary = if u.arbitrary()? { v.cast() } else { std::ptr::null_mut() };
    Ok(desc)
}

fn io(
    u: &mut Unstructured<'_>,
    call: &Call,
    lead: &[i64],
    out: &mut [Vec<u8>; 2],
) -> arbitrary::Result<kvx_kv_io_desc_t> {
    let [key, value] = out.each_mut().map(|out| out.as_mut_ptr());
    let shape = [lead, &[i64::from(call.dims[2]), i64::from(call.dims[3])]].concat();
    let mut desc: kvx_kv_io_desc_t = zeros();
    desc.size = some(u, 248)?;
    desc.key = tensor(u, &shape, call.io_dtype, 15, key)?;
    desc.value = tensor(u, &shape, call.io_dtype, 15, value)?;
    // Rows with gaps: 64 of 4 * 32 elements and these still fit.
    let gap = if u.ratio(1, 4)? { u.int_in_range(0..=8)? } else { 0 };
    for i in 0..lead.len() {
        let rows: i64 = lead[i + 1..].iter().product();
        desc.key.stride[i] += rows * gap;
        desc.value.stride[i] += rows * gap;
    }
    desc.num_tokens = some(u, lead.iter().product::<i64>() as u32)?;
    desc.num_kv_heads = some(u, call.dims[2])?;
    desc.head_dim = some(u, call.dims[3])?;
    Ok(desc)
}

fn scale(u: &mut Unstructured<'_>, call: &Call, values: &[u8]) -> arbitrary::Result<kvx_scale_desc_t> {
    let mut desc: kvx_scale_desc_t = if u.arbitrary()? { zeros() } else { any(u)? };
    desc.size = some(u, 104)?;
    desc.dtype = some(u, 3)?;
    desc.granularity = u.int_in_range(0..=5)?;
    desc.ndim = u.int_in_range(0..=6)?;
    desc.shape = [call.dims[0], call.dims[2], 1, 1, 1].map(i64::from);
    if desc.granularity == 3 {
        desc.shape[0] = call.dims[2].into();
    }
    desc.stride = [u.int_in_range(-1..=16)?, u.int_in_range(-1..=16)?, 1, 1, 1];
    desc.data = if u.arbitrary()? { std::ptr::null() } else { values.as_ptr().cast() };
    Ok(desc)
}

fn run(u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    if u.ratio(1, 8)? {
        // Nothing but the descriptor is looked at, so all of it is the fuzzer's.
        let mut desc: kvx_cache_desc_t = any(u)?;
        desc.size = some(u, 280)?;
        // SAFETY: a descriptor that is there.
        let status = unsafe { kvx_validate_cache_desc(&desc) };
        assert!(status <= KVX_STATUS_UNSUPPORTED);
    }
    let mut call = Call {
        // 8 * 8 * 4 * 32 elements of 4 bytes are half of a buffer; strides up to 8 are for smaller ones.
        dims: [u.int_in_range(0..=8)?, u.int_in_range(0..=8)?, u.int_in_range(0..=4)?, u.int_in_range(0..=32)?],
        layout: *u.choose(&[0, 1, 2, 3, 15])?,
        dtype: u.int_in_range(0..=6)?,
        io_dtype: 0,
        wide: false,
    };
    let mut buffers = Buffers::new(u)?;
    call.wide = u.arbitrary()?;
    let desc = cache(u, &call, &mut buffers.pools)?;
    call.io_dtype = if u.arbitrary()? { call.dtype } else { u.int_in_range(0..=6)? };
    write(u, &call, &desc, &mut buffers)?;
    gather(u, &call, &desc, &mut buffers)
}

fn write(
    u: &mut Unstructured<'_>,
    call: &Call,
    cache: &kvx_cache_desc_t,
    buffers: &mut Buffers,
) -> arbitrary::Result<()> {
    let Buffers { out, indices, .. } = buffers;
    let tokens: u32 = u.int_in_range(0..=64)?;
    let mut write: kvx_write_desc_t = zeros();
    write.size = some(u, 512)?;
    write.io = io(u, call, &[tokens.into()], out)?;
    write.slots.size = some(u, 32)?;
    write.slots.dtype = some(u, call.index_dtype())?;
    write.slots.token_count = u.int_in_range(0..=64)?;
    if u.ratio(7, 8)? {
        write.slots.token_count = tokens;
    }
    write.slots.invalid_slot = u.arbitrary()?;
    write.slots.slots = indices.as_ptr().cast();
    write.k_scale = if u.arbitrary()? { indices.as_ptr().cast() } else { std::ptr::null() };
    write.v_scale = write.k_scale;
    write.k_scale_desc = scale(u, call, indices)?;
    write.v_scale_desc = scale(u, call, indices)?;
    // SAFETY: real buffers, larger than what the descriptors describe.
    let status = unsafe { kvx_write_kv(cache, &write, std::ptr::null_mut::<c_void>()) };
    assert!(status <= KVX_STATUS_OUT_OF_RANGE);
    Ok(())
}

fn gather(
    u: &mut Unstructured<'_>,
    call: &Call,
    cache: &kvx_cache_desc_t,
    buffers: &mut Buffers,
) -> arbitrary::Result<()> {
    let Buffers { out, indices, .. } = buffers;
    let [seqs, width, beams, max]: [u32; 4] =
        [u.int_in_range(0..=4)?, u.int_in_range(0..=4)?, u.int_in_range(0..=2)?, u.int_in_range(0..=16)?];
    let mut gather: kvx_gather_desc_t = zeros();
    gather.size = some(u, 352)?;
    let table = &mut gather.block_table;
    table.size = some(u, 64)?;
    table.format = u.int_in_range(0..=4)?;
    table.index_dtype = some(u, if table.format == 3 { 6 } else { call.index_dtype() })?;
    table.indptr_dtype = some(u, call.index_dtype())?;
    table.seq_count = seqs;
    table.beam_width = if table.format == 3 { beams } else { some(u, 1)? };
    table.max_blocks_per_seq = some(u, width)?;
    let ragged = table.format == 2;
    let mut indptr = vec![0u8; 64];
    let size = if call.wide { 8 } else { 4 };
    for (i, entry) in indptr.chunks_exact_mut(size).take(seqs as usize + 1).enumerate() {
        entry.copy_from_slice(&(i as u64 * 3).to_ne_bytes()[..size]);
    }
    table.indices = indices.as_ptr().cast();
    table.indptr = if ragged { indptr.as_ptr().cast() } else { std::ptr::null() };
    let count = match table.format {
        2 => seqs * 3,
        3 => seqs * beams * 2 * width,
        _ => seqs * width,
    };
    // What is claimed is there: 512 indices of 8 bytes.
    table.indices_count = some(u, count)?.min(512);
    table.indptr_count = if ragged { seqs + 1 } else { some(u, 0)?.min(8) };
    table.flags = some(u, u32::from(table.format == 3))?;
    let rows = if table.format == 3 { seqs * beams } else { seqs };
    gather.seq_lens.size = some(u, 24)?;
    gather.seq_lens.dtype = some(u, gather.block_table.index_dtype)?;
    gather.seq_lens.seq_count = some(u, seqs)?.min(512);
    gather.seq_lens.lengths = indices[512..].as_ptr().cast();
    gather.seq_lens.seq_count = gather.seq_lens.seq_count.min(256);
    gather.max_seq_len = max;
    gather.io = io(u, call, &[rows.into(), max.into()], out)?;
    // SAFETY: as above.
    let status = unsafe { kvx_gather_kv(cache, &gather, std::ptr::null_mut::<c_void>()) };
    assert!(status <= KVX_STATUS_OUT_OF_RANGE);
    Ok(())
}

fuzz_target!(|data: &[u8]| {
    // What the fuzzer has not said is no call.
    let _ = run(&mut Unstructured::new(data));
});
