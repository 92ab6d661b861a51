//! The rows, by what they measure.

pub mod batch;
pub mod cluster;
pub mod descriptor;
pub mod disk;
pub mod fence;
pub mod fs;
pub mod growth;
pub mod mooncake;
pub mod near;
pub mod open;
pub mod prefetch;
pub mod redis;
pub mod s3;
pub mod save;
pub mod segments;
pub mod servers;
pub mod threads;

/// A size as it stands in a row's name.
pub fn size_name(bytes: usize) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 => format!("{}MiB", bytes >> 20),
        bytes => format!("{}KiB", bytes >> 10),
    }
}
