use super::overlap::Guarded;
use super::*;
use crate::config::{Config, Settings};

fn settings(config: &str, uri: &str) -> Result<(StoreUri, Settings), Error> {
    let uri = StoreUri::parse(uri).unwrap();
    let settings = Config::parse(Path::new("/etc/c.toml"), config)?.settings(&uri, &as_shipped(uri.scheme()))?;
    Ok((uri, settings))
}

fn under(config: &str, uri: &str) -> Result<OpenTarget, Error> {
    let (uri, settings) = settings(config, uri)?;
    settings.target(&uri, &as_shipped(uri.scheme()))
}

fn target(uri: &str, root: Option<&str>) -> Result<OpenTarget, Error> {
    let scheme = uri.split_once(':').unwrap().0;
    under(&root.map(|root| format!("[backend.{scheme}]\nroot = '{root}'")).unwrap_or_default(), uri)
}

#[test]
fn a_path_grants_a_directory_and_an_authority_a_server() {
    let file = target("local-fs:///var/kv", None).unwrap().grants;
    assert_eq!((file.directory, file.servers), (Some("/var/kv".into()), vec![]));
    let net = target("redis://me@cache.svc:6379/3", None).unwrap().grants;
    assert_eq!((net.directory, net.servers), (None, vec!["cache.svc:6379".to_owned()]));
    let none = target("memory://", None).unwrap().grants;
    assert_eq!((none.directory, none.servers), (None, vec![]));
}

#[test]
fn in_virtual_style_the_bucket_in_front_of_the_host_is_granted_and_nothing_else() {
    let grants = under("[backend.s3]\noptions.style = 'virtual'", "s3://h.example:9000/bucket/p").unwrap().grants;
    assert!(grants.server("bucket.h.example:9000").is_ok());
    for other in ["h.example:9000", "p.h.example:9000", "bucket.h.example:9001", "a.bucket.h.example:9000"] {
        assert_eq!(grants.server(other).unwrap_err().kind(), ErrorKind::Denied, "{other}");
    }
    let path_style = under("[backend.s3]\noptions.style = 'path'", "s3://h.example:443/bucket").unwrap().grants;
    assert!(path_style.server("h.example:443").is_ok() && path_style.server("bucket.h.example:443").is_err());
    // With the port that its component has by itself.
    let uri = StoreUri::parse("s3+http://h.example,[::1]/bucket").unwrap();
    let s3 = trusted("s3", "s3 s3+http:80", 443);
    let (_, settings) = settings("[backend.s3]\noptions.style = 'virtual'", "s3://h:1/b").unwrap();
    assert_eq!(settings.target(&uri, &s3).unwrap().grants.servers, ["bucket.h.example:80", "bucket.[::1]:80"]);
}

#[test]
fn without_a_config_nothing_further_is_granted() {
    let grants = target("redis://h:1", None).unwrap().grants;
    assert!(grants.fs.is_empty() && grants.connect.is_empty() && grants.env.is_empty() && grants.secrets.is_empty());
    assert!(!grants.private_networks && grants.environment().is_empty() && !grants.names_host("other"));
}

#[test]
fn a_relative_path_grants_no_directory() {
    assert_eq!(target("local-fs://relative", None).unwrap().grants.directory, None);
}

#[test]
fn dots_are_refused() {
    for uri in ["local-fs:///kv/..", "local-fs:///kv/../etc", "local-fs:///./kv"] {
        assert_eq!(target(uri, None).unwrap_err().kind(), ErrorKind::Denied, "{uri}");
    }
    assert!(target("local-fs:///kv/...", None).is_ok());
}

#[test]
fn a_root_ends_the_store_and_the_rest_prefixes_manifests() {
    let below = target("local-fs:///kv/slots/7.bin", Some("/kv")).unwrap();
    assert_eq!((below.store.as_str(), below.prefix.as_deref()), ("local-fs:///kv", Some("slots/7.bin")));
    assert_eq!(target("local-fs:///kv", Some("/kv")).unwrap().prefix, None);
    assert!(target("local-fs:///kvx/7", Some("/kv")).is_err());
    assert!(target("local-fs:///etc", Some("/kv")).is_err());
}

#[test]
fn a_prefix_with_dots_is_only_a_name() {
    let below = target("local-fs:///kv/../x", Some("/kv")).unwrap();
    assert_eq!((below.grants.directory, below.prefix.as_deref()), (Some("/kv".into()), Some("../x")));
}

#[test]
fn the_server_of_the_uri_is_granted_and_no_other() {
    let allows = |uri: &str, authority: &str| target(uri, None).unwrap().grants.server(authority).is_ok();
    assert!(allows("redis://me@cache.svc:6379/3", "cache.svc:6379"));
    assert!(allows("redis://Cache.svc:6379", "cache.SVC:6379"));
    assert!(allows("redis://[::1]:6379", "[::1]:6379"));
    assert!(allows("redis://cache.svc", "cache.svc:6379") && !allows("redis://cache.svc", "cache.svc:6380"));
    assert!(allows("rediss://[::1]", "[::1]:6379"));
    for authority in [
        "cache.svc:6380",
        "cache.svc",
        "cache.svc.evil:6379",
        "other:6379",
        "",
        ":6379",
        "unix:/run/x",
        "cache.svc:+6379",
    ] {
        assert!(!allows("redis://cache.svc:6379", authority), "{authority}");
    }
    assert!(!allows("local-fs:///dir", "localhost:1"));
    assert!(!allows("redis://[::1]", "::1:6379"));
    assert!(!allows("redis://127.0.0.1:6379", "[::ffff:127.0.0.1]:6379"));
}

#[test]
fn each_server_of_a_uri_is_granted_and_exactly() {
    let uri = "redis://me@h1:1,[::1]:2,10.0.0.3/x";
    let grants = target(uri, None).unwrap().grants;
    assert_eq!(grants.servers, ["h1:1", "[::1]:2", "10.0.0.3:6379"]);
    for server in ["h1:1", "H1:1", "[::1]:2", "10.0.0.3:6379"] {
        assert!(grants.server(server).is_ok(), "{server}");
    }
    for server in ["h1:2", "h2:1", "[::1]:1", "10.0.0.4:7", "10.0.0.3:7", "h1:1,h2:1", "me@h1:1"] {
        assert!(grants.server(server).is_err(), "{server}");
    }
    assert!(grants.names_host("h1") && grants.names_host("[::1]") && !grants.names_host("h2"));
    assert_eq!(target("s://,h:1,,/x", None).unwrap().grants.servers, ["h:1"]);
}

#[test]
fn a_port_that_nobody_names_is_not_granted() {
    let uri = StoreUri::parse("acme://h,i:1/x").unwrap();
    let (_, settings) = settings("[backend.acme]\nconnect = ['h:7']", "acme://h/x").unwrap();
    let acme = trusted("acme", "acme acmes:23", 22);
    let grants = |served: &Served| settings.target(&uri, served).unwrap().grants;
    assert!(grants(&acme).server("h:22").is_ok() && grants(&acme).server("h:23").is_err());
    for stranger in [Served { trusted: false, ..acme.clone() }, Served::by_name("acme"), trusted("acme", "acmes", 22)] {
        let grants = grants(&stranger);
        assert_eq!(grants.servers, ["h", "i:1"]);
        let refused = grants.server("h:22").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Denied);
        let said = refused.to_string();
        let parts = ["the URI names h and no port", "sha256", "write h:22 in the URI"];
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        // What is named is granted, and the name may be looked up.
        assert!(grants.server("i:1").is_ok() && grants.server("h:7").is_ok() && grants.names_host("h"));
    }
    let acmes = StoreUri::parse("acmes://h/x").unwrap();
    let grants = settings.target(&acmes, &acme).unwrap();
    assert_eq!((grants.grants.servers, grants.backend), (vec!["h:23".to_owned()], "acme".to_owned()));
    assert_eq!(grants.grants.secret_prefix.as_deref(), Some("ACME_"));
}

#[test]
fn a_refusal_names_the_line_that_the_config_lacks() {
    let grants = under("[backend.s]\nconnect = ['*.svc:1', 'far:1']", "s://h1:1,h2:1").unwrap().grants;
    let refused = grants.server("10.0.0.5:7001").unwrap_err().to_string();
    for said in ["the URI names h1:1,h2:1", "*.svc:1, far:1", "connect = [\"10.0.0.5:7001\"]"] {
        assert!(refused.contains(said), "{said}: {refused}");
    }
    let far = grants.server("far:1").unwrap();
    let refused = grants.check_address(&far, "10.0.0.5".parse().unwrap()).unwrap_err().to_string();
    assert!(refused.contains("connect = [\"10.0.0.5:1\"]"), "{refused}");
}

#[test]
fn a_config_grants_further_servers() {
    let config = "[backend.redis]\nconnect = ['*.svc.local:6379']";
    let grants = under(config, "redis://cache:6379").unwrap().grants;
    assert!(grants.server("node-1.svc.local:6379").is_ok() && grants.server("cache:6379").is_ok());
    let refused = grants.server("node-1.svc.other:6379").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied);
    assert!(refused.to_string().contains("*.svc.local:6379"), "{refused}");
}

/// Whether `server` may be reached where it leads to `address`.
fn reaches(config: &str, server: &str, address: &str) -> bool {
    let grants = under(&format!("[backend.redis]\n{config}"), "redis://own:6379").unwrap().grants;
    let granted = grants.server(server).unwrap();
    grants.check_address(&granted, address.parse().unwrap()).is_ok()
}

#[test]
fn only_the_uris_own_server_may_be_private_unless_the_config_says_so() {
    let further = "connect = ['further:6379']";
    for private in ["127.0.0.1", "10.0.0.1", "::1", "fd00::1", "::ffff:10.0.0.1", "64:ff9b::a00:1"] {
        assert!(reaches(further, "own:6379", private), "{private}");
        assert!(!reaches(further, "further:6379", private), "{private}");
        assert!(reaches(&format!("{further}\nprivate_networks = true"), "further:6379", private), "{private}");
    }
    assert!(reaches(further, "further:6379", "203.0.113.9"));
    let network = "connect = ['further:6379', '10.0.0.0/8:6379']";
    assert!(reaches(network, "further:6379", "10.0.0.1") && !reaches(network, "further:6379", "192.168.0.1"));
}

#[test]
fn special_addresses_are_reached_only_where_their_network_is_granted() {
    for special in
        ["169.254.169.254", "::ffff:169.254.169.254", "0.0.0.0", "fe80::1", "224.0.0.1", "64:ff9b::a9fe:a9fe"]
    {
        assert!(!reaches("private_networks = true", "own:6379", special), "{special}");
    }
    let granted = "connect = ['169.254.0.0/16:6379', 'h:1']";
    assert!(reaches(granted, "own:6379", "169.254.169.254"));
    // At that port and in that network.
    assert!(!reaches(granted, "h:1", "169.254.169.254") && !reaches(granted, "own:6379", "0.0.0.0"));
}

proptest::proptest! {
    /// Whatever the config: an address that nothing grants by itself is public, or private and allowed to be.
    #[test]
    fn no_name_leads_to_a_special_address(bits: u32, private: bool) {
        let config = format!("connect = ['*:6379']\nprivate_networks = {private}");
        let address = std::net::Ipv4Addr::from_bits(bits);
        let expected = match addresses::kind(address.into()) {
            AddressKind::Public => true,
            AddressKind::Private => private,
            AddressKind::Special(_) => false,
        };
        assert_eq!(reaches(&config, "further:6379", &address.to_string()), expected);
        assert_eq!(reaches(&config, "further:6379", &address.to_ipv6_mapped().to_string()), expected);
    }
}

#[test]
fn secrets_are_named_within_the_scheme() {
    let grants = target("memkv://h:1", None).unwrap().grants;
    assert_eq!(grants.secret("auth-key").unwrap(), SecretSource::Variable("MEMKV_AUTH_KEY".into()));
    for name in ["", "PATH", "a_b", "a/b", &"x".repeat(65)] {
        assert!(grants.secret(name).is_err(), "{name}");
    }
    for (uri, name) in [("kv://h:1", "store-wasm-config"), ("ld-library://h:1", "path")] {
        assert!(target(uri, None).unwrap().grants.secret(name).is_err(), "{name}");
    }
}

#[test]
fn a_config_says_where_secrets_are() {
    let config = "[backend.redis.secrets]\npassword = 'CACHE_PASSWORD'\ntoken = { file = '/run/secrets/token' }";
    let grants = under(config, "redis://h:1").unwrap().grants;
    assert_eq!(grants.secret("password").unwrap(), SecretSource::Variable("CACHE_PASSWORD".into()));
    assert_eq!(grants.secret("token").unwrap(), SecretSource::File("/run/secrets/token".into()));
    assert_eq!(grants.secret("other").unwrap(), SecretSource::Variable("REDIS_OTHER".into()));
}

const TENANTS: &str = "
[backend.redis]
connect = ['further:6379']
private_networks = true
env = ['SHARED']
secrets.password = 'SHARED_PASSWORD'
limits = { deadline_ms = 50, instances = 3 }
options = { prefix = 'a:', color = 'red' }

[[tenant]]
uri = 'redis://h:1/1'
secrets.password = 'ONE_PASSWORD'
limits.instances = 5
options.prefix = 'one:'

[[tenant]]
uri = 'redis://h:1'
";

#[test]
fn a_tenant_has_its_own_grants_and_secrets_and_inherits_limits_and_options() {
    let (_, settings) = settings(TENANTS, "redis://h:1/1").unwrap();
    assert_eq!(settings.tenant.as_deref(), Some("redis://h:1/1"));
    assert_eq!((settings.limits.deadline_ms, settings.limits.instances), (50, 5));
    assert_eq!(settings.options.get("prefix").map(String::as_str), Some("one:"));
    assert_eq!(settings.options.get("color").map(String::as_str), Some("red"));

    let grants = under(TENANTS, "redis://h:1/1").unwrap().grants;
    assert!(grants.connect.is_empty() && grants.env.is_empty() && !grants.private_networks);
    assert_eq!(grants.secret("password").unwrap(), SecretSource::Variable("ONE_PASSWORD".into()));
    // Not even the variables of its scheme, which are everybody's.
    assert_eq!(grants.secret("token").unwrap_err().kind(), ErrorKind::Denied);
}

#[test]
fn the_longest_prefix_wins_and_what_none_covers_is_refused() {
    let tenant = |uri: &str| settings(TENANTS, uri).map(|(_, settings)| settings.tenant.unwrap_or_default());
    assert_eq!(tenant("redis://h:1/1/x").unwrap(), "redis://h:1/1");
    assert_eq!(tenant("redis://h:1/12").unwrap(), "redis://h:1");
    let rest = ["redis://h:2/1", "redis://other/1", "redis://h:1/./1", "redis://h:1/2/../1", "redis://h/1"];
    // Neither are the other schemes of the backend.
    for uri in rest.into_iter().chain(["rediss://h:1/1", "rediss://other"]) {
        assert_eq!(tenant(uri).unwrap_err().kind(), ErrorKind::Denied, "{uri}");
    }
    // Other schemes have no tenants.
    assert_eq!(tenant("memory://x").unwrap(), "");
}

#[test]
fn a_directory_that_overlaps_the_hosts_own_is_refused() {
    let grants = |path: &str| target(&format!("local-fs://{path}"), None).unwrap().grants;
    let own = |path: &str| Guarded { own: vec![("the cache", PathBuf::from(path))], ..Default::default() };
    let guarded = own("/no/such/cache");
    for path in ["/no/such/cache", "/no/such/cache/x", "/no", "/"] {
        assert!(grants(path).check_overlap(&guarded).is_err(), "{path}");
    }
    assert!(grants("/no/such/cache2").check_overlap(&guarded).is_ok());

    // Also by way of a link, where the last part does not exist yet.
    let scratch = tempfile::tempdir().unwrap();
    let (cache, link) = (scratch.path().join("cache"), scratch.path().join("link"));
    std::fs::create_dir(&cache).unwrap();
    std::os::unix::fs::symlink(&cache, &link).unwrap();
    let below = grants(&format!("{}/new", link.display()));
    assert!(below.check_overlap(&own(cache.to_str().unwrap())).is_err());

    // And a directory that the config grants.
    let named = under("[backend.redis]\nfs.all = { path = '/no' }", "redis://h:1").unwrap().grants;
    assert!(named.check_overlap(&guarded).is_err());
}

#[test]
fn a_directory_that_overlaps_another_tenants_is_refused() {
    let grants = |path: &str| target(&format!("local-fs://{path}"), None).unwrap().grants;
    let guarded = Guarded { foreign: vec![("tenant b".into(), "/kv/b".into())], ..Default::default() };
    for path in ["/kv", "/kv/b", "/kv/b/chunks"] {
        assert!(grants(path).check_overlap(&guarded).is_err(), "{path}");
    }
    assert!(grants("/kv/c").check_overlap(&guarded).is_ok() && grants("/kv/bb").check_overlap(&guarded).is_ok());
}
