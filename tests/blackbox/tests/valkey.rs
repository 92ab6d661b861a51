//! The tests of the redis backend once more, against a real valkey-server: what starts a server looks at the name of this program.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

#[path = "cluster.rs"]
mod cluster;
#[path = "redis.rs"]
mod redis;

#[test]
fn the_server_is_a_valkey_where_there_is_one() {
    let Some(valkey) = kv_store_tests::redis::RedisServer::start_valkey() else { return };
    assert!(valkey.ask("INFO server").contains("server_name:valkey"));
    assert!(kv_store_tests::redis::RedisServer::start(&[]).ask("INFO server").contains("server_name:valkey"));
}
