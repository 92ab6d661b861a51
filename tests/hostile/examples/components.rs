//! Opens generated components until the time is over: `components SECONDS [SEED]`. tests/fuzz/components.sh builds and starts it.
//!
//! Core modules come from wasm-smith; the shells around them are ours: components within components, instantiated again and again,
//! with adapters between them. What is held: the process lives, an open takes no more than [`RESIDENT_MOST`] and no longer than its
//! `compile_ms` and a second. What does not hold is left in the folder `target/fuzz/found`, under the number that makes it again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arbitrary::Unstructured;
use kv_store_hostile::{bombs, peak_of, prepare, table};
use kv_store_tests::root;
use kv_store_wasm::Store;
use wasm_encoder::{
    Component, ComponentExportKind, ComponentInstanceSection, ComponentSectionId, InstanceSection, ModuleArg,
    RawSection,
};

const COMPILE_MS: u64 = 2_000;
const MODULE: u8 = ComponentSectionId::CoreModule as u8;
const COMPONENT: u8 = ComponentSectionId::Component as u8;
const RESIDENT_MOST: u64 = 64 << 20;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments.next().and_then(|text| text.parse().ok()).expect("components SECONDS [SEED]");
    let only: Option<u64> = arguments.next().map(|text| text.parse().expect("a number"));
    let place = root().join("target/fuzz");
    let (work, found) = (place.join("work"), place.join("found"));
    for folder in [&work, &found] {
        std::fs::create_dir_all(folder).expect("target/fuzz is ours");
    }
    let file = work.join("fuzz.wasm");
    let limits = format!("limits = {{ compile_ms = {COMPILE_MS}, compile_bytes = 268435456, breaker_failures = 0 }}");
    prepare(&table("fuzz", &file, &limits));

    let begun = Instant::now();
    let first = only.unwrap_or_else(|| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| since.as_secs() << 20)
    });
    let mut outcomes: BTreeMap<String, u32> = BTreeMap::new();
    let (mut most, mut longest, mut failed) = (0, Duration::ZERO, false);
    for seed in first.. {
        if begun.elapsed() > Duration::from_secs(seconds) || (only.is_some() && seed > first) {
            break;
        }
        let bytes = component(seed);
        place_as(&file, &bytes);
        // What ends the process is found under the number that was written last.
        std::fs::write(work.join("seed"), seed.to_string()).expect("target/fuzz is ours");
        let start = Instant::now();
        let mut outcome = None;
        let peak = peak_of(|| outcome = Some(Store::open("fuzz://x").map(drop)));
        let took = start.elapsed();
        let text = outcome.expect("it was opened").err().map_or_else(|| "opens".to_owned(), |error| error.to_string());
        let held =
            peak <= RESIDENT_MOST && took <= Duration::from_millis(COMPILE_MS + 1000) && !text.contains("panicked");
        if !held {
            failed = true;
            std::fs::write(found.join(format!("{seed}.wasm")), &bytes).expect("target/fuzz is ours");
            println!("{seed}: {} bytes, {took:.1?}, {peak} bytes of memory: {text}", bytes.len());
        }
        (most, longest) = (most.max(peak), longest.max(took));
        *outcomes.entry(class(&text)).or_default() += 1;
    }
    outcomes.iter().for_each(|(text, count)| println!("{count:>7}  {text}"));
    println!("at most {most} bytes of memory and {longest:.1?}; {} components", outcomes.values().sum::<u32>());
    std::process::exit(i32::from(failed));
}

/// What an outcome is in general: without the path, and what is of the one component.
fn class(text: &str) -> String {
    let text = text.split_once("fuzz.wasm: ").map_or(text, |(_, rest)| rest);
    let cut: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).take(60).collect();
    cut.split(": ").next().unwrap_or_default().to_owned()
}

/// Another file, and not the same one changed: the library knows a file by what the kernel says of it.
fn place_as(file: &Path, bytes: &[u8]) {
    let fresh: PathBuf = file.with_extension("new");
    std::fs::write(&fresh, bytes).and_then(|()| std::fs::rename(&fresh, file)).expect("target/fuzz is ours");
}

/// The component of a number.
fn component(seed: u64) -> Vec<u8> {
    let noise = noise(seed, 1 << 16);
    let mut from = Unstructured::new(&noise);
    let shell = shell(&mut from, 3).unwrap_or_default();
    let mut bytes = bombs::named_after(shell.0, shell.1);
    // Some are damaged, so that what wasmtime itself refuses is met too.
    if from.ratio(1, 6).unwrap_or(false) {
        let at = usize::try_from(seed).unwrap_or(0) % bytes.len();
        bytes[at] = bytes[at].wrapping_add(1 + noise[0] % 255);
    }
    bytes
}

/// SplitMix64.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let words = std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).to_le_bytes()
    });
    words.flatten().take(len).collect()
}

/// A component of modules, instances of them, and components within it; and how many instances of components it has.
fn shell(from: &mut Unstructured, depth: u32) -> arbitrary::Result<(Component, u32)> {
    let mut component = Component::new();
    let modules = from.int_in_range(0..=2)?;
    for _ in 0..modules {
        let module = module(from)?;
        component.section(&RawSection { id: MODULE, data: &module });
    }
    if modules > 0 {
        let mut instances = InstanceSection::new();
        for _ in 0..many(from)?.min(200) {
            instances.instantiate(from.int_in_range(0..=modules - 1)?, std::iter::empty::<(&str, ModuleArg)>());
        }
        component.section(&instances);
    }
    let mut made = 0;
    for index in 0..if depth == 0 { 0 } else { from.int_in_range(0..=2)? } {
        let inner = match from.int_in_range(0..=3)? {
            0 => bombs::adapters(many(from)?.min(100), from.int_in_range(0..=12)?),
            _ => shell(from, depth - 1)?.0.finish(),
        };
        let mut instances = ComponentInstanceSection::new();
        for _ in 0..many(from)? {
            instances.instantiate(index, std::iter::empty::<(&str, ComponentExportKind, u32)>());
            made += 1;
        }
        component.section(&RawSection { id: COMPONENT, data: &inner }).section(&instances);
    }
    Ok((component, made))
}

/// Mostly few.
fn many(from: &mut Unstructured) -> arbitrary::Result<u32> {
    Ok(match from.int_in_range(0..=9)? {
        0..=5 => from.int_in_range(0..=2)?,
        6..=8 => from.int_in_range(3..=30)?,
        _ => from.int_in_range(30..=900)?,
    })
}

fn module(from: &mut Unstructured) -> arbitrary::Result<Vec<u8>> {
    let large = from.ratio(1, 8)?;
    let times = if large { 100 } else { 1 };
    let config = wasm_smith::Config {
        max_imports: 0,
        min_funcs: if large { 50 } else { 0 },
        max_funcs: 20 * times,
        max_globals: 20 * times,
        max_types: 20 * times,
        max_elements: 10 * times,
        max_element_segments: 10 * times,
        max_data_segments: 10 * times,
        max_exports: 20 * times,
        max_instructions: 200 * times,
        max_memories: if from.ratio(1, 10)? { 2 } else { 1 },
        max_memory32_bytes: 1 << 24,
        max_tables: 4,
        max_table_elements: 1000,
        exceptions_enabled: false,
        gc_enabled: from.ratio(1, 20)?,
        threads_enabled: false,
        memory64_enabled: false,
        ..wasm_smith::Config::default()
    };
    Ok(wasm_smith::Module::new(config, from)?.to_bytes())
}
