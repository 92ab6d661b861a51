//! The ways of Linux.

pub mod child;
pub mod confine;
pub mod event;
pub mod files;
pub mod memory;
pub mod paths;
#[cfg(feature = "roots")]
pub mod roots;
pub mod signals;
pub mod sockets;
pub mod stderr;
pub mod system;

pub const LACKS: &[crate::Lack] = &[];
