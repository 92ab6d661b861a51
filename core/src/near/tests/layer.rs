//! What is answered from near, and what is not.

use super::*;
use crate::backend::Holding;

const MEMORY: u64 = 1 << 20;

#[test]
fn a_chunk_that_is_near_is_read_without_the_backend() {
    let store = around(&settings(MEMORY, None));
    // One that was put, and one that another process put and that was read once.
    let put = store.put(b"put");
    store.far.chunks().insert(key(b"other"), b"other".to_vec());
    assert_eq!(store.get(&key(b"other")).unwrap(), b"other");
    let asked = store.far.gets();
    assert_eq!(asked, 1);
    store.far.failing.store(1, SeqCst);
    for _ in 0..3 {
        assert_eq!(store.get(&put).unwrap(), b"put");
        assert_eq!(store.get(&key(b"other")).unwrap(), b"other");
    }
    assert_eq!(store.far.gets(), asked);
    assert!(store.near.get(&[key(b"none")], &mut [], &store.until).is_err(), "the backend is asked for others");
}

#[test]
fn existence_and_commits_are_the_backends_alone() {
    let store = around(&settings(MEMORY, None));
    let [kept, gone] = [&b"kept"[..], b"gone"].map(|data| store.put(data));
    store.far.chunks().remove(&gone);
    assert!(store.get(&gone).is_some(), "it is near");
    let present = store.near.exists(&[kept, gone], &store.until).unwrap();
    assert!(matches!(present[..], [Ok(Presence::Present(Some(4))), Ok(Presence::Absent)]), "{present:?}");
    assert_eq!(store.get(&gone), None, "and who was told that it is gone does not find it");
    let gone = store.put(b"gone again");
    store.far.chunks().remove(&gone);
    let committed = store.near.commit(None, &[kept, gone], 0, &store.until).unwrap();
    assert!(matches!(committed, Committed::Absent(absent) if absent == [gone]));
    assert_eq!(store.get(&gone), None);
    assert!(store.get(&kept).is_some());
}

#[test]
fn a_delete_by_others_is_seen_when_the_time_is_up() {
    let store = around(&settings(MEMORY, None));
    let hash = store.put(b"deleted elsewhere");
    store.far.chunks().remove(&hash);
    store.pass(Duration::from_secs(TTL - 1));
    assert!(store.get(&hash).is_some());
    store.pass(Duration::from_secs(1));
    assert_eq!(store.get(&hash), None);
}

#[test]
fn what_is_old_is_confirmed_and_not_fetched() {
    let store = around(&settings(MEMORY, None));
    let hash = store.put(b"still there");
    for round in 1..4 {
        store.pass(Duration::from_secs(TTL));
        assert_eq!(store.get(&hash).unwrap(), b"still there");
        assert_eq!(store.get(&hash).unwrap(), b"still there");
        assert_eq!((store.far.gets(), store.far.exists.load(SeqCst)), (0, round));
    }
    // Of another length it is another's.
    store.pass(Duration::from_secs(TTL));
    store.far.chunks().insert(hash, b"damaged".to_vec());
    assert_eq!(store.get(&hash).unwrap(), b"damaged", "unchecked, as the backend has it");
    assert_eq!(store.far.gets(), 1);
    assert_eq!(store.get(&hash).unwrap(), b"damaged");
    assert_eq!(store.far.gets(), 2, "and it is not kept");
}

#[test]
fn an_old_copy_is_no_answer_while_the_backend_is_away() {
    let store = around(&settings(MEMORY, None));
    let hash = store.put(b"old");
    store.pass(Duration::from_secs(TTL));
    store.far.failing.store(1, SeqCst);
    assert!(store.near.get(&[hash], &mut [], &store.until).is_err());
    store.far.failing.store(0, SeqCst);
    assert_eq!(store.get(&hash).unwrap(), b"old");
    assert_eq!(store.far.gets(), 1, "the failed one: afterwards it was confirmed");
}

#[test]
fn what_is_deleted_while_it_is_fetched_is_not_kept() {
    let store = around(&settings(MEMORY, None));
    store.far.chunks().insert(key(b"race"), b"race".to_vec());
    let (near, hash) = (store.near.clone(), key(b"race"));
    *store.far.during_get.lock() = Some(Box::new(move || {
        near.delete(&[hash], &Until::new(&Limits::default())).unwrap();
    }));
    assert_eq!(store.get(&hash).unwrap(), b"race", "it was there when it was asked for");
    assert_eq!(store.get(&hash), None);
    let hash = store.put(b"race");
    store.delete(&hash);
    assert_eq!(store.get(&hash), None);
    // Also where the backend did not say whether it is gone.
    let hash = store.put(b"race");
    store.far.failing.store(1, SeqCst);
    assert!(store.near.delete(&[hash], &store.until).is_err());
    assert!(store.near.get(&[hash], &mut [], &store.until).is_err());
}

#[test]
fn no_copy_is_taken_while_a_removal_may_come_that_ended_unknown() {
    let (far, level) = (Arc::<Far>::default(), open(&settings(MEMORY, None)));
    let changes = changes();
    let counters = counters::ProcessCounters::default().of("near-test", None);
    let holding = Arc::new(Holding::new(far.clone(), changes.clone(), true, counters));
    let keys = Arc::new(FixedKeyScheme(true));
    let near = NearLayer::new(holding, level.clone(), Scope::of(&"a store"), keys, changes.clone());
    let until = Until::new(&Limits::default());
    let store = NearAround { far, level, near: Arc::new(near), until };
    let hash = store.put(b"removed late");
    // What it had near is forgotten, and the chunk is there until the removal arrives.
    store.far.failing.store(1, SeqCst);
    assert!(store.near.delete(&[hash], &store.until).is_err());
    store.far.failing.store(0, SeqCst);
    assert!(changes.holds());
    assert_eq!(store.get(&hash).unwrap(), b"removed late");
    store.far.chunks().clear();
    assert_eq!(store.get(&hash), None, "a copy is answered of what the late removal took");
}

#[test]
fn only_chunks_under_the_hash_of_their_content_are_kept() {
    let store = around(&settings(MEMORY, None));
    let names: [&[u8]; 3] = [b"8 bytes!", b"sixteen bytes...", b"x"];
    for name in names {
        let hash = ChunkHash::new(name).unwrap();
        store.near.put(&[(hash, Bytes::Borrowed(b"opaque"))], false, &store.until).unwrap();
        let asked = store.far.gets();
        assert_eq!(store.get(&hash).unwrap(), b"opaque");
        assert_eq!(store.get(&hash).unwrap(), b"opaque");
        assert_eq!(store.far.gets(), asked + 2, "{hash}");
    }
    // What a lying backend answers is not kept.
    store.far.chunks().insert(key(b"true"), b"true".to_vec());
    store.far.lying.store(1, SeqCst);
    assert_ne!(store.get(&key(b"true")).unwrap(), b"true");
    store.far.lying.store(0, SeqCst);
    assert_eq!(store.get(&key(b"true")).unwrap(), b"true");
    // A key that came to mean something else.
    let new: ChunkToPut<'_> = (key(b"true"), Bytes::Borrowed(b"other"));
    store.near.put(&[new], true, &store.until).unwrap();
    assert_eq!(store.get(&key(b"true")).unwrap(), b"other");
    // A store whose keys are found to be none.
    let keys = Arc::new(FixedKeyScheme(false));
    let opaque = NearLayer::new(store.far.clone(), store.level.clone(), Scope::of(&"a store"), keys, changes());
    let asked = store.far.gets();
    let kept = store.put(b"kept");
    assert!(store.get(&kept).is_some() && store.far.gets() == asked);
    opaque.get(&[kept], &mut [], &store.until).unwrap();
    assert_eq!(store.far.gets(), asked + 1);
}

#[test]
fn stores_never_meet() {
    let scratch = tempfile::tempdir().unwrap();
    let disk = scratch.path().join("near");
    for memory in [MEMORY, 0] {
        let level = open(&settings(memory, Some((disk.clone(), 1 << 20))));
        let [ours, theirs] = ["ours", "theirs"].map(|store| layer(&Arc::default(), &level, store));
        let hash = ours.put(b"ours alone");
        settle();
        assert_eq!((ours.get(&hash).is_some(), ours.far.gets()), (true, 0));
        assert_eq!((theirs.get(&hash), theirs.far.gets()), (None, 1));
        // What is deleted in one stays in the other.
        theirs.delete(&hash);
        assert_eq!((ours.get(&hash).is_some(), ours.far.gets()), (true, 0));
    }
    assert!(Scope::of(&("a", "bc")) != Scope::of(&("ab", "c")) && Scope::of(&("a", 1)) == Scope::of(&("a", 1)));
}

#[test]
fn answers_are_in_order_however_little_the_backend_answers() {
    for most in [1, 2, 3, 0] {
        for mask in 0..32_u64 {
            let store = around(&settings(MEMORY, None));
            store.far.most.store(most, SeqCst);
            let hashes: Vec<ChunkHash> = (0..6).map(|number| key(&data(number))).collect();
            for number in 0..5 {
                match mask >> number & 1 {
                    0 => drop(store.far.chunks().insert(key(&data(number)), data(number))),
                    _ => drop(store.put(&data(number))),
                }
            }
            let mut done = 0;
            while done < hashes.len() {
                let answers = store.near.get(&hashes[done..], &mut [], &store.until).unwrap();
                assert!(!answers.is_empty() && done + answers.len() <= hashes.len());
                for answer in answers {
                    match answer.unwrap() {
                        Some(Got::Buffer(found)) => assert_eq!(found[..], data(done as u64)),
                        found => assert!(found.is_none() && done == 5, "{done}: {found:?}"),
                    }
                    done += 1;
                }
            }
        }
    }
}

#[test]
fn what_is_near_is_answered_while_the_backend_is_away() {
    let store = around(&settings(MEMORY, None));
    let hashes = [store.put(b"first"), key(b"none"), store.put(b"last")];
    store.far.failing.store(1, SeqCst);
    let answers = store.near.get(&hashes, &mut [], &store.until).unwrap();
    assert!(matches!(&answers[..], [Ok(Some(_)), Err(error), Ok(Some(_))] if error.kind() == ErrorKind::Unavailable));
}

#[test]
fn what_is_near_goes_where_its_caller_wants_it() {
    let store = around(&settings(MEMORY, None));
    let long = data(1);
    let hashes = [store.put(&long), store.put(b"too long"), store.put(b"no place")];
    let mut memory = vec![0_u8; long.len() + 7];
    let (head, tail) = memory.split_at_mut(long.len());
    let (one, two) = head.split_at_mut(33);
    let piece = |part: &mut [u8]| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() };
    let pieces = [vec![piece(one), piece(&mut []), piece(two)], vec![piece(tail)]];
    // SAFETY: the pieces are different memory, which nobody else uses while the targets are.
    let mut targets: Vec<Target<'_>> = pieces.iter().map(|pieces| unsafe { Target::memory(pieces) }).collect();
    let answers = store.near.get(&hashes, &mut targets, &store.until).unwrap();
    assert!(matches!(answers[0], Ok(Some(Got::Placed(len))) if len == long.len()), "{answers:?}");
    assert!(matches!(answers[1], Ok(Some(Got::TooLong(8)))) && matches!(answers[2], Ok(Some(Got::Buffer(_)))));
    assert_eq!((&memory[..long.len()], store.far.gets()), (&long[..], 0));
}

#[test]
fn what_came_into_its_callers_memory_is_kept_too() {
    let store = around(&settings(MEMORY, None));
    let long = data(1);
    store.far.chunks().insert(key(&long), long.clone());
    let mut memory = vec![0_u8; long.len()];
    for round in 0..2 {
        let (one, two) = memory.split_at_mut(round * 50);
        let pieces = [one, two].map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
        // SAFETY: as above.
        let mut targets = [unsafe { Target::memory(&pieces) }];
        let answers = store.near.get(&[key(&long)], &mut targets, &store.until).unwrap();
        assert!(matches!(answers[0], Ok(Some(Got::Placed(len))) if len == long.len()));
        assert_eq!((&memory, store.far.gets()), (&long, 1), "once from afar");
        memory.fill(0);
    }
}

#[test]
fn memory_is_bounded_and_what_is_used_stays() {
    const BOUND: u64 = 100 << 10;
    let store = around(&settings(BOUND, None));
    let used: Vec<ChunkHash> = (0..20).map(|number| store.put(&data(number))).collect();
    for number in 100..2000 {
        store.put(&data(number));
        if number % 10 == 0 {
            used.iter().for_each(|hash| assert!(store.get(hash).is_some()));
        }
        assert!(store.level.usage().memory_bytes <= BOUND);
    }
    assert!(store.level.usage().memory_bytes > BOUND / 2);
    assert_eq!(store.far.gets(), 0, "what is used again and again stayed near");
    let large = vec![7; BOUND as usize];
    let hash = store.put(&large);
    assert!(store.get(&hash).is_some());
    assert_eq!(store.far.gets(), 1, "what has no room is fetched");
}
