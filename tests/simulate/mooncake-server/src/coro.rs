//! What goes between the backend and a Mooncake master: frames of coro_rpc, and values of struct_pack, as Mooncake 0.3.13 has them. Written
//! anew, so that a fault of the backend's own is not here too.

const MAGIC: u8 = 0x15;
const REQUEST_HEAD: usize = 20;
/// A byte behind the hash of a type: the type follows. A further bit: lengths have two bytes.
const HAS_TYPE: u8 = 4;
const WIDE: u8 = 8;
/// All kinds of replicas.
const ALL_REPLICAS: u32 = 4;

pub const PROTOCOL: &str = "2.0.0";

/// As whom a client puts.
pub type Id = [u8; 16];
/// An error of the master.
pub type Code = i32;

pub const NO_ROOM: Code = -200;
pub const INVALID: Code = -600;
pub const ILLEGAL_CLIENT: Code = -601;
pub const INVALID_WRITE: Code = -700;
pub const NOT_READY: Code = -703;
pub const NOT_FOUND: Code = -704;
pub const ALREADY_EXISTS: Code = -705;
pub const HAS_LEASE: Code = -706;
pub const INTERNAL: Code = -1;

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    Ready,
    Start {
        client: Id,
        keys: Vec<String>,
        lens: Vec<u64>,
        replicas: u64,
        pinned: bool,
    },
    End {
        client: Id,
        keys: Vec<String>,
    },
    Revoke {
        client: Id,
        keys: Vec<String>,
    },
    Locate {
        keys: Vec<String>,
    },
    Exist {
        keys: Vec<String>,
    },
    Remove {
        keys: Vec<String>,
        force: bool,
    },
    /// A function that it has not.
    Other,
}

/// A function: its number, and the types of what goes in and comes out.
struct Function {
    number: u32,
    request: (u32, &'static str),
    answer: (u32, &'static str),
}

const READY: Function = Function { number: 0x7b81_bb56, request: (0, ""), answer: (0x1cb3_cc35, "87800c01") };
const START: Function = Function {
    number: 0x56be_1822,
    request: (0x5870_c0a5, "fdfd04048989ff84800c8404fd0404040685040b84800c800c84800c0b06800c8584800cff800cff"),
    answer: (
        0xad00_6d03,
        "848784fd0486fdfd0404800c800cfffffdfd0404800c800cfffffd800c04fffdfd04048989ff04800cfffd800c04040401ffff01ff01",
    ),
};
const END: Function = Function {
    number: 0x80e0_20ab,
    request: (0xf57e_a7c9, "fdfd04048989ff84fd800c8504ff01800cff"),
    answer: (0x39fc_52cf, "8487fa01"),
};
const REVOKE: Function = Function {
    number: 0xb825_67aa,
    request: (0x94ee_5d45, "fdfd04048989ff84800c01800cff"),
    answer: (0x39fc_52cf, "8487fa01"),
};
const LOCATE: Function = Function {
    number: 0x1b0d_20ff,
    request: (0x00f7_8d63, "fd84800c800cff"),
    answer: (
        0x20c5_453b,
        "8487fd84fd0486fdfd0404800c800cfffffdfd0404800c800cfffffd800c04fffdfd04048989ff04800cfffd800c04040401ffff01ff048504ff01",
    ),
};
const EXIST: Function =
    Function { number: 0xb89f_a6b0, request: (0x00f7_8d63, "fd84800c800cff"), answer: (0x2a5f_8c5d, "84870b01") };
const REMOVE: Function =
    Function { number: 0x5902_407d, request: (0x197a_9ca1, "fd84800c0b800cff"), answer: (0x39fc_52cf, "8487fa01") };

impl Ask {
    fn function(&self) -> Option<&'static Function> {
        Some(match self {
            Ask::Ready => &READY,
            Ask::Start { .. } => &START,
            Ask::End { .. } => &END,
            Ask::Revoke { .. } => &REVOKE,
            Ask::Locate { .. } => &LOCATE,
            Ask::Exist { .. } => &EXIST,
            Ask::Remove { .. } => &REMOVE,
            Ask::Other => return None,
        })
    }

    /// The objects that it is about.
    pub fn keys(&self) -> &[String] {
        match self {
            Ask::Start { keys, .. }
            | Ask::End { keys, .. }
            | Ask::Revoke { keys, .. }
            | Ask::Locate { keys }
            | Ask::Exist { keys }
            | Ask::Remove { keys, .. } => keys,
            Ask::Ready | Ask::Other => &[],
        }
    }
}

/// Where a replica lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    pub id: u64,
    pub size: u64,
    pub address: u64,
    pub endpoint: String,
    pub complete: bool,
}

/// What is answered about one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    Done,
    Exists(bool),
    Placed(Vec<Described>),
    /// And for how many milliseconds it may be read.
    Located(Vec<Described>, u64),
    Failed(Code),
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Version(String),
    Items(Vec<Item>),
    /// The function was not called.
    Refused(u8, &'static str),
}

pub const NOT_REGISTERED: Answer = Answer::Refused(11, "the rpc function not registered");
pub const INVALID_ARGUMENT: Answer = Answer::Refused(4, "invalid rpc arg");

/// What is left of a body to read.
struct Reader<'a> {
    bytes: &'a [u8],
    wide: bool,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(len)?;
        self.bytes = rest;
        Some(taken)
    }

    fn number<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u64(&mut self) -> Option<u64> {
        self.number().map(u64::from_le_bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        self.number::<1>().map(|[byte]| byte)
    }

    fn len(&mut self) -> Option<usize> {
        if self.wide { self.number().map(u16::from_le_bytes).map(usize::from) } else { self.byte().map(usize::from) }
    }

    fn text(&mut self) -> Option<String> {
        let len = self.len()?;
        String::from_utf8(self.take(len)?.to_vec()).ok()
    }

    fn list<T>(&mut self, mut next: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        (0..self.len()?).map(|_| next(self)).collect()
    }

    fn texts(&mut self) -> Option<Vec<String>> {
        self.list(Self::text)
    }

    /// The type of a value, which must be this one.
    fn begin(bytes: &'a [u8], (hash, literal): (u32, &str)) -> Option<Self> {
        let mut reader = Reader { bytes, wide: false };
        let found = u32::from_le_bytes(reader.number()?);
        let flags = reader.byte()?;
        let literal = hex::decode(literal).ok()?;
        let is_it = found == hash && reader.take(literal.len())? == literal && reader.byte()? == 0;
        reader.wide = flags == HAS_TYPE | WIDE;
        (is_it && (flags == HAS_TYPE || reader.wide)).then_some(reader)
    }
}

/// Take the next request out of what has come: its sequence number, and what it asks; `Err`: its body is none of this version. `Ok(None)`: more
/// must come first.
#[allow(clippy::type_complexity, reason = "each part is named above")]
pub fn take(came: &mut Vec<u8>) -> Result<Option<(u32, Result<Ask, Answer>)>, String> {
    let number = |at: usize| came.get(at..at + 4).and_then(|four| four.try_into().ok()).map(u32::from_le_bytes);
    let (Some(sequence), Some(function), Some(len), Some(attached)) = (number(4), number(8), number(12), number(16))
    else {
        return Ok(None);
    };
    if came[..4] != [MAGIC, 0, 0, 0] || attached != 0 {
        return Err(format!("a head {}", hex::encode(&came[..REQUEST_HEAD])));
    }
    let end = REQUEST_HEAD + len as usize;
    if came.len() < end {
        return Ok(None);
    }
    let body: Vec<u8> = came.drain(..end).skip(REQUEST_HEAD).collect();
    let known = [&READY, &START, &END, &REVOKE, &LOCATE, &EXIST, &REMOVE];
    let Some(function) = known.into_iter().find(|known| known.number == function) else {
        return Ok(Some((sequence, Ok(Ask::Other))));
    };
    Ok(Some((sequence, read(function, &body).ok_or(INVALID_ARGUMENT))))
}

fn read(function: &Function, body: &[u8]) -> Option<Ask> {
    if function.number == READY.number {
        return Some(Ask::Ready);
    }
    let mut reader = Reader::begin(body, function.request)?;
    let reader = &mut reader;
    let ask = match function.number {
        number if number == START.number => {
            let (client, keys) = (reader.number()?, reader.texts()?);
            let lens = reader.list(Reader::u64)?;
            let replicas = reader.u64()?;
            // Replicas of other kinds.
            reader.take(16)?;
            let pinned = reader.byte()? != 0;
            if reader.byte()? != 0 {
                reader.u64()?;
            }
            // Where to place them, and options that no client here has.
            reader.take(8)?;
            Ask::Start { client, keys, lens, replicas, pinned }
        }
        number if number == END.number => {
            let client = reader.number()?;
            let keys = reader.list(|reader| reader.text().filter(|_| reader.byte() == Some(0)))?;
            (u32::from_le_bytes(reader.number()?) == ALL_REPLICAS).then_some(Ask::End { client, keys })?
        }
        number if number == REVOKE.number => {
            let (client, keys) = (reader.number()?, reader.texts()?);
            (u32::from_le_bytes(reader.number()?) == ALL_REPLICAS).then_some(Ask::Revoke { client, keys })?
        }
        number if number == LOCATE.number => Ask::Locate { keys: reader.texts()? },
        number if number == EXIST.number => Ask::Exist { keys: reader.texts()? },
        _ => Ask::Remove { keys: reader.texts()?, force: reader.byte()? != 0 },
    };
    (reader.text()? == "default" && reader.bytes.is_empty()).then_some(ask)
}

fn text(into: &mut Vec<u8>, text: &str, wide: bool) {
    length(into, text.len(), wide);
    into.extend(text.as_bytes());
}

fn length(into: &mut Vec<u8>, len: usize, wide: bool) {
    match wide {
        true => into.extend((len as u16).to_le_bytes()),
        false => into.push(len as u8),
    }
}

fn replicas(into: &mut Vec<u8>, replicas: &[Described], wide: bool) {
    length(into, replicas.len(), wide);
    for Described { id, size, address, endpoint, complete } in replicas {
        into.extend(id.to_le_bytes());
        // It lies in memory.
        into.push(0);
        into.extend(size.to_le_bytes());
        into.extend(address.to_le_bytes());
        text(into, "tcp", wide);
        text(into, endpoint, wide);
        into.extend((if *complete { 3_u32 } else { 2 }).to_le_bytes());
    }
}

fn item(into: &mut Vec<u8>, item: &Item, wide: bool) {
    into.push(u8::from(!matches!(item, Item::Failed(_))));
    match item {
        Item::Done => {}
        Item::Exists(exists) => into.push(u8::from(*exists)),
        Item::Placed(placed) => replicas(into, placed, wide),
        Item::Located(located, lease) => {
            replicas(into, located, wide);
            into.extend(lease.to_le_bytes());
            into.push(0);
        }
        Item::Failed(code) => into.extend(code.to_le_bytes()),
    }
}

impl Answer {
    /// The frame of an answer. `of`: what it answers.
    pub fn bytes(&self, of: &Ask, sequence: u32) -> Vec<u8> {
        /// Of a text, which is what a refusal says.
        const TEXT: (u32, &str) = (0x9dcf_fa77, "");
        let count = if let Answer::Items(items) = self { items.len() } else { 0 };
        let wide = count > usize::from(u8::MAX);
        let (hash, literal) = match self {
            Answer::Refused(..) => TEXT,
            _ => of.function().map_or(TEXT, |function| function.answer),
        };
        let mut body = hash.to_le_bytes().to_vec();
        match self {
            Answer::Refused(_, said) => {
                body.extend([HAS_TYPE, 0x80, 0x0c, 0]);
                text(&mut body, said, false);
            }
            Answer::Version(version) => {
                body.push(HAS_TYPE);
                body.extend(hex::decode(literal).expect("digits"));
                body.extend([0, 1]);
                text(&mut body, version, false);
            }
            Answer::Items(items) => {
                body.push(HAS_TYPE | if wide { WIDE } else { 0 });
                body.extend(hex::decode(literal).expect("digits"));
                body.push(0);
                length(&mut body, items.len(), wide);
                items.iter().for_each(|of| item(&mut body, of, wide));
            }
        }
        let error = if let Answer::Refused(error, _) = self { *error } else { 0 };
        let head = [&[MAGIC, 0, error, 0][..], &sequence.to_le_bytes(), &(body.len() as u32).to_le_bytes(), &[0; 4]];
        [head.concat(), body].concat()
    }
}
