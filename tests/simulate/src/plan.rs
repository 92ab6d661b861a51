//! What a seed means: a kind of store, engines with threads and what they do, and what befalls the store.

use std::collections::BTreeSet;

use crate::calls::Fate;
use crate::draw::{About, Draw, TRIES};
use crate::names::{Key, Kind};
use crate::threads::{MILLISECOND, Moment, SECOND};
use chance::Dice;

pub use crate::shape::{Backend, Conditions, Mooncake, Redis, S3, Shape, Which};

/// What one thread does next.
#[derive(Clone, Debug)]
pub struct Step {
    pub number: u32,
    pub handle: usize,
    pub action: Action,
    /// Before it.
    pub wait: Moment,
}

/// What an engine does with a store.
#[derive(Clone, Debug)]
pub enum Action {
    PutChunk(Key),
    GetChunk(Key),
    PutManifest(Key),
    GetManifest(Key),
    DeleteManifest(Key),
    Prefetch(Vec<Key>),
    Flush,
    PutMany {
        keys: Vec<Key>,
        save: Option<usize>,
        how: How,
    },
    GetMany(Vec<Key>, How),
    ExistsMany(Vec<Key>),
    DeleteMany(Vec<Key>, How),
    Commit {
        save: usize,
        manifest: Option<Key>,
    },
    QueuePut {
        keys: Vec<Key>,
        save: Option<usize>,
        how: How,
    },
    QueueGet(Vec<Key>, How),
    QueueExists(Vec<Key>),
    QueueDelete(Vec<Key>),
    /// Many requests at once, more than there are threads for.
    QueueMany(Key, u8),
    QueueCancel,
    Drain,
    Reopen,
}

impl Action {
    /// As the coverage names it.
    pub fn name(&self) -> &'static str {
        match self {
            Action::PutChunk(_) => "put_chunk",
            Action::GetChunk(_) => "get_chunk",
            Action::PutManifest(_) => "put_manifest",
            Action::GetManifest(_) => "get_manifest",
            Action::DeleteManifest(_) => "delete_manifest",
            Action::Prefetch(_) => "prefetch",
            Action::Flush => "flush",
            Action::PutMany { how: How { replace: true, .. }, .. } => "replace",
            Action::PutMany { .. } => "put_many",
            Action::GetMany(..) => "get_many",
            Action::ExistsMany(_) => "exists_many",
            Action::DeleteMany(..) => "delete_many",
            Action::Commit { .. } => "commit",
            Action::QueuePut { .. } => "queue put",
            Action::QueueGet(..) => "queue get",
            Action::QueueExists(_) => "queue exists",
            Action::QueueDelete(_) => "queue delete",
            Action::QueueMany(..) => "queue many",
            Action::QueueCancel => "queue cancel",
            Action::Drain => "drain",
            Action::Reopen => "reopen",
        }
    }
}

impl Event {
    /// As the coverage names it.
    pub fn name(&self) -> &'static str {
        match self {
            Event::Evict(_) | Event::EvictMany(_) => "evicted",
            Event::Failover(_) => "failover",
            Event::PowerLoss => "power loss",
            Event::Kill(_) => "kill",
            Event::Freeze(_) => "freeze",
            Event::Partition(..) => "partition",
            Event::Rot(_) => "rot",
            Event::WallJump(_) => "clock jump",
            Event::NoThreads(_) => "no threads",
            Event::Retire => "instance lost",
            Event::Remove(_) => "removed",
            Event::NodeLost(..) => "node lost",
        }
    }
}

/// The options of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    pub durable: bool,
    pub replace: bool,
    /// Milliseconds. 0: the deadline of a call.
    pub timeout: u64,
}

/// What befalls the store, or an engine.
#[derive(Clone, Debug)]
pub enum Event {
    Evict(Key),
    EvictMany(u64),
    /// The server fails over to one that is so old.
    Failover(Moment),
    /// All that was not synced may be gone, and with it each engine.
    PowerLoss,
    Kill(usize),
    Freeze(Moment),
    Partition(usize, Moment),
    /// Stored bytes change.
    Rot(Key),
    WallJump(i128),
    /// No thread can be had.
    NoThreads(Moment),
    /// The instance that is the store ends.
    Retire,
    /// Somebody else removes a chunk or a manifest.
    Remove(Key),
    /// A node of the storage system dies, and is back after so long, without what it had.
    NodeLost(usize, Moment),
}

#[derive(Clone, Debug)]
pub struct Planned {
    pub number: u32,
    pub at: Moment,
    pub event: Event,
}

#[derive(Clone, Debug)]
pub struct Engine {
    pub start: Moment,
    pub handles: usize,
    pub threads: Vec<Vec<Step>>,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub shape: Shape,
    about: Option<About>,
    pub engines: Vec<Engine>,
    pub events: Vec<Planned>,
}

/// What is left of a history that was made shorter.
#[derive(Clone, Debug, Default)]
pub struct Less {
    /// Only these steps and events. None: all.
    pub keep: Option<BTreeSet<u32>>,
    /// Steps whose calls meet no fault.
    pub calm: BTreeSet<u32>,
}

impl Less {
    pub fn keeps(&self, number: u32) -> bool {
        self.keep.as_ref().is_none_or(|keep| keep.contains(&number))
    }
}

/// Saves of each engine.
pub const SAVES: usize = 2;

impl Plan {
    pub fn of(seed: u64, draw: Draw) -> Self {
        let about = draw.about(seed);
        let dice = &mut Dice::of(seed, &[1]);
        let which = draw.backend_of(seed);
        let mut shape = Shape::over(which, dice);
        for _ in 0..TRIES {
            if about.is_none_or(|about| about.suits(&shape)) {
                break;
            }
            shape = Shape::over(which, dice);
        }
        let mut numbers = 0;
        let mut engines = Vec::new();
        let count = if shape.holds_data { 1 } else { [1, 1, 2, 2, 3][dice.index(5)] };
        for engine in 0..count {
            let start = if engine == 0 { 0 } else { dice.below(3 * SECOND) };
            engines.push(Engine {
                start,
                handles: dice.within(1, 2) as usize,
                threads: threads(&shape, about, dice, &mut numbers),
            });
        }
        let mut events = Vec::new();
        if shape.trouble > 0 {
            let mut event = |dice: &mut Dice| event(&shape, dice, count);
            let most = if about.is_some() { 20 } else { 7 };
            for _ in 0..dice.below(most) {
                numbers += 1;
                let at = dice.below(5 * SECOND);
                let drawn = match about {
                    Some(about) => about.event(dice, &mut event),
                    None => event(dice),
                };
                events.extend(drawn.map(|event| Planned { number: numbers, at, event }));
            }
        }
        // Of those who begin after a power loss.
        if events.iter().any(|planned| matches!(planned.event, Event::PowerLoss | Event::Kill(_))) && !shape.holds_data
        {
            let threads = threads(&shape, about, dice, &mut numbers);
            engines.push(Engine { start: dice.within(3, 6) * SECOND, handles: 1, threads });
        }
        Plan { seed, shape, about, engines, events }
    }

    /// What a call meets that meets a fault.
    pub fn fate(&self, dice: &mut Dice, among: &[Fate]) -> Fate {
        let any = *dice.pick(among).unwrap_or(&Fate::Well);
        self.about.and_then(|about| about.fate(dice, among)).unwrap_or(any)
    }

    /// Whether something older may come back.
    pub fn fails_over(&self) -> bool {
        self.events.iter().any(|planned| matches!(planned.event, Event::Failover(_)))
    }

    /// So many steps.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.engines.iter().flat_map(|engine| engine.threads.iter().flatten())
    }
}

fn threads(shape: &Shape, about: Option<About>, dice: &mut Dice, numbers: &mut u32) -> Vec<Vec<Step>> {
    let most = if shape.lengths.big { 8 } else { [6, 12, 24, 40][dice.index(4)] };
    // What one thread does again and again, others do meanwhile: a history has a few themes.
    let themes: Vec<u64> = match about {
        Some(_) => (0..12).collect(),
        None => (0..dice.within(1, 4)).map(|_| dice.below(12)).collect(),
    };
    let thread = |dice: &mut Dice, numbers: &mut u32| {
        let steps = dice.within(1, most);
        let mut theme = |dice: &mut Dice| theme(shape, dice, &themes);
        let actions: Vec<Action> = (0..steps)
            .flat_map(|_| match about {
                Some(about) => about.actions(dice, &mut theme),
                None => theme(dice),
            })
            .collect();
        let step = |action| {
            *numbers += 1;
            let wait = match dice.below(10) {
                // Long enough that what lives for a while is gone.
                _ if shape.expires() && dice.met(30) => dice.within(20, 90) * SECOND,
                0 => dice.below(3 * SECOND),
                1..=3 => dice.below(100 * MILLISECOND),
                _ => 0,
            };
            Step { number: *numbers, handle: dice.index(2), action, wait }
        };
        actions.into_iter().map(step).collect()
    };
    (0..dice.within(1, 4)).map(|_| thread(dice, numbers)).collect()
}

/// One or more things that belong together.
fn theme(shape: &Shape, dice: &mut Dice, themes: &[u64]) -> Vec<Action> {
    let how = |dice: &mut Dice| How {
        durable: shape.durable && dice.met(200),
        replace: false,
        timeout: if dice.met(150) { dice.within(20, 800) } else { 0 },
    };
    let save = dice.index(SAVES);
    let theme = if dice.met(300) { dice.below(12) } else { *dice.pick(themes).unwrap_or(&0) };
    match theme {
        // A save by the handle.
        0 | 1 => {
            let mut actions: Vec<Action> = shape.chunks(dice, 4).into_iter().map(Action::PutChunk).collect();
            if dice.met(250) {
                actions.push(Action::Flush);
            }
            if dice.met(600) {
                actions.push(Action::PutManifest(shape.key(dice, Kind::Manifest)));
            }
            actions
        }
        // A save of its own.
        2 | 3 => {
            let mut actions = vec![Action::PutMany { keys: shape.chunks(dice, 4), save: Some(save), how: how(dice) }];
            if dice.met(200) {
                actions.push(Action::DeleteMany(shape.chunks(dice, 2), how(dice)));
            }
            if dice.met(700) {
                let manifest = dice.met(750).then(|| shape.key(dice, Kind::Manifest));
                actions.push(Action::Commit { save, manifest });
            }
            actions
        }
        4 => {
            let key = shape.key(dice, Kind::Register);
            match dice.below(10) {
                0..=3 => vec![Action::PutMany { keys: vec![key], save: None, how: How { replace: true, ..how(dice) } }],
                4..=5 => vec![Action::DeleteMany(vec![key], how(dice))],
                _ => vec![Action::GetMany(vec![key], how(dice))],
            }
        }
        5 => match dice.below(3) {
            0 => vec![Action::PutManifest(shape.key(dice, Kind::Manifest))],
            1 => vec![Action::GetManifest(shape.key(dice, Kind::Manifest))],
            _ => vec![Action::DeleteManifest(shape.key(dice, Kind::Manifest))],
        },
        6 => match dice.below(3) {
            0 => vec![Action::QueuePut {
                keys: shape.chunks(dice, 3),
                save: Some(save).filter(|_| dice.met(600)),
                how: how(dice),
            }],
            1 => vec![Action::QueueGet(shape.chunks(dice, 3), how(dice)), Action::Drain],
            _ => vec![
                Action::QueueExists(shape.chunks(dice, 3)),
                Action::QueueDelete(shape.chunks(dice, 1)),
                Action::Drain,
            ],
        },
        7 => vec![Action::DeleteMany(shape.chunks(dice, 3), how(dice))],
        8 => match dice.below(8) {
            0 => vec![Action::QueueMany(shape.chunk(dice), dice.within(9, 40) as u8)],
            1 => vec![Action::QueueCancel],
            2 => vec![Action::Flush],
            3 => vec![Action::Reopen],
            _ => vec![Action::Prefetch(shape.chunks(dice, 6))],
        },
        9 => vec![Action::GetChunk(shape.chunk(dice)), Action::GetManifest(shape.key(dice, Kind::Manifest))],
        10 => vec![Action::GetMany(shape.chunks(dice, 8), how(dice))],
        _ => vec![Action::ExistsMany(shape.chunks(dice, 4)), Action::GetChunk(shape.chunk(dice))],
    }
}

fn event(shape: &Shape, dice: &mut Dice, engines: usize) -> Option<Event> {
    let any = |dice: &mut Dice| {
        let kind = [Kind::Content, Kind::Opaque, Kind::Register, Kind::Manifest][dice.index(4)];
        shape.key(dice, kind)
    };
    // No other event takes what an instance holds.
    if shape.holds_data && dice.met(400) {
        return Some(Event::Retire);
    }
    Some(match dice.below(16) {
        0 | 1 if shape.may_evict() => Event::Evict(any(dice)),
        2 if shape.may_evict() => Event::EvictMany(dice.within(100, 900)),
        3 if !shape.durable && !shape.holds_data => Event::Failover(dice.within(10, 2000) * MILLISECOND),
        4 | 5 if shape.durable => Event::PowerLoss,
        4 | 5 if matches!(shape.backend, Backend::Mooncake(_)) => {
            Event::NodeLost(dice.index(3), dice.within(10, 6000) * MILLISECOND)
        }
        6 => Event::Kill(dice.index(engines)),
        7 => Event::Freeze(dice.within(10, 3000) * MILLISECOND),
        8 => Event::Partition(dice.index(engines), dice.within(10, 3000) * MILLISECOND),
        // What a server has in memory stays as it is.
        9 if !matches!(shape.backend, Backend::Memkv { .. }) => Event::Rot(any(dice)),
        10 if dice.met(400) => Event::WallJump(i128::from(dice.within(0, 40 * SECOND)) - 20 * i128::from(SECOND)),
        11 => Event::NoThreads(dice.within(100, 4000) * MILLISECOND),
        13 if !shape.holds_data => Event::Remove(any(dice)),
        _ => return None,
    })
}
