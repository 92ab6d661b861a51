//! Bytes in host memory: what a consumer gets, what a guest sees as a handle, and what it addresses as an item.
//!
//! A [`Buffer`] is the host's own. [`ValueMemory`] is the caller's, for the length of one call; a guest reaches it only through the
//! [`Items`] of that call, which the host ends before the call returns. A [`Payload`] is what a handle of a guest stands for.

mod buffer;
mod items;
mod memory;
pub mod spare;
mod sum;

use std::sync::Arc;

pub use buffer::Buffer;
pub use buffer::Filling;
pub use buffer::counts;
pub use items::{Damaged, Got};
pub use items::{Destination, Fill, ItemSource, Items, Placed, place};
pub use memory::{PayloadBytes, ValueMemory};
#[cfg(test)]
pub use sum::Summing;
pub use sum::{Covering, Sum, Xxh3, xxh3};

/// What a guest's handle stands for.
pub enum Payload {
    /// Bytes that live until the last handle to them is gone.
    Owned(Arc<Buffer>),
    /// Bytes that lie in the memory of an item, until the call of that item is over.
    Placed(Placed),
}
