//! What only the inside can show of an instance's bounds.

use super::*;
use std::collections::BTreeMap;

use crate::budget::{Budget, Budgets, Owner, Shares};
use crate::contract::bindings::kv_store::backend::net::{
    ConnectRequest, Host as _, HostConnectOptions, HostConnection,
};
use crate::directory::Directory;
use crate::policy::Grants;

pub(super) fn access(limits: Limits, budgets: &Arc<Budgets>) -> Arc<Access> {
    let grants = Grants {
        servers: vec!["127.0.0.1".into()],
        // Servers of tests are on free ports.
        connect: vec!["127.0.0.1:*".to_owned().try_into().unwrap()],
        ..Grants::default()
    };
    let owner = Arc::<Owner>::default();
    Arc::new(Access::of(Arc::new(Reach {
        name: "test".into(),
        grants,
        shares: Shares::of(budgets, &owner, &limits),
        whose: crate::threads::Whose::of(&owner),
        owner,
        limits,
        directory: None,
        folders: BTreeMap::new(),
        segments: crate::store::Process::current().segments.clone(),
        tls: Default::default(),
        cpu_quota: false,
        meters: Arc::default(),
        counters: crate::store::Process::current().counters.of("test", None),
    })))
}

/// The default bounds but for what is changed.
pub(super) fn limited(change: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = Limits::default();
    change(&mut limits);
    limits
}

/// Budgets of so many payload bytes and descriptors, for one test.
pub(super) fn budgets(payload_bytes: u64, descriptors: u64) -> Arc<Budgets> {
    let budgets = Budgets {
        payload_bytes: Budget::new(payload_bytes),
        descriptors: Budget::new(descriptors),
        ..Budgets::default()
    };
    Arc::new(budgets)
}

/// The same, with this directory as the one that the URI names.
pub(super) fn in_directory(access: Arc<Access>, path: &std::path::Path) -> Arc<Access> {
    let access = Arc::into_inner(access).expect("nobody else has it");
    let mut reach = Arc::into_inner(access.reach).expect("nobody else has it");
    reach.directory = Some(Arc::new(Directory::open(path, &crate::store::Process::current().directories).unwrap()));
    Arc::new(Access::of(Arc::new(reach)))
}

fn give(state: &mut State, bytes: usize) -> Result<Resource<Payload>, Error> {
    let room = state.reserve(bytes as u64)?;
    state.give(Arc::new(Buffer::concat(&[&vec![0; bytes]]).unwrap()), room)
}

#[test]
fn what_all_instances_hold_is_bounded_and_given_back() {
    let budgets = budgets(100, 1);
    let access = access(limited(|limits| limits.payload_bytes = 100), &budgets);
    let (mut one, mut other) = (State::new(access.clone(), 0).unwrap(), State::new(access, 0).unwrap());
    let held = give(&mut one, 60).unwrap();
    let refused = give(&mut other, 60).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Exhausted);
    assert!(refused.to_string().contains("> 100 for one store of the process"), "{refused}");
    give(&mut other, 40).unwrap();
    assert_eq!(budgets.payload_bytes.used(), 100);
    one.take(held).unwrap();
    assert_eq!(budgets.payload_bytes.used(), 40);
    // What an instance held goes with it.
    drop(other);
    assert_eq!((budgets.payload_bytes.used(), budgets.memory_bytes.used()), (0, 0));
}

#[test]
fn what_one_instance_holds_is_bounded() {
    let budgets = budgets(1000, 1);
    let mut state = State::new(access(limited(|limits| limits.payload_bytes = 100), &budgets), 0).unwrap();
    give(&mut state, 100).unwrap();
    let refused = give(&mut state, 1).unwrap_err();
    assert!(refused.to_string().contains("payload_bytes = 100"), "{refused}");
    assert_eq!(budgets.payload_bytes.used(), 100);
}

#[test]
fn a_handle_counts_as_memory_and_shares_of_one_buffer_count_its_bytes_once() {
    let budgets = budgets(1000, 1);
    let memory_bytes = 3 * limits::HANDLE_BYTES as u64;
    let mut state = State::new(access(limited(|limits| limits.memory_bytes = memory_bytes), &budgets), 0).unwrap();
    let first = give(&mut state, 10).unwrap();
    let buffer = match state.table.get(&first).unwrap() {
        Payload::Owned(buffer) => buffer.clone(),
        _ => unreachable!(),
    };
    let share = |state: &mut State| {
        let room = state.reserve(0)?;
        state.give(buffer.clone(), room)
    };
    let second = share(&mut state).unwrap();
    let third = share(&mut state).unwrap();
    let refused = share(&mut state).unwrap_err();
    assert!(refused.to_string().contains("memory_bytes = 768"), "{refused}");
    assert_eq!((budgets.payload_bytes.used(), budgets.memory_bytes.used()), (10, memory_bytes));
    for (handle, left) in [(first, 10), (second, 10), (third, 0)] {
        state.drop_payload(handle).unwrap();
        assert_eq!(budgets.payload_bytes.used(), left);
    }
    assert_eq!(budgets.memory_bytes.used(), 0);
}

/// A server that accepts connections and keeps them.
fn server() -> (std::net::TcpListener, String) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// Do something as the call of an instance does.
pub(super) fn in_call<T>(state: &mut State, call: impl AsyncFnOnce(&mut State) -> T) -> T {
    let later = Instant::now() + Duration::from_secs(60);
    state.start_call(crate::until::Until::with(&Default::default(), &Limits::default(), Some(later), None));
    let done = crate::engine::runtime().unwrap().driver.block_on(|| later, call(state)).expect("it waits for ever");
    state.end_call();
    done
}

#[test]
fn connections_of_all_instances_are_bounded_and_given_back() {
    // A quarter is a store's.
    let budgets = budgets(100, 8);
    let access = access(Limits::default(), &budgets);
    let (mut one, mut other) = (State::new(access.clone(), 0).unwrap(), State::new(access, 0).unwrap());
    let (_listener, server) = server();
    let refused = in_call(&mut one, async |one| {
        let options = one.new().await.unwrap();
        let borrow = || Resource::new_borrow(options.rep());
        one.set_session(borrow(), "s".into()).await.unwrap().unwrap();
        let kept = one.connect(server.clone(), Some(borrow())).await.unwrap().unwrap();
        one.connect(server.clone(), None).await.unwrap().unwrap();
        let refused = one.connect(server.clone(), None).await.unwrap().unwrap_err();
        HostConnectOptions::drop(one, options).await.unwrap();
        one.park(kept).await.unwrap();
        refused
    });
    assert!(refused.message.contains("> 2 for one store of the process"), "{}", refused.message);
    // One that is parked counts, and so does one that the guest of an idle instance holds. They go when another is needed.
    assert_eq!((budgets.connections.used(), budgets.descriptors.used()), (2, 2));
    in_call(&mut other, async |other| other.connect(server.clone(), None).await.unwrap().unwrap());
    assert_eq!((budgets.connections.used(), budgets.descriptors.used()), (1, 1));
    drop(other);
    assert_eq!((budgets.connections.used(), budgets.descriptors.used()), (0, 0));
}

#[test]
fn connections_made_at_once_are_bounded_like_those_made_one_by_one() {
    let budgets = budgets(100, 40);
    let limits = limited(|limits| limits.connections = 3);
    let mut state = State::new(access(limits, &budgets), 0).unwrap();
    let (_listener, server) = server();
    let request = |authority: &str| ConnectRequest { authority: authority.into(), options: None };
    let requests = [&server, "elsewhere:1", &server, "127.0.0.1", &server, &server].map(request);
    let made = in_call(&mut state, async |state| state.connect_all(requests.into()).await.unwrap());
    let kinds: Vec<Option<_>> = made.iter().map(|made| made.as_ref().err().map(|error| error.kind)).collect();
    use crate::contract::bindings::kv_store::backend::types::ErrorKind::{Denied, Exhausted, Invalid};
    assert_eq!(kinds, [None, Some(Denied), None, Some(Invalid), None, Some(Exhausted)]);
    assert_eq!(budgets.connections.used(), 3);
    drop(state);
    assert_eq!((budgets.connections.used(), budgets.memory_bytes.used()), (0, 0));
}

#[test]
fn options_count_until_they_are_dropped() {
    let budgets = budgets(100, 8);
    let mut state = State::new(access(limited(|limits| limits.memory_bytes = 4000), &budgets), 0).unwrap();
    in_call(&mut state, async |state| {
        let options = state.new().await.unwrap();
        let borrow = || Resource::new_borrow(options.rep());
        let long = |len| "x".repeat(len);
        state.set_session(borrow(), long(limits::MAX_SESSION_BYTES)).await.unwrap().unwrap();
        assert!(state.set_session(borrow(), long(limits::MAX_SESSION_BYTES + 1)).await.unwrap().is_err());
        // A name that is too long for any is kept as one that is none.
        state.set_server_name(borrow(), long(1 << 20)).await.unwrap();
        let refused = state.connect("127.0.0.1:1".into(), Some(borrow())).await.unwrap().unwrap_err();
        assert!(refused.message.contains("no server's name"), "{}", refused.message);
        assert!(budgets.memory_bytes.used() >= limits::MAX_SESSION_BYTES as u64);
        assert!(state.new().await.is_ok() && state.new().await.is_err(), "a third is more than memory_bytes");
        HostConnectOptions::drop(state, options).await.unwrap();
        assert!(state.new().await.is_ok());
    });
    drop(state);
    assert_eq!(budgets.memory_bytes.used(), 0);
}

#[test]
fn a_connection_that_an_idle_instance_holds_is_closed() {
    for idle_ms in [0, 50] {
        let budgets = budgets(100, 8);
        let mut state = State::new(access(limited(|limits| limits.idle_ms = idle_ms), &budgets), 0).unwrap();
        let (_listener, server) = server();
        let held = in_call(&mut state, async |state| {
            let held = state.connect(server.clone(), None).await.unwrap().unwrap();
            // Not while the call runs, however long that takes.
            crate::engine::before(Instant::now() + Duration::from_millis(2 * idle_ms), std::future::pending::<()>())
                .await;
            state.send(Resource::new_borrow(held.rep()), Vec::new()).await.unwrap().unwrap();
            held
        });
        let begun = Instant::now();
        while budgets.connections.used() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "it stays open with idle_ms = {idle_ms}");
            std::thread::sleep(Duration::from_millis(5));
        }
        let refused = in_call(&mut state, async |state| {
            let borrowed = Resource::new_borrow(held.rep());
            let refused = state.send(borrowed, Vec::new()).await.unwrap().unwrap_err();
            HostConnection::drop(state, held).await.unwrap();
            refused
        });
        assert!(refused.message.contains("idle for too long"), "{}", refused.message);
        assert_eq!(budgets.memory_bytes.used(), 0);
    }
}

#[test]
fn bytes_that_are_being_received_are_taken_from_what_the_process_may_hold() {
    use std::io::Write;
    let budgets = budgets(100, 8);
    let access = access(limited(|limits| limits.payload_bytes = 100), &budgets);
    let (mut slow, mut other) = (State::new(access.clone(), 0).unwrap(), State::new(access, 0).unwrap());
    let (listener, server) = server();
    let connection = in_call(&mut slow, async |slow| slow.connect(server.clone(), None).await.unwrap().unwrap());
    let (mut peer, _) = listener.accept().unwrap();
    std::thread::scope(|scope| {
        let receiving =
            scope.spawn(|| in_call(&mut slow, async |slow| slow.receive_payload(connection, 60, None).await));
        let begun = Instant::now();
        while budgets.payload_bytes.used() < 60 {
            assert!(begun.elapsed() < Duration::from_secs(60) && !receiving.is_finished(), "nothing is taken");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(give(&mut other, 60).unwrap_err().kind(), ErrorKind::Exhausted);
        peer.write_all(&[7; 60]).unwrap();
        receiving.join().unwrap().unwrap().unwrap();
    });
    assert_eq!(budgets.payload_bytes.used(), 60);
    drop(slow);
    assert_eq!(budgets.payload_bytes.used(), 0);
}

#[test]
fn what_an_instance_costs_before_it_runs_counts() {
    let budgets = budgets(0, 0);
    let access = access(limited(|limits| limits.memory_bytes = 1000), &budgets);
    let refused = State::new(access.clone(), 1001).err().unwrap();
    assert!(refused.kind() == ErrorKind::Exhausted && refused.to_string().contains("memory_bytes = 1000"), "{refused}");
    assert!(State::new(access.clone(), u64::MAX).is_err());
    let mut state = State::new(access, 800).unwrap();
    assert_eq!(budgets.memory_bytes.used(), 800);
    assert!(give(&mut state, 0).is_err());
    drop(state);
    assert_eq!(budgets.memory_bytes.used(), 0);
}
