//! A consumer that is killed again and again, by the clock or by `fault.crash` at the boundary to the component, and its
//! server too. Each that follows looks at what is there before it goes on.

use std::time::{Duration, Instant};

use super::{Place, config, scratch};
use crate::process::{Heard, Process, Setting, Story};
use crate::workload::Random;

/// Kills of one round: of one store.
const KILLS: u64 = 34;

pub fn local_fs(seed: u64) -> Story {
    let scratch = scratch();
    round(seed, Place::directory(&scratch.path().join("store")))
}

pub fn segments(seed: u64) -> Story {
    let scratch = scratch();
    round(seed, Place::segments(&scratch.path().join("store")))
}

pub fn redis(seed: u64) -> Story {
    round(seed, Place::redis())
}

pub fn memkv(seed: u64) -> Story {
    let scratch = scratch();
    let data = scratch.path().display().to_string();
    round(seed, Place::memkv(&["--data", &data]))
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
        let mut worker = Process::start(scratch.path(), &place.uri, seed, &setting);
        // From the first microseconds after it has looked to the midst of many saves, as likely in each order of magnitude.
        let later = Duration::from_micros(1 << random.below(17)) + Duration::from_micros(random.below(1000));
        let early = !by_fault && random.below(10) == 0;
        if !early && worker.hear_until(&mut story, "ready", None) == Heard::Silence {
            story.wrong.push("it hangs before it is ready".to_owned());
        }
        let later = if by_fault { Duration::from_millis(300) } else { later };
        worker.hear_until(&mut story, "", Some(Instant::now() + later));
        // The server before the consumer, which then sees it go, or after, or not at all.
        let server = if place.server.is_some() { random.below(4) } else { 3 };
        if let (0, Some(server)) = (server, &mut place.server) {
            server.stop();
            worker.hear_until(&mut story, "", Some(Instant::now() + Duration::from_millis(random.below(30))));
        }
        worker.kill(&mut story);
        story.kills += 1;
        if let (0 | 1, Some(server)) = (server, &mut place.server) {
            server.restart();
        }
        if !story.wrong.is_empty() {
            return story;
        }
    }
    check(&place, scratch.path(), seed, &mut story);
    story
}

pub fn server_redis(seed: u64) -> Story {
    server(seed, Place::redis())
}

pub fn server_memkv(seed: u64) -> Story {
    let scratch = scratch();
    let data = scratch.path().display().to_string();
    server(seed, Place::memkv(&["--data", &data]))
}

/// A consumer that lives, and its server that is frozen and killed in the midst of flushes.
fn server(seed: u64, mut place: Place) -> Story {
    let (scratch, mut random, mut story) = (scratch(), Random(seed), Story::new());
    let options = words(&format!("--unsure --threads {} --operations 2000", 1 + random.below(4)));
    let setting = Setting { config: config(place.scheme(), ""), options, ..Setting::default() };
    let mut worker = Process::start(scratch.path(), &place.uri, seed, &setting);
    let server = place.server.as_mut().expect("the place is a server");
    for _ in 0..12 {
        let heard = worker.hear_until(&mut story, "", Some(Instant::now() + Duration::from_millis(random.below(120))));
        if heard == Heard::End {
            break;
        }
        if random.below(2) == 0 {
            // Far from the deadline of a call: one that is late could overtake the next.
            server.freeze(true);
            std::thread::sleep(Duration::from_millis(random.below(60)));
            server.freeze(false);
        } else {
            server.stop();
            std::thread::sleep(Duration::from_millis(random.below(60)));
            server.restart();
            story.kills += 1;
        }
    }
    worker.complete(&mut story);
    check(&place, scratch.path(), seed, &mut story);
    story
}

/// A last process looks at what is there.
pub(super) fn check(place: &Place, scratch: &std::path::Path, seed: u64, story: &mut Story) {
    check_as("--strict", place, scratch, seed, story);
}

pub(super) fn check_as(options: &str, place: &Place, scratch: &std::path::Path, seed: u64, story: &mut Story) {
    let options = words(&format!("--process 1000000 --operations 0 {options}"));
    let setting = Setting { config: config(place.scheme(), ""), options, ..Setting::default() };
    Process::start(scratch, &place.uri, seed, &setting).complete(story);
}

pub(super) fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}
