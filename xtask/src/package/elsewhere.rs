//! What is packed, as an ordinary user of another system has it: in Debian 11, whose glibc is older than the one that it was built on, and the wheel in
//! Debian 12, which has a Python that takes it. Both systems are made by debootstrap and kept.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Release, unpack};
use crate::place::Place;
use crate::{packages, python, step};

const MIRROR: &str = "http://deb.debian.org/debian";
/// Nobody of the system's, and not root.
const USER: u32 = 1000;
const HOME: &str = "/home/reader";
const STORE: &str = "local-fs:///home/reader/kv";

pub fn run(place: &Place, release: &Release, deb: &Path) -> Result<()> {
    if step::output(Command::new("id").arg("-u"))?.trim() != "0" {
        eprintln!("skipped: the packages in Debian 11 and 12, because only root can make those");
        return Ok(());
    }
    packages::install(&["debootstrap"])?;
    let older = Root::make(place, "bullseye", "")?;
    let glibc = older.run(Who::User, "/usr/bin", &["ldd", "--version"])?;
    let glibc = glibc.lines().next().and_then(|line| line.split(' ').next_back()).unwrap_or("?").to_owned();
    tarball(release, &older)?;
    eprintln!("ok the tarball saves and restores in Debian 11 (glibc {glibc}), as an ordinary user");
    debian(release, &older, deb)?;
    eprintln!(
        "ok the Debian package installs in Debian 11, saves and restores as an ordinary user, and is removed again"
    );
    wheel(place, &Root::make(place, "bookworm", "python3,python3-venv")?)?;
    eprintln!("ok the wheel installs in Debian 12, saves and restores as an ordinary user");
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Root,
    User,
}

/// A system in a folder.
struct Root(PathBuf);

impl Root {
    /// With the files that a user has: an empty home, and something to save.
    fn make(place: &Place, suite: &str, more: &str) -> Result<Self> {
        let folder = place.work().join(format!("debian-{suite}"));
        let made = folder.join("made");
        if !made.exists() {
            if folder.exists() {
                std::fs::remove_dir_all(&folder)?;
            }
            let mut debootstrap = Command::new("debootstrap");
            debootstrap.arg("--variant=minbase");
            if !more.is_empty() {
                debootstrap.arg(format!("--include={more}"));
            }
            debootstrap.arg(suite).arg(&folder).arg(MIRROR);
            step::run(place, &format!("making a Debian system ({suite})"), &mut debootstrap)?;
            std::fs::write(&made, "")?;
        }
        let root = Root(folder);
        let home = root.0.join(HOME.trim_start_matches('/'));
        if home.exists() {
            std::fs::remove_dir_all(&home)?;
        }
        std::fs::create_dir_all(&home)?;
        std::fs::write(home.join("file"), data())?;
        step::output(Command::new("chown").arg("--recursive").arg(format!("{USER}:{USER}")).arg(&home))?;
        Ok(root)
    }

    fn within(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    fn run(&self, who: Who, path: &str, words: &[&str]) -> Result<String> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--ipc", "--pid", "--net", "--fork", "--root"]).arg(&self.0);
        command.args(["--wd", if who == Who::User { HOME } else { "/" }, "--mount-proc"]);
        if who == Who::User {
            let (uid, gid) = (format!("--reuid={USER}"), format!("--regid={USER}"));
            command.args(["setpriv", &uid, &gid, "--clear-groups", "--no-new-privs", "--inh-caps=-all"]);
        }
        command.args(words).env_clear().env("HOME", HOME);
        step::output(command.env("PATH", format!("{path}:/usr/bin:/bin:/usr/sbin:/sbin")))
    }

    /// What a page says first: save a file, restore it, ask the doctor.
    fn save_and_restore(&self, path: &str) -> Result<()> {
        self.run(Who::User, path, &["kv-store", "save", STORE, "file", "--name", "first"])?;
        self.run(Who::User, path, &["kv-store", "restore", STORE, "copy", "--name", "first"])?;
        ensure!(std::fs::read(self.within(HOME).join("copy"))? == data(), "what was restored is not what was saved");
        let told = self.run(Who::User, path, &["kv-store", "doctor", STORE, "--probe"])?;
        ensure!(told.contains("ready: no problems found"), "{told}");
        std::fs::remove_file(self.within(HOME).join("copy"))?;
        std::fs::remove_dir_all(self.within(HOME).join("kv"))?;
        Ok(())
    }
}

/// Something to save.
pub fn data() -> Vec<u8> {
    (0..300_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

fn tarball(release: &Release, root: &Root) -> Result<()> {
    let opt = root.within("/opt");
    std::fs::remove_dir_all(&opt)?;
    std::fs::create_dir_all(&opt)?;
    unpack(release, &opt)?;
    root.save_and_restore(&format!("/opt/{}/bin", release.name()))
}

fn debian(release: &Release, root: &Root, deb: &Path) -> Result<()> {
    std::fs::copy(deb, root.within("/tmp/package.deb"))?;
    root.run(Who::Root, "/usr/bin", &["dpkg", "--install", "/tmp/package.deb"])?;
    let version = root.run(Who::User, "/usr/bin", &["memkv-server", "--version"])?;
    ensure!(version.contains(&release.version), "{version}");
    root.save_and_restore("/usr/bin")?;
    root.run(Who::Root, "/usr/bin", &["dpkg", "--purge", "kv-store-wasm"])?;
    ensure!(!root.within("/usr/lib/kv-store-wasm").exists(), "files are left where the package was removed");
    Ok(())
}

const PROGRAM: &str = "import kv_store_wasm as kv
with kv.open('local-fs:///home/reader/kv') as store:
    keys = kv.keys(['block-0'], 'model-7b', 'bf16')
    store.put_many(keys, [b'first'], sealed=True)
    block = bytearray(5)
    assert store.get_many_into(keys, [block], sealed=True) == [5]
    print(bytes(block))
";

fn wheel(place: &Place, root: &Root) -> Result<()> {
    let wheel = python::pack(place)?;
    let name = wheel.file_name().and_then(|name| name.to_str()).context("a wheel has a name")?;
    std::fs::copy(&wheel, root.within("/tmp").join(name))?;
    std::fs::write(root.within(HOME).join("program.py"), PROGRAM)?;
    let run = |words: &[&str]| root.run(Who::User, "/usr/bin", words);
    run(&["python3", "-m", "venv", "venv"])?;
    run(&["venv/bin/pip", "install", "--quiet", "--no-index", &format!("/tmp/{name}")])?;
    let said = run(&["venv/bin/python", "program.py"])?;
    ensure!(said.contains("b'first'"), "{said}");
    std::fs::remove_dir_all(root.within(HOME).join("kv"))?;
    // Its command.
    root.save_and_restore(&format!("{HOME}/venv/bin"))
}
