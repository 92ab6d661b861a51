//! What is known in a state of the server and its clients, and the names of the steps.

use crate::history::{Content, History, Number, Phase};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) now: u8,
    pub(super) fell: u8,
    pub(super) restarts: u8,
    pub(super) evictions: u8,
    /// The scripts that the server knows, a bit for each.
    pub(super) scripts: u8,
    pub(super) history: History,
    pub(super) content: Content,
    pub(super) clients: Vec<Client>,
    pub(super) connections: Vec<Connection>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    pub(super) change: Option<Number>,
    /// How often the change was sent.
    pub(super) sent: u8,
    pub(super) connection: Option<u8>,
    /// The last connection that was lost with a frame on it: what a new one replaces.
    pub(super) unsettled: Option<u8>,
    /// No change before this time.
    pub(super) held_until: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Greeting {
    Asked,
    /// With what the server's clock was ahead of the client's as far as the client can know, when the answer has come.
    Answered(i8),
    Learnt(i8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    pub(super) change: Number,
    /// By the server's clock.
    pub(super) end: i8,
    /// Nothing was found where it is to be put.
    pub(super) looked: bool,
    /// With the text of its script.
    pub(super) whole: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Says {
    Ended(Phase),
    /// It is not carried out, because the server does not know its script.
    NoScript,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Answer {
    pub(super) says: Says,
    /// The server's clock, where answers tell it.
    pub(super) clock: i8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Connection {
    pub(super) asked_at: u8,
    pub(super) greeting: Greeting,
    pub(super) replaces: Option<u8>,
    pub(super) sent: Option<Frame>,
    pub(super) running: Option<Frame>,
    pub(super) answer: Option<Answer>,
    /// The server reads no more of it.
    pub(super) ended: bool,
    /// The client listens.
    pub(super) open: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Tick,
    ClockFalls,
    Restart,
    Evict,
    Begin(u8),
    Connect(u8),
    Greet(u8),
    Learn(u8),
    Read(u8),
    /// The server looks whether something lies there, before it carries out what is put only where nothing does.
    Look(u8),
    CarryOut(u8),
    Answer(u8),
    Lose(u8),
    GiveUp(u8),
}

impl State {
    pub fn now(&self) -> u8 {
        self.now
    }

    pub fn history(&self) -> &History {
        &self.history
    }

    pub fn content(&self) -> Content {
        self.content
    }

    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// What a client is about to do, and not told of yet.
    pub fn runs(&self, client: u8) -> Option<Number> {
        self.clients[client as usize].change
    }

    /// Whether the server has read a frame of a connection, and not carried it out.
    pub fn is_running(&self, connection: u8) -> bool {
        self.connections[connection as usize].running.is_some()
    }

    /// Whether the server has answered a client that it does not know its script.
    pub fn is_sent_back(&self, client: u8) -> bool {
        let connection = self.clients[client as usize].connection;
        let answer = connection.and_then(|connection| self.connections[connection as usize].answer);
        answer.is_some_and(|answer| answer.says == Says::NoScript)
    }

    /// Whether the server reads no more of a connection.
    pub fn has_ended(&self, connection: u8) -> bool {
        self.connections[connection as usize].ended
    }
}
