//! A consumer that is killed again and again, by the clock or by `fault.crash` at the boundary to the component, and its
//! server too. Each that follows looks at what is there before it goes on.

use std::time::{Duration, Instant};

use kv_store_tests::memkv::MemkvServer;

use super::{Place, config, scratch};
use crate::process::{Process, Setting, Story};
use crate::workload::Random;

/// Kills of one round: of one store.
const KILLS: u64 = 34;

pub fn local_fs(seed: u64) -> Story {
    let scratch = scratch();
    round(seed, Place::Directory(scratch.path().join("store")))
}

pub fn redis(seed: u64) -> Story {
    round(seed, Place::redis())
}

pub fn memkv(seed: u64) -> Story {
    let scratch = scratch();
    let data = scratch.path().display().to_string();
    round(seed, Place::Memkv(MemkvServer::start(&["--data", &data])))
}

fn round(seed: u64, mut place: Place) -> Story {
    let (scratch, mut random, mut story) = (scratch(), Random(seed), Story::new());
    for process in 1..=KILLS {
        let by_fault = random.below(3) == 0;
        let fault = format!("fault = {{ seed = {}, crash = 0.02 }}", random.next() >> 1);
        let further = if by_fault { fault } else { String::new() };
        let setting = Setting {
            config: config(place.scheme(), &further),
            options: words(&format!("--process {process} --threads {}", 1 + random.below(4))),
            ..Setting::default()
        };
        let mut worker = Process::start(scratch.path(), &place.uri(), seed, &setting);
        // From the first microseconds after it has looked to the midst of many saves, as likely in each order of magnitude.
        let later = Duration::from_micros(1 << random.below(17)) + Duration::from_micros(random.below(1000));
        let early = !by_fault && random.below(10) == 0;
        let mut heard = true;
        if !early {
            heard = worker.hear_until(&mut story, "ready", None);
        }
        let later = if by_fault { Duration::from_millis(300) } else { later };
        heard &= worker.hear_until(&mut story, "", Some(Instant::now() + later));
        if !heard {
            story.wrong.push("it hangs".to_owned());
        }
        // The server before the consumer, which then sees it go, or after, or not at all.
        let server = if place.has_server() { random.below(4) } else { 3 };
        if server == 0 {
            place.kill_server();
            worker.hear_until(&mut story, "", Some(Instant::now() + Duration::from_millis(random.below(30))));
        }
        worker.kill(&mut story);
        story.kills += 1;
        if server == 1 {
            place.kill_server();
        }
        if server < 2 {
            place.restart_server();
        }
        if !story.wrong.is_empty() {
            return story;
        }
    }
    check(&place, scratch.path(), seed, &mut story);
    story
}

/// A last process looks at what is there.
pub(super) fn check(place: &Place, scratch: &std::path::Path, seed: u64, story: &mut Story) {
    let options = words("--process 1000000 --operations 0 --strict");
    let setting = Setting { config: config(place.scheme(), ""), options, ..Setting::default() };
    Process::start(scratch, &place.uri(), seed, &setting).complete(story);
}

pub(super) fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}
