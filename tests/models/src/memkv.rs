//! memkv: `guests/memkv/src/session.rs` sends, `guests/memkv/server/src/serve.rs` reads, `guests/memkv/server/src/store.rs` changes the key.
//!
//! Today a PUT or DELETE says nothing of time. The client drops its connection at the deadline and makes another; the server goes on
//! with what it has received on the old one. A kept connection that turns out to be closed is replaced once, and what was sent is sent again.
//!
//! Fenced: CONNECT answers the server's monotonic time. A change carries its end on that clock, reckoned from when the answer *came*, less
//! a margin for drift, so that the server's clock has passed it when the client's deadline comes. It is compared under the lock of the
//! table, in the step that changes the key. A CONNECT names the session that its client lost; it is answered when that session's
//! running frame is done, and no later frame of it is carried out. A refusal of what was sent twice is an unknown end.
//!
//! Invariants: [`crate::history`]. Bounds: those of [`crate::sessions::cases`].

use crate::check::{Case, Expects};
use crate::history::{NOT_UNDONE, REFUSED_IS_NOT_THERE};
use crate::sessions::{self, End, OTHERS, OWN, Repeats, Replaces, Rules, Since};

pub const TODAY: Rules = Rules {
    end: End::None,
    since: Since::Answered,
    margin: 0,
    repeats: Repeats::AtOnce,
    replaces: Replaces::Nothing,
    holds: false,
    doubts_refusals: false,
    looks_first: true,
    single_threaded: false,
    scripts: false,
    tells_time: false,
    falls: 0,
};

pub const FENCED: Rules =
    Rules { end: End::Absolute, margin: 1, replaces: Replaces::WhenDone, doubts_refusals: true, falls: 1, ..TODAY };

pub fn cases() -> Vec<Case> {
    let mut cases = sessions::cases("memkv", TODAY, FENCED);
    let broken = |variant, scenario, invariant, rules| {
        sessions::case("memkv", variant, &scenario, Expects::Breaks(invariant), rules)
    };
    cases.extend([
        broken("end counted from reading", OTHERS[0], NOT_UNDONE, Rules { end: End::Relative, ..FENCED }),
        broken("end seen when read", OTHERS[0], NOT_UNDONE, Rules { end: End::SeenWhenRead, ..FENCED }),
        broken(
            "time counted from the question",
            OTHERS[0],
            NOT_UNDONE,
            Rules { since: Since::Asked, margin: 0, falls: 0, ..FENCED },
        ),
        broken("no margin, the clock falls", OTHERS[0], NOT_UNDONE, Rules { margin: 0, ..FENCED }),
        broken("replaces, no end", OTHERS[0], NOT_UNDONE, Rules { end: End::None, ..FENCED }),
        broken("end, replaces nothing", OWN[0], NOT_UNDONE, Rules { replaces: Replaces::Nothing, ..FENCED }),
        broken(
            "end and hold, repeats",
            OTHERS[0],
            NOT_UNDONE,
            Rules { replaces: Replaces::Nothing, holds: true, ..FENCED },
        ),
        broken("replaces before it is done", OWN[0], NOT_UNDONE, Rules { replaces: Replaces::AtOnce, ..FENCED }),
        broken("refusals believed", OWN[0], REFUSED_IS_NOT_THERE, Rules { doubts_refusals: false, ..FENCED }),
        // What the fence does not need: it holds as well, at the price of waiting out the end.
        sessions::case(
            "memkv",
            "end and hold, never repeats",
            &OTHERS[0],
            Expects::Holds,
            Rules { replaces: Replaces::Nothing, holds: true, repeats: Repeats::Never, ..FENCED },
        ),
    ]);
    cases
}
