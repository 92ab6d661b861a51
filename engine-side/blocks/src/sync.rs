//! What locks and counts are made of here. Tests put another module in its place, which runs the schedules that can happen.

pub(crate) use kv_platform::sync::Mutex;
pub(crate) use std::sync::atomic::{AtomicU32, Ordering};
