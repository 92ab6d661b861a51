//! A server that a test takes away, and what every backend that keeps its bytes in one is held to then.

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use crate::consumer::Running;
use crate::library;

/// More than a call takes that ends by its deadline.
const PATIENCE: Duration = Duration::from_secs(30);

/// A port for a server, given once to a process: what the kernel gives can be given to another test before the server listens.
pub fn free_port() -> u16 {
    static GIVEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);
    let free = || TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
    loop {
        let port = free();
        if GIVEN.lock().expect("no test panics here").insert(port) {
            return port;
        }
    }
}

pub trait Server {
    /// None while it is stopped.
    fn process(&mut self) -> &mut Option<Running>;

    /// Kill the server, if it runs, and start it again on the same port.
    fn restart(&mut self);

    /// SIGKILL.
    fn stop(&mut self) {
        if let Some(mut process) = self.process().take() {
            process.kill();
        }
    }

    /// Freeze the server, or let it go on.
    fn freeze(&mut self, frozen: bool) {
        self.process().as_ref().expect("the server runs").freeze(frozen);
    }
}

/// A store at this URI survives a server that is killed and comes back with nothing: no save is lost, none made up.
pub fn a_restarted_server_is_used_again(server: &mut dyn Server, uri: &str) {
    let store = library().open(uri).expect("the store opens");
    assert_eq!(store.put_chunk(b"a", b"x"), Ok(0));
    assert_eq!(store.put_manifest("m", b"x"), Ok(0));
    server.stop();
    assert_eq!(store.put_chunk(b"b", b"y"), Ok(0), "accepted into the buffer");
    assert!(store.put_manifest("m", b"y").is_ok_and(|answer| answer < 0));
    server.restart();
    assert_eq!(store.put_manifest("m", b"y"), Ok(0), "what could not be stored was kept");
    assert_eq!(store.get_manifest("m"), Ok(Ok(b"y".to_vec())));
    assert_eq!(store.get_chunk(b"b"), Ok(Ok(b"y".to_vec())));
    assert!(store.get_chunk(b"a").is_ok_and(|got| got.is_err()), "the server forgot it, and nothing is made up");
}

/// A store at this URI survives a server that does not answer for a while.
pub fn a_frozen_server_fails_calls_in_time_and_is_used_again(server: &mut dyn Server, uri: &str) {
    let store = library().open(uri).expect("the store opens");
    assert_eq!(store.put_manifest("m", b"x"), Ok(0));
    server.freeze(true);
    let begun = Instant::now();
    assert!(store.get_manifest("m").is_ok_and(|got| got.is_err()));
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    server.freeze(false);
    assert_eq!(store.get_manifest("m"), Ok(Ok(b"x".to_vec())));
}
