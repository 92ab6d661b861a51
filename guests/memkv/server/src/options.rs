//! What can be said on the command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use kv_size::Bytes;
use memkv_wire::Key;

/// Keep chunks and manifests for the memkv backend of kv-store-wasm, in memory and, with --data, in files.
///
/// Clients authenticate with a shared key of 32 bytes, given as 64 hex digits in MEMKV_AUTH_KEY. Every frame is signed
/// with it. Nothing is encrypted: use it on trusted networks only.
///
/// When the memory is full, the least recently used is evicted; a manifest is evicted before the chunks that it names.
#[derive(clap::Parser)]
#[command(
    version,
    about,
    long_about,
    after_help = "Example:\n  \
        export MEMKV_AUTH_KEY=$(od -An -tx1 -N32 /dev/urandom | tr -d ' \\n')\n  \
        memkv-server --listen 127.0.0.1:9900 --memory 4GiB --data /var/lib/memkv\n\n\
        A consumer with the same MEMKV_AUTH_KEY then opens memkv://127.0.0.1:9900/some-namespace\n\n\
        Admin endpoints, without a login, on the next port: GET /v1/health, /v1/ready, /v1/status (JSON), /v1/metrics\n\
        (Prometheus). SIGTERM stops the server after the running requests are answered."
)]
pub struct Options {
    /// Address and port for clients; the admin endpoints are on the next port. With port 0 two free ones are chosen; the
    /// line `memkv-server listening data=... admin=...` on standard output names them, when the server is ready
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9900")]
    pub listen: SocketAddr,

    /// The most memory (and disk, with --data) for chunks and manifests, before the least recently used are evicted: bytes, or
    /// as in 512MiB, 1.5GiB
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    pub memory: u64,

    /// The longest chunk or manifest; at most half of --memory [default: 512MiB, or half of --memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_value: Option<u64>,

    /// Also keep everything in files below this folder, and load them at the start. An acknowledged manifest then
    /// survives a crash and power loss, with its chunks. Damaged files are moved to DIR/damaged.
    /// If the files are larger than --memory together, the server does not start
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,

    /// Evict what was unused for this long, even if there is room; a manifest is evicted before the chunks that it names
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub ttl_seconds: Option<u32>,

    /// The most clients at a time
    #[arg(long, value_name = "NUMBER", default_value_t = 256)]
    pub connections: usize,

    /// Disconnect a client that has sent nothing for this long
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub idle_seconds: u64,

    /// Write the manual page to standard output, for those who package this program
    #[arg(long, hide = true, exclusive = true)]
    pub man: bool,

    /// Read the key from a file rather than from MEMKV_AUTH_KEY
    #[arg(long, value_name = "FILE")]
    pub auth_key_file: Option<PathBuf>,
}

impl Options {
    /// The key that clients must have.
    pub fn key(&self) -> Result<Key> {
        let (text, from) = match &self.auth_key_file {
            Some(file) => {
                let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
                (text, file.display().to_string())
            }
            None => match std::env::var("MEMKV_AUTH_KEY") {
                Ok(text) => (text, "MEMKV_AUTH_KEY".to_owned()),
                Err(_) => {
                    bail!("MEMKV_AUTH_KEY is not set: set it to 64 hex digits (see --help), or use --auth-key-file")
                }
            },
        };
        Key::from_hex(&text).map_err(|wrong| anyhow::anyhow!("{from}: {wrong}"))
    }
}

/// A number of bytes above 0.
fn size(text: &str) -> Result<u64, String> {
    Bytes::flag(text).and_then(|bytes| if bytes > 0 { Ok(bytes) } else { Err("must be above 0".into()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("1", 1), ("64KiB", 64 << 10), ("16MiB", 16 << 20), ("2 GiB", 2 << 30), ("1.5GB", 1_500_000_000)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "0", "GiB", "1Gb", "-1", "99999999999GiB"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_options_are_sound() {
        Options::command().debug_assert();
    }
}
