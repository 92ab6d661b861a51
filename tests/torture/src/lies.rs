//! `--only lies-s3`: a proxy before a real S3 server, SeaweedFS or moto, that answers what is not so and alters requests.
//!
//! A phase has one lie. Values are stored before it under keys of its own, are read, replaced, saved and removed while the proxy lies, and are
//! then read from the server itself. What is held to: a call that succeeds has the right bytes, or has made them what it was asked to; and no
//! object is gone that nobody removed. A miss and a failure are allowed as long as the lie is told.
//!
//! Keys of chunks are no hashes of their content, so that nobody but the backend and the envelope finds out. What cannot be found out is not told:
//! that an object of the right length is there which is not, that it is gone, or that a put was carried out, with an ETag.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use kv_store_tests::moto::Moto;
use kv_store_tests::proxy::{Ask, Lie, Proxy, Request, Response};
use kv_store_tests::seaweed::{BUCKET, Seaweed};

use crate::late::consumer::{Answer, Consumer};
use crate::process::{Story, config, scratch};
use crate::workload::{GOLDEN, Random};

/// Values of a phase: half of them manifests, half chunks.
const LANES: usize = 8;
const SIZES: [usize; 5] = [20, 300, 5_000, 100_000, 3 << 20];
/// More than one request fetches.
const LONG: usize = 66 << 20;
const STORE: &str = "lies";

/// What is lied about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum About {
    /// Answers to GET and HEAD of objects.
    Reads,
    /// The parts of a long object.
    Parts,
    /// Answers to PUT.
    Writes,
    /// Bodies of PUT, which a server that checks signatures refuses.
    Uploads,
    Removals,
}

struct Told {
    what: &'static str,
    about: About,
    lie: Lie,
}

const LIES: &[Told] = &[
    Told {
        what: "nothing in that range of 40,000 bytes",
        about: About::Reads,
        lie: |request, ask| no_range(request, ask, "*/40000"),
    },
    Told {
        what: "nothing in that range of none",
        about: About::Reads,
        lie: |request, ask| no_range(request, ask, "*/0"),
    },
    Told {
        what: "the part behind the one that was asked for",
        about: About::Reads,
        lie: |request, ask| {
            of_object(request, ask, |answer| {
                let total = answer.body.len();
                (answer.status, answer.body) = (206, answer.body.split_off(total / 2));
                answer.set("content-range", &format!("bytes {}-{}/{total}", total / 2, total.saturating_sub(1)));
            })
        },
    },
    Told {
        what: "a part as if it were all",
        about: About::Reads,
        lie: |request, ask| {
            of_object(request, ask, |answer| {
                answer.body.truncate(answer.body.len() / 2);
                answer.status = 206;
                answer.set("content-range", &format!("bytes 0-{0}/{1}", answer.body.len() - 1, answer.body.len()));
            })
        },
    },
    Told {
        what: "half of it",
        about: About::Reads,
        lie: |request, ask| of_object(request, ask, |answer| answer.body.truncate(answer.body.len() / 2)),
    },
    Told {
        what: "half of it, and nothing that was noted with it",
        about: About::Reads,
        lie: |request, ask| {
            of_object(request, ask, |answer| {
                answer.body.truncate(answer.body.len() / 2);
                ["x-amz-meta-kv-length", "x-amz-checksum-crc32c"].iter().for_each(|name| answer.remove(name));
            })
        },
    },
    Told {
        what: "nothing",
        about: About::Reads,
        lie: |request, ask| of_object(request, ask, |answer| answer.body.clear()),
    },
    Told {
        what: "compressed bytes",
        about: About::Reads,
        lie: |request, ask| of_object(request, ask, |answer| answer.set("content-encoding", "gzip")),
    },
    Told { what: "one other bit", about: About::Reads, lie: |request, ask| of_object(request, ask, flip) },
    Told {
        what: "the page of a proxy",
        about: About::Reads,
        lie: |request, ask| of_object(request, ask, |answer| *answer = page()),
    },
    Told { what: "another object", about: About::Reads, lie: another },
    Told {
        what: "half of the length",
        about: About::Reads,
        lie: |request, ask| {
            let is_head = request.method == "HEAD" && is_object(request);
            let mut answer = is_head.then(|| ask(request)).flatten()?;
            let len: u64 = answer.header("content-length").and_then(|len| len.parse().ok()).unwrap_or(0);
            answer.set("content-length", &(len / 2).to_string());
            Some(answer)
        },
    },
    Told {
        what: "the next part",
        about: About::Parts,
        lie: |request, ask| of_part(request, ask, |answer| answer.set("content-range", "bytes 5-6291460/69206016")),
    },
    Told { what: "one other bit of a part", about: About::Parts, lie: |request, ask| of_part(request, ask, flip) },
    Told {
        what: "a part of another content",
        about: About::Parts,
        lie: |request, ask| {
            of_part(request, ask, |answer| {
                answer.body.iter_mut().for_each(|byte| *byte ^= 0x55);
                answer.set("etag", "\"00000000000000000000000000000000\"");
            })
        },
    },
    Told {
        what: "a put that was not carried out",
        about: About::Writes,
        lie: |request, _| (request.method == "PUT" && is_object(request)).then(page),
    },
    Told { what: "half an upload", about: About::Uploads, lie: half_upload },
    Told {
        what: "a quiet removal of nothing",
        about: About::Removals,
        lie: |request, _| {
            let removes = request.method == "POST" && request.target.contains("?delete");
            removes.then(|| Response::of(200, "<DeleteResult></DeleteResult>"))
        },
    },
];

/// Whether a request is about the object of a chunk or of a manifest.
fn is_object(request: &Request) -> bool {
    let path = request.target.as_str();
    !path.contains('?') && ["/c/", "/r/", "/l/"].iter().any(|kind| path.contains(&format!("/{STORE}{kind}")))
}

fn of_object(request: &Request, ask: Ask<'_>, change: impl FnOnce(&mut Response)) -> Option<Response> {
    let mut answer = (request.method == "GET" && is_object(request)).then(|| ask(request)).flatten()?;
    // There is nothing to be said of what is not there.
    if (200..300).contains(&answer.status) && answer.body.len() > 1 {
        change(&mut answer);
    }
    Some(answer)
}

/// The same of a part of a long object that is not its first.
fn of_part(request: &Request, ask: Ask<'_>, change: impl FnOnce(&mut Response)) -> Option<Response> {
    let is_later = request.header("range").is_some_and(|range| !range.starts_with("bytes=0-"));
    if is_later { of_object(request, ask, change) } else { None }
}

fn no_range(request: &Request, ask: Ask<'_>, range: &str) -> Option<Response> {
    of_object(request, ask, |answer| {
        (answer.status, answer.body) = (416, b"<Error><Code>InvalidRange</Code></Error>".to_vec());
        answer.set("content-range", &format!("bytes {range}"));
    })
}

/// One bit, and another one each time.
fn flip(answer: &mut Response) {
    static FLIPPED: AtomicUsize = AtomicUsize::new(0);
    let half = answer.body.len() / 2;
    answer.body[half + FLIPPED.fetch_add(1, Relaxed) % half.max(1)] ^= 16;
}

fn page() -> Response {
    let mut page = Response::of(200, "<html>please log in</html>");
    page.set("content-type", "text/html");
    page
}

/// What was asked for before, whole and with all that is said of it.
fn another(request: &Request, ask: Ask<'_>) -> Option<Response> {
    static BEFORE: Mutex<Option<Response>> = Mutex::new(None);
    of_object(request, ask, |answer| {
        let mut before = BEFORE.lock().expect("no thread panics");
        let own = answer.clone();
        *answer = before.replace(own).unwrap_or_else(page);
    })
}

/// Half of a chunk's bytes arrive, with nothing that tells of the others but what is noted with the object.
fn half_upload(request: &Request, ask: Ask<'_>) -> Option<Response> {
    let is_chunk = request.method == "PUT" && request.target.contains(&format!("/{STORE}/c/"));
    let mut half = is_chunk.then(|| request.clone())?;
    half.body.truncate(half.body.len() / 2);
    ["x-amz-checksum-crc32c", "x-amz-content-sha256"].iter().for_each(|name| half.remove(name));
    ask(&half)
}

/// A value of a phase.
struct PhaseValue {
    is_manifest: bool,
    key: String,
    bytes: usize,
    /// What may be there; none: nothing.
    allowed: Vec<Option<u64>>,
}

impl PhaseValue {
    fn call(&self, [of_manifest, of_chunk]: [&str; 2], value: u64) -> String {
        let call = if self.is_manifest { of_manifest } else { of_chunk };
        format!("{call} {} {value} {}", self.key, self.bytes)
    }

    fn read(&self) -> String {
        self.call(["read", "get"], 0)
    }

    /// A change to this was tried.
    fn changed(&mut self, to: Option<u64>, answer: Answer) {
        if answer == Answer::Done {
            self.allowed.clear();
        }
        self.allowed.push(to);
    }
}

/// Each lie in turn.
pub fn s3(seed: u64) -> Story {
    let is_moto = seed.is_multiple_of(2);
    let (moto, seaweed) = if is_moto { (Moto::start(), None) } else { (None, Seaweed::start(1, 1)) };
    let port = moto.as_ref().map(|moto| moto.port).or(seaweed.as_ref().map(|seaweed| seaweed.gateways[0]));
    let Some(port) = port else { return Story::new() };
    let (proxy, scratch, mut story) = (Proxy::start(port), scratch(), Story::new());
    // A put that is answered by what is no answer is tried until the deadline. Where the same lie is told for `damaged_ms`, chunks may be
    // removed by it: no phase takes so long.
    let setting = config(
        "s3",
        &format!("limits.instances = {}\nlimits.deadline_ms = 3000\nlimits.damaged_ms = 600000", LANES * 2),
    );
    let start = |name: &str, port: u16, setting: &str| {
        let folder = scratch.path().join(name);
        std::fs::create_dir(&folder).expect("a temporary directory can be written to");
        Consumer::start(&folder, &format!("s3+http://127.0.0.1:{port}/{BUCKET}/{STORE}"), setting)
    };
    // The first one to open a store finds out whether conditions hold, which takes seconds.
    let first = |port| start(&format!("first-{port}"), port, &config("s3", "")).map(drop);
    let ready = first(proxy.port).and_then(|()| first(port));
    let both = ready.and_then(|()| Ok((start("lied-to", proxy.port, &setting)?, start("judge", port, &setting)?)));
    let (mut lied_to, mut judge) = match both {
        Ok(both) => both,
        Err(error) => {
            story.wrong.push(error);
            return story;
        }
    };
    let mut random = Random(seed.wrapping_mul(GOLDEN));
    for (number, told) in LIES.iter().enumerate().filter(|(_, told)| is_moto || told.about != About::Uploads) {
        let before = proxy.lies();
        phase(number, told, &proxy, &mut lied_to, &mut judge, &mut random, &mut story);
        if proxy.lies() == before {
            story.wrong.push(format!("{}: it was never told", told.what));
        }
    }
    if !story.wrong.is_empty() {
        story.log = lied_to.log() + &judge.log();
    }
    story
}

fn phase(
    number: usize,
    told: &Told,
    proxy: &Proxy,
    lied_to: &mut Consumer,
    judge: &mut Consumer,
    random: &mut Random,
    story: &mut Story,
) {
    let of_parts = told.about == About::Parts;
    let mut lane = |lane: usize| PhaseValue {
        is_manifest: lane.is_multiple_of(2),
        key: format!("lie-{number:04}-{lane:02}-no-hash"),
        bytes: if of_parts { LONG } else { SIZES[random.below(SIZES.len() as u64) as usize] },
        allowed: Vec::new(),
    };
    // A manifest takes the same way.
    let mut lanes: Vec<PhaseValue> = if of_parts { vec![lane(1)] } else { (0..LANES).map(lane).collect() };
    let value = |lane: usize, change: u64| number as u64 * 1000 + lane as u64 * 10 + change;
    let first = lanes.iter().enumerate().map(|(at, lane)| lane.call(["publish", "replace"], value(at, 1)));
    for (at, answer) in lied_to.ask(first.collect()).into_iter().enumerate() {
        lanes[at].changed(Some(value(at, 1)), answer);
        if answer != Answer::Done {
            lanes[at].allowed.push(None);
        }
    }
    proxy.lie(Some(told.lie));
    for _ in 0..2 {
        look(told.what, "while it is told", &lanes, lied_to, true, story);
    }
    for (at, lane) in lanes.iter_mut().enumerate().filter(|_| !of_parts) {
        // A removal, a save on a handle of its own, and a replacement.
        let (call, to) = match (told.about, at / 2 % 4) {
            (About::Removals, _) | (_, 0) => (["unpublish", "remove"], None),
            (About::Uploads, _) | (_, 1) => (["publish", "save"], Some(value(at, 2))),
            (_, 2) => (["publish", "replace"], Some(value(at, 3))),
            _ => continue,
        };
        if told.about == About::Uploads && to.is_some() && !lane.is_manifest {
            // Of a chunk that is there nothing is sent.
            lane.key += "-new";
            lane.allowed = vec![None];
        }
        let answer = lied_to.ask(vec![lane.call(call, to.unwrap_or(0))])[0];
        story.operations += 1;
        story.saves += u64::from(answer == Answer::Done);
        story.failed += u64::from(answer != Answer::Done);
        lane.changed(to, answer);
    }
    look(told.what, "after changes", &lanes, lied_to, true, story);
    proxy.lie(None);
    look(told.what, "when it was told", &lanes, judge, false, story);
    look(told.what, "when it was told", &lanes, lied_to, false, story);
}

/// Hold what a consumer reads against what may be there.
fn look(what: &str, when: &str, lanes: &[PhaseValue], consumer: &mut Consumer, may_miss: bool, story: &mut Story) {
    let answers = consumer.ask(lanes.iter().map(PhaseValue::read).collect());
    story.operations += lanes.len() as u64;
    for (lane, answer) in lanes.iter().zip(answers) {
        let is_allowed = match answer {
            // What a save has left that failed may be damaged where it lies.
            Answer::Failed | Answer::Missing => may_miss || lane.allowed.contains(&None),
            Answer::Value(value) => lane.allowed.contains(&Some(value)),
            Answer::Done | Answer::Strange => false,
        };
        if !is_allowed {
            let (key, bytes, allowed) = (&lane.key, lane.bytes, &lane.allowed);
            story.wrong.push(format!("{what}, {when}: {key} ({bytes} bytes) is {answer:?}; it may be {allowed:?}"));
        }
    }
}
