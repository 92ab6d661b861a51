//! The blocks of one page, run one after the other in a scratch folder, with the installed tree and real servers.
//!
//! A page names hosts, ports and directories as a reader would. Here each has a stand-in: what is below `/var`, `/etc/kv` and such lies in
//! the scratch folder, ports are free ones of this machine, `cache.svc` and the gateways of S3 are servers of the tests.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use kv_store_tests::book::Block;
use kv_store_tests::consumer::{Finished, Running, finish, start};
use kv_store_tests::redis::RedisServer;
use kv_store_tests::seaweed::{self, Seaweed};
use kv_store_tests::{dist, root};
use libtest_mimic::Failed;

/// Directories that pages name and that lie in the scratch folder.
const DIRECTORIES: &[&str] = &["/var/", "/etc/kv/", "/etc/redis/", "/run/secrets/", "/srv/", "/tmp/"];
/// Where pages have what `cargo xtask dist` lays out.
const INSTALLED: &str = "/opt/kv-store";
/// The host of the servers that pages name.
const HOST: &str = "cache.svc";
/// The variable that names the folder of a Python with the wheel: `cargo xtask test` makes one.
const PYTHON: &str = "KV_STORE_TEST_PYTHON";
/// More than a server of a page takes to listen.
const PATIENCE: Duration = Duration::from_secs(30);

/// What happened to the blocks of all pages.
static SEEN: Mutex<Vec<Seen>> = Mutex::new(Vec::new());

struct Seen {
    at: String,
    what: What,
}

enum What {
    Run,
    /// Held to a file that is compiled and run, or read by the real parser.
    Held,
    /// Output that is shown.
    Shown,
    Unrun(String),
    Skipped(String),
}

/// What was run and what was not, and why.
pub fn report() {
    let seen = SEEN.lock().expect("nobody panics with it");
    if seen.is_empty() {
        return;
    }
    let count = |kind: fn(&What) -> bool| seen.iter().filter(|seen| kind(&seen.what)).count();
    println!(
        "blocks: {} run, {} held to what is run, {} shown, {} not run, {} skipped",
        count(|what| matches!(what, What::Run)),
        count(|what| matches!(what, What::Held)),
        count(|what| matches!(what, What::Shown)),
        count(|what| matches!(what, What::Unrun(_))),
        count(|what| matches!(what, What::Skipped(_))),
    );
    for Seen { at, what } in seen.iter() {
        match what {
            What::Unrun(reason) => println!("not run: {at}: {reason}"),
            What::Skipped(reason) => println!("skipped: {at}: {reason}"),
            What::Run | What::Held | What::Shown => {}
        }
    }
}

/// Run the blocks of a page.
pub fn page(page: &Path, blocks: &[Block]) -> Result<(), Failed> {
    let mut place = Place::new(page, blocks)?;
    // None: it was not run.
    let mut last: Option<Finished> = None;
    for block in blocks {
        let at = format!("{}:{}", page.display(), block.line);
        let what = place.block(block, &mut last).map_err(|why| Failed::from(format!("{at}: {why}")))?;
        SEEN.lock().expect("nobody panics with it").push(Seen { at, what });
    }
    match place.unread.first() {
        Some(file) => Err(format!("{}: no command uses {file}", page.display()).into()),
        None => Ok(()),
    }
}

/// Where the blocks of one page are run.
struct Place {
    page: String,
    scratch: tempfile::TempDir,
    /// Texts of pages, and what stands in for them. The longest first.
    stand_ins: Vec<(String, String)>,
    /// Files that were written and that no command has named yet.
    unread: Vec<String>,
    /// What is in all that were written.
    written: String,
    /// Why what needs the server of the page is skipped.
    missing: Option<String>,
    servers: Vec<Running>,
    _redis: Option<RedisServer>,
    _seaweed: Option<Seaweed>,
}

impl Place {
    fn new(page: &Path, blocks: &[Block]) -> Result<Self, Failed> {
        let page = page.display().to_string();
        let scratch = tempfile::tempdir()?;
        let folders = DIRECTORIES.iter().map(|directory| directory.trim_matches('/'));
        for folder in folders.chain(["var/cache", "var/lib", "var/tmp", "home", "work/target"]) {
            std::fs::create_dir_all(scratch.path().join(folder))?;
        }
        let work = scratch.path().join("work");
        let release =
            std::env::current_exe()?.ancestors().nth(2).map(Path::to_owned).ok_or("a test lies in a folder")?;
        for (from, to) in [
            ("target/dist", dist()),
            ("target/release", release),
            ("examples", root().join("examples")),
            ("engine-side", root().join("engine-side")),
        ] {
            std::os::unix::fs::symlink(to, work.join(from))?;
        }
        let mut stand_ins =
            vec![(INSTALLED.to_owned(), dist().display().to_string()), (HOST.to_owned(), "127.0.0.1".into())];
        for directory in DIRECTORIES {
            stand_ins.push(((*directory).to_owned(), format!("{}{directory}", scratch.path().display())));
        }
        let wants = |server: &str| blocks.iter().any(|block| block.how.with.as_deref() == Some(server));
        let mut ports: BTreeMap<u16, u16> = BTreeMap::new();
        let redis = wants("redis").then(|| RedisServer::start(&[]));
        ports.extend(redis.as_ref().map(|redis| (6379, redis.port)));
        for port in blocks.iter().flat_map(|block| &block.how.server) {
            ports.insert(*port, free_port()?);
        }
        stand_ins.extend(ports.iter().map(|(port, here)| (port.to_string(), here.to_string())));
        if wants("former") {
            lay_out_former(&scratch.path().join("srv"))?;
        }
        let mut missing = None;
        let seaweed = if wants("seaweed") { Seaweed::start(1, 2) } else { None };
        match &seaweed {
            Some(servers) => {
                let hosts = ["gw1:8333", "gw2:8333"].into_iter().zip(&servers.gateways);
                stand_ins.extend(hosts.map(|(host, port)| (host.to_owned(), format!("127.0.0.1:{port}"))));
                let rest = [("AKIAEXAMPLE", seaweed::ACCESS_KEY_ID), ("the secret key", seaweed::SECRET_ACCESS_KEY)];
                stand_ins.extend(rest.map(|(page, here)| (page.to_owned(), here.to_owned())));
                stand_ins.push(("/kv/llama".to_owned(), format!("/{}/llama", seaweed::BUCKET)));
            }
            None if wants("seaweed") => {
                missing = Some("SeaweedFS is not installed; `cargo xtask test` installs it".to_owned())
            }
            None => {}
        }
        stand_ins.sort_by_key(|(page, _)| std::cmp::Reverse(page.len()));
        let (unread, written, servers) = (Vec::new(), String::new(), Vec::new());
        Ok(Place { page, scratch, stand_ins, unread, written, missing, servers, _redis: redis, _seaweed: seaweed })
    }

    fn work(&self) -> PathBuf {
        self.scratch.path().join("work")
    }

    /// The text with what stands in for hosts, ports and directories.
    fn here(&self, text: &str) -> String {
        let (mut here, mut rest) = (String::new(), text);
        'text: while let Some(next) = rest.chars().next() {
            for (page, stand_in) in &self.stand_ins {
                if let Some(after) = rest.strip_prefix(page.as_str())
                    && begins(&here, page)
                    && ends(page, after)
                {
                    here += stand_in;
                    rest = after;
                    continue 'text;
                }
            }
            here.push(next);
            rest = &rest[next.len_utf8()..];
        }
        here
    }

    fn block(&mut self, block: &Block, last: &mut Option<Finished>) -> Result<What, String> {
        let how = &block.how;
        if let Some(source) = &how.source {
            let text = std::fs::read_to_string(root().join(source)).map_err(|error| format!("{source}: {error}"))?;
            if !text.contains(&block.text) {
                return Err(format!("{source} has another text"));
            }
        }
        if let Some(test) = &how.by {
            let text = std::fs::read_to_string(root().join(test)).map_err(|error| format!("{test}: {error}"))?;
            if !text.contains(&self.page) {
                return Err(format!("{test} does not name {}", self.page));
            }
        }
        if let Some(reason) = &how.unrun {
            // What it prints is not known.
            *last = None;
            return Ok(What::Unrun(reason.clone()));
        }
        if let Some(reason) = self.lacks(block) {
            *last = None;
            // It would have used them.
            self.unread.retain(|file| !block.text.contains(file.as_str()));
            return Ok(What::Skipped(reason));
        }
        if let Some(file) = &how.file {
            self.write(file, &block.text)?;
        }
        match block.language.as_str() {
            "sh" if !how.server.is_empty() => self.serve(block).map(|()| What::Run),
            "sh" => {
                self.unread.retain(|file| !block.text.contains(file.as_str()));
                let finished = finish(&mut self.shell(&block.text)?);
                if finished.status.success() == how.fails {
                    let Finished { status, stdout, stderr } = finished;
                    return Err(format!("{status}\n{}\n{stdout}{stderr}", block.text));
                }
                *last = Some(finished);
                Ok(What::Run)
            }
            "python" if how.needs.is_some() && how.file.is_none() => {
                self.write("block.py", &block.text)?;
                self.unread.pop();
                let finished = finish(self.command(Path::new("python3")).arg("block.py"));
                if finished.status.success() { Ok(What::Run) } else { Err(finished.stderr) }
            }
            "text" if how.output => match last {
                None => Ok(What::Skipped("what prints it was not run".to_owned())),
                Some(finished) => prints(&block.text, &finished.stdout).map(|()| What::Held),
            },
            // The tests of memkv's crate read it.
            "text" if how.frame.is_some() => Ok(What::Held),
            "text" => Ok(What::Shown),
            "toml" if how.of.as_deref() == Some("cache") => {
                kv_cache::Config::parse(&self.here(&block.text)).map(|_| What::Held).map_err(|error| error.to_string())
            }
            "toml" if how.of.is_some() => {
                kv_blocks::Config::parse(&block.text).map(|_| What::Held).map_err(|error| error.to_string())
            }
            "toml" if how.file.as_deref().is_none_or(|file| file.ends_with("config.toml")) => {
                self.config(&block.text).map(|()| What::Held)
            }
            _ => Ok(What::Held),
        }
    }

    /// Why a block cannot be run here.
    fn lacks(&self, block: &Block) -> Option<String> {
        if block.how.with.is_some() && self.missing.is_some() {
            return self.missing.clone();
        }
        let needs = block.how.needs.as_deref()?;
        if needs.contains('/') {
            let there = self.work().join(needs).exists();
            return (!there).then(|| format!("there is no {needs}: `cargo xtask test` builds it"));
        }
        let python = std::env::var_os(PYTHON).is_some();
        (!python).then(|| format!("Python has no {needs}: `cargo xtask test` runs it where it tests the wheel"))
    }

    fn write(&mut self, file: &str, text: &str) -> Result<(), String> {
        let here = self.here(file);
        let path = self.work().join(&here);
        let folder = path.parent().ok_or("a file is in a folder")?;
        // Whoever uses the former one uses this.
        let is_anew = path.exists();
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&path, self.here(text)))
            .map_err(|error| error.to_string())?;
        // Files may name each other.
        self.unread.retain(|unread| !text.contains(unread.as_str()));
        if !is_anew && !self.written.contains(file) {
            self.unread.push(file.to_owned());
        }
        self.written += text;
        Ok(())
    }

    /// A config, as the library reads it.
    fn config(&self, text: &str) -> Result<(), String> {
        let path = self.scratch.path().join("parsed.toml");
        std::fs::write(&path, self.here(text)).map_err(|error| error.to_string())?;
        let mut doctor = self.command(&dist().join("bin/kv-store"));
        doctor.args(["doctor", "--offline", "memory://a-page"]).env("KV_STORE_WASM_CONFIG", path);
        let finished = finish(&mut doctor);
        if finished.status.success() { Ok(()) } else { Err(format!("{}{}", finished.stdout, finished.stderr)) }
    }

    /// A command with an environment of its own.
    fn command(&self, program: &Path) -> Command {
        let mut path = vec![dist().join("bin")];
        // Before the folder of the servers, which has a Python of its own, without the wheel.
        path.extend(std::env::var_os(PYTHON).map(PathBuf::from));
        path.push(seaweed::programs());
        let rest = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(path.into_iter().chain(std::env::split_paths(&rest)));
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", path.unwrap_or(rest))
            .env("HOME", self.scratch.path().join("home"))
            .env("LC_ALL", "C.UTF-8")
            .env("KV_STORE_WASM_CACHE", root().join("target/test-consumers/cache"))
            .current_dir(self.work());
        command
    }

    /// Commands, which see what those before them exported, in the folder where those ended.
    fn shell(&self, text: &str) -> Result<Command, String> {
        let kept = self.scratch.path().join("environment");
        let kept = kept.display();
        let script = format!(
            "set -euo pipefail\nif [ -e {kept} ]; then . {kept}; fi\n{}\nexport -p > {kept}\nprintf 'cd %q\\n' \"$PWD\" >> {kept}\n",
            self.here(text)
        );
        let path = self.scratch.path().join("script.sh");
        std::fs::write(&path, script).map_err(|error| error.to_string())?;
        let mut command = self.command(Path::new("bash"));
        command.arg(path);
        Ok(command)
    }

    /// Run commands in the background until the page ends, and wait until all ports are listened on.
    fn serve(&mut self, block: &Block) -> Result<(), String> {
        self.unread.retain(|file| !block.text.contains(file.as_str()));
        let ports: Vec<u16> =
            block.how.server.iter().filter_map(|port| self.here(&port.to_string()).parse().ok()).collect();
        let log = self.scratch.path().join("server.log");
        let file = std::fs::File::create(&log).map_err(|error| error.to_string())?;
        let mut command = self.shell(&block.text)?;
        command.stdin(std::process::Stdio::null());
        command.stdout(file.try_clone().map_err(|error| error.to_string())?).stderr(file);
        self.servers.push(start(&mut command));
        let begun = Instant::now();
        while !ports.iter().all(|port| TcpStream::connect(("127.0.0.1", *port)).is_ok()) {
            if begun.elapsed() > PATIENCE {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                return Err(format!("the server does not listen on {ports:?}\n{said}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// Whether a stand-in's text may begin behind this: a number not within another one, a name not within a name, a path at its root or
/// behind the option of a compiler.
fn begins(before: &str, text: &str) -> bool {
    let is_option = text.starts_with('/') && ["-I", "-L"].iter().any(|option| before.ends_with(option));
    let within = |last: char| last.is_alphanumeric() || matches!(last, '.' | '-' | '_');
    // `/kv/llama` is the path of a URI.
    is_option || text.starts_with("/kv/") || !before.chars().next_back().is_some_and(within)
}

/// Whether it may end before this.
fn ends(text: &str, after: &str) -> bool {
    let next = after.chars().next();
    text.ends_with('/') || !next.is_some_and(|next| next.is_alphanumeric() || next == '_')
}

/// Whether the lines of a page come in what was printed, in their order; `...` stands for anything.
fn prints(shown: &str, printed: &str) -> Result<(), String> {
    let mut lines = printed.lines();
    for wanted in shown.lines().filter(|line| line.trim() != "...") {
        let parts: Vec<&str> = wanted.split("...").collect();
        let is_it = |line: &str| {
            let (mut rest, mut whole) = (line, true);
            for (number, part) in parts.iter().enumerate() {
                match rest.find(part) {
                    Some(at) if number > 0 || at == 0 => rest = &rest[at + part.len()..],
                    _ => whole = false,
                }
            }
            whole && (rest.is_empty() || parts.last().is_some_and(|last| last.is_empty()))
        };
        if !lines.any(is_it) {
            return Err(format!("it prints no {wanted:?} there, but:\n{printed}"));
        }
    }
    Ok(())
}

/// A store of files as each released version wrote it: `kv-0.1.0` and so on.
fn lay_out_former(folder: &Path) -> Result<(), Failed> {
    let data = root().join("tests/compat/data");
    for version in std::fs::read_dir(&data)? {
        let version = version?;
        let archive = version.path().join("local-fs.tar.zst");
        // The README beside them is none.
        let Ok(archive) = std::fs::File::open(&archive) else { continue };
        let mut decoder = ruzstd::decoding::StreamingDecoder::new(archive).map_err(|error| error.to_string())?;
        let mut tar = Command::new("tar");
        tar.args(["-xf", "-", "--no-same-owner", "-C"]).arg(folder).arg("./opaque");
        let mut tar = tar.stdin(Stdio::piped()).spawn()?;
        std::io::copy(&mut decoder, &mut tar.stdin.take().ok_or("tar reads")?)?;
        if !tar.wait()?.success() {
            return Err("tar failed".into());
        }
        let name = format!("kv-{}", version.file_name().display());
        std::fs::rename(folder.join("opaque"), folder.join(name))?;
    }
    Ok(())
}

/// A port that is free, below those that the kernel gives, so that the bus of a cluster has one 10,000 above.
fn free_port() -> Result<u16, Failed> {
    for _ in 0..1000 {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        if let Some(port) = port.checked_sub(10_000).filter(|port| *port > 10_000)
            && std::net::TcpListener::bind(("127.0.0.1", port)).is_ok()
        {
            return Ok(port);
        }
    }
    Err("no port is free".into())
}
