//! The first line of a reply, as anything that listens on a port may send it.

#![no_main]
#![allow(dead_code)]

use libfuzzer_sys::fuzz_target;

#[path = "../../../guests/redis/src/resp.rs"]
mod resp;

fuzz_target!(|line: &[u8]| {
    match resp::Reply::parse(line) {
        Some(resp::Reply::Refused(refusal)) => assert!(!resp::explain(&refusal).message.is_empty()),
        Some(reply) => assert!(!reply.unexpected("GET").message.is_empty()),
        None => {}
    }
    let command = resp::command(&[&b"SET"[..], line]);
    assert!(command.ends_with(b"\r\n") && command.len() > line.len());
});
