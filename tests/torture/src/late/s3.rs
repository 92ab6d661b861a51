//! SeaweedFS and moto behind a proxy that holds changes back, and stopped and continued. Manifests alone: chunks are changed without
//! conditions, and late changes of theirs are not fenced (docs/backends.md).

use std::time::Duration;

use kv_store_tests::consumer::Running;
use kv_store_tests::moto::Moto;
use kv_store_tests::objects::ObjectServer;
use kv_store_tests::proxy::Proxy;
use kv_store_tests::seaweed::{BUCKET, Seaweed};

use super::consumer::Consumer;
use super::{Pair, Target, Way, unfenced};
use crate::process::{Story, config, scratch};

/// How the server is held up.
#[derive(Clone, Copy)]
enum Hold<'a> {
    /// The proxy keeps the changes, and passes them on in any order.
    Keep,
    /// SIGSTOP: the server has them, and carries them out when it goes on.
    Stop(&'a Running),
}

/// A server behind a proxy, which passes on what it was sent also when the client has gone.
struct Behind<'a> {
    proxy: Proxy,
    hold: Hold<'a>,
}

impl Target for Behind<'_> {
    fn uri(&self) -> String {
        format!("s3+http://127.0.0.1:{}/{BUCKET}/late", self.proxy.port)
    }

    fn hold_up(&mut self) {
        match self.hold {
            Hold::Keep => self.proxy.hold(),
            Hold::Stop(server) => server.freeze(true),
        }
    }

    fn go_on(&mut self) {
        match self.hold {
            Hold::Keep => self.proxy.go_on(),
            Hold::Stop(server) => server.freeze(false),
        }
    }
}

pub fn kept(seed: u64) -> Story {
    if unfenced() {
        return round(seed, ObjectServer::careless().port, Hold::Keep);
    }
    let Some(server) = Seaweed::start(1, 1) else { return Story::new() };
    round(seed, server.gateways[0], Hold::Keep)
}

pub fn stopped(seed: u64) -> Story {
    let Some(server) = Seaweed::start(1, 1) else { return Story::new() };
    round(seed, server.gateways[0], Hold::Stop(&server.gateway_processes[0]))
}

pub fn moto(seed: u64) -> Story {
    let Some(server) = Moto::start() else { return Story::new() };
    round(seed, server.port, if seed.is_multiple_of(2) { Hold::Keep } else { Hold::Stop(&server.process) })
}

fn round(seed: u64, port: u16, hold: Hold<'_>) -> Story {
    let (mut behind, scratch) = (Behind { proxy: Proxy::start(port), hold }, scratch());
    // The first one to open a store finds out whether conditions hold, which takes seconds.
    if let Err(error) = Consumer::start(scratch.path(), &behind.uri(), &config("s3", "")) {
        let mut story = Story::new();
        story.wrong.push(error);
        return story;
    }
    // As elsewhere, but with time for a server that takes tens of milliseconds for a request.
    let way = Way::of(seed, Pair::MANIFESTS);
    let way = match way.deadline {
        Some(_) => Way { deadline: Some(Duration::from_millis(700)), storms: 4, ..way },
        None => way,
    };
    super::round(seed, &mut behind, &way)
}
