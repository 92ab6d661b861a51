//! What the clients of one key were told, and the invariants that every model checks against what the key holds.
//!
//! A change is **over** for the client that made it when it was answered, or when the client gave up. For every other client it is over when
//! it was answered, or at its end: the deadline of the call that made it, by true time. A client that dies answers nothing, so its
//! change is over at the end. What began after a change was over must never be undone by it.

/// A change of the key; number 0 is what the key held at first.
pub type Number = u8;

/// The change that made what the key holds; none: there is nothing, because nothing was ever there or because it was evicted. A
/// delete makes that there is nothing, and is content of its own here.
pub type Content = Option<Number>;

/// "An acknowledged change is not undone": the key never holds what a change made that was over before an acknowledged one began.
pub const NOT_UNDONE: &str = "an acknowledged change is not undone";
/// "A refused change is not there": the key never holds what a change made whose client was told that it was not done.
pub const REFUSED_IS_NOT_THERE: &str = "a refused change is not there";
/// Shows that a model is not empty: a change was acknowledged that began after another one had ended unknown.
pub const GOES_ON: &str = "a change is acknowledged after one that ended unknown";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Waiting,
    Running,
    /// The client was told that it is done.
    Acknowledged,
    /// The client was told that something was there already, and was left.
    Existed,
    /// The client was told that it was not done.
    Refused,
    /// The client gave up. Whether it is done is not known.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Change {
    client: u8,
    phase: Phase,
    /// True time at which the call that makes it is over at the latest.
    end: u8,
    /// Changes that were over before this one began, a bit for each.
    before: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct History(Vec<Change>);

impl History {
    /// `clients`: who makes each change, from number 1 on.
    pub fn new(clients: &[u8]) -> Self {
        let first = Change { client: u8::MAX, phase: Phase::Acknowledged, end: 0, before: 0 };
        let waiting = |client: &u8| Change { client: *client, phase: Phase::Waiting, end: 0, before: 0 };
        History(std::iter::once(first).chain(clients.iter().map(waiting)).collect())
    }

    /// The next change that a client is to make.
    pub fn next(&self, client: u8) -> Option<Number> {
        let next = |change: &Change| change.client == client && change.phase == Phase::Waiting;
        self.0.iter().position(next).map(|number| number as Number)
    }

    pub fn begin(&mut self, number: Number, now: u8, end: u8) {
        let client = self.0[number as usize].client;
        let before = self.0.iter().enumerate().filter(|(_, change)| is_over(change, client, now));
        let before = before.fold(0, |bits, (other, _)| bits | 1 << other);
        self.0[number as usize] = Change { client, phase: Phase::Running, end, before };
    }

    pub fn ended(&mut self, number: Number, phase: Phase) {
        self.0[number as usize].phase = phase;
    }

    pub fn phase(&self, number: Number) -> Phase {
        self.0[number as usize].phase
    }

    pub fn end(&self, number: Number) -> u8 {
        self.0[number as usize].end
    }

    /// Whether the change that made `newer` is one that began after the other was over, and was acknowledged.
    pub fn replaces(&self, newer: Content, older: Content) -> bool {
        let (Some(newer), Some(older)) = (newer, older) else { return false };
        let Change { phase, before, .. } = self.0[newer as usize];
        phase == Phase::Acknowledged && before & (1 << older) != 0
    }

    /// [`NOT_UNDONE`]
    pub fn is_not_undone(&self, content: Content) -> bool {
        let Some(content) = content else { return true };
        !self.0.iter().any(|change| change.phase == Phase::Acknowledged && change.before & (1 << content) != 0)
    }

    /// [`REFUSED_IS_NOT_THERE`]
    pub fn refused_is_not_there(&self, content: Content) -> bool {
        content.is_none_or(|content| self.phase(content) != Phase::Refused)
    }

    /// [`GOES_ON`]
    pub fn goes_on(&self) -> bool {
        let unknown =
            |bits: u8| (1..self.0.len()).any(|other| bits & (1 << other) != 0 && self.0[other].phase == Phase::Unknown);
        self.0.iter().any(|change| change.phase == Phase::Acknowledged && unknown(change.before))
    }

    /// Whether every change has ended, so that nothing more is to be seen.
    pub fn is_told(&self) -> bool {
        self.0.iter().all(|change| !matches!(change.phase, Phase::Waiting | Phase::Running))
    }
}

fn is_over(change: &Change, for_client: u8, now: u8) -> bool {
    match change.phase {
        Phase::Waiting => false,
        Phase::Acknowledged | Phase::Existed | Phase::Refused => true,
        Phase::Unknown if change.client == for_client => true,
        Phase::Unknown | Phase::Running => change.client != for_client && now >= change.end,
    }
}
