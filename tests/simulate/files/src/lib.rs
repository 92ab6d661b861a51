//! The files of a simulated machine: a [`tree`] as processes see it and as the disk has it, the system calls on it ([`Disk`]), and a directory as
//! the host grants it to a component ([`Share`]).
//!
//! Nothing here waits or fails by itself. How long a call takes, who is stopped before it and what befalls it is for the program that has the disk.

mod disk;
#[path = "../../../torture/src/states/pages.rs"]
mod pages;
mod share;
pub mod tree;

pub use disk::{Disk, Open};
pub use pages::Pick;
pub use share::{Calls, Share, told};
