//! `examples/operate`, the stack for ten tenants: its processes are started from the files that `compose.yaml` mounts into containers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kv_store_tests::consumer::{Running, start, succeed};
use kv_store_tests::servers::free_port;
use kv_store_tests::{not_installed, root, seaweed, skipped};

const PATIENCE: Duration = Duration::from_secs(60);
const TENANTS: usize = 10;

fn folder() -> PathBuf {
    root().join("examples/operate")
}

/// None: Prometheus is not installed, which is said.
fn program(name: &str) -> Option<PathBuf> {
    let found = Some(seaweed::programs().join(name)).filter(|program| program.exists());
    if found.is_none() {
        not_installed("Prometheus");
    }
    found
}

/// What follows each `before` in a text, to the end of its word.
fn words<'a>(text: &'a str, before: &str) -> BTreeSet<&'a str> {
    let ends = |c: char| !(c.is_alphanumeric() || c == '_');
    text.split(before).skip(1).filter_map(|rest| rest.split(ends).next()).collect()
}

#[test]
fn each_alert_fires_when_it_should() {
    let Some(promtool) = program("promtool") else { return };
    succeed(Command::new(&promtool).args(["test", "rules", "alerts_test.yml"]).current_dir(folder()));
    let (alerts, tests) = ("alerts.yml", "alerts_test.yml");
    let [alerts, tests] = [alerts, tests].map(|file| read_to_string(folder().join(file)).unwrap());
    let fires: BTreeSet<&str> = tests
        .split("alertname: ")
        .skip(1)
        .filter(|rest| rest.lines().nth(1).is_some_and(|line| line.trim() == "exp_alerts:"))
        .filter_map(|rest| rest.lines().next())
        .collect();
    assert_eq!(words(&alerts, "alert: "), fires, "each alert has a test in which it fires");
    let page = read_to_string(root().join("docs/metrics.md")).unwrap();
    for metric in words(&alerts, "kv_store_") {
        let listed = page.contains(&format!("`{}", metric.trim_end_matches("_bucket")));
        assert!(listed, "docs/metrics.md does not list kv_store_{metric}");
    }
}

/// Of each file that containers see, by its path there: where it lies here.
fn mounted() -> BTreeMap<String, PathBuf> {
    let text = read_to_string(folder().join("compose.yaml")).unwrap();
    let mounts = text.lines().filter_map(|line| line.trim().strip_prefix("- .")?.strip_suffix(":ro")?.split_once(':'));
    mounts.map(|(here, there)| (there.to_owned(), folder().join(format!(".{here}")))).collect()
}

#[test]
fn what_containers_mount_is_there_and_is_what_they_read() {
    let mounted = mounted();
    for here in mounted.values().filter(|here| !here.ends_with("made/users.acl")) {
        assert!(here.is_file(), "{}", here.display());
    }
    let compose = read_to_string(folder().join("compose.yaml")).unwrap();
    let text = |there: &str| read_to_string(&mounted[there]).unwrap();
    let named = [
        (compose.as_str(), "/etc/redis/redis.conf"),
        (&text("/etc/redis/redis.conf"), "/etc/redis/users.acl"),
        (&compose, "/etc/prometheus/prometheus.yml"),
        (&text("/etc/prometheus/prometheus.yml"), "/etc/prometheus/alerts.yml"),
        (&compose, "KV_STORE_WASM_CONFIG: /etc/kv/kv-store.toml"),
        (&compose, "python3 /app/service.py"),
        (&text("/etc/grafana/provisioning/dashboards/kv-store.yml"), "path: /var/lib/grafana/dashboards "),
    ];
    for (text, name) in named {
        assert!(text.contains(name), "{name} is named by who reads it");
        let path = name.split(' ').find(|word| word.starts_with('/')).unwrap();
        assert!(mounted.keys().any(|there| there.starts_with(path)), "{path} is mounted");
    }
}

/// A file of the stack as a process outside of containers reads it.
fn here(work: &Path, file: &str, replaced: &[(&str, &str)]) -> PathBuf {
    let mut text = read_to_string(folder().join(file)).unwrap();
    for (there, here) in replaced {
        assert!(text.contains(there), "{file} has {there}");
        text = text.replace(there, here);
    }
    let path = work.join(file);
    std::fs::write(&path, text).unwrap();
    path
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn ten_tenants_are_served_and_watched() {
    let (Some(prometheus), Some(promtool)) = (program("prometheus"), program("promtool")) else { return };
    let Some(python) = std::env::var_os("KV_STORE_TEST_PYTHON").map(PathBuf::from) else {
        return skipped("Python has no kv_store_wasm: `cargo xtask test` runs it where it tests the wheel");
    };
    let scratch = tempfile::tempdir().unwrap();
    let work = scratch.path();
    let run = |command: &mut Command| start(command.stdin(Stdio::null()).stdout(Stdio::null()));
    let [redis, metrics, web] = [(); 3].map(|()| format!("127.0.0.1:{}", free_port()));

    std::fs::copy(folder().join("passwords.sh"), work.join("passwords.sh")).unwrap();
    // By its interpreter: Linux starts no file that a process being started beside it still has open for writing.
    succeed(Command::new("sh").arg(work.join("passwords.sh")));
    let acl = work.join("made/users.acl");
    let port = redis.rsplit(':').next().unwrap();
    let conf = here(
        work,
        "redis.conf",
        &[("/etc/redis/users.acl", acl.to_str().unwrap()), ("port 6379", &format!("port {port}\nbind 127.0.0.1"))],
    );
    let server = || run(Command::new("redis-server").arg(&conf).current_dir(work));
    let mut serving: Running = server();
    until("Redis starts", || std::net::TcpStream::connect(&redis).is_ok());

    let config = here(work, "kv-store.toml", &[("redis:6379", &redis), ("0.0.0.0:9464", &metrics)]);
    let log = work.join("engine.log");
    let mut service = Command::new(python.join("python3"));
    service.arg(folder().join("service.py")).env("KV_STORE_WASM_CONFIG", &config);
    service.env("PYTHONPATH", root().join("examples")).env("PYTHONDONTWRITEBYTECODE", "1");
    service.env("KV_STORE_WASM_CACHE", root().join("target/test-consumers/cache"));
    let passwords = read_to_string(work.join("made/passwords.env")).unwrap();
    service.envs(passwords.lines().filter_map(|line| line.split_once('=')));
    let _engine = run(service.stderr(std::fs::File::create(&log).unwrap()));

    let alerts = here(work, "alerts.yml", &[]);
    let scraped = [
        ("engine:9464", metrics.as_str()),
        ("/etc/prometheus/alerts.yml", alerts.to_str().unwrap()),
        ("_interval: 15s", "_interval: 1s"),
    ];
    let config = here(work, "prometheus.yml", &scraped);
    let mut watching = Command::new(prometheus);
    watching.arg(format!("--config.file={}", config.display()));
    watching.arg(format!("--storage.tsdb.path={}", work.join("samples").display()));
    watching.arg(format!("--web.listen-address={web}"));
    let _prometheus = run(watching.stderr(std::fs::File::create(work.join("prometheus.log")).unwrap()));

    let count = |query: &str| -> usize {
        let answer = Command::new(&promtool)
            .args(["query", "instant", "--format=json", &format!("http://{web}"), query])
            .output()
            .unwrap();
        serde_json::from_slice::<Vec<serde_json::Value>>(&answer.stdout).map_or(0, |series| series.len())
    };
    let said = || read_to_string(&log).unwrap();
    let each = format!("not each of {TENANTS} tenants has hits");
    until(&each, || count("sum by (tenant) (rate(kv_store_hits_total[5s])) > 0") == TENANTS);
    // The users may do all that the backend does.
    assert!(!said().contains("does not refuse changes that come late") && !said().contains("NOPERM"), "{}", said());

    serving.kill();
    let pending = r#"ALERTS{alertname="KvStoreBreakerOpen", alertstate="pending"}"#;
    until("an alert for each store whose server is gone", || count(pending) == TENANTS);
    let _serving = server();
    until("all are served again", || count("sum by (tenant) (rate(kv_store_hits_total[5s])) > 0") == TENANTS);
    until("no alert is left", || count(pending) == 0);
}
