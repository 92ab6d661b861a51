//! Guests that take what all stores of the process share: memory that the host holds for them, its threads, its compilers, its time.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use kv_store_hostile::thread_cpu;
use kv_store_wasm::ErrorKind::{Component, Exhausted, Unavailable};
use kv_store_wasm::Store;

use super::http::{flooding, server};
use super::{Case, PATIENCE, case, event, fails, goes_on, open, place};

/// What `LIMITS` allow one instance: `memory_bytes` and `payload_bytes`.
const OF_AN_INSTANCE: u64 = (32 << 20) + (64 << 20);
/// Threads of one store that each have an instance.
const INSTANCES: u64 = 8;
/// Stores that are evicted slowly: more than there are threads for eviction.
const SLOW_STORES: usize = 8;
/// `MAX_UPKEEP_THREADS` of docs/limits.md.
const UPKEEP_THREADS: u64 = 4;

pub fn cases() -> Vec<Case> {
    vec![
        Case {
            budget: INSTANCES * OF_AN_INSTANCE,
            // glibc keeps the free end of each thread's arena, 16 MiB here, of which there are 8 for each processor.
            resident_more: 256 << 20,
            ..case("probe line", probe_line)
        },
        case("probe circle", probe_circle),
        case("evicts-slowly", evicts_slowly),
        case("compile beside slow ones", compile_beside_slow_ones),
        case("compiler killed once", compiler_killed_once),
        case("compiler killed twice", compiler_killed_twice),
        metered("hash-32-mib"),
        metered("work-and-wait"),
    ]
}

fn probe_line() {
    // 60 MiB, the end of the line, and a byte more, on each connection.
    let server = server(|mut stream| {
        use std::io::Write;
        static LINE: [u8; 1 << 20] = [7; 1 << 20];
        (0..60).try_for_each(|_| stream.write_all(&LINE))?;
        stream.write_all(b"\n.\nx")
    });
    let store = open(&format!("hostile-probe://{}", server.address));
    std::thread::scope(|scope| {
        for _ in 0..INSTANCES {
            scope.spawn(|| {
                let line = format!("do:line:{}", server.address);
                fails(Exhausted, "requested > memory_bytes = 33554432", || store.get_manifest(&line));
            });
        }
    });
    goes_on(&store);
}

fn probe_circle() {
    // A v1 get, which may answer 1 GiB: at 8 MiB a second the bytes would justify two minutes.
    let server = server(flooding);
    let store = open(&format!("circling://{}", server.address));
    let what = format!("do:circle:{}", server.address);
    fails(Unavailable, "call_ms in the config, which no byte extends", || store.get_chunk(what.as_bytes()));
    goes_on(&store);
}

fn evicts_slowly() {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let directory = |name: &str| {
        let directory = place(name);
        std::fs::create_dir_all(&directory).unwrap();
        directory.display().to_string()
    };
    let _slow: Vec<Store> =
        (0..SLOW_STORES).map(|n| open(&format!("evicts-slowly://{}", directory(&format!("slow-{n}"))))).collect();
    // As many as there are threads were counted, and are evicted from, for 18 s.
    let begun = Instant::now();
    while event("evicts-slowly", "guest_calls") < 2 * UPKEEP_THREADS {
        assert!(begun.elapsed() < PATIENCE, "nothing is evicted");
        std::thread::sleep(Duration::from_millis(10));
    }
    let neighbour = open(&format!("bounded-maintenance://{}", directory("bounded-neighbour")));
    let evicted = || event("bounded-maintenance", "evicted");
    let (before, begun) = (evicted(), Instant::now());
    while evicted() == before {
        assert!(begun.elapsed() < PATIENCE / 2, "nothing of a neighbour is evicted beside them");
        // Refused at the most while its one instance is asked to evict.
        let _ = neighbour.put_chunk(&NEXT.fetch_add(1, SeqCst).to_le_bytes(), &[0; 100]);
        // What no manifest names yet is not evicted.
        neighbour.put_manifest("m", b"").unwrap();
    }
}

fn compile_beside_slow_ones() {
    static ROUND: AtomicUsize = AtomicUsize::new(0);
    let round = ROUND.fetch_add(1, SeqCst);
    std::thread::scope(|scope| {
        let slow: Vec<_> = (0..2)
            .map(|n| {
                scope.spawn(move || {
                    let uri = format!("slow-{n}-of-{round}://x");
                    // Where it began late it is not ended yet when its caller has waited long enough.
                    fails(Unavailable, "(compile_ms)", || Store::open(&uri));
                })
            })
            .collect();
        // Both are compiled, as far as there are processes that do so.
        let started = Instant::now();
        while compilers().len() < slow.len() {
            assert!(started.elapsed() < PATIENCE, "they are not compiled");
            std::thread::sleep(Duration::from_millis(1));
        }
        // Compiled, it is refused for what it answers, so that it is not kept.
        fails(Component, "answered max-bytes", || Store::open(&format!("quick-{round}://x")));
        let ended = slow.iter().filter(|slow| slow.is_finished()).count();
        assert_eq!(ended, 0, "a neighbour's component was compiled after those of others");
    });
}

fn compiler_killed_once() {
    static ROUND: AtomicUsize = AtomicUsize::new(0);
    let uri = format!("killed-{}://x", ROUND.fetch_add(1, SeqCst));
    let (opened, killed) = killing(1, || Store::open(&uri));
    assert_eq!(killed, 1, "it was compiled before it could be killed");
    // Compiled after all: what it misses is its own scheme.
    let error = opened.err().expect("it is another scheme's").to_string();
    assert!(error.contains("expected memory://"), "{error}");
}

fn compiler_killed_twice() {
    static ROUND: AtomicUsize = AtomicUsize::new(0);
    let uri = format!("killed-twice-{}://x", ROUND.fetch_add(1, SeqCst));
    let (opened, killed) = killing(2, || Store::open(&uri));
    let error = opened.err().expect("both attempts were killed").to_string();
    assert!(killed == 2 && error.contains("was ended twice by signal 9"), "{killed}: {error}");
    // No word about the component: the next open tries it.
    let error = Store::open(&uri).err().expect("it is another scheme's").to_string();
    assert!(error.contains("expected memory://"), "{error}");
}

/// A guest whose quota of processor time is 20 ms a second, and that uses it in such a way.
fn metered(how: &'static str) -> Case {
    const QUOTA: f64 = 0.020;
    case(&format!("probe {how}"), move || {
        let store = open("metered-probe://x");
        let counted = || event("metered-probe", "guest_cpu_milliseconds") as f64 / 1000.0;
        let (before, begun) = (counted(), Instant::now());
        let (mut answered, mut used, mut longest, mut refused) = (0, 0.0, 0.0_f64, 0);
        while answered < 2 || refused == 0 {
            assert!(begun.elapsed() < PATIENCE, "after {answered} calls of {used} s it was refused {refused} times");
            let at = thread_cpu();
            match store.put_manifest(&format!("do:{how}"), b"") {
                // A call runs on this thread, with all that the host does for it.
                Ok(_) => {
                    let took = (thread_cpu() - at).as_secs_f64();
                    (answered, used, longest) = (answered + 1, used + took, longest.max(took));
                }
                Err(error) => {
                    assert!(error.to_string().contains("over the quota cpu_ms_per_s = 20"), "{error}");
                    refused += 1;
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
        let counted = counted() - before;
        assert!(counted > 0.7 * used, "{counted} s were counted of {used}");
        // A second's worth for each second, one more, and the call that went over it.
        let most = QUOTA * (begun.elapsed().as_secs_f64() + 2.0) + 2.0 * longest;
        assert!(used < most, "it used {used} s of {most}");
    })
}

/// The processes that compile for this one.
fn compilers() -> Vec<libc::pid_t> {
    let own = std::process::id().to_string();
    let parent = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Behind the name, which may hold anything: the state, and the parent.
        Some(stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.to_owned())
    };
    let compiles = |pid: &String| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        // A process stands between on Linux; where the helper is a plain child, none does.
        let above = parent(pid);
        let further = above.as_ref().and_then(|between| parent(between));
        line.starts_with(b"kv-store-compile\0") && [above, further].contains(&Some(own.clone()))
    };
    let processes = std::fs::read_dir("/proc").expect("procfs").flatten();
    let processes = processes.filter_map(|entry| entry.file_name().into_string().ok());
    let numbers = processes.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    numbers.filter(compiles).filter_map(|pid| pid.parse().ok()).collect()
}

/// Do something while the first compilers that it starts are killed. Answers how many were.
fn killing<T>(most: usize, what: impl FnOnce() -> T) -> (T, usize) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let mut killed = Vec::new();
            while killed.len() < most && !over.load(SeqCst) {
                for pid in compilers() {
                    if killed.len() < most && !killed.contains(&pid) {
                        // SAFETY: no memory is involved. It is a process of ours, which is not reaped before its parent has seen its end.
                        unsafe { libc::kill(pid, libc::SIGKILL) };
                        killed.push(pid);
                    }
                }
            }
            killed.len()
        });
        let outcome = what();
        over.store(true, SeqCst);
        (outcome, killer.join().expect("it kills"))
    })
}

/// Where a component lies that is another one than any before: the same with a section of its own.
pub fn another(name: &str, bytes: &[u8], folder: &std::path::Path) -> PathBuf {
    let path = folder.join(format!("{name}.wasm"));
    let section = [&[0, name.len() as u8 + 1, name.len() as u8], name.as_bytes()].concat();
    std::fs::write(&path, [bytes, &section].concat()).unwrap();
    path
}
