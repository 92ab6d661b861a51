//! A memkv-server that is stopped and goes on, in memory and with files.

use kv_store_tests::memkv::MemkvServer;
use kv_store_tests::servers::Server;

use super::{Pair, Target, Way};
use crate::process::Story;

impl Target for MemkvServer {
    fn uri(&self) -> String {
        MemkvServer::uri(self, "late")
    }

    fn hold_up(&mut self) {
        self.freeze(true);
    }

    fn go_on(&mut self) {
        self.freeze(false);
    }
}

pub fn memory(seed: u64) -> Story {
    super::round(seed, &mut MemkvServer::start(&[]), &Way::of(seed, Pair::ALL))
}

pub fn files(seed: u64) -> Story {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let data = folder.path().display().to_string();
    super::round(seed, &mut MemkvServer::start(&["--data", &data]), &Way::of(seed, Pair::ALL))
}
