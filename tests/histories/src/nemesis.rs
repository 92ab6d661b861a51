//! What goes wrong while processes are at work. Each bout begins, lasts, and is over; the seed says which process it meets and for how long.

use std::time::Duration;

use kv_store_tests::link::{Link, Mode};

use crate::backends::{PROCESSES, Servers, Store};
use crate::engines::{Engines, presses};
use crate::setting::Nemesis;
use crate::values::Random;

impl Nemesis {
    /// One bout.
    pub fn strike(self, store: &mut Store, engines: &mut Engines, random: &mut Random) {
        let deadline = store.promise.deadline.as_millis() as u64;
        // As often shorter than a deadline as longer: until long after it, or nobody could be told that a change came too late.
        let time =
            ms(if random.below(2) == 0 { random.below(deadline) } else { deadline + random.below(5 * deadline) });
        match self {
            Nemesis::Calm => std::thread::sleep(ms(300)),
            // What the others store is evicted before anybody has read it.
            Nemesis::Evict => {
                let read: Vec<usize> = (0..PROCESSES).filter(|slot| !presses(*slot)).collect();
                read.iter().for_each(|slot| engines.freeze(*slot, true));
                std::thread::sleep(ms(200 + random.below(2_500)));
                read.iter().for_each(|slot| engines.freeze(*slot, false));
            }
            Nemesis::Kill => {
                engines.kill(random.below(PROCESSES as u64) as usize);
                std::thread::sleep(ms(random.below(100)));
                engines.fill(store);
            }
            Nemesis::Freeze => {
                let two = [random.below(4) as usize, 4 + random.below(4) as usize];
                two.iter().for_each(|slot| engines.freeze(*slot, true));
                std::thread::sleep(time);
                two.iter().for_each(|slot| engines.freeze(*slot, false));
            }
            Nemesis::ServerKill => kill_server(store, random),
            Nemesis::ServerFreeze => {
                freeze_server(store, random, true);
                std::thread::sleep(time);
                freeze_server(store, random, false);
            }
            Nemesis::Partition => among_links(store, random, Mode::Cut, time),
            Nemesis::Late => among_links(store, random, Mode::Holds, time),
            Nemesis::Break => {
                for _ in 0..8 {
                    let some: Vec<&Link> = store.links.iter().filter(|_| random.below(2) == 0).collect();
                    some.iter().for_each(|link| link.set(Mode::Holds));
                    std::thread::sleep(ms(2 + random.below(20)));
                    some.iter().for_each(|link| link.set(Mode::Breaks));
                    std::thread::sleep(ms(random.below(300)));
                    some.iter().for_each(|link| link.set(Mode::Passes));
                }
            }
            Nemesis::Repeat => among_links(store, random, Mode::Repeats, time),
            Nemesis::Clock => {
                let hours = |random: &mut Random| random.below(7_200_000) as i64;
                engines.set_clock(random.below(PROCESSES as u64) as usize, hours(random) - 3_600_000);
                if random.below(3) == 0 {
                    store.set_clock_forward(random.below(5_000));
                }
                std::thread::sleep(ms(200));
            }
            Nemesis::Full | Nemesis::Inodes => {
                if let Servers::Files(Some(disk)) = &store.servers {
                    if self == Nemesis::Full {
                        disk.fill()
                    } else {
                        disk.fill_inodes()
                    }
                    std::thread::sleep(time);
                    disk.free();
                }
            }
            Nemesis::Reshard => {
                if let Servers::Cluster(cluster) = &store.servers {
                    let from = random.below(3) as usize;
                    let to = (from + 1 + random.below(2) as usize) % 3;
                    let _ = cluster.reshard(from, to, 300 + random.below(600) as usize).wait();
                }
            }
        }
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn kill_server(store: &mut Store, random: &mut Random) {
    let pause = ms(random.below(300));
    if let Some(server) = store.server() {
        server.stop();
        std::thread::sleep(pause);
        server.restart();
    } else if let Servers::Mooncake(mooncake) = &mut store.servers {
        match random.below(2) {
            0 if !mooncake.nodes.is_empty() => {
                let node = random.below(mooncake.nodes.len() as u64) as usize;
                mooncake.nodes.remove(node).kill();
                std::thread::sleep(pause);
                mooncake.start_node();
            }
            _ => {
                if let Some(mut master) = mooncake.master.take() {
                    master.kill();
                }
                std::thread::sleep(pause);
                mooncake.start_master();
            }
        }
    }
}

fn freeze_server(store: &mut Store, random: &mut Random, frozen: bool) {
    match &mut store.servers {
        Servers::Redis(server) => kv_store_tests::servers::Server::freeze(server, frozen),
        Servers::Memkv(server) => kv_store_tests::servers::Server::freeze(server, frozen),
        // The others elect nobody in its place: it has no replica.
        Servers::Cluster(cluster) if frozen => cluster.freeze(random.below(3) as usize, true),
        Servers::Cluster(cluster) => (0..3).for_each(|node| cluster.freeze(node, false)),
        Servers::S3(seaweed) => seaweed.gateway_processes.iter().for_each(|gateway| gateway.freeze(frozen)),
        _ => {}
    }
}

/// The links of some processes do something for a while; now and then those of all.
fn among_links(store: &Store, random: &mut Random, mode: Mode, time: Duration) {
    let all = random.below(3) == 0;
    for link in store.links.iter().filter(|_| all || random.below(2) == 0) {
        link.set(mode);
    }
    std::thread::sleep(time);
    store.links.iter().for_each(|link| link.set(Mode::Passes));
}
