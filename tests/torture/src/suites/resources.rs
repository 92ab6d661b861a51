//! Nothing left of what a process needs: a disk that is full, one that is read-only, few descriptors, a bound on files.

use std::process::{Command, Stdio};

use super::crash::{check, words};
use super::{Place, config, scratch};
use crate::process::{Process, Setting, Story};

pub fn round(seed: u64) -> Story {
    let mut story = Story::new();
    for (number, options) in ["--files 2", "--files 5", "--files 12", "--file-bytes 20000"].into_iter().enumerate() {
        let scratch = scratch();
        let place = Place::directory(&scratch.path().join("store"));
        let options = words(&format!("--threads 3 --operations 150 {options}"));
        let setting = Setting { config: config("local-fs", ""), options, ..Setting::default() };
        let mut of_one = Story::new();
        Process::start(scratch.path(), &place.uri, seed + number as u64, &setting).complete(&mut of_one);
        check(&place, scratch.path(), seed, &mut of_one);
        story.add(of_one);
    }
    story.add(disk(seed));
    story
}

/// In a mount namespace of its own, a disk of 1 MiB; and the same without the right to write.
fn disk(seed: u64) -> Story {
    let mut story = Story::new();
    let mut probe = Command::new("unshare");
    probe.args(["-rm", "mount", "-t", "tmpfs", "none", "/mnt"]);
    if !probe.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: a full and a read-only disk, because this user may not mount in a namespace of its own");
        return story;
    }
    let scratch = scratch();
    let store = scratch.path().join("store");
    std::fs::create_dir(&store).expect("a temporary directory can be written to");
    let place = Place::directory(&store);
    // What was there is there when it is full, and when nothing can be written any more.
    let script = "mount -t tmpfs -o size=1m,mode=700 none \"$0\" || exit 3\n\
                  \"$@\" --process 1 --threads 3 --operations 300 || exit 1\n\
                  \"$@\" --process 2 --operations 0 --strict || exit 1\n\
                  mount -o remount,ro \"$0\" || exit 3\n\
                  \"$@\" --process 3 --operations 0 --strict || exit 1\n\
                  exec \"$@\" --process 4 --unsure --threads 3 --operations 100";
    let under = ["unshare", "-rm", "sh", "-c", script, &store.display().to_string()].map(str::to_owned).to_vec();
    let setting = Setting { config: config("local-fs", ""), under, options: Vec::new() };
    // The lines of all four, one after another.
    let status = Process::start(scratch.path(), &place.uri, seed, &setting).complete(&mut story);
    if status.and_then(|status| status.code()) == Some(3) {
        story.wrong.push("the disk could not be mounted".to_owned());
    }
    story
}
