//! Histories of engines over a simulated store, by simulated time and threads: `cargo xtask simulate`. `docs/proof.md` says what is simulated,
//! what is not, and what came of it.
//!
//! A seed is a [`plan`]: engines with threads and what they do, what a component says of its store, what befalls it. [`threads`] are
//! coroutines by a time of their own, handed to `kv_store_core` as a process. A [`guest`] stands for a component; its [`calls`] meet
//! faults on their way to the [`world`], which is the storage system. In some histories a [`shipped`] backend takes its place, and its server
//! that of the storage system. The [`oracle`] notes what engines
//! were told, and the [`rules`] say what each answer promises.

mod actions;
mod arguments;
mod calls;
mod draw;
mod engine;
mod guest;
mod hashed;
mod names;
mod oracle;
mod plan;
mod plant;
mod planted;
mod queued;
mod report;
mod rules;
mod search;
mod shape;
mod shipped;
mod shrink;
mod sim;
mod threads;
mod world;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use arguments::Arguments;
use draw::Draw;
use oracle::Violation;
use plan::Plan;
use report::{Found, Report};
use threads::Stacks;

/// Lines of the library are about faults on purpose.
struct Quiet;

impl log::Log for Quiet {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        false
    }

    fn log(&self, _: &log::Record<'_>) {}

    fn flush(&self) {}
}

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(wrong) => {
            eprintln!("{wrong}");
            return ExitCode::from(2);
        }
    };
    if arguments.planted {
        return match plant::run(arguments.only.as_deref(), arguments.time(), arguments.json) {
            Ok(all_found) => ExitCode::from(u8::from(!all_found)),
            Err(wrong) => {
                eprintln!("{wrong}");
                ExitCode::from(2)
            }
        };
    }
    keep_memory();
    kv_store_core::log::set_sink(Some(Box::new(Quiet)));
    // A panic is a violation, and told as one.
    std::panic::set_hook(Box::new(|_| ()));
    let begun = Instant::now();
    let report = match arguments.seed {
        Some(seed) => one(seed, &arguments),
        None => search::run(&arguments),
    };
    match arguments.json {
        true => println!("{}", report.json(begun.elapsed())),
        false => print!("{}", report.text(begun.elapsed())),
    }
    if arguments.table {
        print!("{}", report.table());
    }
    ExitCode::from(u8::from(report.found.is_some()))
}

/// What one history gives back the next one takes: it need not go to the kernel and come from there again.
fn keep_memory() {
    #[cfg(target_env = "gnu")]
    for (what, bytes) in
        [(libc::M_MMAP_THRESHOLD, 32 << 20), (libc::M_TRIM_THRESHOLD, 512 << 20), (libc::M_TOP_PAD, 16 << 20)]
    {
        // SAFETY: no other thread runs yet, and each is a setting that takes a number of bytes.
        unsafe { libc::mallopt(what, bytes) };
    }
}

/// Run one history, and tell it.
fn one(seed: u64, arguments: &Arguments) -> Report {
    let begun = Instant::now();
    let plan = Plan::of(seed, arguments.draw);
    let history = sim::run(&plan, &arguments.less, &mut Stacks::default(), true);
    let mut report = Report::default();
    report.add(seed, &history);
    if !arguments.json && history.violation.is_none() {
        println!("{:#?}", plan.shape);
        history.trace.iter().for_each(|line| println!("{line}"));
    }
    let less = arguments.less.clone();
    report.found = history.violation.map(|violation| Found {
        seed,
        draw: arguments.draw,
        violation,
        less,
        trace: history.trace,
        over: plan.shape.backend.name(),
        after: begun.elapsed(),
    });
    report
}

/// The shortest history that breaks the same rule.
fn shortest(seed: u64, draw: Draw, violation: Violation, after: Duration) -> Found {
    let mut stacks = Stacks::default();
    let plan = Plan::of(seed, draw);
    let less = shrink::shrink(&plan, violation.rule, &mut stacks);
    let history = sim::run(&plan, &less, &mut stacks, true);
    let over = plan.shape.backend.name();
    Found { seed, draw, violation: history.violation.unwrap_or(violation), less, trace: history.trace, over, after }
}
