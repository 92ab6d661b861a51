//! What kind of store a history has: what serves it, what a component says of it, and what an operator sets.

use crate::names::{Key, Kind, Lengths};
use crate::shipped::redis::{Policy, Room};
use crate::threads::{MILLISECOND, Moment};
use chance::Dice;

/// How long a save keeps what it has found from being evicted.
pub const SAVE_GRACE_S: u64 = 5;

/// What serves the store of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// A simulated storage system that keeps the contract, with any properties.
    Contract,
    /// The shipped memkv and its server, which keeps at most so many bytes.
    Memkv { memory: u64 },
    /// The shipped redis, over a simulated server.
    Redis(Redis),
    /// The shipped s3, over a simulated server.
    S3(S3),
    /// The shipped mooncake, over a simulated master and nodes.
    Mooncake(Mooncake),
    /// The shipped local-fs over simulated files.
    LocalFs {
        /// `durability = full`, and not `rename`.
        full: bool,
        /// The most bytes that its files may have. None: it evicts nothing.
        max_bytes: Option<u64>,
        /// The file system writes out without a sync.
        writes_out: bool,
    },
    /// The shipped segments over simulated files.
    Segments {
        segment_bytes: u64,
        /// The most segments.
        segments: u64,
        /// The file system promises room for what is not written yet.
        allocates: bool,
    },
}

/// How the operator has set up a redis-server, and the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redis {
    /// `maxmemory`, and what becomes of what has no room.
    pub room: Option<Room>,
    /// The option of this name.
    pub ttl_s: Option<u64>,
    pub password: bool,
}

/// What kind of S3 server a history has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct S3 {
    pub conditions: Conditions,
    /// It keeps the checksum with which an object was put, and tells it.
    pub keeps_sums: bool,
    /// It keeps what a client notes with an object.
    pub keeps_notes: bool,
    /// A body is held against the hash that was signed, or against its checksum, or both.
    pub checks_hashes: bool,
    pub checks_sums: bool,
    /// What it answers to a change of what must be there and is not.
    pub missing: u16,
    pub tls: bool,
    /// Under so many names.
    pub gateways: u8,
}

/// How the operator has set up a Mooncake Store, and the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mooncake {
    pub nodes: usize,
    /// Bytes that each of them lends.
    pub memory: u64,
    /// `default_kv_lease_ttl`.
    pub lease: Moment,
    /// `client_ttl`: after so long the master forgets a node that is gone.
    pub forgets: Moment,
    /// The options of these names.
    pub replicas: u64,
    pub soft_pin: bool,
}

/// What an S3 server does with a request that has a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conditions {
    Honoured,
    /// Those of DELETE are ignored.
    OfPuts,
    /// They are compared, and then it is written in another step.
    InTwoSteps,
    Ignored,
}

/// A backend, as arguments name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Contract,
    Memkv,
    Redis,
    S3,
    Mooncake,
    LocalFs,
    Segments,
}

impl Which {
    pub const ALL: [Which; 7] =
        [Which::Contract, Which::Memkv, Which::Redis, Which::S3, Which::Mooncake, Which::LocalFs, Which::Segments];

    pub fn name(self) -> &'static str {
        match self {
            Which::Contract => "contract",
            Which::Memkv => "memkv",
            Which::Redis => "redis",
            Which::S3 => "s3",
            Which::Mooncake => "mooncake",
            Which::LocalFs => "local-fs",
            Which::Segments => "segments",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Which::ALL.into_iter().find(|which| which.name() == name)
    }

    /// That of a seed.
    pub fn of(seed: u64) -> Self {
        match Dice::of(seed, &[6]).below(10) {
            0 => Which::Memkv,
            1 => Which::Redis,
            2 => Which::LocalFs,
            3 => Which::S3,
            4 => Which::Segments,
            5 => Which::Mooncake,
            _ => Which::Contract,
        }
    }
}

impl Backend {
    pub fn name(self) -> &'static str {
        match self {
            Backend::Contract => Which::Contract.name(),
            Backend::Memkv { .. } => Which::Memkv.name(),
            Backend::Redis(_) => Which::Redis.name(),
            Backend::S3(_) => Which::S3.name(),
            Backend::Mooncake(_) => Which::Mooncake.name(),
            Backend::LocalFs { .. } => Which::LocalFs.name(),
            Backend::Segments { .. } => Which::Segments.name(),
        }
    }

    /// A line of the config.
    pub fn options(self) -> String {
        match self {
            Backend::LocalFs { full, max_bytes, .. } => {
                let durability = if full { "full" } else { "rename" };
                // One with a small bound is of small histories, in which saves are short too.
                let bound = max_bytes.map_or(String::new(), |most| {
                    format!(", max_bytes = \"{most}\", save_grace_s = \"{SAVE_GRACE_S}\"")
                });
                format!("options = {{ durability = \"{durability}\", keep_free = \"0\"{bound} }}\n")
            }
            Backend::Segments { segment_bytes, segments, .. } => {
                let most = segment_bytes * segments;
                format!("options = {{ max_bytes = \"{most}\", segment_bytes = \"{segment_bytes}\" }}\n")
            }
            Backend::Redis(Redis { ttl_s: Some(ttl_s), .. }) => format!("options = {{ ttl_s = \"{ttl_s}\" }}\n"),
            Backend::Mooncake(Mooncake { replicas, soft_pin, .. }) => {
                let soft_pin = if soft_pin { "on" } else { "off" };
                format!("options = {{ replicas = \"{replicas}\", soft_pin = \"{soft_pin}\" }}\n")
            }
            Backend::Contract | Backend::Memkv { .. } | Backend::Redis(_) | Backend::S3(_) => String::new(),
        }
    }

    /// Whether manifests are changed without conditions: the change that comes last counts, whatever was seen before it.
    pub fn orders_nothing(self) -> bool {
        matches!(self, Backend::S3(S3 { conditions: Conditions::Ignored | Conditions::InTwoSteps, .. }))
    }

    /// Its chunks and manifests are records in few files.
    pub fn has_records(self) -> bool {
        matches!(self, Backend::Segments { .. })
    }

    /// The most segments that there may be.
    pub fn segments(self) -> usize {
        match self {
            Backend::Segments { segments, .. } => segments as usize,
            _ => usize::MAX,
        }
    }

    pub fn allocates(self) -> bool {
        matches!(self, Backend::Segments { allocates: true, .. })
    }

    pub fn writes_out(self) -> bool {
        matches!(self, Backend::LocalFs { writes_out: true, .. })
    }
}

/// What a component says of its store, and what an operator sets.
#[derive(Clone, Debug)]
pub struct Shape {
    pub backend: Backend,
    pub durable: bool,
    pub cheap_repeat: bool,
    pub write_through: bool,
    /// An instance is the store.
    pub holds_data: bool,
    pub wants_fresh: bool,
    pub evicts: bool,
    pub settles: bool,
    /// It says which changes it sends.
    pub tells: bool,
    pub batch_items: u32,
    pub deadline: Moment,
    /// For how long a server is waited for.
    pub patience: Moment,
    pub breaker_failures: u64,
    pub damaged_ms: u64,
    /// Seconds for which copies are kept near. None: no near level.
    pub near_ttl_s: Option<u64>,
    pub layout1: bool,
    /// The operator says that keys of 8 bytes are hashes of the content; otherwise each batch does.
    pub verifies: bool,
    /// Of a thousand calls, so many meet a fault.
    pub trouble: u64,
    pub lengths: Lengths,
    /// How many keys of each kind there are.
    pub keys: [u8; 4],
}

impl Shape {
    fn of(dice: &mut Dice) -> Self {
        let holds_data = dice.met(160);
        let durable = !holds_data && dice.met(450);
        let evicts = !holds_data && dice.met(300);
        let big = dice.met(40);
        let settles = dice.met(450);
        let mut shape = Shape {
            backend: Backend::Contract,
            durable,
            cheap_repeat: dice.met(500),
            write_through: dice.met(350),
            holds_data,
            wants_fresh: dice.met(150),
            evicts,
            settles,
            tells: settles || dice.met(700),
            batch_items: dice.within(2, 16) as u32,
            deadline: dice.within(4, 30) * 50 * MILLISECOND,
            patience: 0,
            breaker_failures: [0, 3, 8][dice.index(3)],
            damaged_ms: [0, 100, 1000][dice.index(3)],
            near_ttl_s: dice.met(400).then(|| dice.within(1, 4)),
            layout1: dice.met(300),
            verifies: dice.met(500),
            trouble: [0, 20, 80, 200, 350][dice.index(5)],
            lengths: Lengths { big, long: false },
            keys: match big {
                true => [6, 3, 1, 2],
                false => {
                    [dice.within(2, 9) as u8, dice.within(1, 5) as u8, dice.within(1, 3) as u8, dice.within(1, 3) as u8]
                }
            },
        };
        shape.patience = shape.deadline;
        shape
    }

    /// That of one over a backend.
    pub fn over(which: Which, dice: &mut Dice) -> Self {
        let shape = Shape::of(dice);
        match which {
            Which::Contract => shape,
            Which::Memkv => shape.over_memkv(dice),
            Which::Redis => shape.over_redis(dice),
            Which::S3 => shape.over_s3(dice),
            Which::Mooncake => shape.over_mooncake(dice),
            Which::LocalFs => shape.over_local_fs(dice),
            Which::Segments => shape.over_segments(dice),
        }
    }

    /// The same operators over memkv, of which what it says of its store is known.
    fn over_memkv(self, dice: &mut Dice) -> Self {
        // Of the smallest some keys fit, and more are evicted than not.
        let memory = match self.lengths.big {
            true => [2 << 20, 8 << 20, 64 << 20][dice.index(3)],
            false => [4 << 10, 8 << 10, 1 << 20][dice.index(3)],
        };
        Shape {
            backend: Backend::Memkv { memory },
            durable: false,
            cheap_repeat: false,
            write_through: false,
            holds_data: false,
            wants_fresh: true,
            evicts: true,
            settles: true,
            tells: true,
            batch_items: 256,
            ..self
        }
    }

    /// The same over redis. It says nothing of what a server evicts.
    fn over_redis(self, dice: &mut Dice) -> Self {
        let long = !self.lengths.big && dice.met(200);
        let value = if self.lengths.big { 300_000 } else { 5000 };
        let room = dice.met(300).then(|| Room {
            bytes: if long || self.lengths.big { value * dice.within(3, 12) as usize } else { 2048 << dice.below(3) },
            policy: [Policy::Refuse, Policy::EvictAny, Policy::EvictLeastUsed][dice.index(3)],
        });
        let ttl_s = dice.met(300).then(|| dice.within(1, 5));
        Shape {
            backend: Backend::Redis(Redis { room, ttl_s, password: dice.met(300) }),
            durable: false,
            cheap_repeat: false,
            write_through: false,
            holds_data: false,
            wants_fresh: ttl_s.is_some(),
            evicts: ttl_s.is_some(),
            settles: false,
            tells: true,
            batch_items: 256,
            lengths: Lengths { long, ..self.lengths },
            ..self
        }
    }

    /// The same over s3.
    fn over_s3(self, dice: &mut Dice) -> Self {
        let conditions = match dice.below(10) {
            0 => Conditions::InTwoSteps,
            1 => Conditions::Ignored,
            2 | 3 => Conditions::OfPuts,
            _ => Conditions::Honoured,
        };
        let checks = dice.below(4);
        let s3 = S3 {
            conditions,
            keeps_sums: dice.met(700),
            keeps_notes: dice.met(800),
            checks_hashes: checks != 0,
            checks_sums: checks != 1,
            missing: if dice.met(500) { 404 } else { 412 },
            tls: dice.met(300),
            gateways: dice.within(1, 2) as u8,
        };
        let settles = matches!(conditions, Conditions::Honoured | Conditions::OfPuts);
        Shape {
            backend: Backend::S3(s3),
            durable: true,
            cheap_repeat: true,
            write_through: false,
            holds_data: false,
            wants_fresh: false,
            evicts: false,
            settles,
            tells: true,
            batch_items: 64,
            patience: self.deadline / dice.within(1, 4),
            ..self
        }
    }

    /// The same over mooncake. In the smallest memory a few values have room.
    fn over_mooncake(self, dice: &mut Dice) -> Self {
        let memory = match self.lengths.big {
            true => [1 << 20, 2 << 20, 8 << 20][dice.index(3)],
            false => [1500, 4 << 10, 64 << 10][dice.index(3)],
        };
        let nodes = [1, 1, 2, 3][dice.index(4)];
        let mooncake = Mooncake {
            nodes,
            memory,
            lease: [20, 100, 500, 5000][dice.index(4)] * MILLISECOND,
            forgets: dice.within(300, 4000) * MILLISECOND,
            replicas: if dice.met(600) { 1 } else { dice.within(1, 1 + nodes as u64) },
            soft_pin: dice.met(300),
        };
        Shape {
            backend: Backend::Mooncake(mooncake),
            durable: false,
            cheap_repeat: false,
            write_through: false,
            holds_data: false,
            wants_fresh: true,
            evicts: true,
            settles: true,
            tells: true,
            batch_items: 128,
            patience: self.deadline / dice.within(1, 4),
            ..self
        }
    }

    /// The same over local-fs.
    fn over_local_fs(self, dice: &mut Dice) -> Self {
        let most = match self.lengths.big {
            true => [1 << 20, 8 << 20],
            false => [2 << 10, 8 << 10],
        };
        let max_bytes = dice.met(300).then(|| most[dice.index(2)]);
        let (full, writes_out, evicts) = (dice.met(800), dice.met(700), max_bytes.is_some());
        Shape {
            backend: Backend::LocalFs { full, max_bytes, writes_out },
            durable: full,
            cheap_repeat: true,
            write_through: true,
            holds_data: false,
            wants_fresh: evicts,
            evicts,
            settles: false,
            tells: false,
            batch_items: 256,
            ..self
        }
    }

    /// The same over segments.
    fn over_segments(self, dice: &mut Dice) -> Self {
        let segment_bytes = match self.lengths.big {
            true => [1 << 20, 2 << 20],
            false => [1 << 10, 4 << 10],
        };
        let backend = Backend::Segments {
            segment_bytes: segment_bytes[dice.index(2)],
            segments: dice.within(3, 12),
            allocates: dice.met(700),
        };
        Shape {
            backend,
            durable: true,
            cheap_repeat: true,
            write_through: true,
            holds_data: false,
            wants_fresh: false,
            evicts: true,
            settles: false,
            tells: false,
            batch_items: 256,
            ..self
        }
    }

    /// Whether what no save names is gone after a while.
    pub fn expires(&self) -> bool {
        matches!(self.backend, Backend::Redis(Redis { ttl_s: Some(_), .. }))
    }

    /// Whether something may be evicted at any time, whatever the component says.
    pub fn may_evict(&self) -> bool {
        self.evicts || matches!(self.backend, Backend::Redis(_) | Backend::S3(_))
    }

    pub fn key(&self, dice: &mut Dice, kind: Kind) -> Key {
        let most = u64::from(self.keys[kind as usize]);
        Key { kind, number: dice.below(most) as u8 }
    }

    pub fn chunk(&self, dice: &mut Dice) -> Key {
        let kind = if dice.met(650) { Kind::Content } else { Kind::Opaque };
        self.key(dice, kind)
    }

    pub fn chunks(&self, dice: &mut Dice, most: u64) -> Vec<Key> {
        (0..dice.within(1, most)).map(|_| self.chunk(dice)).collect()
    }
}
