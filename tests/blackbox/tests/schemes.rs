//! What a component says of its schemes and ports, as an operator meets it: who serves a scheme, what a URI without a port grants,
//! which tenant a URI belongs to. A stranger's component is the probe with a section that says what suits it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use kv_store_tests::consumer::{Finished, consumer, finish};
use kv_store_tests::{dist, kv_store, test_components};

/// A folder of components that is searched before those that ship, and a config.
struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let machine = Machine { folder: tempfile::tempdir().unwrap() };
        std::fs::create_dir(machine.components()).unwrap();
        machine.config("");
        machine
    }

    fn components(&self) -> PathBuf {
        self.folder.path().join("components")
    }

    fn config(&self, text: &str) {
        std::fs::write(self.folder.path().join("config.toml"), text).unwrap();
    }

    /// Install the probe as a component that says this of itself.
    fn put(&self, name: &str, section: &str) -> PathBuf {
        let bytes = std::fs::read(test_components().join("probe.wasm")).unwrap();
        let path = self.components().join(format!("{name}.wasm"));
        std::fs::write(&path, saying(bytes, section)).unwrap();
        path
    }

    /// Run `kv-store` here.
    fn run(&self, arguments: &[&str]) -> Finished {
        let mut program = kv_store();
        program.args(arguments).env("KV_STORE_WASM_PATH", self.components());
        finish(program.env("KV_STORE_WASM_CONFIG", self.folder.path().join("config.toml")))
    }

    /// What `doctor` tells of an open, without connecting.
    fn doctor(&self, uri: &str) -> serde_json::Value {
        serde_json::from_str(&self.run(&["doctor", uri, "--offline", "--json"]).stdout).unwrap()
    }

    /// What the library answers an engine that has the component connect to a server, and what it says.
    fn echo(&self, uri: &str, server: &str) -> (String, String) {
        let mut calls = consumer("calls");
        calls.args([uri, "read", &format!("echo:{server}")]).env("KV_STORE_WASM_PATH", self.components());
        let finished = finish(calls.env("KV_STORE_WASM_CONFIG", self.folder.path().join("config.toml")));
        (finished.stdout, finished.stderr)
    }
}

/// A component with one more section at its end.
fn saying(mut component: Vec<u8>, section: &str) -> Vec<u8> {
    let name = "kv-store-backend";
    let mut len = name.len() + 1 + section.len();
    component.push(0);
    while len > 0x7f {
        component.push(len as u8 | 0x80);
        len >>= 7;
    }
    component.extend([len as u8, name.len() as u8]);
    component.extend(name.bytes().chain(section.bytes()));
    component
}

fn sha256(component: &Path) -> String {
    let inspected = finish(kv_store().args(["inspect", "--json"]).arg(component)).stdout;
    let inspected: serde_json::Value = serde_json::from_str(&inspected).unwrap();
    inspected["inspection"]["sha256"].as_str().unwrap().to_owned()
}

/// A server that echoes what the probe sends first.
fn server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 7];
            if stream.read_exact(&mut request).is_ok() {
                let _ = stream.write_all(&request);
            }
        }
    });
    port
}

/// `first`, in hex, as the probe got it back.
const ECHOED: &str = "read 0 6669727374";

#[test]
fn a_stranger_does_not_choose_the_port_of_its_own_grant() {
    let (machine, port) = (Machine::new(), server());
    let acme = machine.put("acme", &format!("schemes: acme acmes\nport: {port}\n"));
    let there = format!("127.0.0.1:{port}");
    for scheme in ["acme", "acmes"] {
        let (answer, said) = machine.echo(&format!("{scheme}://127.0.0.1"), &there);
        assert!(answer.contains("read -2"), "{answer}{said}");
        for part in ["the URI names 127.0.0.1 and no port", "sha256", &format!("write {there} in the URI")] {
            assert!(said.contains(part), "no {part:?} in {said}");
        }
        // What is named is granted.
        let (answer, said) = machine.echo(&format!("{scheme}://{there}"), &there);
        assert!(answer.contains(ECHOED), "{answer}{said}");
    }
    // One that the operator has looked at may.
    machine.config(&format!("[backend.acme]\nsha256 = '{}'\n", sha256(&acme)));
    for uri in ["acme://127.0.0.1", "acmes://127.0.0.1/x"] {
        let (answer, said) = machine.echo(uri, &there);
        assert!(answer.contains(ECHOED), "{uri}: {answer}{said}");
        let other = server();
        let (answer, _) = machine.echo(uri, &format!("127.0.0.1:{other}"));
        assert!(answer.contains("read -2"), "{uri}: {answer}");
    }
}

#[test]
fn a_stranger_takes_no_scheme() {
    let machine = Machine::new();
    let evil = machine.put("evil", "schemes: evil redis rediss s3 s3+http local-fs\nport: 22\n");
    for (uri, backend) in [
        ("redis://127.0.0.1", "redis"),
        ("rediss://127.0.0.1", "redis"),
        ("s3+http://127.0.0.1/b", "s3"),
        ("local-fs:///no/such/place", "local-fs"),
    ] {
        let told = machine.doctor(uri);
        let component = dist().join(format!("components/{backend}.wasm")).canonicalize().unwrap();
        let found = Path::new(told["component"].as_str().unwrap()).canonicalize().unwrap();
        assert_eq!((found, told["backend"].as_str()), (component, Some(backend)), "{uri}");
        assert_eq!(told["component_ships"], true, "{uri}");
    }
    let told = machine.doctor("evil://127.0.0.1");
    assert_eq!((told["component_ships"].as_bool(), told["default_port"].as_u64()), (Some(false), None));
    assert_eq!(told["reaches"]["servers"][0], "127.0.0.1");
    // Between two strangers nobody chooses but the operator.
    let worse = machine.put("worse", "schemes: worse both\n");
    assert_eq!(machine.doctor("both://x")["backend"], "worse");
    machine.put("evil", "schemes: evil both\n");
    let told = machine.run(&["doctor", "both://x", "--offline"]).stdout;
    for part in [evil.to_str().unwrap(), worse.to_str().unwrap(), "[backend.both]"] {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
    machine.config(&format!("[backend.both]\ncomponent = '{}'\n", worse.display()));
    assert_eq!(machine.doctor("both://x")["backend"], "both");
}

#[test]
fn tenants_of_a_vendors_backend_are_found_by_each_of_its_schemes_and_ports() {
    let machine = Machine::new();
    let acme = machine.put("acme", "schemes: acme acmes:7443\nport: 7000\n");
    let tenants =
        "[[tenant]]\nuri = 'acme://h:7000/a'\n[[tenant]]\nuri = 'acme://h/b'\n[[tenant]]\nuri = 'acmes://h:7443/a'\n";
    machine.config(&format!("[backend.acme]\nsha256 = '{}'\n{tenants}", sha256(&acme)));
    for (uri, tenant) in
        [("acme://h/a", "acme://h:7000/a"), ("acme://H:7000/b/x", "acme://h/b"), ("acmes://h/a", "acmes://h:7443/a")]
    {
        assert_eq!(machine.doctor(uri)["tenant"], tenant, "{uri}");
    }
    for uri in ["acme://h/c", "acmes://h/b", "acmes://h:7000/a", "acme://h:7443/a"] {
        let refused = machine.run(&["get", uri, "--name", "x"]);
        assert!(refused.stderr.contains("none covers this URI"), "{uri}: {}", refused.stderr);
    }
    assert_eq!(machine.run(&["config", "check"]).status.code(), Some(0));
    // Of one that is not pinned it is not known which tenant such a URI is.
    machine.config(tenants);
    let checked = machine.run(&["config", "check"]);
    assert_eq!(checked.status.code(), Some(1));
    assert!(checked.stdout.contains("tenant acme://h/b: name the port in all tenants"), "{}", checked.stdout);
}

#[test]
fn a_table_is_named_by_the_backend() {
    let machine = Machine::new();
    for (table, backend, uris) in
        [("rediss", "redis", ["rediss://h", "redis://h"]), ("s3+http", "s3", ["s3+http://h/b", "s3://h/b"])]
    {
        machine.config(&format!("[backend.\"{table}\"]\nverify = 'off'\n"));
        let right = format!("write [backend.{backend}]: {table}:// has the table of {backend}");
        let checked = machine.run(&["config", "check"]);
        assert!(checked.status.code() == Some(1) && checked.stdout.contains(&right), "{}", checked.stdout);
        for uri in uris {
            let refused = machine.run(&["get", uri, "--name", "x"]).stderr;
            assert!(refused.contains(&right), "{uri}: {refused}");
        }
    }
}

#[test]
fn what_a_component_says_of_itself_is_shown() {
    let machine = Machine::new();
    let acme = machine.put("acme", "schemes: acme acmes:7443\nport: 7000\nwish: peace\n");
    let shown = machine.run(&["inspect", acme.to_str().unwrap()]).stdout;
    for part in ["serves   acme://, port 7000", "serves   acmes://, port 7443", "wishes   peace"] {
        assert!(shown.contains(part), "no {part:?} in {shown}");
    }
    let told = machine.run(&["doctor", "rediss://h:1", "--offline"]).stdout;
    assert!(told.contains("redis, which lists rediss://; its table is [backend.redis]"), "{told}");
    assert!(told.contains("(it ships with the library)"), "{told}");
    let json = machine.doctor("rediss://h");
    assert_eq!((&json["default_port"], &json["reaches"]["servers"][0]), (&6379.into(), &"h:6379".into()));
    let schemes = serde_json::json!([{"scheme": "redis", "port": 6379}, {"scheme": "rediss", "port": 6379}]);
    assert_eq!(json["inspection"]["schemes"], schemes);
}

#[test]
fn a_component_that_lists_no_schemes_serves_its_name_and_needs_the_port_in_the_uri() {
    let (machine, there) = (Machine::new(), format!("127.0.0.1:{}", server()));
    machine.put("plain", "wish: peace\n");
    let (answer, said) = machine.echo(&format!("plain://{there}"), &there);
    assert!(answer.contains(ECHOED), "{answer}{said}");
    let (answer, said) = machine.echo("plain://127.0.0.1", &there);
    assert!(answer.contains("read -2") && said.contains(&format!("write {there} in the URI")), "{answer}{said}");
    let refused = machine.run(&["get", "plains://127.0.0.1:1/0", "--name", "x"]).stderr;
    assert!(refused.contains("no plains.wasm, and no other that lists plains"), "{refused}");
}
