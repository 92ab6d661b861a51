//! The contract's `net` interface.

use wasmtime::component::Resource;

use super::{State, answered};
use crate::bindings::kv_store::backend::net::{Host, HostConnection};
use crate::bindings::kv_store::backend::payload::Part;
use crate::bindings::kv_store::backend::types;
use crate::error::{Error, ErrorKind};
use crate::payload::Payload;

type Answer<T> = wasmtime::Result<Result<T, types::Error>>;

pub enum Connection {}

impl Host for State {
    async fn connect(
        &mut self,
        _authority: String,
        _tls: bool,
        _session: Option<String>,
    ) -> Answer<Resource<Connection>> {
        answered(Err(Error::new(ErrorKind::Unsupported, "not yet")))
    }
    async fn park(&mut self, connection: Resource<Connection>) -> wasmtime::Result<()> {
        match self.table.delete(connection)? {}
    }
}

impl HostConnection for State {
    async fn send(&mut self, c: Resource<Connection>, _parts: Vec<Part>) -> Answer<()> {
        match *self.table.get(&c)? {}
    }
    async fn receive_exact(&mut self, c: Resource<Connection>, _len: u32) -> Answer<Vec<u8>> {
        match *self.table.get(&c)? {}
    }
    async fn receive_until(&mut self, c: Resource<Connection>, _d: Vec<u8>, _limit: u32) -> Answer<Vec<u8>> {
        match *self.table.get(&c)? {}
    }
    async fn receive_some(&mut self, c: Resource<Connection>, _limit: u32) -> Answer<Vec<u8>> {
        match *self.table.get(&c)? {}
    }
    async fn receive_payload(&mut self, c: Resource<Connection>, _len: u64) -> Answer<Resource<Payload>> {
        match *self.table.get(&c)? {}
    }
    async fn skip(&mut self, c: Resource<Connection>, _len: u64) -> Answer<()> {
        match *self.table.get(&c)? {}
    }
    async fn resumed(&mut self, c: Resource<Connection>) -> wasmtime::Result<bool> {
        match *self.table.get(&c)? {}
    }
    async fn drop(&mut self, c: Resource<Connection>) -> wasmtime::Result<()> {
        match self.table.delete(c)? {}
    }
}
