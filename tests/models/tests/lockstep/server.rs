//! What a walk needs of a backend: its component, and its server as a state that goes on step by step.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use kv_store_models::sessions::Rules;
use kv_store_models::sessions::model::{Action, Sessions, State};
use kv_store_sdk::native::Opened;
use kv_store_sdk::{Features, Result};

use crate::Subject;
use crate::wire::Wire;

/// A component.
pub trait Component {
    /// It settles former changes that ended unknown.
    const SETTLES: bool;

    fn secret(name: &str) -> Option<&'static str>;

    /// Open it.
    fn open() -> Result<(Box<dyn Opened>, Features)>;
}

/// A component, and a server that is talked to over connections.
pub trait Server: Component + Sized + 'static {
    /// Of its model.
    const RULES: Rules;
    /// The connection on which a component was opened is that of its changes.
    const CHANGES_WHERE_OPENED: bool;

    /// The server. `now`: nanoseconds of the walk.
    fn start(now: &Arc<AtomicU64>, subject: Subject) -> Self;

    /// The next connection, by its number.
    fn accept(&mut self, wire: &Arc<Wire>);

    /// The connections so far are no more to be told of: the next one is number 0.
    fn forget_connections(&mut self);

    /// Whether it still serves a connection.
    fn serves(&self, connection: usize) -> bool;

    /// Whether it has begun something on a connection that it can go on with.
    fn is_under_way(&self, connection: usize) -> bool;

    /// Go on with a connection, as far as one step of the model goes. Answers that step; none: the model has none for it. `Err`: it did what
    /// it never does.
    fn go_on(
        &mut self,
        connection: usize,
        model: &Sessions,
        state: &State,
    ) -> std::result::Result<Option<Action>, String>;

    /// What lies under the key.
    fn content(&self) -> Option<Vec<u8>>;

    fn set(&mut self, value: Option<Vec<u8>>);

    /// Its clock falls behind by a tick.
    fn fall(&mut self);

    /// Another process serves from now on, with the same content.
    fn restart(&mut self);
}
