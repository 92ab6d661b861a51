//! The calls of Mooncake's master, as version 0.3.13 has them: a table of data, captured from the installed package by
//! `guests/mooncake/capture.py`, which compares it with what a package says. Hashes and types change when Mooncake changes a
//! structure, and then another table is needed.

use crate::wire::Type;

/// What the table is for, for people.
pub const VERSIONS: &str = "Mooncake 0.3.13 (protocol 2.0.0)";
/// What the master of such a version answers to [`SERVICE_READY`].
pub const PROTOCOL: &str = "2.0.0";

/// A function of the master: its number, and the types of what goes in and comes out.
pub struct Call {
    pub function: u32,
    pub request: Type,
    pub answer: Type,
}

/// Takes nothing, not even a value; answers the protocol's version.
pub const SERVICE_READY: Call = Call {
    function: 0x7b81_bb56,
    request: Type { hash: 0, literal: "" },
    answer: Type { hash: 0x1cb3_cc35, literal: "87800c01" },
};

/// Reserves memory for objects.
pub const BATCH_PUT_START: Call = Call {
    function: 0x56be_1822,
    request: Type {
        hash: 0x5870_c0a5,
        literal: "fdfd04048989ff84800c8404fd0404040685040b84800c800c84800c0b06800c8584800cff800cff",
    },
    answer: Type {
        hash: 0xad00_6d03,
        literal: "848784fd0486fdfd0404800c800cfffffdfd0404800c800cfffffd800c04fffdfd04048989ff04800cfffd800c04040401ffff01ff01",
    },
};

/// Makes written objects visible.
pub const BATCH_PUT_END: Call = Call {
    function: 0x80e0_20ab,
    request: Type { hash: 0xf57e_a7c9, literal: "fdfd04048989ff84fd800c8504ff01800cff" },
    answer: Type { hash: 0x39fc_52cf, literal: "8487fa01" },
};

/// Gives reserved memory back.
pub const BATCH_PUT_REVOKE: Call = Call {
    function: 0xb825_67aa,
    request: Type { hash: 0x94ee_5d45, literal: "fdfd04048989ff84800c01800cff" },
    answer: Type { hash: 0x39fc_52cf, literal: "8487fa01" },
};

/// Where objects lie, under a lease.
pub const BATCH_GET_REPLICA_LIST: Call = Call {
    function: 0x1b0d_20ff,
    request: Type { hash: 0x00f7_8d63, literal: "fd84800c800cff" },
    answer: Type {
        hash: 0x20c5_453b,
        literal: "8487fd84fd0486fdfd0404800c800cfffffdfd0404800c800cfffffd800c04fffdfd04048989ff04800cfffd800c04040401ffff01ff048504ff01",
    },
};

/// Which objects there are.
pub const BATCH_EXIST_KEY: Call = Call {
    function: 0xb89f_a6b0,
    request: Type { hash: 0x00f7_8d63, literal: "fd84800c800cff" },
    answer: Type { hash: 0x2a5f_8c5d, literal: "84870b01" },
};

/// Removes objects.
pub const BATCH_REMOVE: Call = Call {
    function: 0x5902_407d,
    request: Type { hash: 0x197a_9ca1, literal: "fd84800c0b800cff" },
    answer: Type { hash: 0x39fc_52cf, literal: "8487fa01" },
};

/// Objects whose keys match a regular expression, and where they lie, under a lease.
pub const LIST_BY_REGEX: Call = Call {
    function: 0xfe6a_f93c,
    request: Type { hash: 0x7cf9_1ed9, literal: "fd800c800cff" },
    answer: Type {
        hash: 0x7343_c041,
        literal: "8782800c84fd0486fdfd0404800c800cfffffdfd0404800c800cfffffd800c04fffdfd04048989ff04800cfffd800c04040401ffff01ff01",
    },
};
