//! The page of what has come of a call when it has answered, on each backend: what the calls do, and not what is said of them.

use kv_store_tests::cluster::RedisCluster;
use kv_store_tests::consumer::{consumer, finish};
use kv_store_tests::memkv::{AUTH_KEY, MemkvServer};
use kv_store_tests::mooncake::{self, GRANTS, Mooncake};
use kv_store_tests::objects::ObjectServer;
use kv_store_tests::redis::RedisServer;
use kv_store_tests::seaweed::{ACCESS_KEY_ID, SECRET_ACCESS_KEY};
use kv_store_tests::{root, shipped};
use libtest_mimic::Failed;

/// From the clone.
pub const PATH: &str = "docs/reference/promises.md";

/// Each call, and the word for what has come of it.
type Words = Vec<(String, String)>;

/// The table.
pub fn table() -> Result<String, Failed> {
    let folder = tempfile::tempdir()?;
    let redis = RedisServer::start(&[]);
    let cluster = RedisCluster::start(3);
    let memkv = MemkvServer::start(&[]);
    let objects = ObjectServer::start();
    let columns = [
        ("local-fs", ask(&format!("local-fs://{}/files", folder.path().display()))?),
        ("segments", ask(&format!("segments://{}/segments", folder.path().display()))?),
        ("memory", ask("memory://promises")?),
        ("redis", ask(&format!("redis://127.0.0.1:{}/0", redis.port))?),
        ("redis, a cluster", ask(&cluster.uri())?),
        ("memkv", ask(&memkv.uri("promises"))?),
        ("s3", ask(&format!("s3+http://127.0.0.1:{}/bucket/p", objects.port))?),
        ("mooncake", of_mooncake()?),
    ];
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let missing: Vec<String> = shipped().into_iter().filter(|name| !names.contains(&name.as_str())).collect();
    if !missing.is_empty() {
        return Err(format!("tests/blackbox/tests/book/promises.rs has no column of {missing:?}").into());
    }
    let mut table = format!("| | {} |\n|{}\n", names.join(" | "), " --- |".repeat(names.len() + 1));
    let (_, first) = &columns[0];
    for (row, (call, _)) in first.iter().enumerate() {
        let words = columns.iter().map(|(name, words)| match words.get(row) {
            Some((of, word)) if of == call => Ok(word.as_str()),
            other => Err(Failed::from(format!("{name}: {other:?} where {call} should be"))),
        });
        table += &format!("| `{call}` | {} |\n", words.collect::<Result<Vec<_>, _>>()?.join(" | "));
    }
    Ok(table)
}

/// Where no Mooncake can be started, what the page has of it already.
fn of_mooncake() -> Result<Words, Failed> {
    let Some(server) = Mooncake::start(1) else {
        let page = std::fs::read_to_string(root().join(PATH))?;
        let rows = page.lines().filter(|line| line.starts_with("| `"));
        let words = rows.filter_map(|row| {
            let call = row.split('`').nth(1)?;
            Some((call.to_owned(), row.trim_end_matches(" |").rsplit(" | ").next()?.to_owned()))
        });
        return Ok(words.collect());
    };
    let config = tempfile::NamedTempFile::new()?;
    std::fs::write(config.path(), format!("[backend.mooncake]\n{GRANTS}\n"))?;
    let mut command = consumer("promises");
    command.arg(mooncake::uri("promises")).env("KV_STORE_WASM_CONFIG", config.path());
    words(server.namespace.finish(&command))
}

fn ask(uri: &str) -> Result<Words, Failed> {
    let mut command = consumer("promises");
    command.arg(uri).env("MEMKV_AUTH_KEY", AUTH_KEY);
    command.env("S3_ACCESS_KEY_ID", ACCESS_KEY_ID).env("S3_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY);
    words(finish(&mut command))
}

fn words(finished: kv_store_tests::consumer::Finished) -> Result<Words, Failed> {
    if !finished.status.success() {
        return Err(format!("{}{}", finished.stdout, finished.stderr).into());
    }
    let word = |line: &str| line.rsplit_once(": ").map(|(call, word)| (call.to_owned(), word.to_owned()));
    Ok(finished.stdout.lines().filter_map(word).collect())
}
