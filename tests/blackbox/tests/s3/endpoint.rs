//! `s3://BUCKET`: the server is the one that the operator names.

use kv_store_tests::consumer::finish;
use kv_store_tests::objects::ObjectServer;

use super::{chunk, kv_store, kv_store_command, uri};

#[test]
fn a_bucket_is_at_the_endpoint_that_the_operator_names() {
    let server = ObjectServer::start();
    let (_, bytes, _) = chunk(11);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state");
    std::fs::write(&file, &bytes).unwrap();
    let endpoint = format!("http://127.0.0.1:{}", server.port);
    let run = |config: &str, variable: Option<(&str, &str)>, arguments: &[&str]| {
        let path = folder.path().join("config.toml");
        std::fs::write(&path, config).unwrap();
        let mut command = kv_store_command(arguments);
        finish(command.env("KV_STORE_WASM_CONFIG", &path).env_remove("S3_REGION").envs(variable))
    };
    let file = file.to_str().unwrap();
    let save = ["save", "s3://bucket/p", file, "--name", "m"];
    let url = ("S3_ENDPOINT_URL", endpoint.as_str());
    let config = format!("[backend.s3]\nendpoint = '{endpoint}'\n");
    for (config, variable, name) in [("", Some(url), "m"), (config.as_str(), None, "n")] {
        let arguments = ["save", "s3://bucket/p", file, "--name", name];
        let finished = run(config, variable, &arguments);
        assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
        let told = run(config, variable, &["doctor", "--offline", "s3://bucket/p"]);
        assert!(told.stdout.contains(&format!("server 127.0.0.1:{}", server.port)), "{}", told.stdout);
    }
    assert!(server.keys().iter().all(|key| key.starts_with("bucket/p/")), "{:?}", server.keys());
    // A URI with the server opens the same store.
    let restored = folder.path().join("restored");
    let restore = kv_store(&["restore", &uri(&server), restored.to_str().unwrap(), "--name", "n"]);
    assert!(restore.status.success() && std::fs::read(&restored).unwrap() == bytes, "{}", restore.stderr);
    let region = run("", Some(("S3_REGION", "eu-west-3")), &["doctor", "--offline", "s3://bucket/p"]);
    assert!(region.stdout.contains("server s3.eu-west-3.amazonaws.com:443"), "{}", region.stdout);
    let refused = run("", None, &save);
    assert!(!refused.status.success() && refused.stderr.contains("S3_ENDPOINT_URL"), "{}", refused.stderr);
}
