//! Histories of one register, made by hand; and the search beside one that tries every order.

use proptest::prelude::*;

use super::*;

const A: State = Some(0xa);
const B: State = Some(0xb);

fn operation(effect: Effect, begin: u64, end: u64) -> Operation {
    Operation { begin, end, effect, optional: false, after: Vec::new(), call: 0 }
}

fn set(state: State, begin: u64, end: u64) -> Operation {
    operation(Effect::Leaves(state), begin, end)
}

fn get(state: State, begin: u64, end: u64) -> Operation {
    operation(Effect::Saw(state), begin, end)
}

/// Nobody knows whether it was carried out.
fn maybe(state: State, begin: u64, end: u64) -> Operation {
    Operation { optional: true, ..set(state, begin, end) }
}

fn holds(operations: &[Operation]) -> bool {
    check(operations, false) == Verdict::Holds
}

fn holds_where_values_are_lost(operations: &[Operation]) -> bool {
    check(operations, true) == Verdict::Holds
}

#[test]
fn a_read_sees_what_was_acknowledged_last() {
    assert!(holds(&[]));
    assert!(holds(&[get(None, 0, 1)]) && !holds(&[get(A, 0, 1)]));
    assert!(holds(&[set(A, 0, 1), get(A, 2, 3)]) && !holds(&[set(A, 0, 1), get(None, 2, 3)]));
    assert!(!holds(&[set(A, 0, 1), set(B, 2, 3), get(A, 4, 5)]));
    assert!(!holds(&[set(A, 0, 1), set(None, 2, 3), get(A, 4, 5)]));
}

#[test]
fn what_runs_at_once_is_seen_or_not() {
    assert!(holds(&[set(A, 0, 9), get(A, 1, 2)]) && holds(&[set(A, 0, 9), get(None, 1, 2)]));
    // Who has seen it does not see what was before.
    assert!(!holds(&[set(A, 0, 9), get(A, 1, 2), get(None, 3, 4)]));
    assert!(holds(&[set(A, 0, 9), set(B, 1, 8), get(B, 2, 3), get(A, 4, 5)]));
    assert!(!holds(&[set(A, 0, 9), set(B, 1, 8), get(B, 2, 3), get(A, 4, 5), get(B, 6, 7)]));
    // An end and a begin at the same moment are in no order.
    assert!(holds(&[set(A, 0, 2), get(None, 2, 3)]));
}

#[test]
fn a_change_of_unknown_end_takes_effect_once_until_its_end_or_never() {
    let tried = maybe(A, 0, 6);
    assert!(holds(&[tried.clone(), get(None, 7, 8)]) && holds(&[tried.clone(), get(A, 7, 8)]));
    assert!(holds(&[tried.clone(), get(None, 1, 2), get(A, 3, 4)]));
    assert!(!holds(&[tried.clone(), get(None, 7, 8), get(A, 9, 10)]), "it came after its end");
    assert!(!holds(&[tried.clone(), get(A, 1, 2), get(None, 3, 4)]), "it went again");
    assert!(holds(&[maybe(A, 0, EVER), get(None, 7, 8), get(A, 9, 10)]));
    // It may undo what another process was told, until its end.
    assert!(holds(&[tried.clone(), set(B, 1, 2), get(B, 3, 4), get(A, 5, 7)]));
    assert!(!holds(&[tried.clone(), set(B, 1, 2), get(A, 3, 4), get(B, 5, 7)]));
    assert!(!holds(&[maybe(A, 0, 2), set(B, 3, 4), get(A, 5, 6)]));
    // Of a removal too.
    assert!(holds(&[maybe(None, 0, 9), set(A, 1, 2), get(A, 3, 4), get(None, 5, 6)]));
    assert!(!holds(&[maybe(None, 0, 3), set(A, 4, 5), get(None, 6, 7)]));
    assert!(!holds(&[maybe(None, 0, 9), set(A, 1, 2), get(None, 3, 4), get(A, 5, 6)]));
}

#[test]
fn a_later_change_of_the_same_process_ends_it() {
    let later = |effect| Operation { after: vec![0], ..effect };
    let tried = maybe(A, 0, EVER);
    assert!(holds(&[tried.clone(), set(B, 2, 3), get(A, 4, 5)]), "of others it may come at any time");
    assert!(!holds(&[tried.clone(), later(set(B, 2, 3)), get(A, 4, 5)]));
    assert!(!holds(&[tried.clone(), later(set(None, 2, 3)), get(A, 4, 5)]));
    assert!(holds(&[tried.clone(), later(set(B, 2, 5)), get(A, 3, 4), get(B, 6, 7)]), "it came before");
    assert!(!holds(&[tried.clone(), later(set(B, 2, 9)), get(B, 3, 4), get(A, 5, 6)]));
}

#[test]
fn what_is_lost_stays_lost() {
    assert!(holds_where_values_are_lost(&[set(A, 0, 1), get(None, 2, 3)]));
    assert!(!holds_where_values_are_lost(&[set(A, 0, 1), get(None, 2, 3), get(A, 4, 5)]));
    assert!(holds_where_values_are_lost(&[set(A, 0, 1), get(None, 2, 5), get(A, 3, 4)]));
    assert!(!holds_where_values_are_lost(&[set(A, 0, 1), set(B, 2, 3), get(A, 4, 5)]), "an older one");
    assert!(holds_where_values_are_lost(&[set(A, 0, 1), get(None, 2, 3), set(A, 4, 5), get(A, 6, 7)]));
}

#[test]
fn what_is_shown_of_a_violation_is_short_and_one_itself() {
    let mut operations = vec![set(B, 0, 1), get(B, 2, 3)];
    for at in 1..50 {
        let value = Some(0x100 + at);
        operations.push(set(value, at * 100, at * 100 + 10));
        operations.push(get(value, at * 100 + 20, at * 100 + 30));
    }
    operations.push(get(Some(0x100 + 7), 9000, 9010));
    operations.push(get(Some(0x100 + 49), 9020, 9030));
    let short = shortest(&operations, false).expect("an older value");
    let effects: Vec<Effect> = short.iter().map(|operation| operation.effect).collect();
    // The value, one that is newer, and who saw the older one.
    assert_eq!(effects.len(), 3, "{effects:?}");
    assert_eq!((effects[0], effects[2]), (Effect::Leaves(Some(0x107)), Effect::Saw(Some(0x107))));
    assert_eq!(check(&short, false), Verdict::Broken);
    assert_eq!(shortest(&operations[..60], false), None);

    // Removals long before a read that found nothing are left out too.
    let mut removed: Vec<Operation> = (0..20).map(|at| set(None, at * 10, at * 10 + 5)).collect();
    removed.extend([set(A, 300, 301), set(None, 310, 311), get(None, 320, 321), get(A, 330, 331)]);
    let short = shortest(&removed, false).expect("it is brought back");
    assert_eq!(short.iter().map(|operation| operation.begin).collect::<Vec<u64>>(), [300, 310, 330]);

    let later = Operation { after: vec![1], ..set(B, 4, 5) };
    let late = [get(None, 0, 1), maybe(A, 2, EVER), later, get(A, 6, 7), get(A, 8, 9)];
    let short = shortest(&late, false).expect("a late change");
    assert_eq!(short.iter().map(|operation| operation.begin).collect::<Vec<u64>>(), [2, 4, 6]);
    assert_eq!(short[1].after, [0]);
}

/// Whether there is an order, by trying each.
fn tries_all(operations: &[Operation], loses: bool, done: &mut Vec<usize>, state: State) -> bool {
    let left = |place: &usize| !done.contains(place);
    if !(0..operations.len()).filter(left).any(|place| !operations[place].optional) {
        return true;
    }
    for place in (0..operations.len()).filter(left).collect::<Vec<usize>>() {
        let own = &operations[place];
        let waits = (0..operations.len())
            .filter(|other| *other != place && !done.contains(other))
            .any(|other| !operations[other].optional && operations[other].end < own.begin);
        let comes_late = done.iter().any(|other| {
            let other = &operations[*other];
            own.end < other.begin || other.after.contains(&place)
        });
        if waits || comes_late {
            continue;
        }
        let after = match own.effect {
            Effect::Leaves(state) => state,
            Effect::Saw(seen) if seen == state || (loses && seen.is_none()) => seen,
            Effect::Saw(_) => continue,
        };
        done.push(place);
        let found = tries_all(operations, loses, done, after);
        done.pop();
        if found {
            return true;
        }
    }
    false
}

fn any_operation() -> impl Strategy<Value = (u64, u64, u8, u64, bool, bool)> {
    (0..12_u64, 0..9_u64, 0..5_u8, 0..3_u64, any::<bool>(), any::<bool>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn the_search_finds_an_order_where_there_is_one(
        drawn in proptest::collection::vec(any_operation(), 1..7), loses: bool
    ) {
        let mut operations: Vec<Operation> = drawn.into_iter().map(|(begin, length, kind, value, optional, follows)| {
            let state = (value > 0).then_some(value);
            let end = if optional && length == 8 { EVER } else { begin + length };
            let (effect, optional) = if kind < 2 { (Effect::Saw(state), false) } else { (Effect::Leaves(state), optional) };
            Operation { begin, end, effect, optional, after: if follows { vec![0] } else { Vec::new() }, call: 0 }
        }).collect();
        operations.sort_by_key(|operation| operation.begin);
        for place in 0..operations.len() {
            let ended = (0..place).filter(|other| operations[*other].optional).collect::<Vec<usize>>();
            let own = &mut operations[place];
            let follows = !own.after.is_empty() && !own.optional && matches!(own.effect, Effect::Leaves(_));
            own.after = if follows { ended } else { Vec::new() };
        }
        let found = check(&operations, loses);
        let expected = tries_all(&operations, loses, &mut Vec::new(), None);
        prop_assert_eq!(found, if expected { Verdict::Holds } else { Verdict::Broken }, "{:#?}", operations);
        if let Some(short) = shortest(&operations, loses) {
            prop_assert!(!tries_all(&short, loses, &mut Vec::new(), None), "{:#?}", short);
        }
    }
}
