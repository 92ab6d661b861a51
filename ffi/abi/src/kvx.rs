//! `include/kvx_abi.h`: the published KVX ABI 1.1.
//!
//! The library exports its functions one by one, as the ABI has it.

use core::ffi::c_void;

pub type kvx_status_t = u32;
pub const KVX_STATUS_OK: kvx_status_t = 0;
pub const KVX_STATUS_INVALID_ARGUMENT: kvx_status_t = 1;
pub const KVX_STATUS_UNSUPPORTED: kvx_status_t = 2;
pub const KVX_STATUS_OUT_OF_RANGE: kvx_status_t = 3;
pub const KVX_STATUS_INCOMPATIBLE: kvx_status_t = 4;
pub const KVX_STATUS_INTERNAL_ERROR: kvx_status_t = 5;

pub type kvx_dtype_t = u32;
pub const KVX_DTYPE_INVALID: kvx_dtype_t = 0;
pub const KVX_DTYPE_F16: kvx_dtype_t = 1;
pub const KVX_DTYPE_BF16: kvx_dtype_t = 2;
pub const KVX_DTYPE_F32: kvx_dtype_t = 3;
pub const KVX_DTYPE_F8_E4M3: kvx_dtype_t = 4;
pub const KVX_DTYPE_F8_E5M2: kvx_dtype_t = 5;
pub const KVX_DTYPE_S32: kvx_dtype_t = 6;
pub const KVX_DTYPE_S64: kvx_dtype_t = 7;
pub const KVX_DTYPE_U32: kvx_dtype_t = 8;
pub const KVX_DTYPE_U64: kvx_dtype_t = 9;
pub const KVX_DTYPE_U8: kvx_dtype_t = 10;

pub type kvx_memory_type_t = u32;
pub const KVX_MEMORY_UNKNOWN: kvx_memory_type_t = 0;
pub const KVX_MEMORY_HOST: kvx_memory_type_t = 1;
pub const KVX_MEMORY_DEVICE: kvx_memory_type_t = 2;
pub const KVX_MEMORY_UNIFIED: kvx_memory_type_t = 3;

pub type kvx_layout_t = u32;
pub const KVX_LAYOUT_INVALID: kvx_layout_t = 0;
pub const KVX_LAYOUT_BLOCK_NHD: kvx_layout_t = 1;
pub const KVX_LAYOUT_BLOCK_HND: kvx_layout_t = 2;
pub const KVX_LAYOUT_BLOCK_HND_PACKED: kvx_layout_t = 3;
pub const KVX_LAYOUT_BLOCK_CUSTOM: kvx_layout_t = 15;

pub type kvx_block_table_format_t = u32;
pub const KVX_BLOCK_TABLE_INVALID: kvx_block_table_format_t = 0;
pub const KVX_BLOCK_TABLE_PACKED: kvx_block_table_format_t = 1;
pub const KVX_BLOCK_TABLE_RAGGED: kvx_block_table_format_t = 2;
pub const KVX_BLOCK_TABLE_KV_OFFSETS: kvx_block_table_format_t = 3;

pub type kvx_block_table_flags_t = u32;
pub const KVX_BLOCK_TABLE_FLAG_NONE: kvx_block_table_flags_t = 0;
pub const KVX_BLOCK_TABLE_FLAG_KVCACHEINDEX: kvx_block_table_flags_t = 1;

pub type kvx_scale_granularity_t = u32;
pub const KVX_SCALE_NONE: kvx_scale_granularity_t = 0;
pub const KVX_SCALE_PER_TENSOR: kvx_scale_granularity_t = 1;
pub const KVX_SCALE_PER_BLOCK: kvx_scale_granularity_t = 2;
pub const KVX_SCALE_PER_HEAD: kvx_scale_granularity_t = 3;
pub const KVX_SCALE_PER_BLOCK_HEAD: kvx_scale_granularity_t = 4;

pub const KVX_ABI_VERSION_MAJOR: u32 = 1;
pub const KVX_ABI_VERSION_MINOR: u32 = 1;
pub const KVX_MAX_TENSOR_DIMS: usize = 5;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvx_version_t {
    pub size: u32,
    pub abi_major: u32,
    pub abi_minor: u32,
    pub abi_patch: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvx_tensor_desc_t {
    pub size: u32,
    pub dtype: kvx_dtype_t,
    pub layout: kvx_layout_t,
    pub memory: kvx_memory_type_t,
    pub ndim: u32,
    pub shape: [i64; KVX_MAX_TENSOR_DIMS],
    pub stride: [i64; KVX_MAX_TENSOR_DIMS],
    pub data: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvx_pool_desc_t {
    pub size: u32,
    pub memory: kvx_memory_type_t,
    pub bytes_per_block: u32,
    pub primary: *mut c_void,
    pub secondary: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvx_cache_desc_t {
    pub size: u32,
    pub num_blocks: u32,
    pub block_size: u32,
    pub num_kv_heads: u32,
    pub head_dim: u32,
    pub k: kvx_tensor_desc_t,
    pub v: kvx_tensor_desc_t,
    pub pool: kvx_pool_desc_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvx_block_table_t {
    pub size: u32,
    pub format: kvx_block_table_format_t,
    pub index_dtype: kvx_dtype_t,
    pub indptr_dtype: kvx_dtype_t,
    pub seq_count: u32,
    pub beam_width: u32,
    pub max_blocks_per_seq: u32,
    pub indices: *const c_void,
    pub indptr: *const c_void,
    pub indices_count: u32,
    pub indptr_count: u32,
    pub flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvx_slot_mapping_t {
    pub size: u32,
    pub dtype: kvx_dtype_t,
    pub token_count: u32,
    pub invalid_slot: i64,
    pub slots: *const c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvx_seq_lens_t {
    pub size: u32,
    pub dtype: kvx_dtype_t,
    pub seq_count: u32,
    pub lengths: *const c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvx_kv_io_desc_t {
    pub size: u32,
    pub key: kvx_tensor_desc_t,
    pub value: kvx_tensor_desc_t,
    pub num_tokens: u32,
    pub num_kv_heads: u32,
    pub head_dim: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvx_scale_desc_t {
    pub size: u32,
    pub dtype: kvx_dtype_t,
    pub granularity: kvx_scale_granularity_t,
    pub ndim: u32,
    pub shape: [i64; KVX_MAX_TENSOR_DIMS],
    pub stride: [i64; KVX_MAX_TENSOR_DIMS],
    pub data: *const c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvx_write_desc_t {
    pub size: u32,
    pub io: kvx_kv_io_desc_t,
    pub slots: kvx_slot_mapping_t,
    pub k_scale: *const c_void,
    pub v_scale: *const c_void,
    pub k_scale_desc: kvx_scale_desc_t,
    pub v_scale_desc: kvx_scale_desc_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvx_gather_desc_t {
    pub size: u32,
    pub io: kvx_kv_io_desc_t,
    pub block_table: kvx_block_table_t,
    pub seq_lens: kvx_seq_lens_t,
    pub max_seq_len: u32,
}

#[rustfmt::skip]
mod layout {
    use super::*;
    layout!(kvx_version_t, 16, size 0, abi_major 4, abi_minor 8, abi_patch 12);
    layout!(kvx_tensor_desc_t, 112, size 0, dtype 4, layout 8, memory 12, ndim 16, shape 24, stride 64, data 104);
    layout!(kvx_pool_desc_t, 32, size 0, memory 4, bytes_per_block 8, primary 16, secondary 24);
    layout!(kvx_cache_desc_t, 280, size 0, num_blocks 4, block_size 8, num_kv_heads 12, head_dim 16, k 24, v 136, pool 248);
    layout!(kvx_block_table_t, 64, size 0, format 4, index_dtype 8, indptr_dtype 12, seq_count 16, beam_width 20,
        max_blocks_per_seq 24, indices 32, indptr 40, indices_count 48, indptr_count 52, flags 56);
    layout!(kvx_slot_mapping_t, 32, size 0, dtype 4, token_count 8, invalid_slot 16, slots 24);
    layout!(kvx_seq_lens_t, 24, size 0, dtype 4, seq_count 8, lengths 16);
    layout!(kvx_kv_io_desc_t, 248, size 0, key 8, value 120, num_tokens 232, num_kv_heads 236, head_dim 240);
    layout!(kvx_scale_desc_t, 104, size 0, dtype 4, granularity 8, ndim 12, shape 16, stride 56, data 96);
    layout!(kvx_write_desc_t, 512, size 0, io 8, slots 256, k_scale 288, v_scale 296, k_scale_desc 304, v_scale_desc 408);
    layout!(kvx_gather_desc_t, 352, size 0, io 8, block_table 256, seq_lens 320, max_seq_len 344);
}
