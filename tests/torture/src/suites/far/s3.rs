//! S3: SeaweedFS that loses processes, and a server of ours that answers as no server should.

use kv_store_tests::consumer::{consumer, finish};
use kv_store_tests::objects::{Fault, ObjectServer};
use kv_store_tests::seaweed::{ACCESS_KEY_ID, SECRET_ACCESS_KEY, Seaweed};

use super::Load;
use crate::process::Story;

/// Operations of a worker. A manifest takes some requests.
const OPERATIONS: u64 = 600;

/// Each file is on two of three volume servers: what was acknowledged is there when one is gone.
pub fn volume(seed: u64) -> Story {
    let Some(mut server) = Seaweed::start(3, 1) else { return Story::new() };
    let uri = server.uri("torture");
    Load::on(&uri, OPERATIONS).run(seed, |random, story, step| {
        if step == 0 {
            let gone = random.below(3) as usize;
            server.volumes[gone].kill();
            story.kills += 1;
        }
        step == 0
    })
}

pub fn gateway(seed: u64) -> Story {
    let Some(mut server) = Seaweed::start(1, 2) else { return Story::new() };
    let uri = server.uri("torture");
    Load { hanging: true, ..Load::on(&uri, OPERATIONS) }.run(seed, |_, story, step| {
        match step {
            0 => {
                server.gateway_processes[0].kill();
                story.kills += 1;
            }
            1 => server.gateway_processes[1].freeze(true),
            2 => {}
            _ => server.gateway_processes[1].freeze(false),
        }
        step < 3
    })
}

/// Requests for what lies there hang: each call must end by its patience.
pub fn hang(seed: u64) -> Story {
    let Some(server) = Seaweed::start(3, 1) else { return Story::new() };
    let uri = server.uri("torture");
    Load { hanging: true, ..Load::on(&uri, OPERATIONS / 2) }.run(seed, |_, _, step| {
        match step {
            0 => server.volumes.iter().take(2).for_each(|volume| volume.freeze(true)),
            // Long enough that calls meet them.
            1..8 => {}
            _ => server.volumes.iter().take(2).for_each(|volume| volume.freeze(false)),
        }
        step < 8
    })
}

pub fn storm(seed: u64) -> Story {
    let server = if seed.is_multiple_of(2) { ObjectServer::start() } else { ObjectServer::careless() };
    let uri = format!("s3+http://127.0.0.1:{}/bucket/torture", server.port);
    Load::on(&uri, OPERATIONS * 2).run(seed, |random, _, step| {
        let asked = ["GET", "PUT", "HEAD", "POST", "DELETE"][random.below(5) as usize];
        let fault = match random.below(6) {
            0 | 1 => Fault::Refused(503, "SlowDown"),
            2 => Fault::Refused(409, "ConditionalRequestConflict"),
            3 => Fault::Refused(500, "InternalError"),
            4 => Fault::Cut,
            _ => Fault::Closed,
        };
        server.spoil(asked, 1 + random.below(40) as usize, fault);
        if random.below(8) == 0 {
            server.spoil(asked, 1, Fault::Hangs);
        }
        step < 12
    })
}

/// Nothing is stored, and the reason is named.
pub fn refused(_seed: u64) -> Story {
    let mut story = Story::new();
    let mut open = |uri: &str, secret: &str, said: &str| {
        let mut calls = consumer("calls");
        calls.arg(uri).env("S3_ACCESS_KEY_ID", ACCESS_KEY_ID).env("S3_SECRET_ACCESS_KEY", secret);
        let made = finish(&mut calls);
        story.operations += 1;
        if made.stdout != "open NULL\n" || !made.stderr.contains(said) {
            story.wrong.push(format!("expected {said}: {}{}", made.stdout, made.stderr));
        }
    };
    let server = ObjectServer::start();
    server.spoil("GET", 4, Fault::Clock(0));
    open(&format!("s3+http://127.0.0.1:{}/bucket", server.port), SECRET_ACCESS_KEY, "minutes apart");
    if let Some(server) = Seaweed::start(1, 1) {
        open(&server.uri("x"), "wrong", "S3_SECRET_ACCESS_KEY");
    }
    story
}
