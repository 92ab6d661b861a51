//! A redis-server without time, threads and connections: those are the caller's. `tests/simulate/src/shipped/redis/tests.rs` compares each
//! answer with that of a real server.

pub mod db;
pub mod resp;
pub mod script;
