//! The process in which a case runs: it loads the subject, runs the case, and says what came.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use kv_store_conformance::{CASES, Facts, Held, KILLED, Library, Needs, PAIRS, Place, RESTARTS, Subject};
use serde::{Deserialize, Serialize};

use super::tap::{Instances, Tap};
use super::times::{self, Times};
use super::{CaseResult, beside, calls, durable, eviction, existence, items, maintenance, network, pairs, parameters};
use crate::failure::{Failure, Outcome};

/// Run a case in this process (what `check` starts)
#[derive(clap::Args)]
pub struct CheckCasesArguments {
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
    /// What the server says when it refuses, with escapes
    #[arg(long)]
    refusal: Option<String>,
    /// Another store on the server of --uri
    #[arg(long)]
    beside: Option<String>,
    /// The most memory that this process may take, in bytes
    #[arg(long)]
    memory: Option<u64>,
    /// Only compile this component, within so many seconds
    #[arg(long, requires = "seconds")]
    compile: Option<PathBuf>,
    #[arg(long)]
    seconds: Option<u64>,
    /// In place of a case: random operations for so many seconds
    #[arg(long, conflicts_with = "name")]
    soak: Option<u64>,
    /// In place of a case: how long an open, a put and a get take
    #[arg(long, conflicts_with_all = ["name", "soak"])]
    times: bool,
    /// The case's name; `NAME:after` is the second part of one that outlives its process, `NAME:second` the other process of two
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
    /// What is to be killed is at work.
    Ready,
    Measured(Times),
    Passed,
    Failed(String),
    Skipped(String),
}

fn say(said: &Said) -> Outcome {
    let line = serde_json::to_string(said).map_err(Failure::unable)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(Failure::unable)
}

pub fn run(arguments: &CheckCasesArguments) -> Outcome {
    // A config may ask for faults; the installed library injects none.
    let tap = Tap::default();
    kv_store_faults::install_with(tap.clone());
    arguments.memory.map_or(Ok(()), bound_memory)?;
    if let (Some(component), Some(seconds)) = (&arguments.compile, arguments.seconds) {
        return say(&compile(component, Duration::from_secs(seconds)));
    }
    if arguments.times {
        let stores = arguments.stores.as_deref().unwrap_or_default();
        let uri = arguments.uri.clone().unwrap_or_else(|| format!("{stores}times"));
        return say(&times::measure(&uri, arguments.salt).map_or_else(Said::Refused, Said::Measured));
    }
    let library = match &arguments.library {
        Some(path) => Library::load(path),
        None => Ok(linked()),
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
    let open = || open(&library, arguments.library.is_none(), &first);
    // The faults of a soak meet opens too.
    let opened = if arguments.soak.is_some() { kv_store_conformance::with_patience(open) } else { open() };
    let (label, facts) = match opened {
        Ok(opened) => opened,
        Err(why) => return say(&Said::Refused(why)),
    };
    say(&Said::Opened(label))?;

    let name = match (&arguments.name, arguments.soak) {
        (Some(name), _) => name.as_str(),
        (None, Some(_)) => "soak",
        (None, None) => return Ok(()),
    };
    let case_name = name.split(':').next().unwrap_or(name);
    count.store(0, Relaxed);
    let uri = || fresh(case_name);
    if let Some(said) = run_own(arguments, name, &tap, &first, &uri)? {
        return say(&said);
    }
    let place = match &arguments.uri {
        Some(uri) => Place::Given { uri: uri.clone(), salt: arguments.salt },
        None => Place::Fresh(&uri),
    };
    let subject = Subject::new(&library, facts, place, case_name);
    match arguments.soak {
        Some(seconds) => say(&soak(&subject, Duration::from_secs(seconds), arguments.salt)),
        None => say(&run_of_the_abi(name, &subject)?),
    }
}

fn compile(component: &Path, within: Duration) -> Said {
    match kv_store_wasm::compile(component, within) {
        Ok(compiled) => {
            let milliseconds = u64::try_from(compiled.took.as_millis()).unwrap_or(u64::MAX);
            Said::Compiled { milliseconds, kept: compiled.kept }
        }
        Err(error) => Said::Refused(error.to_string()),
    }
}

/// Run a case of this library's own interface; None: it is none of these. `first` is the store that was opened, `fresh` names another.
fn run_own(
    arguments: &CheckCasesArguments,
    name: &str,
    tap: &Tap,
    first: &str,
    fresh: &dyn Fn() -> String,
) -> Outcome<Option<Said>> {
    let (salt, case_name) = (arguments.salt, name.split(':').next().unwrap_or(name));
    let store = |uri: &str| kv_store_wasm::Store::open(uri).map_err(Failure::unable);
    let instances = || Instances::open(tap, first).map_err(Failure::unable);
    if name == existence::NAME {
        let verdict = existence::run(&store(first)?, salt);
        return Ok(Some(verdict.map_or_else(Said::Failed, |()| Said::Passed)));
    }
    if let Some(case) = items::CASES.iter().find(|case| case.name == name) {
        return Ok(Some(said(items::run(case, &store(first)?, salt))));
    }
    if name == parameters::NAME {
        return Ok(Some(parameters::run(first).map_or_else(Said::Failed, |()| Said::Passed)));
    }
    if let Some(case) = calls::CASES.iter().find(|case| case.name == name) {
        let subject = calls::CallSubject { instances: &instances()?, salt, held };
        return Ok(Some(said(calls::run(case, &subject))));
    }
    if name == durable::NAME {
        return Ok(Some(said(durable::run(&instances()?, salt))));
    }
    if case_name == pairs::NAME {
        let subject = pairs::PairSubject { instances: &instances()?, salt };
        return Ok(Some(said(pairs::run(&subject, name.ends_with(":second")))));
    }
    if let Some(other) = arguments.beside.as_deref().filter(|_| name == beside::NAME) {
        return Ok(Some(said(beside::run(tap, first, other, salt))));
    }
    if case_name == network::RESTARTED {
        return Ok(Some(said(network::restarted(&instances()?, salt, name.ends_with(":after")))));
    }
    if let Some(case) = maintenance::CASES.iter().chain(eviction::CASES).find(|case| case.name == name) {
        let store = store(&arguments.uri.clone().unwrap_or_else(fresh))?;
        return Ok(Some(said(maintenance::run(case, &store, salt, arguments.uri.is_none()))));
    }
    if let Some(case) = network::CASES.iter().find(|case| case.name == name) {
        let given =
            arguments.uri.as_deref().ok_or_else(|| Failure::unable("this case needs a store that was given"))?;
        return Ok(Some(said(network::run(case, tap, given, arguments.refusal.as_deref(), salt))));
    }
    Ok(None)
}

fn soak(subject: &Subject, length: Duration, salt: u64) -> Said {
    let soaked = kv_store_conformance::soak(subject, length, salt);
    subject.clean();
    match soaked {
        Err(why) => Said::Failed(why),
        Ok(soaked) => {
            eprintln!(
                "{} operations, {} manifests published, {} calls failed",
                soaked.operations.load(Relaxed),
                soaked.saves.load(Relaxed),
                soaked.failures.load(Relaxed)
            );
            Said::Passed
        }
    }
}

/// Run a case that knows the library only through its C ABI.
fn run_of_the_abi(name: &str, subject: &Subject) -> Outcome<Said> {
    let (needs, run) = find(name).ok_or_else(|| Failure::unable("there is no case of this name"))?;
    if let Some(why) = subject.skips(needs) {
        return Ok(Said::Skipped(why));
    }
    let verdict = run(subject);
    if is_last(name) {
        subject.clean();
    }
    Ok(verdict.map_or_else(Said::Failed, |()| Said::Passed))
}

/// What a case of this library's own interface says. The outer `Err`: why it makes no sense.
fn said(verdict: Result<CaseResult, String>) -> Said {
    match verdict {
        Err(why) => Said::Skipped(why),
        Ok(verdict) => verdict.map_or_else(Said::Failed, |()| Said::Passed),
    }
}

/// Whether no other process goes on with what this one has stored: of a pair it is the first that waits for the second.
fn is_last(name: &str) -> bool {
    let goes_on = RESTARTS.iter().any(|case| case.name == name) || KILLED.iter().any(|case| case.name == name);
    !goes_on && !name.ends_with(":second")
}

type Run = Box<dyn Fn(&Subject) -> CaseResult>;

/// What a process does for a case, or for its part of one.
fn find(name: &str) -> Option<(Needs, Run)> {
    let (case, part) = name.split_once(':').unwrap_or((name, ""));
    let alone = CASES.iter().copied().flatten().find(|found| found.name == case).filter(|_| part.is_empty());
    if let Some(found) = alone {
        return Some((found.needs, Box::new(found.run)));
    }
    if let Some(found) = RESTARTS.iter().find(|found| found.name == case) {
        return Some((Needs::Lasting, Box::new(if part == "after" { found.after } else { found.before })));
    }
    if let Some(found) = PAIRS.iter().find(|found| found.name == case) {
        return Some((Needs::Shared, Box::new(if part == "second" { found.second } else { found.first })));
    }
    let found = KILLED.iter().find(|found| found.name == case)?;
    if part == "after" {
        return Some((Needs::Lasting, Box::new(found.after)));
    }
    // The process that starts this one kills it.
    let ready = || drop(say(&Said::Ready));
    Some((Needs::Lasting, Box::new(move |subject| (found.during)(subject, &ready))))
}

/// Hold this process, and those that it starts, to so many bytes of memory.
fn bound_memory(bytes: u64) -> Outcome {
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
        return Ok((uri.to_owned(), Facts { lasting: true, shared: true, max_value_bytes: u64::MAX, held: None }));
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
    let lasting = info.durable || info.shared;
    Ok((info.label, Facts { lasting, shared: info.shared, max_value_bytes: info.max_value_bytes, held: Some(held) }))
}

/// What the instances of this process hold. It has no counters only where no store can be opened either.
fn held() -> Held {
    kv_store_wasm::metrics().map_or(Held { payload_bytes: 0, memory_bytes: 0 }, |metrics| Held {
        payload_bytes: metrics.payload_bytes,
        memory_bytes: metrics.memory_bytes,
    })
}

/// The library that is linked into this program.
fn linked() -> Library {
    // SAFETY: never NULL, and static.
    let (vtable, batches, describes) = unsafe {
        (
            &*kv_store_ffi::kv_store_get_vtable(),
            &*kv_store_ffi::kv_store_batch_get_vtable(),
            &*kv_store_ffi::kv_store_describe_get_vtable(),
        )
    };
    Library::linked(vtable, Some(batches)).describing(describes)
}
