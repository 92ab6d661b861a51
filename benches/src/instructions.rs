//! `--instructions`: what a call costs in instructions, by who runs them. They do not depend on what else the machine does.
//!
//! A process of its own performs the operation, and each instruction of its calling thread is looked at, see [`steps`]: by where it lies it
//! is the component's, wasmtime's (lifting, lowering, entering and leaving), the library's own, or the C library's. What the kernel runs
//! cannot be counted so; its calls are.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use kv_store_conformance::Library;
use kv_store_tests::memkv::MemkvServer;
use kv_store_tests::redis::RedisServer;
use serde_json::json;

use crate::batch::{Batches, Blocks};
use crate::consumer::{Client, key, noise};
use crate::steps::{self, Instruction, Step};

/// Bytes of a value.
const SIZE: usize = 4 << 10;
/// Values of a batch, and keys of an `exists`.
const BATCH: usize = 64;
const KEYS: usize = 96;
/// Operations that are counted, after as many that are not: of single values, and of many.
const COUNTED: u64 = 16;
const COUNTED_OF_MANY: u64 = 2;
/// Functions that are named for each operation.
const NAMED: usize = 16;
/// Looked at one by one, instructions take a thousand times their time. With one instance the calling thread has all of them: what a helper runs
/// would not be counted.
const CONFIG: &str = "\
[backend.local-fs]
limits = { deadline_ms = 600000, instances = 1 }
[backend.segments]
limits = { deadline_ms = 600000, instances = 1 }
[backend.redis]
limits = { deadline_ms = 600000, instances = 1 }
[backend.memkv]
limits = { deadline_ms = 600000, instances = 1 }
";
const STORES: [&str; 4] = ["local-fs", "segments", "redis", "memkv"];
const OPERATIONS: [&str; 4] = ["get", "put", "exists-96", "get-many-64"];

/// Whose an instruction is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Owner {
    /// Compiled from the component.
    Guest,
    /// wasmtime's.
    Lifting,
    /// The library's, with what it is linked with.
    Host,
    /// The C library's: memory, strings, locks, and the way into the kernel.
    Libc,
    /// The program's that calls.
    Caller,
}

/// Count all operations of the wanted names. `symbols`: the library before its names were stripped.
pub fn run(library: &Path, symbols: &Path, work: &Path, filter: Option<&str>) -> Result<()> {
    let names = Names::read(symbols)?;
    let config = work.join("instructions.toml");
    std::fs::write(&config, CONFIG).context("cannot write a config")?;
    for store in STORES {
        let server = StoreServer::start(store);
        for operation in OPERATIONS {
            let name = format!("instructions/{store}/{operation}");
            if filter.is_some_and(|filter| !name.contains(filter)) {
                continue;
            }
            let mut command = Command::new(std::env::current_exe()?);
            let times = if operation.contains('-') { COUNTED_OF_MANY } else { COUNTED };
            command.args(["--perform", &name, "--times", &times.to_string(), "--stepped"]);
            command.env("KV_STORE_WASM_CONFIG", &config);
            command.args(["--on", &server.uri(work)?]).stdin(Stdio::null());
            command.arg("--library").arg(library).arg("--work").arg(work);
            let Some(counts) = count(&mut command, &names).with_context(|| format!("{name} cannot be counted"))? else {
                bail!("instructions are counted on x86-64 only");
            };
            println!("{}", counts.row(&name, times, &names));
        }
    }
    Ok(())
}

/// Perform an operation on a store: what is counted from outside.
pub fn perform(name: &str, times: u64, library: &Path, uri: &str) -> Result<()> {
    let operation = name.rsplit('/').next().context("a name has parts")?;
    let library = Library::load(library).map_err(anyhow::Error::msg)?;
    let (client, batches) = (Client::open(&library, uri)?, Batches::open(&library, uri)?);
    let data = noise(SIZE, 1);
    let keys = |first: u64, count: usize| (first..).take(count).map(|n| key(n).to_vec()).collect::<Vec<_>>();
    let mut blocks = Blocks::new(keys(0, BATCH), SIZE, |n| noise(SIZE, n as u64 + 1));
    // The server keeps what another process has put.
    let first = u64::from(std::process::id()) << 32;
    batches.replace(&mut blocks)?;
    let asked = keys(0, KEYS);
    let mut once = |n: u64| -> Result<()> {
        match operation {
            "get" => {
                ensure!(client.get(&key(n % BATCH as u64))?.bytes().len() == SIZE);
                Ok(())
            }
            "put" => {
                ensure!(client.put(&key(first + n), &data)? == 0, "the chunk was there");
                Ok(())
            }
            "exists-96" => {
                ensure!(batches.exist(&asked)? == BATCH, "other chunks are there than were put");
                Ok(())
            }
            _ => batches.get(&mut blocks),
        }
    };
    (0..COUNTED).try_for_each(&mut once)?;
    steps::counted(|| (COUNTED..COUNTED + times).try_for_each(once))
}

/// What a store is on.
enum StoreServer {
    /// Files, by the backend of this name.
    Files(&'static str),
    Redis(RedisServer),
    Memkv(MemkvServer),
}

impl StoreServer {
    fn start(store: &'static str) -> Self {
        match store {
            "redis" => StoreServer::Redis(RedisServer::start(&[])),
            "memkv" => StoreServer::Memkv(MemkvServer::start(&[])),
            _ => StoreServer::Files(store),
        }
    }

    fn uri(&self, work: &Path) -> Result<String> {
        Ok(match self {
            StoreServer::Files(store) => {
                let folder = work.join("instructions").join(store);
                std::fs::create_dir_all(&folder)?;
                format!("{store}://{}", folder.display())
            }
            StoreServer::Redis(server) => format!("redis://127.0.0.1:{}/1", server.port),
            StoreServer::Memkv(server) => format!("memkv://127.0.0.1:{}/ours", server.port),
        })
    }
}

#[derive(Default)]
struct Counts {
    owners: HashMap<Owner, u64>,
    /// Of the library, by where they begin.
    functions: HashMap<u64, u64>,
    system_calls: u64,
}

impl Counts {
    /// What one operation takes.
    fn row(&self, name: &str, times: u64, names: &Names) -> serde_json::Value {
        let of = |owner| self.owners.get(&owner).copied().unwrap_or(0) / times;
        let (guest, lifting) = (of(Owner::Guest), of(Owner::Lifting));
        let (host, libc) = (of(Owner::Host), of(Owner::Libc));
        let mut most: Vec<(u64, &str)> =
            self.functions.iter().map(|(begin, count)| (count / times, names.name(*begin))).collect();
        most.sort_unstable_by(|a, b| b.cmp(a));
        most.truncate(NAMED);
        json!({
            "name": name, "all": guest + lifting + host + libc, "guest": guest, "lifting": lifting, "host": host,
            "libc": libc, "system_calls": self.system_calls as f64 / times as f64, "most": most,
        })
    }
}

/// None: this machine is of another kind.
fn count(command: &mut Command, names: &Names) -> Result<Option<Counts>> {
    let mut counts = Counts::default();
    let into = &mut counts;
    let counted = steps::each(command, |process| -> Result<Step<'_>> {
        let places = Places::of(process)?;
        Ok(Box::new(move |Instruction { address, is_system_call }| {
            let (owner, function) = places.owner(address, names);
            *into.owners.entry(owner).or_default() += 1;
            if let Some(function) = function {
                *into.functions.entry(function).or_default() += 1;
            }
            into.system_calls += u64::from(is_system_call);
        }))
    })?;
    Ok(counted.then_some(counts))
}

/// Where code of a process lies.
struct Places {
    mappings: Vec<(Range<u64>, Mapped)>,
}

enum Mapped {
    /// The library, which begins here.
    Library(u64),
    Owned(Owner),
}

impl Places {
    fn of(process: u32) -> Result<Self> {
        let maps = std::fs::read_to_string(format!("/proc/{process}/maps"))?;
        let program = std::fs::read_link(format!("/proc/{process}/exe"))?;
        let (mut mappings, mut begin) = (Vec::new(), HashMap::<&str, u64>::new());
        for line in maps.lines() {
            let mut fields = line.split_ascii_whitespace();
            let Some(rights) = fields.nth(1) else { continue };
            let range = steps::mapped(line)?;
            let path = fields.nth(3).unwrap_or_default();
            let begin = *begin.entry(path).or_insert(range.start);
            if !rights.contains('x') {
                continue;
            }
            let file = Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let mapped = match file {
                file if file.starts_with("libkv_store_wasm.so") => Mapped::Library(begin),
                "[vdso]" => Mapped::Owned(Owner::Libc),
                file if file.contains(".so") => Mapped::Owned(Owner::Libc),
                _ if Path::new(path) == program => Mapped::Owned(Owner::Caller),
                // wasmtime's memory of code, or its file.
                _ => Mapped::Owned(Owner::Guest),
            };
            mappings.push((range, mapped));
        }
        Ok(Places { mappings })
    }

    /// And the function of the library.
    fn owner(&self, address: u64, names: &Names) -> (Owner, Option<u64>) {
        match self.mappings.iter().find(|(range, _)| range.contains(&address)) {
            Some((_, Mapped::Library(begin))) => {
                let function = names.function(address - begin);
                (function.map_or(Owner::Host, |function| function.owner), function.map(|function| function.begin))
            }
            Some((_, Mapped::Owned(owner))) => (*owner, None),
            // Mapped since.
            None => (Owner::Guest, None),
        }
    }
}

/// The functions of the library, by address.
struct Names {
    functions: Vec<Function>,
}

struct Function {
    begin: u64,
    owner: Owner,
    name: String,
}

impl Names {
    fn read(symbols: &Path) -> Result<Self> {
        let mut nm = Command::new("nm");
        nm.args(["--defined-only", "--demangle", "--format=posix"]).arg(symbols);
        let listed = nm.output().context("cannot run nm")?;
        ensure!(listed.status.success(), "nm: {}", String::from_utf8_lossy(&listed.stderr));
        let mut functions = Vec::new();
        for line in String::from_utf8_lossy(&listed.stdout).lines() {
            // A name with spaces, a letter, the address, the size.
            let mut fields = line.rsplitn(4, ' ');
            let (_, Some(begin), Some(kind), Some(name)) = (fields.next(), fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            if matches!(kind, "t" | "T" | "w" | "W" | "i") {
                let owner = if name.contains("wasmtime") { Owner::Lifting } else { Owner::Host };
                functions.push(Function { begin: u64::from_str_radix(begin, 16)?, owner, name: name.to_owned() });
            }
        }
        ensure!(!functions.is_empty(), "{} has no names: they were stripped", symbols.display());
        functions.sort_by_key(|function| function.begin);
        Ok(Names { functions })
    }

    fn function(&self, address: u64) -> Option<&Function> {
        let after = self.functions.partition_point(|function| function.begin <= address);
        self.functions.get(after.checked_sub(1)?)
    }

    fn name(&self, begin: u64) -> &str {
        self.function(begin).map_or("", |function| &function.name)
    }
}
