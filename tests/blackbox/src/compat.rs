//! Components of `tests/compat`, and what is in `tests/compat/data`: a version writes its data by the programs `compat_*.c` of `tests/consumer`, and each later version reads
//! and checks it by the same programs. They use the C ABI only. `cargo xtask compat-data` calls [`write()`], `tests/compat/data.rs` the rest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::consumer::succeed;
use crate::memkv::{AUTH_KEY, MemkvServer};
use crate::redis::RedisServer;
use crate::{compile_against, dist, root};

/// A store of the data, by the program that writes it and the file that an installation has which can.
struct Part {
    name: &'static str,
    program: &'static str,
    since: &'static str,
}

/// Each has a directory, a database of Redis (its place here) and a namespace of memkv: so their order never changes, and what is new
/// comes at the end.
const PARTS: [Part; 6] = [
    Part { name: "opaque", program: "compat_stores", since: "include/kv_store_abi.h" },
    Part { name: "content", program: "compat_stores", since: "include/kv_store_abi.h" },
    Part { name: "sealed", program: "compat_stores", since: "include/kv_store_batch.h" },
    Part { name: "sequences", program: "compat_stores", since: "include/kv_store_kvx.h" },
    Part { name: "blocks", program: "compat_blocks", since: "include/kv_blocks.h" },
    Part { name: "llama", program: "compat_llama", since: "include/kv_store_llama.h" },
];

/// The names of all parts.
pub fn parts() -> Vec<&'static str> {
    PARTS.iter().map(|part| part.name).collect()
}

/// A component of `tests/compat`, unpacked.
pub fn unpack(packed: &Path, component: &Path) {
    let packed = fs::File::open(packed).expect("a component of tests/compat");
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(packed).expect("it is packed with zstd");
    let mut file = fs::File::create(component).expect("a file for it");
    std::io::copy(&mut decoder, &mut file).expect("it is whole");
}

/// The file of a version's data that names its parts, one in a line.
pub const LIST: &str = "parts.txt";

/// The data of a version.
pub fn folder_of(version: &str) -> PathBuf {
    root().join("tests/compat/data").join(version)
}

/// What to do with a part.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PartAccess {
    Write,
    Read,
}

/// An installation, and the programs that were built against it.
pub struct Installation {
    dist: PathBuf,
    work: tempfile::TempDir,
}

impl Installation {
    /// What `cargo xtask dist` has laid out in a clone of this version or of another one.
    pub fn at(dist: &Path) -> Self {
        let work = tempfile::tempdir().expect("a temporary directory");
        fs::write(work.path().join("empty.toml"), "").expect("an empty config");
        Installation { dist: dist.to_owned(), work }
    }

    /// Compiled components: those of this clone are the other tests' too.
    fn cache(&self) -> PathBuf {
        if self.dist == dist() { root().join("target/test-consumers/cache") } else { self.work.path().join("cache") }
    }

    fn run(&self, program: &str, access: PartAccess, part: &str, target: &str) {
        let binary = self.work.path().join(program);
        if !binary.exists() {
            // A library finds functions in the program that loads it, as compat_llama.c has them.
            compile_against(&self.dist, &format!("{program}.c"), "c", &["-rdynamic"], &binary);
        }
        let lib = self.dist.join("lib");
        let mut command = Command::new(binary);
        command.arg(if access == PartAccess::Write { "write" } else { "read" }).args([part, target]);
        command.current_dir(&self.work).env_clear().env("MEMKV_AUTH_KEY", AUTH_KEY);
        command.env("KV_STORE_LIBRARY", lib.join("libkv_store_wasm.so"));
        command.env("KV_CACHE_LIBRARY", lib.join("libkv_cache.so"));
        command.env("KV_STORE_LLAMA_LIBRARY", lib.join("libkv_store_llama.so"));
        command.env("KV_STORE_WASM_CONFIG", self.work.path().join("empty.toml"));
        command.env("KV_STORE_WASM_CACHE", self.cache());
        succeed(&mut command);
    }

    /// Write or read the parts with these names, each in the store that `uri` answers for its name and number.
    fn stores(&self, access: PartAccess, parts: &[&str], uri: impl Fn(&str, usize) -> String) {
        for (number, part) in PARTS.iter().enumerate().filter(|(_, part)| parts.contains(&part.name)) {
            self.run(part.program, access, part.name, &uri(part.name, number));
        }
    }

    /// Stores in directories below one.
    pub fn files(&self, access: PartAccess, parts: &[&str], folder: &Path) {
        self.stores(access, parts, |name, _| format!("local-fs://{}/{name}", folder.display()));
    }

    /// Databases of a server.
    pub fn redis(&self, access: PartAccess, parts: &[&str], server: &RedisServer) {
        self.stores(access, parts, |_, number| format!("redis://127.0.0.1:{}/{number}", server.port));
    }

    /// Namespaces of a server.
    pub fn memkv(&self, access: PartAccess, parts: &[&str], server: &MemkvServer) {
        self.stores(access, parts, |name, _| server.uri(name));
    }

    /// A directory of rows.
    pub fn rows(&self, access: PartAccess, folder: &Path) {
        self.run("compat_rows", access, "rows", &folder.display().to_string());
    }
}

/// Have an installation write all that it can, into a folder that is new.
pub fn write(dist: &Path, folder: &Path) {
    let installation = Installation::at(dist);
    let can = PARTS.iter().filter(|part| dist.join(part.since).exists());
    let parts: Vec<&str> = can.map(|part| part.name).collect();
    let written = tempfile::tempdir().expect("a temporary directory");
    let folders = ["local-fs", "redis", "memkv", "rows"].map(|name| written.path().join(name));
    for folder in &folders {
        fs::create_dir(folder).expect("a temporary directory can be written to");
    }
    let [files, redis, memkv, rows] = &folders;
    installation.files(PartAccess::Write, &parts, files);
    installation.rows(PartAccess::Write, rows);
    let server = RedisServer::start(&["--dir", &redis.display().to_string()]);
    installation.redis(PartAccess::Write, &parts, &server);
    let saved = server.ask("SAVE");
    assert!(saved.starts_with("+OK"), "SAVE: {saved}");
    let mut server = MemkvServer::start_of(dist, &["--data", &memkv.display().to_string()]);
    installation.memkv(PartAccess::Write, &parts, &server);
    assert!(server.terminate().success(), "memkv-server stops");
    fs::create_dir_all(folder).expect("the clone can be written to");
    for from in folders {
        let name = from.file_name().expect("it has a name").display().to_string();
        pack(&from, &folder.join(format!("{name}.tar.zst")));
    }
    fs::write(folder.join(LIST), parts.join("\n") + "\n").expect("the clone can be written to");
}

/// A folder as an archive that does not say when and by whom it was made.
fn pack(folder: &Path, archive: &Path) {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "-I", "zstd -q --ultra -22"]);
    succeed(tar.arg("-cf").arg(archive).arg("-C").arg(folder).arg("."));
}
