//! The C ABI as types and constants: one module for each header of `include/`, which has the documentation.
//!
//! Who implements a table and who calls one use these types: no other crate declares them. Invariants: the size and the offset of every
//! field of every struct are asserted, so another layout does not compile; and the names, types and numbers are those of the headers, which
//! `xtask/tests/headers.rs` compares by rust-bindgen. Enums are plain integers: they come from outside, and a Rust enum with an unknown value
//! is undefined.
//!
//! [`store`] and [`kvx`] are published ABIs, which other libraries implement too; their functions may be NULL, so they are `Option`s.

#![no_std]
#![allow(non_camel_case_types, missing_docs)]

/// Asserts the size of a struct and the offset of every field. One that is left out does not compile.
macro_rules! layout {
    ($type:ident, $size:literal, $($field:ident $offset:literal),+) => {
        #[cfg(target_pointer_width = "64")]
        const _: () = {
            assert!(size_of::<$type>() == $size);
            $(assert!(core::mem::offset_of!($type, $field) == $offset);)+
        };
        const _: fn($type) = |$type { $($field: _),+ }| ();
    };
}

pub mod batch;
pub mod blocks;
pub mod cache;
pub mod deprecated;
pub mod describe;
pub mod kvx;
pub mod llama;
pub mod process;
pub mod sequences;
pub mod status;
pub mod store;

// The programs of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
