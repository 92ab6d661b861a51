use super::*;
use crate::error::ErrorKind;

fn parse(text: &str) -> Result<Config, Error> {
    Config::parse(Path::new("/etc/c.toml"), text)
}

fn refused(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

#[test]
fn a_backend_has_what_the_file_says_and_defaults_for_the_rest() {
    let config = parse(
        "[backend.local-fs]\nroot = '/kv'\nverify = 'xxh3'\noptions.durability = 'rename'\nlimits.deadline_ms = 50",
    );
    let settings = config.unwrap().settings(&StoreUri::parse("local-fs:///kv/x").unwrap()).unwrap();
    assert_eq!(settings.root.as_deref(), Some("/kv"));
    assert_eq!((settings.verify, settings.limits.deadline_ms), (Verify::Xxh3, 50));
    assert_eq!(settings.options.get("durability").map(String::as_str), Some("rename"));
    assert_eq!(settings.limits.memory_bytes, Limits::default().memory_bytes);
    assert_eq!(settings.tenant, None);
}

#[test]
fn an_unknown_key_is_refused_with_its_line_and_what_was_meant() {
    for (text, line, meant) in [
        ("[backend.redis]\nverifi = 'off'\n", 2, "verify"),
        ("[backends.redis]\n", 1, "backend"),
        ("[backend.x]\nroot = '/kv'\nlimits.memory_byte = 1", 3, "memory_bytes"),
        ("[backend.x.limits]\n\ndeadline = 1", 3, "deadline_ms"),
        ("[backend.x]\nverify = 'xxh'", 2, "xxh3"),
        ("[backend.x.fs]\nm = { path = '/m', acess = 'ro' }", 2, "access"),
        ("[backend.x.secrets]\nm = { fil = '/m' }", 2, "file"),
        ("[backend.x.fault]\nflips = 0.1", 2, "flip"),
        ("[[tenant]]\nuri = 'x://h'\nsecret = {}", 3, "secrets"),
        ("[[tenant]]\nuri = 'x://h'\nlimits.instance = 7", 3, "instances"),
    ] {
        let error = refused(text);
        assert!(error.contains(&format!("/etc/c.toml:{line}:")), "{text}\n{error}");
        assert!(error.contains(&format!("did you mean `{meant}`?")), "{text}\n{error}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_its_line() {
    for (text, said) in [
        ("[backend.x]\nsha256 = 'abc'", "SHA-256"),
        ("[backend.x]\nconnect = ['h']", "port"),
        ("[backend.x]\nenv = ['LD_PRELOAD']", "nobody's"),
        ("[backend.x]\nsecrets.a = 'KV_STORE_WASM_CONFIG'", "nobody's"),
        ("[backend.x]\nsecrets.a = { file = 'relative' }", "absolute"),
        ("[backend.x]\nsecrets.a = { env = 'A', file = '/a' }", "one place"),
        ("[backend.x]\nlimits.deadline_ms = 0", "between"),
        ("[backend.x]\nfs.m = { path = '/m', access = 'wr' }", "ro"),
        ("[backend.x]\nfault.lie = 1.5", "probability"),
        ("[[tenant]]\nuri = 'x'", "scheme"),
        ("[[tenant]]\nuri = 'x:///a/../b'", "'..'"),
    ] {
        let error = refused(text);
        assert!(error.contains("/etc/c.toml:2:") && error.contains(said), "{text}\n{error}");
    }
    for (text, said) in [
        ("[backend.Redis]\n", "scheme"),
        ("[backend.x]\ntls.certificate = '/c.pem'", "tls.key"),
        ("[backend.x]\ntls.ca = 'ca.pem'", "absolute"),
        ("[backend.x]\nsecrets.A = 'B'", "secret's name"),
        ("[backend.x]\nfs.m = { path = 'm' }", "absolute"),
        ("[backend.x]\nfs.m = { path = '/m/../n' }", "'..'"),
        ("[[tenant]]\nuri = 'x://h/a'\n[[tenant]]\nuri = 'x://h/a/'", "twice"),
        ("[[tenant]]\nuri = 'x:///kv/a'\nroot = '/kv'", "above"),
        ("[[tenant]]\nuri = 'x:///kv/a'\nroot = '/kv/ab'", "above"),
        ("[[tenant]]\nroot = '/kv'", "uri"),
    ] {
        let error = refused(text);
        assert!(error.contains("/etc/c.toml") && error.contains(said), "{text}\n{error}");
    }
}

#[test]
fn paths_must_be_absolute() {
    assert!(parse("[backend.x]\ncomponent = 'x.wasm'").is_err());
    assert!(parse("[backend.x]\nroot = 'kv'").is_err());
    assert!(parse("[backend.x]\nroot = '/kv/'").is_err());
}

#[test]
fn the_example_of_the_operator_guide_is_a_config() {
    let guide = include_str!("../../../docs/operator-guide.md");
    let (_, example) = guide.split_once("```toml\n").expect("there is an example");
    let (example, _) = example.split_once("```").expect("it ends");
    let config = parse(example).unwrap();
    // It shows every key, so that none goes without a word.
    for key in KEYS {
        let shown =
            example.lines().any(|line| line.trim_start().starts_with(key) || line.contains(&format!(".{key}]")));
        assert!(shown, "{key} is not in the example");
    }
    assert!(config.tenant.len() > 1);
}

const KEYS: &[&str] = &[
    "component",
    "sha256",
    "root",
    "verify",
    "options",
    "tls",
    "connect",
    "private_networks",
    "fs",
    "env",
    "secrets",
    "limits",
    "fault",
    "uri",
];

proptest::proptest! {
    #[test]
    fn no_text_is_too_strange(text in "(\\[backend\\.x\\]\n)?([a-z0-9_]{1,8} ?= ?['\\[{]?\\PC{0,10}['\\]}]?\n){0,4}") {
        let _ = parse(&text);
    }
}

#[test]
fn a_tenant_is_found_by_every_spelling_of_its_server() {
    let tenants = |uris: &[&str]| {
        let tables = uris.iter().map(|uri| format!("[[tenant]]\nuri = '{uri}'\n"));
        parse(&tables.collect::<String>())
    };
    let of = |config: &Config, uri: &str| Ok(config.settings(&StoreUri::parse(uri)?)?.tenant);
    let of = |config: &Config, uri: &str| -> Result<Option<String>, Error> { of(config, uri) };
    // Whoever has the rest of the scheme does not get at it by another spelling.
    for own in ["redis://h/7", "redis://h:6379/7"] {
        let config = tenants(&["redis://", own]).unwrap();
        for uri in ["redis://h/7", "redis://h:6379/7", "redis://H:6379/7/x", "redis://me@h/7"] {
            assert_eq!(of(&config, uri).unwrap().as_deref(), Some(own), "{uri}");
        }
        for uri in ["redis://h:6380/7", "redis://h/8", "redis://i/7"] {
            assert_eq!(of(&config, uri).unwrap().as_deref(), Some("redis://"), "{uri}");
        }
    }
    let error = tenants(&["redis://h/7", "redis://h:6379/7"]).unwrap_err();
    assert!(error.to_string().contains("redis://h:6379/7: is there twice"), "{error}");
    // The longer path is closer, whichever names the user and whichever comes first.
    for uris in [["redis://me@h", "redis://h/3"], ["redis://h/3", "redis://me@h"]] {
        assert_eq!(of(&tenants(&uris).unwrap(), "redis://me@h/3").unwrap().as_deref(), Some("redis://h/3"));
    }

    // Which port acme takes by itself nobody here knows.
    let config = tenants(&["acme://", "acme://h:99/7"]).unwrap();
    assert_eq!(of(&config, "acme://h:99/7").unwrap().as_deref(), Some("acme://h:99/7"));
    let error = of(&config, "acme://h/7").unwrap_err();
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("acme://h:99/7"), "{error}");
    let error = tenants(&["acme://h:99/7", "acme://h/8"]).unwrap_err();
    assert!(error.to_string().contains("write the port"), "{error}");
}

#[test]
fn the_directories_of_others_are_those_that_do_not_hold_ones_own() {
    let config = parse(
        "[backend.local-fs]\n[[tenant]]\nuri = 'local-fs:///kv'\n[[tenant]]\nuri = 'local-fs:///kv/a'\n\
         [[tenant]]\nuri = 'local-fs:///kv/b'\n",
    )
    .unwrap();
    let others = |uri: &str| -> Vec<String> {
        let settings = config.settings(&StoreUri::parse(uri).unwrap()).unwrap();
        config.directories_of_others(&settings).into_iter().map(|(_, path)| path.display().to_string()).collect()
    };
    assert_eq!(others("local-fs:///kv/a/x"), ["/kv/b"]);
    assert_eq!(others("local-fs:///kv/c"), ["/kv/a", "/kv/b"]);
    assert_eq!(others("memory://x"), ["/kv", "/kv/a", "/kv/b"]);
}

/// As many as one process may serve; what it takes is printed.
#[test]
fn twenty_thousand_tenants_are_found_each() {
    let tables = (0..20_000).map(|n| {
        let (server, secret) = (n % 7, n % 100);
        match n % 2 {
            0 => {
                format!("[[tenant]]\nuri = 'local-fs:///kv/{n}'\nsecrets.key = {{ file = '/run/secrets/{secret}' }}\n")
            }
            _ => format!("[[tenant]]\nuri = 'redis://cache-{server}:6379/{n}'\n"),
        }
    });
    let text = tables.collect::<String>();
    let begun = std::time::Instant::now();
    let config = parse(&text).unwrap();
    println!("parsed in {:?}", begun.elapsed());
    for (uri, tenant) in [
        ("local-fs:///kv/19998/x", "local-fs:///kv/19998"),
        ("redis://me@CACHE-0:6379/7/x", "redis://cache-0:6379/7"),
        ("redis://cache-0/7", "redis://cache-0:6379/7"),
    ] {
        let uri = StoreUri::parse(uri).unwrap();
        let begun = std::time::Instant::now();
        let settings = config.settings(&uri).unwrap();
        assert_eq!(settings.tenant.as_deref(), Some(tenant));
        let target = policy::Target::decide(&uri, &settings).unwrap();
        let component = Path::new("/opt/kv/x.wasm");
        target.grants.check_overlap(&crate::store::guarded(&config, &settings, component)).unwrap();
        println!("{uri:?} decided in {:?}", begun.elapsed());
    }
    let refused = config.settings(&StoreUri::parse("redis://cache-0:6379/8").unwrap()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied);
}
