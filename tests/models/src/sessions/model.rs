//! The steps between the states of one server and its clients.

use stateright::{Model, Property};

use super::state::{Answer, Client, Connection, Frame, Greeting, Says};
use super::{Bounds, End, Kind, Repeats, Replaces, Rules, Since};
use crate::history::{Content, GOES_ON, History, NOT_UNDONE, Phase, REFUSED_IS_NOT_THERE};

pub use super::state::{Action, State};

/// What the server's clock is ahead of true time. No client knows it.
const AHEAD: i8 = 3;
/// Ticks that a call may take.
pub const PATIENCE: u8 = 2;

#[derive(Clone)]
pub struct Sessions {
    pub rules: Rules,
    pub bounds: Bounds,
    /// The changes, in the order in which each client makes its own.
    pub changes: Vec<(u8, Kind)>,
    /// Whether the key holds something at first.
    pub held: bool,
    /// Whether the clients have connections at first.
    pub connected: bool,
}

impl Sessions {
    fn clock(&self, state: &State) -> i8 {
        state.now as i8 + AHEAD - state.fell as i8
    }

    fn begin(&self, state: &mut State, client: u8) -> Option<()> {
        let number = state.history.next(client)?;
        let of = &mut state.clients[client as usize];
        // A new connection settles what was sent on the one before.
        let settles = self.rules.replaces == Replaces::WhenDone;
        let may = of.change.is_none() && (settles || !self.rules.holds || state.now >= of.held_until);
        if !may {
            return None;
        }
        (of.change, of.sent) = (Some(number), 0);
        let has_connection = of.connection.is_some();
        state.history.begin(number, state.now, state.now + PATIENCE);
        if has_connection { self.send(state, client, false) } else { self.connect(state, client) }
    }

    fn connect(&self, state: &mut State, client: u8) -> Option<()> {
        let of = &mut state.clients[client as usize];
        let number = of.change.filter(|_| of.connection.is_none())?;
        let may = of.sent == 0 || self.rules.repeats == Repeats::AtOnce;
        if !may || state.connections.len() >= self.bounds.connections || state.now >= state.history.end(number) {
            return None;
        }
        of.connection = Some(state.connections.len() as u8);
        let replaces = of.unsettled.filter(|_| self.rules.replaces != Replaces::Nothing);
        state.connections.push(Connection {
            asked_at: if self.rules.since == Since::Asked { state.now } else { 0 },
            greeting: Greeting::Asked,
            replaces,
            sent: None,
            running: None,
            answer: None,
            ended: false,
            open: true,
        });
        Some(())
    }

    /// The server answers the first frame of a connection, with its time.
    fn greet(&self, state: &mut State, connection: u8) -> Option<()> {
        let clock = self.clock(state);
        let Connection { greeting, replaces, ended, .. } = state.connections[connection as usize];
        if greeting != Greeting::Asked || ended {
            return None;
        }
        if let Some(former) = replaces {
            let former = &mut state.connections[former as usize];
            if self.rules.replaces == Replaces::WhenDone && former.running.is_some() {
                return None;
            }
            (former.ended, former.sent) = (true, None);
        }
        state.connections[connection as usize].greeting = Greeting::Answered(clock);
        Some(())
    }

    fn learn(&self, state: &mut State, client: u8) -> Option<()> {
        let of = &mut state.clients[client as usize];
        let connection = &mut state.connections[of.connection? as usize];
        let Greeting::Answered(clock) = connection.greeting else { return None };
        let since = match self.rules.since {
            Since::Asked => connection.asked_at,
            Since::Answered => state.now,
        };
        connection.greeting = Greeting::Learnt(clock - since as i8);
        connection.asked_at = 0;
        // What it replaced is settled.
        of.unsettled = None;
        self.send(state, client, false)
    }

    /// `whole`: with the text of the script.
    fn send(&self, state: &mut State, client: u8, whole: bool) -> Option<()> {
        let of = &mut state.clients[client as usize];
        let (number, connection) = (of.change?, &mut state.connections[of.connection? as usize]);
        let Greeting::Learnt(ahead) = connection.greeting else { return None };
        let deadline = state.history.end(number);
        if state.now >= deadline {
            return None;
        }
        // So near to its deadline that it would be refused: it is not sent.
        if self.rules.end == End::Absolute && state.now + self.rules.margin >= deadline {
            of.change = None;
            state.history.ended(number, untold(of.sent));
            return Some(());
        }
        let end = deadline as i8 + ahead - self.rules.margin as i8;
        connection.sent = Some(Frame { change: number, end, looked: false, whole });
        of.sent = 2.min(of.sent + 1);
        if self.rules.holds {
            of.held_until = deadline;
        }
        Some(())
    }

    fn read(&self, state: &mut State, connection: u8) -> Option<()> {
        let clock = self.clock(state);
        let of = &mut state.connections[connection as usize];
        if of.running.is_some() {
            return None;
        }
        let mut frame = of.sent.take()?;
        let script = self.script(frame);
        if state.scripts & script != script && !frame.whole {
            of.answer = Some(Answer { says: Says::NoScript, clock: 0 });
            return Some(());
        }
        state.scripts |= script;
        match self.rules.end {
            End::Relative => frame.end = clock + PATIENCE as i8,
            End::SeenWhenRead if clock >= frame.end => {
                of.answer = Some(self.answered(Phase::Refused, clock));
                return Some(());
            }
            _ => {}
        }
        of.running = Some(frame);
        if self.rules.single_threaded { self.carry_out(state, connection) } else { Some(()) }
    }

    fn carry_out(&self, state: &mut State, connection: u8) -> Option<()> {
        let clock = self.clock(state);
        if self.is_to_look(state, connection) {
            return None;
        }
        let of = &mut state.connections[connection as usize];
        let frame = of.running.take()?;
        let late = match self.rules.end {
            End::None | End::SeenWhenRead => false,
            End::Relative | End::Absolute => clock >= frame.end,
        };
        let phase = if late {
            Phase::Refused
        } else if self.kind(frame) == Kind::PutNew && self.is_there(state.content) {
            Phase::Existed
        } else {
            state.content = Some(frame.change);
            Phase::Acknowledged
        };
        of.answer = Some(self.answered(phase, clock));
        Some(())
    }

    fn answered(&self, phase: Phase, clock: i8) -> Answer {
        Answer { says: Says::Ended(phase), clock: if self.rules.tells_time { clock } else { 0 } }
    }

    /// The bit of the script that carries a frame out; none: it is no script.
    fn script(&self, frame: Frame) -> u8 {
        match self.kind(frame) {
            _ if !self.rules.scripts => 0,
            Kind::Put | Kind::PutNew => 1,
            Kind::Delete => 2,
        }
    }

    fn kind(&self, frame: Frame) -> Kind {
        self.changes[frame.change as usize - 1].1
    }

    /// Whether the server looks next, before it carries out what it has read of a connection.
    pub fn is_to_look(&self, state: &State, connection: u8) -> bool {
        let running = state.connections[connection as usize].running;
        self.rules.looks_first && running.is_some_and(|frame| !frame.looked && self.kind(frame) == Kind::PutNew)
    }

    fn look(&self, state: &mut State, connection: u8) -> Option<()> {
        let clock = self.clock(state);
        if !self.is_to_look(state, connection) {
            return None;
        }
        let is_there = self.is_there(state.content);
        let of = &mut state.connections[connection as usize];
        match &mut of.running {
            // However late it comes.
            Some(_) if is_there => {
                (of.running, of.answer) = (None, Some(self.answered(Phase::Existed, clock)));
            }
            running => running.as_mut()?.looked = true,
        }
        Some(())
    }

    fn is_there(&self, content: Content) -> bool {
        match content {
            None => false,
            Some(0) => self.held,
            Some(number) => self.changes[number as usize - 1].1 != Kind::Delete,
        }
    }

    fn answer(&self, state: &mut State, client: u8) -> Option<()> {
        let of = &mut state.clients[client as usize];
        let connection = &mut state.connections[of.connection? as usize];
        let Answer { says, clock } = connection.answer.take()?;
        let number = of.change?;
        of.held_until = 0;
        let phase = match says {
            Says::Ended(phase) => phase,
            Says::NoScript => {
                // This sending is over, and did nothing.
                of.sent -= 1;
                return self.send(state, client, true);
            }
        };
        if self.rules.tells_time {
            connection.greeting = Greeting::Learnt(clock - state.now as i8);
        }
        let told = match phase {
            Phase::Refused if self.rules.doubts_refusals && of.sent > 1 => Phase::Unknown,
            phase => phase,
        };
        of.change = None;
        state.history.ended(number, told);
        Some(())
    }

    /// A connection is lost, or a client drops it.
    fn close(&self, state: &mut State, client: u8) {
        let of = &mut state.clients[client as usize];
        if let Some(lost) = of.connection.take() {
            let connection = &mut state.connections[lost as usize];
            connection.open = false;
            if of.sent > 0 {
                // One that was lost before it could replace another leaves that to the next.
                of.unsettled = match connection.greeting {
                    Greeting::Learnt(_) => Some(lost),
                    _ => of.unsettled.or(Some(lost)),
                };
            }
        }
    }

    fn give_up(&self, state: &mut State, client: u8) -> Option<()> {
        let of = &state.clients[client as usize];
        let number = of.change?;
        let is_late = state.now >= state.history.end(number);
        if !is_late && of.connection.is_some() {
            return None;
        }
        self.close(state, client);
        let of = &mut state.clients[client as usize];
        of.change = None;
        state.history.ended(number, untold(of.sent));
        Some(())
    }
}

/// What a client knows of a change that was not answered, and that it has sent so many times.
fn untold(sent: u8) -> Phase {
    if sent > 0 { Phase::Unknown } else { Phase::Refused }
}

impl Model for Sessions {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let clients: Vec<u8> = self.changes.iter().map(|(client, _)| *client).collect();
        let count = clients.iter().max().map_or(0, |most| most + 1);
        let connection = Connection {
            asked_at: 0,
            greeting: Greeting::Learnt(AHEAD),
            replaces: None,
            sent: None,
            running: None,
            answer: None,
            ended: false,
            open: true,
        };
        let client = |of| Client { connection: self.connected.then_some(of), ..Client::default() };
        vec![State {
            now: 0,
            fell: 0,
            restarts: 0,
            evictions: 0,
            scripts: 0,
            history: History::new(&clients),
            content: Some(0),
            clients: (0..count).map(client).collect(),
            connections: vec![connection; if self.connected { count.into() } else { 0 }],
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // Where all was told and nothing is on its way, nothing is left to see.
        let is_quiet = state.connections.iter().all(|of| of.sent.is_none() && of.running.is_none());
        if state.history.is_told() && is_quiet {
            return;
        }
        if state.now < self.bounds.ticks {
            actions.push(Action::Tick);
        }
        if state.fell < self.rules.falls {
            actions.push(Action::ClockFalls);
        }
        if state.restarts < self.bounds.restarts {
            actions.push(Action::Restart);
        }
        if state.evictions < self.bounds.evictions && self.is_there(state.content) {
            actions.push(Action::Evict);
        }
        for (client, of) in (0..).zip(&state.clients) {
            if of.change.is_none() {
                actions.push(Action::Begin(client));
                continue;
            }
            actions.extend([Action::Learn(client), Action::Answer(client), Action::GiveUp(client)]);
            actions.push(if of.connection.is_some() { Action::Lose(client) } else { Action::Connect(client) });
        }
        for (connection, _) in (0..).zip(&state.connections).filter(|(_, of)| !of.ended) {
            actions.extend([Action::Greet(connection), Action::Read(connection)]);
            actions.extend([Action::Look(connection), Action::CarryOut(connection)]);
        }
        // A frame that was read is done, whatever became of its connection.
        for (connection, of) in (0..).zip(&state.connections) {
            if of.ended && of.running.is_some() {
                actions.extend([Action::Look(connection), Action::CarryOut(connection)]);
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick => state.now += 1,
            Action::ClockFalls => state.fell += 1,
            Action::Restart => {
                state.restarts += 1;
                state.scripts = 0;
                for of in &mut state.connections {
                    (of.sent, of.running, of.ended) = (None, None, true);
                }
            }
            Action::Evict => (state.evictions, state.content) = (state.evictions + 1, None),
            Action::Begin(client) => self.begin(&mut state, client)?,
            Action::Connect(client) => self.connect(&mut state, client)?,
            Action::Greet(connection) => self.greet(&mut state, connection)?,
            Action::Learn(client) => self.learn(&mut state, client)?,
            Action::Read(connection) => self.read(&mut state, connection)?,
            Action::Look(connection) => self.look(&mut state, connection)?,
            Action::CarryOut(connection) => self.carry_out(&mut state, connection)?,
            Action::Answer(client) => self.answer(&mut state, client)?,
            Action::Lose(client) => self.close(&mut state, client),
            Action::GiveUp(client) => self.give_up(&mut state, client)?,
        }
        // What can make no difference any more is forgotten, so that fewer states differ.
        for of in &mut state.connections {
            if !of.open {
                of.answer = None;
                of.asked_at = 0;
                if of.greeting != Greeting::Asked {
                    of.greeting = Greeting::Learnt(0);
                }
                if of.ended || (of.greeting != Greeting::Asked && of.sent.is_none()) {
                    (of.ended, of.greeting, of.replaces) = (true, Greeting::Learnt(0), None);
                }
            }
            if of.greeting != Greeting::Asked {
                of.replaces = None;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NOT_UNDONE, |_, state: &State| state.history.is_not_undone(state.content)),
            Property::always(REFUSED_IS_NOT_THERE, |_, state: &State| {
                state.history.refused_is_not_there(state.content)
            }),
            Property::sometimes(GOES_ON, |_, state: &State| state.history.goes_on()),
        ]
    }
}
