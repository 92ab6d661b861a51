//! Connections between engines and a simulated server: bytes that arrive in order and in pieces, late, in part or not at all.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::rc::{Rc, Weak as Own};
use std::sync::{Arc, Weak};
use std::time::Duration;

use kv_platform::sync::Mutex;
use kv_store_core::process::{Clock, Condition};
use kv_store_sdk::native::Stream;
use kv_store_sdk::{Error, Result};
use memkv_server::os::Peer;

use super::call::Call;
use super::server;
use crate::calls::Fate;
use crate::plan::Backend;
use crate::sim::Sim;
use crate::threads::{MICROSECOND, MILLISECOND, Moment};
use crate::world::Origin;
use chance::Dice;

/// A connection. Dropped by both ends it is gone.
pub struct Wire {
    pub process: usize,
    /// Whom it leads to.
    pub authority: String,
    /// What flips is a bit of a value, and the server flips it. Else one of what is written next.
    flips_values: bool,
    state: Mutex<State>,
    changed: Condition,
}

struct State {
    up: Pipe,
    down: Pipe,
    dice: Dice,
}

/// One way of it.
#[derive(Default)]
struct Pipe {
    pieces: VecDeque<Piece>,
    /// When the last piece arrives.
    last: Moment,
    /// When the reader finds the end, behind the pieces.
    end: Option<Moment>,
    /// When the reader is told that the connection is gone.
    reset: Option<Moment>,
    /// What is written is lost.
    mute: bool,
    /// One bit of what is written next changes.
    flips: bool,
    /// One bit of the next value changes.
    flips_value: bool,
    /// What the server does with the next request.
    odd: Option<Odd>,
    /// So much later than it would.
    slow: Moment,
}

/// What a server, or what is before it, does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Odd {
    /// It answers that it failed, or has too much to do.
    Refuses,
    /// It is delivered once more, later.
    Repeats,
}

struct Piece {
    at: Moment,
    bytes: Vec<u8>,
    origin: Origin,
    calm: bool,
}

/// What a reader finds.
enum Came {
    Bytes(Vec<u8>, Origin),
    End,
    Reset,
    Nothing,
}

fn latency(dice: &mut Dice) -> Moment {
    match dice.below(8) {
        0 => dice.within(MILLISECOND, 8 * MILLISECOND),
        _ => dice.within(20 * MICROSECOND, 900 * MICROSECOND),
    }
}

impl Pipe {
    fn write(&mut self, bytes: &[u8], now: Moment, dice: &mut Dice, origin: Origin, calm: bool) {
        if self.mute || bytes.is_empty() {
            return;
        }
        let mut bytes = bytes.to_vec();
        if std::mem::take(&mut self.flips) {
            let at = dice.index(bytes.len());
            bytes[at] ^= 1 << dice.below(8);
        }
        let cut = if dice.met(300) { dice.index(bytes.len()) } else { 0 };
        let rest = bytes.split_off(cut);
        for bytes in [bytes, rest].into_iter().filter(|bytes| !bytes.is_empty()) {
            self.last = self.last.max(now + latency(dice) + self.slow);
            self.pieces.push_back(Piece { at: self.last, bytes, origin, calm });
        }
    }

    fn finish(&mut self, now: Moment, dice: &mut Dice) {
        let at = self.last.max(now + latency(dice));
        self.end.get_or_insert(at);
    }

    fn reset(&mut self, at: Moment) {
        self.reset = Some(self.reset.map_or(at, |before| before.min(at)));
    }
}

impl Wire {
    pub fn new(sim: &Sim, process: usize, authority: &str, number: u64) -> Arc<Self> {
        let dice = Dice::of(sim.plan.seed, &[7, number]);
        let state = State { up: Pipe::default(), down: Pipe::default(), dice };
        let clock = Clock::of(sim.threads.clone());
        let flips_values = matches!(sim.plan.shape.backend, Backend::Redis(_) | Backend::S3(_) | Backend::Mooncake(_));
        Arc::new(Wire {
            process,
            authority: authority.to_owned(),
            flips_values,
            state: Mutex::new(state),
            changed: Condition::new(&clock),
        })
    }

    /// Both ends are told that it is gone.
    pub fn cut(&self, now: Moment) {
        let mut state = self.state.lock();
        let State { up, down, .. } = &mut *state;
        for pipe in [up, down] {
            pipe.pieces.clear();
            pipe.mute = true;
            pipe.reset(now);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The process at this end is gone: what it has sent still arrives.
    pub fn leave(&self, now: Moment) {
        let mut state = self.state.lock();
        let State { up, down, dice } = &mut *state;
        up.finish(now, dice);
        down.mute = true;
        drop(state);
        self.changed.notify_all();
    }

    /// What befell one call does not befall the next.
    pub fn resume(&self) {
        let State { up, down, .. } = &mut *self.state.lock();
        for pipe in [up, down] {
            (pipe.slow, pipe.flips, pipe.flips_value, pipe.odd) = (0, false, false, None);
        }
    }

    /// Whether a bit of the value that is under way is to change.
    pub fn takes_flip(&self, up: bool) -> bool {
        let state = &mut *self.state.lock();
        std::mem::take(if up { &mut state.up.flips_value } else { &mut state.down.flips_value })
    }

    /// What is to become of the request that has come.
    pub fn takes_odd(&self) -> Option<Odd> {
        self.state.lock().up.odd.take()
    }

    /// It can be used, and nothing has come that nobody asked for.
    pub fn is_silent(&self, now: Moment) -> bool {
        let state = self.state.lock();
        let over = |at: Option<Moment>| at.is_some_and(|at| at <= now);
        state.down.pieces.is_empty() && !over(state.down.end) && !over(state.down.reset)
    }

    /// Whether a reader of what comes down finds something, or an end.
    fn has_come(&self, now: Moment, held: Moment) -> bool {
        let Pipe { pieces, end, reset, .. } = &self.state.lock().down;
        let over = |at: &Option<Moment>| at.is_some_and(|at| at <= now);
        let piece = pieces.front().map(|piece| if piece.calm { piece.at } else { piece.at.max(held) });
        piece.map_or(over(end), |at| at <= now) || over(reset)
    }

    /// Wait for what comes, until a moment. `held`: until when nothing gets through.
    fn read(
        &self,
        sim: &Sim,
        pipe: fn(&mut State) -> &mut Pipe,
        limit: usize,
        until: Moment,
        held: impl Fn(Moment) -> Moment,
    ) -> Came {
        let mut state = self.state.lock();
        loop {
            let now = sim.threads.moment();
            let Pipe { pieces, end, reset, .. } = pipe(&mut state);
            let mut next = reset.unwrap_or(Moment::MAX);
            if let Some(piece) = pieces.front_mut() {
                let at = if piece.calm { piece.at } else { piece.at.max(held(now)) };
                if at <= now {
                    let rest = piece.bytes.split_off(limit.min(piece.bytes.len()));
                    let (bytes, origin) = (std::mem::replace(&mut piece.bytes, rest), piece.origin);
                    if piece.bytes.is_empty() {
                        pieces.pop_front();
                    }
                    return Came::Bytes(bytes, origin);
                }
                next = next.min(at);
            } else if let Some(end) = *end {
                if end <= now {
                    return Came::End;
                }
                next = next.min(end);
            }
            if reset.is_some_and(|reset| reset <= now) {
                return Came::Reset;
            }
            if now >= until {
                return Came::Nothing;
            }
            let long = Duration::from_nanos(next.min(until) - now);
            state = self.changed.wait_timeout(&self.state, state, long);
        }
    }
}

/// An engine's end.
pub struct Near {
    pub sim: Arc<Sim>,
    pub wire: Arc<Wire>,
    /// The call that uses it.
    pub call: RefCell<Own<Call>>,
    /// The server has closed it.
    closed: Cell<bool>,
    /// For how long it is waited for in vain, where that is not for the operator's time.
    patience: Cell<Option<Moment>>,
}

impl Near {
    pub fn new(sim: Arc<Sim>, wire: Arc<Wire>, call: Own<Call>) -> Self {
        Near { sim, wire, call: RefCell::new(call), closed: Cell::new(false), patience: Cell::new(None) }
    }

    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    fn call(&self) -> Result<Rc<Call>> {
        self.call.borrow().upgrade().ok_or_else(|| Error::other("the call that used the connection is over"))
    }

    /// What befalls the bytes of a call, once.
    fn strike(&self, call: &Call, now: Moment) {
        let (State { up, down, dice }, left) = (&mut *self.wire.state.lock(), call.end().saturating_sub(now));
        match call.fate {
            Fate::Slow => {
                let slow = dice.within(0, left * 3 / 10);
                (up.slow, down.slow) = (slow, dice.within(0, slow));
            }
            // A value goes one way only.
            Fate::Flipped if self.wire.flips_values => (up.flips_value, down.flips_value) = (true, true),
            Fate::Refused => up.odd = Some(Odd::Refuses),
            Fate::Twice => up.odd = Some(Odd::Repeats),
            Fate::Flipped if dice.met(500) => up.flips = true,
            Fate::Flipped => down.flips = true,
            Fate::Unanswered => {
                down.mute = true;
                down.reset(now + dice.within(0, left));
            }
            Fate::Late => {
                up.last = up.last.max(now + dice.within(0, 2 * left));
                down.mute = true;
                down.reset(now + dice.within(0, left));
            }
            Fate::Hangs => {
                up.last = up.last.max(now + left + dice.within(0, left));
                down.mute = true;
            }
            Fate::Lost => {
                let at = now + dice.within(0, left);
                up.reset(at);
                down.mute = true;
                down.reset(at);
            }
            _ => {}
        }
    }
}

impl Stream for Near {
    fn send(&self, bytes: &[u8]) -> Result<()> {
        let call = self.call()?;
        call.step()?;
        call.until.sending();
        let now = self.sim.threads.moment();
        let strikes = call.strikes();
        if strikes {
            self.strike(&call, now);
        }
        let mut state = self.wire.state.lock();
        let State { up, dice, .. } = &mut *state;
        // Of what is lost a part may have arrived.
        let lost = call.fate == Fate::Lost && strikes;
        let sent = if lost { dice.index(bytes.len() + 1) } else { bytes.len() };
        up.write(&bytes[..sent], now, dice, call.origin, call.calm);
        up.mute |= lost;
        drop(state);
        self.wire.changed.notify_all();
        Ok(())
    }

    fn receive(&self, limit: usize) -> Result<Vec<u8>> {
        let patience = self.patience.get().unwrap_or(self.sim.plan.shape.patience);
        self.receive_since(limit, self.sim.threads.moment(), patience)
    }

    fn set_patience(&self, patience: u64) {
        self.patience.set(Some(patience));
    }
}

/// Wait until some of these connections have something to read, and say which.
pub fn ready(call: &Call, lines: &[&Near], patience: Option<Moment>) -> Result<Vec<usize>> {
    let sim = &call.sim;
    let (begun, patience) = (sim.threads.moment(), patience.unwrap_or(sim.plan.shape.patience));
    loop {
        call.step()?;
        let now = sim.threads.moment();
        let held = |near: &Near| sim.world().partitioned.get(&near.wire.process).copied().unwrap_or(0).max(now);
        let come: Vec<usize> =
            (0..).zip(lines).filter(|(_, near)| near.wire.has_come(now, held(near))).map(|(at, _)| at).collect();
        if !come.is_empty() {
            return Ok(come);
        }
        let end = call.end().min(begun + patience);
        if now >= end {
            call.is_disturbed();
            lines.iter().for_each(|near| call.until.met(&near.wire.authority, false));
            call.until.note_timeout(Duration::from_nanos(patience));
            return Err(Error::unavailable("no server answered in time (patience_ms)"));
        }
        // It is told a little after it has come, as by a kernel.
        let long = ((now - begun) / 16).clamp(20 * MICROSECOND, 2 * MILLISECOND);
        sim.threads.pause(long.min(end - now));
    }
}

impl Near {
    /// What was set for one call does not hold for the next.
    pub fn begins(&self, call: Own<Call>) {
        self.patience.set(None);
        self.call.replace(call);
    }

    /// The same, where nothing has come since a moment.
    pub fn receive_since(&self, limit: usize, since: Moment, patience: Moment) -> Result<Vec<u8>> {
        let call = self.call()?;
        call.step()?;
        let until = call.end().min(since + patience);
        let held = |now| self.sim.world().partitioned.get(&self.wire.process).copied().unwrap_or(0).max(now);
        let came = self.wire.read(&self.sim, |state| &mut state.down, limit, until, held);
        call.step()?;
        match came {
            Came::Bytes(bytes, _) => {
                call.until.moved(bytes.len() as u64);
                call.until.met(&self.wire.authority, true);
                Ok(bytes)
            }
            Came::End => {
                self.closed.set(true);
                Ok(Vec::new())
            }
            Came::Reset => {
                self.closed.set(true);
                call.is_disturbed();
                call.until.met(&self.wire.authority, false);
                Err(Error::unavailable("the connection was reset"))
            }
            Came::Nothing if call.end() <= self.sim.threads.moment() => Err(call.over()),
            Came::Nothing => {
                call.is_disturbed();
                call.until.met(&self.wire.authority, false);
                call.until.note_timeout(Duration::from_nanos(patience));
                Err(Error::unavailable("the server did not answer in time (patience_ms)"))
            }
        }
    }
}

impl Drop for Near {
    fn drop(&mut self) {
        self.wire.leave(self.sim.threads.moment());
    }
}

/// The server's end.
pub struct Far {
    pub sim: Weak<Sim>,
    pub wire: Arc<Wire>,
}

impl Peer for Far {
    fn read(&self, into: &mut [u8], timeout: Option<Duration>) -> io::Result<usize> {
        let Some(sim) = self.sim.upgrade() else { return Ok(0) };
        server::settled(&sim);
        let now = sim.threads.moment();
        let until = timeout.map_or(Moment::MAX, |timeout| now + timeout.as_nanos() as Moment);
        let held = |now| sim.world().unreachable_until(self.wire.process, now).unwrap_or(now);
        match self.wire.read(&sim, |state| &mut state.up, into.len(), until, held) {
            Came::Bytes(bytes, origin) => {
                into[..bytes.len()].copy_from_slice(&bytes);
                server::works_for(&sim, origin);
                Ok(bytes.len())
            }
            Came::End => Ok(0),
            Came::Reset => Err(io::ErrorKind::ConnectionReset.into()),
            Came::Nothing => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let Some(sim) = self.sim.upgrade() else { return Ok(bytes.len()) };
        server::settled(&sim);
        let (origin, now) = (server::origin(&sim), sim.threads.moment());
        let calm = server::is_calm(&sim, origin);
        let mut state = self.wire.state.lock();
        let State { down, dice, .. } = &mut *state;
        down.write(bytes, now, dice, origin, calm);
        drop(state);
        self.wire.changed.notify_all();
        Ok(bytes.len())
    }

    fn shutdown(&self, how: Shutdown) {
        let Some(sim) = self.sim.upgrade() else { return };
        let now = sim.threads.moment();
        let mut state = self.wire.state.lock();
        let State { up, down, dice } = &mut *state;
        if how != Shutdown::Write {
            up.pieces.clear();
            up.mute = true;
            up.end = Some(now);
        }
        if how != Shutdown::Read {
            down.finish(now, dice);
        }
        drop(state);
        self.wire.changed.notify_all();
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.shutdown(Shutdown::Both);
    }
}
