//! A small disk of its own, in a mount namespace that ends with its value, and what fills it.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::consumer::{Running, start};
use crate::skipped;

pub struct Disk {
    /// A process in the namespace, which keeps it.
    holder: Running,
    at: PathBuf,
}

impl Disk {
    /// Mount one at a folder, for those who run by [`Disk::words`]. None: this user may not, which is said.
    pub fn mount(at: &Path, options: &str) -> Option<Self> {
        let script = "mount -t tmpfs -o \"$1\",mode=700 none \"$0\" && echo ready && exec sleep 1000000";
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", script]).arg(at).arg(options);
        let mut holder = start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()));
        let mut said = String::new();
        if let Some(stdout) = holder.0.stdout.take() {
            let _ = BufReader::new(stdout).read_line(&mut said);
        }
        if said != "ready\n" {
            skipped("a small disk: this user may not mount in a namespace of its own");
            return None;
        }
        Some(Disk { holder, at: at.to_owned() })
    }

    /// What runs a program in the namespace.
    pub fn words(&self) -> Vec<String> {
        let pid = self.holder.0.id().to_string();
        ["nsenter", "-U", "-m", "--preserve-credentials", "-t", &pid, "--"].map(str::to_owned).to_vec()
    }

    /// The folder, as this process reaches it.
    pub fn folder(&self) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.holder.0.id()));
        root.join(self.at.strip_prefix("/").unwrap_or(&self.at))
    }

    /// Take all that is left of its bytes.
    pub fn fill(&self) {
        if let Ok(mut file) = File::create(self.folder().join("filler")) {
            while file.write_all(&[1; 4096]).is_ok() {}
        }
    }

    /// Take all that is left of its inodes.
    pub fn fill_inodes(&self) {
        let folder = self.folder().join("fillers");
        let _ = std::fs::create_dir(&folder);
        for number in 0.. {
            if File::create(folder.join(number.to_string())).is_err() {
                return;
            }
        }
    }

    /// Give back what was taken.
    pub fn free(&self) {
        let _ = std::fs::remove_file(self.folder().join("filler"));
        let _ = std::fs::remove_dir_all(self.folder().join("fillers"));
    }
}
