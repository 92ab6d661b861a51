//! The simulated master and node beside what real ones of Mooncake 0.3.13.post1 said: requests as the backend writes them, and each answer
//! byte for byte, as it was captured from a `mooncake_master` and an `mc_store_rest_server` on one machine.

use chance::Dice;

use crate::MILLISECOND;
use crate::coro::{self, Answer, Ask, Item};
use crate::master::{Master, Segment};
use crate::node::{DONE, Node, REFUSED};

const ENDPOINT: &str = "127.0.0.1:16221";
const BASE: u64 = 0x7f3c_3e00_0000;
/// Two clients: bytes from 0, and from 16.
const A: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
const B: [u8; 16] = [16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31];
/// The replica that the real master placed, but for its status.
const PLACED: &str = "0101010100000000000000000a000000000000000000003e3c7f0000037463700f3132372e302e302e313a3136323231";

fn master() -> (Master, Dice) {
    let mut master = Master::new(2000 * MILLISECOND);
    master.segments.push(Segment::new(1, 0, ENDPOINT, BASE, 16 << 20, 0));
    (master, Dice::of(1, &[1]))
}

fn keys(keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

/// What the real master said, after the type of its answer.
#[test]
fn a_master_answers_as_a_real_one_did() {
    let start =
        |client, key: &str, len| Ask::Start { client, keys: keys(&[key]), lens: vec![len], replicas: 1, pinned: false };
    let end = |client, of: &[&str]| Ask::End { client, keys: keys(of) };
    let revoke = |client, of: &[&str]| Ask::Revoke { client, keys: keys(of) };
    let locate = |of: &[&str]| Ask::Locate { keys: keys(of) };
    let exist = |of: &[&str]| Ask::Exist { keys: keys(of) };
    let remove = |of: &[&str], force| Ask::Remove { keys: keys(of), force };
    let both = &["n/a", "n/none"][..];
    let one = &both[..1];
    let exchanges = [
        (start(A, "n/a", 10), format!("{PLACED}02000000")),
        (start(A, "n/a", 10), "01003ffdffff".to_owned()),
        (start(B, "n/a", 10), "01003ffdffff".to_owned()),
        (locate(both), "020041fdffff0040fdffff".to_owned()),
        (exist(both), "0201000100".to_owned()),
        (remove(both, true), "020041fdffff0040fdffff".to_owned()),
        (end(B, both), "0200a7fdffff0040fdffff".to_owned()),
        (revoke(B, both), "0200a7fdffff0040fdffff".to_owned()),
        (end(A, one), "0101".to_owned()),
        (end(A, one), "0101".to_owned()),
        (revoke(A, one), "010044fdffff".to_owned()),
        (end(B, one), "0100a7fdffff".to_owned()),
        (revoke(B, one), "0100a7fdffff".to_owned()),
        (locate(one), format!("{PLACED}03000000d00700000000000000")),
        (exist(one), "010101".to_owned()),
        (remove(one, false), "01003efdffff".to_owned()),
        (remove(one, true), "0101".to_owned()),
        (remove(one, true), "010040fdffff".to_owned()),
        (start(A, "n/z", 0), "0100a8fdffff".to_owned()),
        (start(A, "n/b", 1 << 30), "010038ffffff".to_owned()),
    ];
    let (mut master, mut dice) = master();
    for (ask, said) in exchanges {
        let items: Vec<Item> =
            (0..ask.keys().len()).map(|at| master.carry_out(&ask, at, MILLISECOND, &mut dice)).collect();
        let frame = Answer::Items(items).bytes(&ask, 1);
        let body = &frame[16..];
        let len = u32::from_le_bytes(frame[8..12].try_into().unwrap()) as usize;
        assert_eq!((frame[0], body.len()), (0x15, len), "{ask:?}");
        let fields = body[5..].iter().position(|byte| *byte == 0).unwrap() + 6;
        assert_eq!(hex::encode(&body[fields..]), said, "{ask:?}");
    }
}

#[test]
fn memory_that_was_given_back_is_used_next_as_by_a_real_master() {
    let (mut master, mut dice) = master();
    let start = |key: &str| Ask::Start { client: A, keys: keys(&[key]), lens: vec![100], replicas: 2, pinned: false };
    let Item::Placed(first) = master.carry_out(&start("n/b"), 0, 1, &mut dice) else { panic!("there is room") };
    // Of two replicas one has a node.
    assert_eq!((first.len(), first[0].address), (1, BASE));
    assert_eq!(master.carry_out(&Ask::Revoke { client: A, keys: keys(&["n/b"]) }, 0, 2, &mut dice), Item::Done);
    let Item::Placed(next) = master.carry_out(&start("n/b2"), 0, 3, &mut dice) else { panic!("there is room") };
    assert_eq!(next[0].address, BASE);
}

#[test]
fn frames_of_other_versions_are_answered_as_by_a_real_master() {
    let refused = |said: Answer| hex::encode(said.bytes(&Ask::Other, 1));
    let none = "15000b0001000000280000000000000077facf9d04800c001f";
    assert_eq!(refused(coro::NOT_REGISTERED), format!("{none}{}", hex::encode("the rpc function not registered")));
    let wrong = "1500040001000000180000000000000077facf9d04800c000f";
    assert_eq!(refused(coro::INVALID_ARGUMENT), format!("{wrong}{}", hex::encode("invalid rpc arg")));
    let version = Answer::Version("2.0.0".to_owned()).bytes(&Ask::Ready, 1);
    assert_eq!(hex::encode(version), "1500000001000000110000000000000035ccb31c0487800c01000105322e302e30");
    // A request whose type has another hash.
    let mut came = hex::decode("1500000001000000b0a69fb807000000000000000000000000000000").unwrap();
    came.truncate(27);
    assert_eq!(coro::take(&mut came).unwrap(), Some((1, Err(coro::INVALID_ARGUMENT))));
}

#[test]
fn a_node_answers_as_a_real_one_did() {
    assert_eq!((hex::encode(DONE), hex::encode(REFUSED)), ("000000005654434d".into(), "010000005654434d".into()));
    let mut node = Node::new(0, 1 << 20);
    node.write(node.base(), b"hello");
    assert_eq!(node.read(node.base(), 8).unwrap(), b"hello\0\0\0");
    // A write of ten bytes that ended after four.
    node.write(node.base(), b"HALF");
    assert_eq!(node.read(node.base(), 10).unwrap(), b"HALFo\0\0\0\0\0");
    for (address, size) in [(16, 5), (node.base(), 1 << 30), (node.base(), 0)] {
        assert!(!node.has(address, size), "{address:#x} {size}");
    }
    let mut came = [&3_u64.to_le_bytes()[..], &[1], b"{}"].concat();
    let described = node.described(&mut came).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&described[9..]).unwrap();
    for name in
        ["buffers", "name", "protocol", "rdma_server_name", "tcp_data_host", "tcp_data_port", "tcp_proto_version"]
    {
        assert!(json.get(name).is_some(), "{name} is missing: {json}");
    }
    assert_eq!((described[8], u64::from_le_bytes(described[..8].try_into().unwrap())), (1, described.len() as u64 - 8));
}
