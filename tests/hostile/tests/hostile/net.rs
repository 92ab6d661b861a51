//! Guests that reach for servers that they were not granted.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use kv_store_wasm::ErrorKind::{Component, Denied, Invalid};
use kv_store_wasm::metrics;

use super::{Case, PATIENCE, case, fails, goes_on, open};

pub fn cases() -> Vec<Case> {
    vec![
        case("connects-anywhere", || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let port = listener.local_addr().unwrap().port();
            let nowhere = open("connects-anywhere://x");
            let elsewhere = open("connects-anywhere://127.0.0.1:1");
            for server in
                ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0", "169.254.169.254", "10.0.0.1"]
            {
                for store in [&nowhere, &elsewhere] {
                    fails(Denied, "grant", || store.get_manifest(&format!("{server}:{port}")));
                }
            }
            for wrong in [
                "",
                ":",
                "127.0.0.1",
                "127.0.0.1:99999",
                "unix:/run/x",
                "http://127.0.0.1:1",
                "127.0.0.1:1\n",
                "\u{202e}",
            ] {
                let error = nowhere.get_manifest(&format!("{wrong} ")).expect_err(wrong);
                assert!(matches!(error.kind(), Denied | Invalid), "{wrong:?}: {error}");
            }
            // Metadata services are reached by no URI.
            let metadata = open("connects-anywhere://169.254.169.254:80");
            fails(Denied, "169.254.169.254", || metadata.get_manifest("169.254.169.254:80"));
            // In another spelling than that of the URI it is another server.
            let mapped = open(&format!("connects-anywhere://127.0.0.1:{port}"));
            fails(Denied, "grant", || mapped.get_manifest(&format!("[::ffff:127.0.0.1]:{port}")));
            assert!(listener.accept().is_err(), "somebody was reached");
            assert!(mapped.get_manifest(&format!("127.0.0.1:{port}")).unwrap().is_none(), "and what is granted is");
            assert!(listener.accept().is_ok());
        }),
        case("connects-many", || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let server = listener.local_addr().unwrap();
            let store = open(&format!("connects-many://{server}"));
            let accepting = std::thread::spawn(move || listener.incoming().take(64).flatten().count());
            fails(Component, "`unreachable`", || store.get_manifest(&server.to_string()));
            assert_eq!(accepting.join().unwrap(), 64, "as many as an instance may have");
            fails(Component, "`unreachable`", || store.get_manifest("127.0.0.2:1"));
            goes_on(&store);
        }),
        case("probe keep-connections", || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let server = listener.local_addr().unwrap();
            let store = open(&format!("idle-probe://{server}"));
            let before = metrics().unwrap().connections;
            let begun = Instant::now();
            let accepting = std::thread::spawn(move || listener.incoming().take(64).flatten().collect::<Vec<_>>());
            store.get_manifest(&format!("do:keep-connections:{server}")).expect("it takes what it may have");
            assert_eq!(accepting.join().unwrap().len(), 64);
            // Without another call.
            while metrics().unwrap().connections > before {
                assert!(begun.elapsed() < PATIENCE, "an idle instance keeps its connections");
                std::thread::sleep(Duration::from_millis(10));
            }
            goes_on(&store);
        }),
        case("rebinding", || {
            // A name that is granted, and leads to an address that is not.
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let port = listener.local_addr().unwrap().port();
            let store = open("rebound://elsewhere:1");
            fails(Denied, "private", || store.get_manifest(&format!("localhost:{port}")));
            assert!(listener.accept().is_err(), "somebody was reached");
        }),
    ]
}
