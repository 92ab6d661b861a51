//! What only the inside can show of an instance's bounds.

use super::*;
use crate::bindings::kv_store::backend::net::Host as _;
use crate::budget::Budget;

fn access(limits: Limits, budgets: &'static Budgets) -> Arc<Access> {
    let grants = Grants {
        directory: None,
        server: Some("127.0.0.1".into()),
        fs: BTreeMap::new(),
        connect: Vec::new(),
        private_networks: false,
        env: Vec::new(),
        secrets: BTreeMap::new(),
        secret_prefix: None,
    };
    Arc::new(Access {
        name: "test".into(),
        grants,
        faults: None,
        parked: Arc::new(Parked::new(&limits)),
        limits,
        directory: None,
        folders: BTreeMap::new(),
        log: Rate::of_one(),
        tls: Tls::default(),
        budgets,
        counters: crate::counters::of("test", None).unwrap(),
    })
}

fn payload(bytes: usize) -> Payload {
    Payload::Owned(Arc::new(Buffer::concat(&[&vec![0; bytes]]).unwrap()))
}

#[test]
fn what_all_instances_hold_is_bounded_and_given_back() {
    static BUDGETS: Budgets = Budgets { payload_bytes: Budget::new(100), connections: Budget::new(1) };
    let access = access(Limits::default(), &BUDGETS);
    let (mut one, mut other) = (State::new(access.clone()), State::new(access));
    let held = one.give(payload(60)).unwrap();
    let refused = other.give(payload(60)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Exhausted);
    assert!(refused.to_string().contains("all stores of the process"), "{refused}");
    other.give(payload(40)).unwrap();
    assert_eq!(BUDGETS.payload_bytes.used(), 100);
    one.take(held).unwrap();
    assert_eq!(BUDGETS.payload_bytes.used(), 40);
    // What an instance held goes with it.
    drop(other);
    assert_eq!(BUDGETS.payload_bytes.used(), 0);
}

#[test]
fn what_one_instance_holds_is_bounded() {
    static BUDGETS: Budgets = Budgets { payload_bytes: Budget::new(1000), connections: Budget::new(1) };
    let mut state = State::new(access(Limits { payload_bytes: 100, ..Limits::default() }, &BUDGETS));
    state.give(payload(100)).unwrap();
    let refused = state.give(payload(1)).unwrap_err();
    assert!(refused.to_string().contains("payload_bytes = 100"), "{refused}");
    assert_eq!(BUDGETS.payload_bytes.used(), 100);
}

#[test]
fn connections_of_all_instances_are_bounded_and_given_back() {
    static BUDGETS: Budgets = Budgets { payload_bytes: Budget::new(100), connections: Budget::new(2) };
    let access = access(Limits::default(), &BUDGETS);
    let (mut one, mut other) = (State::new(access.clone()), State::new(access));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap().to_string();
    let later = Instant::now() + Duration::from_secs(60);
    one.start_call(later);
    other.start_call(later);
    let finished = crate::engine::runtime().unwrap().driver.block_on(later, async {
        let kept = one.connect(server.clone(), false, Some("s".into())).await.unwrap().unwrap();
        other.connect(server.clone(), false, None).await.unwrap().unwrap();
        let refused = one.connect(server.clone(), false, None).await.unwrap().unwrap_err();
        assert!(refused.message.contains("the process may have"), "{}", refused.message);
        // One that is parked counts, and one that goes with its instance does not.
        one.park(kept).await.unwrap();
        assert_eq!(BUDGETS.connections.used(), 2);
        drop(other);
        assert_eq!(BUDGETS.connections.used(), 1);
        one.connect(server, false, None).await.unwrap().unwrap();
    });
    assert!(finished.is_some(), "it waits for ever");
}
