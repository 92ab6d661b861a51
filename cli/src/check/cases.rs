//! The process in which a case runs: it loads the subject, runs the case, and says what came.

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use kv_store_conformance::{CASES, Facts, Library, Needs, Place, RESTARTS, Subject, Vtable};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};

/// Run a case in this process (what `check` starts)
#[derive(clap::Args)]
pub struct Arguments {
    /// A native library; without it, ours with the component that the environment names
    #[arg(long)]
    library: Option<PathBuf>,
    /// A store that may hold other things
    #[arg(long)]
    uri: Option<String>,
    /// Stores of one's own: a URI before the name of each
    #[arg(long)]
    stores: Option<String>,
    #[arg(long, default_value_t = 0)]
    salt: u64,
    /// The most memory that this process may take, in MiB
    #[arg(long)]
    memory: Option<u64>,
    /// Only compile this component, within so many seconds
    #[arg(long, requires = "seconds")]
    compile: Option<PathBuf>,
    #[arg(long)]
    seconds: Option<u64>,
    /// The case's name; `NAME:after` is the second part of one that outlives its process
    name: Option<String>,
}

/// The variable that tells the process which component, by its digest, must be the one that is loaded.
pub const EXPECTED: &str = "KV_STORE_CHECK_SHA256";

/// What is said on standard output, a line for each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Said {
    /// The store opens; what it says it reached.
    Opened(String),
    /// It does not.
    Refused(String),
    /// The component is compiled; how long it took, and whether the code is kept for the next process.
    Compiled {
        milliseconds: u64,
        kept: bool,
    },
    Passed,
    Failed(String),
    Skipped(String),
}

fn say(said: &Said) -> Outcome {
    let line = serde_json::to_string(said).map_err(Failure::unable)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(Failure::unable)
}

pub fn run(arguments: &Arguments) -> Outcome {
    arguments.memory.map_or(Ok(()), bound_memory)?;
    if let (Some(component), Some(seconds)) = (&arguments.compile, arguments.seconds) {
        return say(&match kv_store_wasm::compile(component, Duration::from_secs(seconds)) {
            Ok(compiled) => {
                let milliseconds = u64::try_from(compiled.took.as_millis()).unwrap_or(u64::MAX);
                Said::Compiled { milliseconds, kept: compiled.kept }
            }
            Err(error) => Said::Refused(error.to_string()),
        });
    }
    let library = match &arguments.library {
        Some(path) => Library::load(path),
        None => Ok(Library::linked(linked())),
    };
    let library = match library {
        Ok(library) => library,
        Err(why) => return say(&Said::Refused(why)),
    };
    let count = AtomicU64::new(0);
    let fresh = |case: &str| {
        let stores = arguments.stores.as_deref().unwrap_or_default();
        format!("{stores}{case}-{}", count.fetch_add(1, Relaxed))
    };
    let first = arguments.uri.clone().unwrap_or_else(|| fresh("first"));
    let (label, facts) = match open(&library, arguments.library.is_none(), &first) {
        Ok(opened) => opened,
        Err(why) => return say(&Said::Refused(why)),
    };
    say(&Said::Opened(label))?;

    let Some(name) = &arguments.name else { return Ok(()) };
    let case_name = name.strip_suffix(":after").unwrap_or(name);
    count.store(0, Relaxed);
    let uri = || fresh(case_name);
    let place = match &arguments.uri {
        Some(uri) => Place::Given { uri: uri.clone(), salt: arguments.salt },
        None => Place::Fresh(&uri),
    };
    let subject = Subject::new(&library, facts, place, case_name);
    let (needs, run) = match name.strip_suffix(":after") {
        Some(_) => RESTARTS.iter().find(|restart| restart.name == case_name).map(|r| (Needs::Lasting, r.after)),
        None => CASES
            .iter()
            .copied()
            .flatten()
            .find(|case| case.name == name)
            .map(|case| (case.needs, case.run))
            .or_else(|| RESTARTS.iter().find(|restart| restart.name == name).map(|r| (Needs::Lasting, r.before))),
    }
    .ok_or_else(|| Failure::unable("there is no case of this name"))?;
    if let Some(why) = subject.skips(needs) {
        return say(&Said::Skipped(why));
    }
    let verdict = run(&subject);
    // What the first part of two has stored is for the second.
    if !RESTARTS.iter().any(|restart| restart.name == name) {
        subject.clean();
    }
    say(&verdict.map_or_else(Said::Failed, |()| Said::Passed))
}

/// Hold this process, and those that it starts, to so many MiB of memory.
fn bound_memory(mib: u64) -> Outcome {
    let bytes = mib.saturating_mul(1 << 20);
    let bound = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: `bound` is ours.
    match unsafe { libc::setrlimit(libc::RLIMIT_DATA, &bound) } {
        0 => Ok(()),
        _ => Err(Failure::unable(std::io::Error::last_os_error())),
    }
}

/// Open a store once, to learn what it is. Our own library says more of it than the ABI tells.
fn open(library: &Library, ours: bool, uri: &str) -> Result<(String, Facts), String> {
    if !ours {
        let opened = library.open(uri);
        opened.ok_or_else(|| format!("open({uri:?}) answered NULL"))?;
        return Ok((uri.to_owned(), Facts { lasting: true, max_value_bytes: u64::MAX }));
    }
    let store = kv_store_wasm::Store::open(uri).map_err(|error| error.to_string())?;
    let info = store.info();
    if let Some(expected) = std::env::var_os(EXPECTED).filter(|digest| *digest != *info.component_sha256) {
        return Err(format!(
            "the config names another component for this scheme: sha256 {}, where the file's is {}",
            info.component_sha256,
            expected.display()
        ));
    }
    Ok((info.label, Facts { lasting: info.durable || info.shared, max_value_bytes: info.max_value_bytes }))
}

/// The library that is linked into this program.
fn linked() -> &'static Vtable {
    // SAFETY: the vtable is static, and `Vtable` is its layout as the header has it.
    unsafe { &*kv_store_wasm::kv_store_get_vtable().cast() }
}
