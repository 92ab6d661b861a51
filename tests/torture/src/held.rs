//! What this process holds, of which it may have no more when all handles are closed.

use std::ffi::{CStr, c_char};
use std::time::Duration;

use kv_store_tests::faulty_library_path;

/// As in `include/kv_store_wasm.h`.
type Metrics = unsafe extern "C" fn(*mut c_char, usize) -> usize;

#[derive(Debug)]
pub struct Held {
    /// What the descriptors lead to, in order.
    files: Vec<String>,
    payload_bytes: u64,
    write_buffer_bytes: u64,
    connections: u64,
}

impl Held {
    fn now() -> Result<Self, String> {
        let text = metrics().ok_or("the library has no counters")?;
        let gauge = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
            value.ok_or_else(|| format!("the library counts no {name}"))
        };
        Ok(Held {
            files: files(),
            payload_bytes: gauge("kv_store_payload_bytes")?,
            write_buffer_bytes: gauge("kv_store_write_buffer_bytes")?,
            connections: gauge("kv_store_connections")?,
        })
    }

    /// With no handle open and idle connections gone.
    pub fn at_rest() -> Result<Self, String> {
        wait_for(|now| now.connections == 0)
    }

    /// With all handles closed, idle connections gone and kept directories closed, nothing is held that was not before.
    pub fn is_back(&self) -> Result<(), String> {
        let now = wait_for(|now| self.covers(now))?;
        if self.covers(&now) { Ok(()) } else { Err(format!("something is left: {now:?}; it was {self:?} before")) }
    }

    fn covers(&self, other: &Held) -> bool {
        other.files.len() <= self.files.len()
            && other.payload_bytes <= self.payload_bytes
            && other.write_buffer_bytes <= self.write_buffer_bytes
            && other.connections <= self.connections
    }
}

/// What is held when it is as it should be, or after five seconds.
fn wait_for(good: impl Fn(&Held) -> bool) -> Result<Held, String> {
    for _ in 0..250 {
        let now = Held::now()?;
        if good(&now) {
            return Ok(now);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Held::now()
}

/// The counters, of the library that is loaded already.
fn metrics() -> Option<String> {
    let path = std::ffi::CString::new(faulty_library_path().into_os_string().into_encoded_bytes()).ok()?;
    let mut buffer = vec![0_u8; 64 << 10];
    // SAFETY: names are C strings; the symbol has the type of the header; it writes at most as many bytes as the buffer has,
    // and a NUL at their end. The library stays loaded: its own loader never closes it.
    let text = unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        let symbol = if library.is_null() { library } else { libc::dlsym(library, c"kv_store_wasm_metrics".as_ptr()) };
        if symbol.is_null() {
            return None;
        }
        let metrics: Metrics = std::mem::transmute(symbol);
        let len = metrics(buffer.as_mut_ptr().cast(), buffer.len());
        libc::dlclose(library);
        if len == 0 || len >= buffer.len() {
            return None;
        }
        CStr::from_bytes_until_nul(&buffer).ok()?
    };
    Some(text.to_string_lossy().into_owned())
}

pub fn open_files() -> u64 {
    files().len() as u64
}

fn files() -> Vec<String> {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let mut files: Vec<String> =
        entries.filter_map(|entry| Some(std::fs::read_link(entry.path()).ok()?.display().to_string())).collect();
    files.sort();
    files
}
