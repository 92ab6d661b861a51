//! How many connections a component's requests take.

use super::*;
use crate::budget::Idle;

#[test]
fn a_component_may_want_few_connections_to_one_server() {
    let count = |most: Option<&str>| {
        let (one, other) =
            (Server::start(|_, _, _, _| Some(with_length(b"x"))), Server::start(|_, _, _, _| Some(with_length(b"y"))));
        let mut state = state();
        state.heed(&most.map(|most| ("http-connections".to_owned(), most.to_owned())).into_iter().collect::<Vec<_>>());
        let requests = (0..32).map(|n| if n % 4 == 0 { other.request("GET", "/") } else { one.request("GET", "/") });
        let responses = send(&mut state, requests.collect());
        assert!(responses.iter().all(Result::is_ok), "{responses:?}");
        (one.connections(), other.connections())
    };
    assert_eq!(count(Some("2")), (2, 2));
    assert_eq!(count(Some("0")), (1, 1), "it is one at least");
    for none in [None, Some("many")] {
        let (one, other) = count(none);
        assert!(one > 2 && other > 2, "{none:?}: {one}, {other}");
    }
}

#[test]
fn what_is_parked_is_closed_when_other_connections_are_wanted() {
    let server = Server::start(|_, _, _, _| Some(with_length(b"x")));
    let mut state = state();
    let ask = |state: &mut State| send(state, vec![server.request("GET", "/")])[0].is_ok();
    assert!(ask(&mut state) && ask(&mut state) && server.connections() == 1);
    state.access.parked.close();
    assert!(ask(&mut state) && server.connections() == 2);
}
