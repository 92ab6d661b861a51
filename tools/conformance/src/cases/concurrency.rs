//! Many threads on one handle, and many handles.

use super::{bytes, expect};
use crate::{Case, Handle, Needs, Subject, Verdict};

pub const CASES: &[Case] = &[
    Case {
        name: "threads",
        asks: "one handle can be used from many threads at once",
        needs: Needs::Nothing,
        run: threads,
    },
    Case {
        name: "barrier",
        asks: "after put_manifest every chunk put before, by any thread, is readable elsewhere",
        needs: Needs::Nothing,
        run: barrier,
    },
    Case {
        name: "handles",
        asks: "handles on other URIs see nothing of each other",
        needs: Needs::Apart,
        run: handles,
    },
    Case {
        name: "open-close",
        asks: "a store can be opened and closed many times",
        needs: Needs::Nothing,
        run: open_close,
    },
];

const THREADS: u64 = 8;

/// Run `work` on as many threads, and report the first that failed.
fn on_threads(work: impl Fn(u64) -> Verdict + Sync) -> Verdict {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())))
    })
}

fn threads(subject: &Subject) -> Verdict {
    let store = subject.fresh()?;
    on_threads(|thread| {
        for round in 0..20 {
            let (own, common) = (subject.hash(thread * 1000 + round), subject.hash(1 << 40 | round));
            expect("put_chunk", store.put_chunk(&own, &bytes(thread * 1000 + round, 5000))?, 0)?;
            let put = store.put_chunk(&common, &bytes(round, 5000))?;
            if put != 0 && put != 1 {
                return Err(format!("put_chunk of what others put too answered {put}"));
            }
            let name = subject.name(&format!("thread-{thread}"));
            expect("put_manifest", store.put_manifest(&name, &bytes(round, 100))?, 0)?;
            expect("get_manifest", store.get_manifest(&name)?, Ok(bytes(round, 100)))?;
            expect("get_chunk of one's own", store.get_chunk(&own)?, Ok(bytes(thread * 1000 + round, 5000)))?;
            expect("get_chunk of the common one", store.get_chunk(&common)?, Ok(bytes(round, 5000)))?;
        }
        Ok(())
    })
}

fn barrier(subject: &Subject) -> Verdict {
    let uri = subject.uri();
    let (writer, reader) = (subject.open(&uri)?, subject.open(&uri)?);
    for round in 0..10 {
        on_threads(|thread| {
            let key = subject.hash(round * THREADS + thread);
            expect("put_chunk", writer.put_chunk(&key, &bytes(round * THREADS + thread, 3000))?, 0)
        })?;
        expect("put_manifest", writer.put_manifest(&subject.name("m"), &round.to_le_bytes())?, 0)?;
        let fresh: Handle = subject.open(&uri)?;
        for handle in [&reader, &fresh] {
            expect(
                "get_manifest elsewhere",
                handle.get_manifest(&subject.name("m"))?,
                Ok(round.to_le_bytes().to_vec()),
            )?;
            for n in round * THREADS..(round + 1) * THREADS {
                expect("get_chunk elsewhere", handle.get_chunk(&subject.hash(n))?, Ok(bytes(n, 3000)))?;
            }
        }
    }
    Ok(())
}

fn handles(subject: &Subject) -> Verdict {
    let stores: Vec<Handle> = (0..4).map(|_| subject.fresh()).collect::<Result<_, _>>()?;
    for (number, store) in stores.iter().enumerate() {
        expect("put_chunk", store.put_chunk(b"same", &[number as u8])?, 0)?;
        expect("put_manifest", store.put_manifest("same", &[number as u8])?, 0)?;
    }
    for (number, store) in stores.iter().enumerate() {
        expect("get_chunk", store.get_chunk(b"same")?, Ok(vec![number as u8]))?;
        expect("get_manifest", store.get_manifest("same")?, Ok(vec![number as u8]))?;
    }
    Ok(())
}

fn open_close(subject: &Subject) -> Verdict {
    let uri = subject.uri();
    let kept = subject.open(&uri)?;
    expect("put_manifest", kept.put_manifest(&subject.name("m"), b"x")?, 0)?;
    on_threads(|_| {
        for _ in 0..25 {
            let store = subject.open(&uri)?;
            expect("get_manifest", store.get_manifest(&subject.name("m"))?, Ok(b"x".to_vec()))?;
        }
        Ok(())
    })
}
