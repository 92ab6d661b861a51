//! One server that clients talk to over connections: what memkv and redis have in common. [`Rules`] say how a protocol treats what is late.
//!
//! A connection keeps the order of its frames and repeats none. A frame that was sent may be carried out at any time after, also when its
//! client has closed the connection long ago (the server was stopped and continued, or a proxy held the bytes), or never. The
//! server carries out the frames of different connections in any order. Clients lose connections, give up early or at their deadline,
//! repeat what they sent, and die. The server restarts. Values are evicted. Connections of before a restart bring nothing more.
//!
//! Time is true time in ticks. Clients' clocks run with it; the server's began at another number, and may fall behind by
//! [`Rules::falls`] ticks in all: drift, a step back of a wall clock, a machine that was paused with its clock.

pub mod model;
mod state;

use crate::check::{Case, Expects};
use crate::history::NOT_UNDONE;
use model::Sessions;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A manifest, or a chunk with `replace`.
    Put,
    /// A chunk or block that is left if one is there.
    PutNew,
    Delete,
}

/// How a change says when it is too late, and where that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    None,
    /// So many ticks from when the server has read the frame.
    Relative,
    /// A time of the server's clock, looked at when the frame is read, and carried out later.
    SeenWhenRead,
    /// A time of the server's clock, looked at in the step that changes the key.
    Absolute,
}

/// From when a client counts the time that the server has told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// From when it asked: it takes the server's clock to be as late as it can be.
    Asked,
    /// From when the answer came: as early as it can be.
    Answered,
}

/// What a client does with a change that it has sent on a connection that is lost before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeats {
    Never,
    AtOnce,
}

/// What a new connection does to the one before it of the same client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaces {
    Nothing,
    /// No further frame of it is carried out; the one that is running goes on.
    AtOnce,
    /// The same, answered when the running one is done.
    WhenDone,
}

#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub end: End,
    pub since: Since,
    /// Ticks that an end is earlier than reckoned, for a clock that falls behind.
    pub margin: u8,
    pub repeats: Repeats,
    pub replaces: Replaces,
    /// A client keeps from changing a key until the end of its change that ended unknown, unless a new connection has settled it.
    pub holds: bool,
    /// A refusal of what was sent twice is no answer: the first may have been carried out.
    pub doubts_refusals: bool,
    /// Before it carries out what is put only where nothing lies, the server looks whether something does, in a step of its own.
    pub looks_first: bool,
    /// The server reads and carries out a frame in one step.
    pub single_threaded: bool,
    /// A change is a script. A server that was started and not sent its text since refuses it, and is sent the text then.
    pub scripts: bool,
    /// Each answer tells the server's clock anew.
    pub tells_time: bool,
    /// Ticks that the server's clock may fall behind.
    pub falls: u8,
}

/// Bounds of a search.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The last true time.
    pub ticks: u8,
    pub connections: usize,
    pub restarts: u8,
    pub evictions: u8,
}

/// Who makes which change, and how far it is searched.
#[derive(Clone, Copy)]
pub struct Scenario {
    name: &'static str,
    changes: &'static [(u8, Kind)],
    bounds: Bounds,
}

/// A second process makes the later change, so the first is over at its end.
pub const OTHERS: [Scenario; 3] = {
    const BOUNDS: Bounds = Bounds { ticks: 3, connections: 3, restarts: 1, evictions: 0 };
    [
        Scenario { name: "put, other's put", changes: &[(0, Kind::Put), (1, Kind::Put)], bounds: BOUNDS },
        Scenario { name: "delete, other's put", changes: &[(0, Kind::Delete), (1, Kind::Put)], bounds: BOUNDS },
        Scenario { name: "block, other's delete", changes: &[(0, Kind::PutNew), (1, Kind::Delete)], bounds: BOUNDS },
    ]
};

/// The same process makes the later change, so the first is over as soon as it was told so.
pub const OWN: [Scenario; 3] = {
    const BOUNDS: Bounds = Bounds { ticks: 4, connections: 4, restarts: 1, evictions: 0 };
    [
        Scenario { name: "put, put", changes: &[(0, Kind::Put), (0, Kind::Put)], bounds: BOUNDS },
        Scenario { name: "delete, put", changes: &[(0, Kind::Delete), (0, Kind::Put)], bounds: BOUNDS },
        Scenario { name: "block, delete", changes: &[(0, Kind::PutNew), (0, Kind::Delete)], bounds: BOUNDS },
    ]
};

/// Three changes by two processes.
const THREE: [Scenario; 3] = {
    const BOUNDS: Bounds = Bounds { ticks: 3, connections: 3, restarts: 0, evictions: 1 };
    const PUT: &[(u8, Kind)] = &[(0, Kind::Put), (0, Kind::Put), (1, Kind::Put)];
    const DELETE: &[(u8, Kind)] = &[(0, Kind::Put), (0, Kind::Delete), (1, Kind::Put)];
    const BLOCK: &[(u8, Kind)] = &[(0, Kind::PutNew), (0, Kind::Delete), (1, Kind::PutNew)];
    [
        Scenario { name: "three puts", changes: PUT, bounds: BOUNDS },
        Scenario { name: "put, delete, put", changes: DELETE, bounds: BOUNDS },
        Scenario { name: "block, delete, block", changes: BLOCK, bounds: BOUNDS },
    ]
};

/// What today's rules break, and the fence's keep.
pub fn cases(model: &'static str, today: Rules, fenced: Rules) -> Vec<Case> {
    let each = |scenario| {
        let broken = case(model, "today", scenario, Expects::Breaks(NOT_UNDONE), today);
        [broken, case(model, "fenced", scenario, Expects::Holds, fenced)]
    };
    let both = OTHERS.iter().chain(&OWN).flat_map(each);
    // With three changes the clock keeps time: with two it was let fall.
    let steady = Rules { falls: 0, ..fenced };
    let three = THREE.iter().map(|scenario| case(model, "fenced", scenario, Expects::Holds, steady));
    both.chain(three).collect()
}

pub fn case(model: &'static str, variant: &'static str, scenario: &Scenario, expects: Expects, rules: Rules) -> Case {
    let Scenario { name, changes, bounds } = *scenario;
    let held = changes[0].1 != Kind::PutNew;
    Case::new(
        model,
        variant,
        name,
        expects,
        Sessions { rules, bounds, changes: changes.to_vec(), held, connected: true },
    )
}
