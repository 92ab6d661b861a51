//! `kv-store-components FOLDER FIRST COUNT`: writes generated components to `FOLDER/SEED.wasm`, for the numbers from FIRST on.
//!
//! Core modules come from wasm-smith; the shells around them are ours: components within components, instantiated again and again,
//! with adapters between them. A number makes the same component each time.

#[allow(dead_code)]
#[path = "../../../hostile/src/bombs.rs"]
mod bombs;

use std::path::PathBuf;

use arbitrary::Unstructured;
use wasm_encoder::{
    Component, ComponentExportKind, ComponentInstanceSection, ComponentSectionId, InstanceSection, ModuleArg,
    RawSection,
};

const MODULE: u8 = ComponentSectionId::CoreModule as u8;
const COMPONENT: u8 = ComponentSectionId::Component as u8;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().expect("FOLDER FIRST COUNT"));
    let mut number = || arguments.next().and_then(|text| text.parse::<u64>().ok()).expect("FOLDER FIRST COUNT");
    let (first, count) = (number(), number());
    for seed in first..first.saturating_add(count) {
        std::fs::write(folder.join(format!("{seed}.wasm")), component(seed)).expect("the folder is ours");
    }
}

/// The component of a number.
fn component(seed: u64) -> Vec<u8> {
    let noise = noise(seed, 1 << 16);
    let mut from = Unstructured::new(&noise);
    let shell = shell(&mut from, 3).unwrap_or_default();
    let mut bytes = bombs::named_after(shell.0, shell.1);
    // Some are damaged, so that what wasmtime itself refuses is met too.
    if from.ratio(1, 20).unwrap_or(false) {
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
        // An externref is a matter of the collector, which this host does not have.
        reference_types_enabled: from.ratio(1, 20)?,
        max_tables: 1,
        max_table_elements: 1000,
        exceptions_enabled: false,
        gc_enabled: from.ratio(1, 20)?,
        threads_enabled: false,
        memory64_enabled: false,
        ..wasm_smith::Config::default()
    };
    Ok(wasm_smith::Module::new(config, from)?.to_bytes())
}
