//! The contract's `system`.

use super::host;
use crate::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

pub fn log(level: Level, message: &str) {
    host(|host| host.log(level, message));
}

pub fn secret(name: &str) -> Result<Option<String>> {
    host(|host| host.secret(name))
}

pub fn now() -> u64 {
    host(|host| host.wall())
}

pub fn monotonic() -> u64 {
    host(|host| host.monotonic())
}

pub fn remaining() -> u64 {
    host(|host| host.remaining())
}

pub fn sleep(duration: u64) -> Result<()> {
    match duration >= remaining() {
        true => Err(Error::unavailable("the deadline would be reached")),
        false => host(|host| host.sleep(duration)),
    }
}

pub fn random() -> u64 {
    host(|host| host.random())
}

pub fn fact(name: &str) -> Option<String> {
    host(|host| host.fact(name))
}
