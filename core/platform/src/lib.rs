//! What the operating system is asked for that POSIX does not have, or has in another way: each function says what it promises, and has a
//! way for Linux and a portable one. Nothing else in the workspace asks which system it is built for.
//!
//! The portable ways are compiled on Linux as well, and chosen there by the feature `portable`, so that the tests run what other systems
//! run. What a system cannot promise is in [`LACKS`], by name; `kv-store doctor` and docs/threat-model.md say the same.
//!
//! Two modules are about the process that has loaded a library: [`signals`] stay that process's, and what is said on its [`stderr`] waits
//! for nobody. [`sync`] has the locks, which a panic of that process's threads does not break.

pub mod child;
pub mod event;
pub mod files;
pub mod memory;
pub mod paths;
#[cfg(feature = "roots")]
pub mod roots;
pub mod signals;
pub mod sockets;
pub mod stderr;
pub mod sync;
pub mod system;

#[cfg(target_os = "linux")]
#[cfg_attr(feature = "portable", allow(dead_code, unused_imports))]
mod linux;
#[cfg_attr(not(feature = "portable"), allow(dead_code))]
mod portable;

#[cfg(all(target_os = "linux", not(feature = "portable")))]
use linux as way;
#[cfg(not(all(target_os = "linux", not(feature = "portable"))))]
use portable as way;

/// Something that the library promises on Linux, and not on this system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lack {
    pub name: &'static str,
    /// What holds in place of the promise.
    pub instead: &'static str,
}

/// What this build cannot promise.
pub const LACKS: &[Lack] = way::LACKS;

/// Whether this build promises what `name` stands for.
pub fn promises(name: &str) -> bool {
    LACKS.iter().all(|lack| lack.name != name)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod both;
