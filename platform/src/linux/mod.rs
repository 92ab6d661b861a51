//! The ways of Linux.

pub mod child;
pub mod confine;
pub mod event;
pub mod files;
pub mod memory;
pub mod paths;
pub mod signals;
pub mod sockets;
pub mod stderr;
pub mod system;

pub const LACKS: &[crate::Lack] = &[];
