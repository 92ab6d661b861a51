//! See `tests/hyper.rs`.
