//! redis, one server: `guests/redis/src/one.rs` sends, `guests/redis/src/lib.rs` says what.
//!
//! Today a manifest is SET, a chunk SET with NX, a delete DEL. The server reads and carries out a command in one step, and what it has
//! received of a closed connection too. A kept connection that turns out to be closed is replaced once, and what was sent is sent again.
//!
//! Fenced: a change is a script that compares TIME with the end that it carries, and then sets or deletes. The greeting of each connection
//! ends in TIME, and each script answers it; the end is reckoned from when the last such answer came, less a margin. A server that was
//! started lately does not know a script: it refuses that, and is sent the script's text on the same connection. What else may have been
//! sent is never sent again: Redis cannot end a connection by a name that no other has had. A client does not change a key again before
//! the end of its change that ended unknown.
//!
//! `CLIENT KILL ID` is modelled as it works at best: the new connection kills the old one. It says nothing to other processes.
//!
//! Invariants: [`crate::history`]. Bounds: those of [`crate::sessions::cases`].

use crate::check::{Case, Expects};
use crate::history::NOT_UNDONE;
use crate::sessions::{self, End, OTHERS, OWN, Repeats, Replaces, Rules, Since};

pub const TODAY: Rules = Rules {
    end: End::None,
    since: Since::Answered,
    margin: 0,
    repeats: Repeats::AtOnce,
    replaces: Replaces::Nothing,
    holds: false,
    doubts_refusals: false,
    looks_first: false,
    single_threaded: true,
    scripts: false,
    tells_time: false,
    falls: 0,
};

pub const FENCED: Rules = Rules {
    end: End::Absolute,
    margin: 1,
    repeats: Repeats::Never,
    holds: true,
    scripts: true,
    tells_time: true,
    falls: 1,
    ..TODAY
};

pub fn cases() -> Vec<Case> {
    let mut cases = sessions::cases("redis", TODAY, FENCED);
    let broken =
        |variant, scenario, rules| sessions::case("redis", variant, &scenario, Expects::Breaks(NOT_UNDONE), rules);
    let kill = Rules { end: End::None, holds: false, replaces: Replaces::WhenDone, ..FENCED };
    cases.extend([
        broken("end counted from reading", OTHERS[0], Rules { end: End::Relative, ..FENCED }),
        broken("CLIENT KILL ID alone", OTHERS[0], kill),
        broken("end, no hold", OWN[0], Rules { holds: false, ..FENCED }),
        broken("end and hold, repeats", OTHERS[0], Rules { repeats: Repeats::AtOnce, doubts_refusals: true, ..FENCED }),
        // A wall clock that is stepped back, or a machine that was paused with its clock.
        broken("the clock falls past the margin", OTHERS[0], Rules { falls: 2, ..FENCED }),
    ]);
    cases
}
