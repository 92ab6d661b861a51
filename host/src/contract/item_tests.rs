//! Where bytes end up that a guest reads or receives for an item, and how often they are copied on the way.

use std::io::Write;
use std::path::Path;

use proptest::prelude::*;

use super::tests::{access, budgets, in_directory};
use super::*;
use crate::contract::bindings::kv_store::backend::files::{Host as _, HostDirectory, ReadOutcome, ReadRequest};
use crate::contract::bindings::kv_store::backend::net::{Host as _, HostConnection};
use crate::contract::bindings::kv_store::backend::payloads::{Host as _, HostPayload, Part};
use crate::payload::ValueMemory;
use crate::payload::counts::{self, Counts};

/// The memory of a caller for one item, in pieces.
pub(super) struct Space(Vec<Vec<u8>>);

impl Space {
    pub(super) fn new(pieces: &[usize]) -> Self {
        Space(pieces.iter().map(|len| vec![0xee; *len]).collect())
    }

    fn memory(&mut self) -> ValueMemory {
        let piece = |piece: &mut Vec<u8>| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() };
        let pieces: Vec<_> = self.0.iter_mut().map(piece).collect();
        // SAFETY: the pieces live as long as the space, which nobody looks at before the call is over.
        unsafe { ValueMemory::room(&pieces) }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.concat()
    }

    fn len(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }
}

/// A call that gets into these spaces; none: the host allocates.
pub(super) fn begin(state: &mut State, spaces: &mut [Option<Space>]) {
    state.items().end();
    let rooms: Vec<_> = spaces.iter_mut().map(|space| space.as_mut().map(Space::memory)).collect();
    // SAFETY: as in `Space::memory`.
    unsafe { state.items().begin_get(rooms.into_iter().map(|memory| (memory, None))) };
    counts::take();
}

/// Read a file for an item.
fn read(state: &mut State, path: &str, item: Option<u32>) -> Resource<Payload> {
    let directory = state.open_directory(String::new()).unwrap().unwrap();
    let request = ReadRequest { path: path.to_owned(), offset: 0, len: None, item };
    let mut outcomes = HostDirectory::read(state, directory, vec![request]).unwrap().unwrap();
    match outcomes.pop() {
        Some(ReadOutcome::Found(payload)) => payload,
        other => panic!("{path}: {other:?}"),
    }
}

fn again(handle: &Resource<Payload>) -> Resource<Payload> {
    Resource::new_borrow(handle.rep())
}

fn state(folder: &Path) -> State {
    State::new(in_directory(access(Limits::default(), &budgets(1 << 30, 10)), folder), 0).unwrap()
}

fn found(handle: Resource<Payload>) -> Result<Option<Resource<Payload>>, Error> {
    Ok(Some(handle))
}

#[test]
fn files_are_read_where_they_belong_without_a_copy() {
    let folder = tempfile::tempdir().unwrap();
    let long: Vec<u8> = (0..200_000).map(|n| (n % 251) as u8).collect();
    std::fs::write(folder.path().join("short"), b"0123456789").unwrap();
    std::fs::write(folder.path().join("long"), &long).unwrap();
    let mut state = state(folder.path());
    // More pieces than one read takes.
    let mut spaces = [Some(Space::new(&[16])), Some(Space::new(&[1000; 250])), None];
    begin(&mut state, &mut spaces);
    let answers =
        ["short", "long", "short"].iter().zip(0..).map(|(path, item)| found(read(&mut state, path, Some(item))));
    let answers: Vec<_> = answers.collect();
    assert_eq!(counts::take(), counts::of_files(folder.path(), 10 + long.len() + 10));
    let got = state.place_answers(answers).unwrap();
    assert!(matches!(got[0], Ok(Some(Got::Placed(10)))) && matches!(got[1], Ok(Some(Got::Placed(200_000)))));
    assert!(matches!(&got[2], Ok(Some(Got::Buffer(data))) if &data[..] == b"0123456789"));
    assert_eq!(counts::take(), Counts::default(), "an answer is handed on as it lies");
    state.items().end();
    let [Some(short), Some(all), _] = &spaces else { panic!("there are two") };
    assert_eq!(short.bytes(), b"0123456789\xee\xee\xee\xee\xee\xee");
    assert!(all.bytes()[..long.len()] == long && all.bytes()[long.len()..].iter().all(|byte| *byte == 0xee));
}

#[test]
fn a_file_that_is_too_long_is_told_and_not_cut() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("f"), b"0123456789").unwrap();
    let mut state = state(folder.path());
    let mut spaces = [Some(Space::new(&[5, 4]))];
    begin(&mut state, &mut spaces);
    let handle = read(&mut state, "f", Some(0));
    let got = state.place_answers(vec![found(handle)]).unwrap();
    assert!(matches!(got[..], [Ok(Some(Got::TooLong(10)))]));
    state.items().end();
    assert_eq!(spaces[0].as_ref().unwrap().bytes(), [0xee; 9]);
}

#[test]
fn what_was_placed_can_be_used_in_its_call_and_ends_with_it() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("f"), b"0123456789").unwrap();
    let mut state = state(folder.path());
    let mut spaces = [Some(Space::new(&[3, 20]))];
    begin(&mut state, &mut spaces);
    let placed = read(&mut state, "f", Some(0));
    assert_eq!(HostPayload::len(&mut state, again(&placed)).unwrap(), 10);
    assert_eq!(HostPayload::read(&mut state, again(&placed), 2, 5).unwrap().unwrap(), b"23456");
    let past = HostPayload::read(&mut state, again(&placed), 5, 6).unwrap().unwrap_err();
    assert!(past.message.contains("reach past the end, 10"), "what lies behind in the memory is nobody's: {past:?}");
    let sum = state.crc32c(vec![Part::Payload(again(&placed))]).unwrap().unwrap();
    assert_eq!(sum, crc32c::crc32c(b"0123456789"));
    counts::take();
    let shared = state.share(again(&placed)).unwrap().unwrap();
    assert_eq!(counts::take().copied, 10, "`share` copies what is the caller's");

    state.items().end();
    assert_eq!(HostPayload::len(&mut state, again(&placed)).unwrap(), 0);
    let late = HostPayload::read(&mut state, again(&placed), 0, 1).unwrap().unwrap_err();
    assert!(late.message.contains("a call that is over"), "{late:?}");
    assert!(state.share(again(&placed)).unwrap().is_err());
    assert_eq!(HostPayload::read(&mut state, again(&shared), 0, 10).unwrap().unwrap(), b"0123456789");
    // Nor is it an answer to a later call, though that has the same memory.
    begin(&mut state, &mut spaces);
    let violation = state.place_answers(vec![found(placed)]).expect_err("it is over");
    assert_eq!(violation.kind(), ErrorKind::Component);
}

#[test]
fn an_item_can_be_read_again_when_the_first_payload_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a"), b"aaaaaaaaaa").unwrap();
    std::fs::write(folder.path().join("b"), b"bbbbb").unwrap();
    let mut state = state(folder.path());
    let mut spaces = [Some(Space::new(&[10]))];
    begin(&mut state, &mut spaces);
    let first = read(&mut state, "a", Some(0));
    HostPayload::drop(&mut state, first).unwrap();
    let second = read(&mut state, "b", Some(0));
    let got = state.place_answers(vec![found(second)]).unwrap();
    assert!(matches!(got[..], [Ok(Some(Got::Placed(5)))]));
    assert_eq!(counts::take(), counts::of_files(folder.path(), 15));
    state.items().end();
    assert_eq!(&spaces[0].as_ref().unwrap().bytes()[..5], b"bbbbb");
}

#[test]
fn what_is_received_is_placed_but_for_what_came_with_the_line_before() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap().to_string();
    let value: Vec<u8> = (0..3_000_000).map(|n| (n % 251) as u8).collect();
    let sent = value.clone();
    let serving = std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        peer.write_all(b"3000000\n").unwrap();
        peer.write_all(&sent).unwrap();
    });
    let mut state = State::new(access(Limits::default(), &budgets(1 << 30, 10)), 0).unwrap();
    let mut spaces = [None, Some(Space::new(&[7, 1 << 20, 5, 4 << 20]))];
    begin(&mut state, &mut spaces);
    let later = Instant::now() + Duration::from_secs(60);
    state.start_call(crate::until::Until::with(
        &Default::default(),
        &crate::limits::Limits::default(),
        Some(later),
        None,
    ));
    let got = crate::engine::runtime().unwrap().driver.block_on(|| later, async {
        let connection = state.connect(server, None).await.unwrap().unwrap();
        let borrow = || Resource::new_borrow(connection.rep());
        state.receive_until(borrow(), b"\n".to_vec(), 100).await.unwrap().unwrap();
        let handle = state.receive_payload(borrow(), 3_000_000, Some(1)).await.unwrap().unwrap();
        state.place_answers(vec![Ok(None), found(handle)]).unwrap()
    });
    serving.join().unwrap();
    assert!(matches!(got.expect("it waits for ever")[..], [Ok(None), Ok(Some(Got::Placed(3_000_000)))]));
    let Counts { copied, placed } = counts::take();
    assert_eq!(copied + placed, 3_000_000);
    assert!(copied <= 4096, "{copied} bytes were copied; only read-ahead should be");
    state.items().end();
    assert!(spaces[1].as_ref().unwrap().bytes()[..3_000_000] == value);
}

/// One of few lengths.
fn len() -> impl Strategy<Value = usize> {
    prop::sample::select(vec![0, 1, 5, 10])
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever items a guest says that its reads answer, and whichever it answers for which item in the end.
    #[test]
    fn a_confusion_of_items_answers_no_wrong_byte(
        files in prop::collection::vec(len(), 4),
        rooms in prop::collection::vec(prop::option::of(prop::collection::vec(len(), 0..3)), 4),
        reads in prop::collection::vec((0..4_usize, prop::option::of(0..6_u32), any::<bool>()), 1..8),
        order in Just((0..8_usize).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let content = |file: usize| vec![b'a' + file as u8; files[file]];
        for file in 0..files.len() {
            std::fs::write(folder.path().join(file.to_string()), content(file)).unwrap();
        }
        let mut state = state(folder.path());
        let mut spaces: Vec<_> = rooms.iter().map(|room| room.as_ref().map(|pieces| Space::new(pieces))).collect();
        begin(&mut state, &mut spaces);
        let mut payloads: Vec<Option<(usize, Resource<Payload>)>> = Vec::new();
        for (file, item, dropped) in reads {
            let handle = read(&mut state, &file.to_string(), item);
            if dropped {
                HostPayload::drop(&mut state, handle).unwrap();
                payloads.push(None);
            } else {
                payloads.push(Some((file, handle)));
            }
        }
        let answered: Vec<_> = (0..spaces.len()).map(|at| payloads.get_mut(order[at]).and_then(Option::take)).collect();
        // What nobody answers is as it was, too.
        let kept: Vec<_> = payloads.into_iter().flatten().collect();
        for (file, handle) in &kept {
            let bytes = HostPayload::read(&mut state, again(handle), 0, files[*file] as u32).unwrap().unwrap();
            prop_assert_eq!(bytes, content(*file));
        }
        let expected: Vec<Option<usize>> = answered.iter().map(|answer| answer.as_ref().map(|(file, _)| *file)).collect();
        let got = state.place_answers(answered.into_iter().map(|answer| Ok(answer.map(|(_, handle)| handle)))).unwrap();
        state.items().end();
        for ((got, expected), space) in got.iter().zip(expected).zip(&spaces) {
            match (got.as_ref().unwrap(), expected, space) {
                (None, None, _) => {}
                (Some(Got::Buffer(data)), Some(file), None) => prop_assert_eq!(&data[..], content(file)),
                (Some(Got::TooLong(len)), Some(file), Some(space)) => {
                    prop_assert!(*len == files[file] && *len > space.len());
                }
                (Some(Got::Placed(len)), Some(file), Some(space)) => {
                    prop_assert_eq!(&space.bytes()[..*len], content(file));
                }
                _ => prop_assert!(false, "another outcome"),
            }
        }
    }
}
