//! The two clocks of the server.

use crate::os::system;

pub fn wall() -> u64 {
    system(|system| system.wall())
}

pub fn steady() -> u64 {
    system(|system| system.steady())
}
