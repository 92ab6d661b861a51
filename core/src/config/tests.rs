use super::*;
use crate::error::ErrorKind;
use crate::policy::{as_shipped, trusted};

fn settings(config: &Config, uri: &str) -> Result<Settings, Error> {
    let uri = StoreUri::parse(uri)?;
    config.settings(&uri, &as_shipped(uri.scheme()))
}

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
    let settings = settings(&config.unwrap(), "local-fs:///kv/x").unwrap();
    assert_eq!(settings.root.as_deref(), Some("/kv"));
    assert_eq!((settings.verify, settings.limits.deadline_ms), (Verify::Xxh3, 50));
    assert_eq!(settings.options.get("durability").map(String::as_str), Some("rename"));
    assert_eq!(settings.limits.memory_bytes, Limits::default().memory_bytes);
    assert_eq!(settings.tenant, None);
}

#[test]
fn a_scheme_is_mentioned_by_its_table_or_by_a_tenant() {
    let config = parse("[backend.redis]\n[[tenant]]\nuri = 's3://127.0.0.1:9000/a'").unwrap();
    assert_eq!(["redis", "s3", "memkv"].map(|scheme| config.mentions(scheme)), [true, true, false]);
}

#[test]
fn a_secret_in_the_place_of_its_source_is_refused_and_not_repeated() {
    for written in ["'s3cret'", "'hunter2 !'", "{ env = 'p@ss' }"] {
        let error = refused(&format!("[backend.redis]\nsecrets.password = {written}"));
        assert!(error.contains("/etc/c.toml:2:"), "{error}");
        assert!(!["s3cret", "hunter2", "p@ss"].iter().any(|secret| error.contains(secret)), "{error}");
    }
    assert!(refused("[backend.redis]\nsecrets.password = 's3cret'").contains("name the variable that holds it"));
    parse("[backend.redis]\nsecrets = { password = 'CACHE_PASSWORD', other = { env = 'lower_case' } }").unwrap();
}

#[test]
fn a_table_that_no_uri_uses_is_refused() {
    let config = parse("[backend.rediss]\nverify = 'off'").unwrap();
    for uri in ["rediss://h", "redis://h"] {
        let error = settings(&config, uri).unwrap_err().to_string();
        assert!(error.contains("/etc/c.toml: backend.rediss: write [backend.redis]"), "{error}");
    }
    assert!(settings(&config, "x://h").is_ok());
    let config = parse("[backend.redsi]\n[backend.acme]\n[backend.s4]\ncomponent = '/s4.wasm'\n").unwrap();
    let there = ["redis", "s3"].map(str::to_owned).into();
    let told = config.misspelt(|_| false, &there);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("backend.redsi") && told[0].contains("did you mean [backend.redis]?"), "{told:?}");
    assert!(config.misspelt(|scheme| scheme == "redsi", &there).is_empty());
    // Of what is not installed nothing is known.
    assert!(config.misspelt(|_| false, &Default::default()).is_empty());
}

#[test]
fn an_option_may_be_a_number_or_a_truth() {
    let config = parse("[backend.x]\noptions = { max_bytes = 500, evict = true, style = 'path' }").unwrap();
    let settings = settings(&config, "x://h").unwrap();
    let options: Vec<_> = settings.options.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(options, [("evict", "true"), ("max_bytes", "500"), ("style", "path")]);
}

#[test]
fn a_quota_of_stored_bytes_is_refused_where_nothing_can_hold_it() {
    let config = parse("[backend.x]\nquota.stored_bytes = '1GiB'").unwrap();
    for (uri, holds) in [("x:///directory", true), ("x://server:1/0", false)] {
        let uri = StoreUri::parse(uri).unwrap();
        let target = config.settings(&uri, &as_shipped("x")).unwrap().target(&uri, &as_shipped("x"));
        assert_eq!(target.is_ok(), holds, "{uri:?}");
        if let Err(error) = target {
            assert!(
                error.to_string().contains("stored_bytes = 1073741824") && error.to_string().contains("x is not one"),
                "{error}"
            );
        }
    }
}

#[test]
fn sizes_have_units_where_they_are_bytes() {
    let config = parse(
        "[backend.x]\nlimits = { memory_bytes = '256 MiB', payload_bytes = 1000, compile_bytes = '1GiB' }\n\
         quota = { stored_bytes = '1.5GiB', bytes_in_per_s = '20MB', operations_per_s = 5 }",
    );
    let settings = settings(&config.unwrap(), "x://h").unwrap();
    let limits = &settings.limits;
    assert_eq!((limits.memory_bytes, limits.payload_bytes, limits.compile_bytes), (256 << 20, 1000, 1 << 30));
    let quota = &settings.quota;
    assert_eq!(
        (quota.stored_bytes, quota.bytes_in_per_s, quota.bytes_out_per_s),
        (Some(3 << 29), Some(20_000_000), None)
    );
    for (wrong, said) in [
        ("memory_bytes = '1 KB'", "'1 KB' is no size"),
        ("memory_bytes = '1 KiB'", "1024 is not between 65536 and"),
        ("deadline_ms = '1 KiB'", "write a whole number"),
    ] {
        let error = refused(&format!("[backend.x.limits]\n{wrong}"));
        assert!(error.contains("/etc/c.toml:2:") && error.contains(said), "{error}");
    }
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
        ("[backend.x.near]\nmemory_byte = 1", 2, "memory_bytes"),
        ("[backend.x]\nnear.ttl = 60", 2, "ttl_s"),
        ("[[tenant]]\nuri = 'x://h'\nnear.disk_byte = 60", 3, "disk_bytes"),
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
        ("[backend.x]\nenv = ['LD_PRELOAD']", "reserved"),
        ("[backend.x]\nsecrets.a = 'KV_STORE_WASM_CONFIG'", "reserved"),
        ("[backend.x]\nsecrets.a = { file = 'relative' }", "absolute"),
        ("[backend.x]\nsecrets.a = { env = 'A', file = '/a' }", "one place"),
        ("[backend.x]\nlimits.deadline_ms = 0", "between"),
        ("[backend.x]\nfs.m = { path = '/m', access = 'wr' }", "ro"),
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
        ("[backend.x]\nnear.ttl_s = 60", "keeps nothing"),
        ("[backend.x]\nnear.memory_bytes = 4096", "memory_bytes"),
        ("[backend.x]\nnear = { memory_bytes = 1048576, ttl_s = 0 }", "ttl_s"),
        ("[backend.x]\nnear.disk = '/near'", "go together"),
        ("[backend.x]\nnear.disk_bytes = 1048576\nnear.memory_bytes = 1048576", "go together"),
        ("[backend.x]\nnear = { disk = 'near', disk_bytes = 1048576 }", "absolute"),
        ("[[tenant]]\nuri = 'x://h'\nnear = { disk = '/near', disk_bytes = 7 }", "disk_bytes"),
        ("[backend.x]\nsecrets.A = 'B'", "secret's name"),
        ("[backend.x]\nfs.m = { path = 'm' }", "absolute"),
        ("[backend.x]\nfs.m = { path = '/m/../n' }", "'..'"),
        ("[[tenant]]\nuri = 'x://h/a'\n[[tenant]]\nuri = 'x://h/a/'", "a second tenant"),
        ("[[tenant]]\nuri = 'x:///kv/a'\nroot = '/kv'", "above"),
        ("[[tenant]]\nuri = 'x:///kv/a'\nroot = '/kv/ab'", "above"),
        ("[[tenant]]\nroot = '/kv'", "uri"),
    ] {
        let error = refused(text);
        assert!(error.contains("/etc/c.toml") && error.contains(said), "{text}\n{error}");
    }
}

#[test]
fn a_tenant_has_the_near_level_of_the_backend_or_its_own() {
    let config = parse(
        "[backend.x]\nnear.memory_bytes = 1048576\n[[tenant]]\nuri = 'x://a'\n[[tenant]]\nuri = 'x://b'\n\
         near = { disk = '/near', disk_bytes = 1048576, ttl_s = 7 }",
    )
    .unwrap();
    let near = |uri| settings(&config, uri).unwrap().near.unwrap();
    assert_eq!(near("x://a"), Near { memory_bytes: 1 << 20, ..Near::default() });
    let own = Near { memory_bytes: 0, disk: Some("/near".into()), disk_bytes: 1 << 20, ttl_s: 7 };
    assert_eq!(near("x://b"), own);
    assert!(config.files().any(|(_, path)| path == Path::new("/near")), "no component may reach it");
    let none = settings(&parse("[backend.x]").unwrap(), "x://a").unwrap().near;
    assert_eq!(none, None);
}

#[test]
fn paths_must_be_absolute() {
    assert!(parse("[backend.x]\ncomponent = 'x.wasm'").is_err());
    assert!(parse("[backend.x]\nroot = 'kv'").is_err());
    assert!(parse("[backend.x]\nroot = '/kv/'").is_err());
}

#[test]
fn the_example_of_the_page_is_a_config() {
    let guide = include_str!("../../../docs/config.md");
    let (_, example) = guide.split_once("```toml\n").expect("there is an example");
    let (example, _) = example.split_once("```").expect("it ends");
    let config = parse(example).unwrap();
    // It shows every key, so that none goes without a word.
    let top = ["metrics", "metrics_file"];
    let keys = ["", "[backend.x]", "[[tenant]]\nuri = 'x://h'"].into_iter().flat_map(keys_of);
    for key in keys.filter(|key| !top.contains(&key.as_str())) {
        let shown = example.lines().any(|line| {
            let is_table =
                line.starts_with(&format!("[{key}.")) || (line.starts_with('[') && line.contains(&format!("{key}]")));
            is_table || line.starts_with(&format!("{key} ")) || line.starts_with(&format!("{key}."))
        });
        assert!(shown, "{key} is not in the example");
    }
    assert!(config.tenant.len() > 1);
}

/// The keys of a table: serde names them where it refuses one that there is not.
fn keys_of(table: &str) -> Vec<String> {
    let error = toml::from_str::<Config>(&format!("{table}\nno-such-key = 1")).unwrap_err();
    let (_, expected) = error.message().split_once(", expected ").expect("serde names them");
    let keys: Vec<String> = expected.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    assert!(keys.len() > 3, "{error}");
    keys
}

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
    let of = |config: &Config, uri: &str| settings(config, uri).map(|found| found.tenant);
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
    let config = tenants(&["redis://h/7", "redis://h:6379/7"]).unwrap();
    let error = of(&config, "redis://h/7").unwrap_err().to_string();
    assert!(error.contains("redis://h:6379/7: is a second tenant"), "{error}");
    assert_eq!(config.check_tenants("redis", Some(6379)).unwrap_err().to_string(), error);
    // The longer path is closer, whichever names the user and whichever comes first.
    for uris in [["redis://me@h", "redis://h/3"], ["redis://h/3", "redis://me@h"]] {
        assert_eq!(of(&tenants(&uris).unwrap(), "redis://me@h/3").unwrap().as_deref(), Some("redis://h/3"));
    }

    // Which port acme takes by itself nobody here knows.
    let config = tenants(&["acme://", "acme://h:99/7"]).unwrap();
    assert_eq!(of(&config, "acme://h:99/7").unwrap().as_deref(), Some("acme://h:99/7"));
    let error = of(&config, "acme://h/7").unwrap_err();
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("acme://h:99/7"), "{error}");
    let config = tenants(&["acme://h:99/7", "acme://h/8"]).unwrap();
    let error = of(&config, "acme://h/8").unwrap_err();
    assert!(error.to_string().contains("acme://h/8: name the port"), "{error}");
    // What its component says counts as soon as it may: with the same config, and under each of its schemes.
    let by_component =
        |uri: &str, acme: &Served| config.settings(&StoreUri::parse(uri).unwrap(), acme).map(|found| found.tenant);
    let acme = trusted("acme", "acme acmes", 99);
    for (uri, tenant) in [("acme://h/7/x", "acme://h:99/7"), ("acme://h:99/8", "acme://h/8")] {
        assert_eq!(by_component(uri, &acme).unwrap().as_deref(), Some(tenant), "{uri}");
    }
    for uri in ["acme://h:98/8", "acme://h/9", "acmes://h:99/7", "acmes://i/7"] {
        assert_eq!(by_component(uri, &acme).unwrap_err().kind(), ErrorKind::Denied, "{uri}");
    }
    assert!(by_component("acme://h/7", &Served { trusted: false, ..acme }).is_err());
    // A tenant under one scheme of a backend closes the others to whom no tenant covers.
    let config = tenants(&["acmes://h/7"]).unwrap();
    let refused =
        config.settings(&StoreUri::parse("acme://h/7").unwrap(), &trusted("acme", "acme acmes", 99)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied);
}

#[test]
fn a_list_of_servers_is_no_way_around_a_tenant() {
    let tenants = |uris: &[&str]| {
        let tables = uris.iter().map(|uri| format!("[[tenant]]\nuri = '{uri}'\n"));
        parse(&tables.collect::<String>())
    };
    let of = |config: &Config, uri: &str| settings(config, uri).map(|found| found.tenant);
    let config = tenants(&["redis://", "redis://h/7", "redis://a:1,b:2/x"]).unwrap();
    assert!(config.schemes_of_tenants().eq(["redis"]));
    for (uri, tenant) in [
        ("redis://h,H:6379/7", "redis://h/7"),
        ("redis://b:2,a:1/x/y", "redis://a:1,b:2/x"),
        ("redis://a:1,b:2/other", "redis://"),
        ("redis://a:2/x", "redis://"),
        ("redis://c,d/x", "redis://"),
    ] {
        assert_eq!(of(&config, uri).unwrap().as_deref(), Some(tenant), "{uri}");
    }
    for uri in ["redis://h,i/7", "redis://i,h:6379/8", "redis://a:1/x", "redis://a:1,b:2,c:3/x", "redis://a:1,b:3/x"] {
        let refused = of(&config, uri).unwrap_err();
        assert!(refused.kind() == ErrorKind::Denied && refused.to_string().contains("no other"), "{uri}: {refused}");
    }
    let error = of(&tenants(&["redis://a:1,b:2/x", "redis://a:1/y"]).unwrap(), "redis://a:1/y").unwrap_err();
    assert!(error.to_string().contains("shares some servers"), "{error}");
}

#[test]
fn the_directories_of_others_are_those_that_do_not_hold_ones_own() {
    let config = parse(
        "[backend.local-fs]\n[[tenant]]\nuri = 'local-fs:///kv'\n[[tenant]]\nuri = 'local-fs:///kv/a'\n\
         [[tenant]]\nuri = 'local-fs:///kv/b'\n",
    )
    .unwrap();
    let others = |uri: &str| -> Vec<String> {
        let settings = settings(&config, uri).unwrap();
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
    let setup = std::sync::Arc::new(crate::sandbox::fake::Fakes::default()).setup("");
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
        let served = as_shipped(uri.scheme());
        let settings = config.settings(&uri, &served).unwrap();
        assert_eq!(settings.tenant.as_deref(), Some(tenant));
        let target = settings.target(&uri, &served).unwrap();
        let component = Path::new("/opt/kv/x.wasm");
        target.grants.check_overlap(&crate::store::guarded(&setup, &config, &settings, component)).unwrap();
        println!("{uri:?} decided in {:?}", begun.elapsed());
    }
    let refused = settings(&config, "redis://cache-0:6379/8").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied);
}

#[test]
fn a_tenant_trusts_whom_its_backend_trusts_and_comes_as_itself() {
    let own = "tls.certificate = '/own.pem'\ntls.key = '/own.key'\n";
    let text = format!(
        "[backend.x]\ntls.ca = '/ca.pem'\ntls.certificate = '/c.pem'\ntls.key = '/c.key'\n\
         [[tenant]]\nuri = 'x://h:1/a'\n{own}[[tenant]]\nuri = 'x://h:1/b'\ntls.ca = '/other.pem'\n"
    );
    let config = parse(&text).unwrap();
    let tls = |uri: &str| config.settings(&StoreUri::parse(uri).unwrap(), &Served::by_name("x")).unwrap().tls;
    let path = |text: &str| Some(std::path::PathBuf::from(text));
    assert_eq!(tls("x://h:1/a"), Tls { ca: path("/ca.pem"), certificate: path("/own.pem"), key: path("/own.key") });
    assert_eq!(tls("x://h:1/b"), Tls { ca: path("/other.pem"), certificate: None, key: None });
}
