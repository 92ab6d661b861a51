//! `kv-store-compile ENGINE THREADS`: what the library starts to compile one component; see the library of this crate.
//!
//! It is of no use by hand. ENGINE is the library's hash of its engine, in hexadecimal digits.

use std::io::{Read, Write};
use std::process::ExitCode;

use kv_platform::child::confine;
use kv_store_compiler::{Seal, engine_hash, exit};
use sha2::{Digest, Sha256};
use wasmtime::Engine;
use xxhash_rust::xxh3::xxh3_64;

/// Why nothing was compiled: the exit code, and what is said.
type Failure = (u8, String);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::from(exit::DONE),
        Err((code, why)) => {
            eprintln!("{why}");
            ExitCode::from(code)
        }
    }
}

fn run() -> Result<(), Failure> {
    let unable = |error: &dyn std::fmt::Display| (exit::UNABLE, error.to_string());
    let mut arguments = std::env::args().skip(1);
    let wanted = arguments.next().and_then(|hash| u64::from_str_radix(&hash, 16).ok());
    let threads = arguments.next().and_then(|count| count.parse().ok());
    let (Some(wanted), Some(threads)) = (wanted, threads) else {
        return Err(unable(&"this program is started by the kv-store-wasm library, and by nothing else"));
    };
    let engine = Engine::new(&kv_store_compiler::config()).map_err(|error| unable(&error))?;
    let hash = engine_hash(&engine);
    if hash != wanted {
        let why = format!("its engine is {hash:016x}, and the library's is {wanted:016x}");
        return Err((exit::OTHER_BUILD, why));
    }
    // Before it is confined, because no thread can be started after it; each has run when the broadcast is over, for glibc
    // makes system calls of its own where a thread begins.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(|error| unable(&error))?;
    pool.broadcast(|_| ());
    confine(arguments).map_err(|error| unable(&error))?;

    let mut component = Vec::new();
    std::io::stdin().lock().read_to_end(&mut component).map_err(|error| unable(&error))?;
    let digest = Sha256::digest(&component).into();
    let code = pool
        .install(|| engine.precompile_component(&component))
        .map_err(|error| (exit::REFUSED, format!("{error:#}")))?;
    let seal = Seal { code_len: code.len() as u64, code_sum: xxh3_64(&code), digest, engine: hash };
    let mut out = std::io::stdout().lock();
    let written = out.write_all(&code).and_then(|()| out.write_all(&seal.to_bytes())).and_then(|()| out.flush());
    written.map_err(|error| unable(&format!("cannot write the code: {error}")))
}
