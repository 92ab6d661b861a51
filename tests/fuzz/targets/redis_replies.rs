//! The first line of a reply, as anything that listens on a port may send it.

#![no_main]
#![allow(dead_code)]

use libfuzzer_sys::fuzz_target;

#[path = "../../../guests/redis/src/resp/reply.rs"]
mod reply;

fuzz_target!(|line: &[u8]| {
    match reply::Reply::parse(line) {
        Some(reply::Reply::Refused(refusal)) => assert!(!reply::explain(&refusal).message.is_empty()),
        Some(reply::Reply::Array(_) | reply::Reply::Bulk(_)) => assert!(matches!(line.first(), Some(b'*' | b'$'))),
        _ => {}
    }
    if let Some((first, taken)) = reply::line(line) {
        assert_eq!(line.get(..taken), Some([first, b"\r\n"].concat()).as_deref());
    }
});
