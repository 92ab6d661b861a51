use proptest::prelude::*;

use super::*;

/// A cache of one stream: cells at these positions, K and V rows of so many bytes for each layer.
pub(crate) fn cache(positions: &[u32], layers: u32, row: u64, transposed: bool) -> Vec<u8> {
    let mut out = vec![];
    let mut put = |number: u32| out.extend(number.to_le_bytes());
    put(1);
    put(positions.len() as u32);
    for position in positions {
        [*position, 1, 0].into_iter().for_each(&mut put);
    }
    put(u32::from(transposed));
    put(layers);
    let cells = positions.len() as u64;
    let rows = |out: &mut Vec<u8>, layer: u32, what: u8| {
        for cell in positions {
            out.extend(
                (0..row).map(|at| (at as u32 ^ layer.wrapping_mul(31) ^ cell.wrapping_mul(2_654_435_761)) as u8 ^ what),
            );
        }
    };
    for layer in 0..layers {
        out.extend(1_u32.to_le_bytes());
        out.extend(row.to_le_bytes());
        rows(&mut out, layer, 0);
    }
    for layer in 0..layers {
        out.extend(1_u32.to_le_bytes());
        if transposed {
            out.extend(2_u32.to_le_bytes());
            out.extend(((row / 2) as u32).to_le_bytes());
            out.extend((0..cells * row / 2 * 2).map(|at| (at ^ u64::from(layer)) as u8));
        } else {
            out.extend(row.to_le_bytes());
            rows(&mut out, layer, 1);
        }
    }
    out
}

pub(crate) fn state(caches: &[Vec<u8>]) -> Vec<u8> {
    [&0xaf14_3cd8_u32.to_le_bytes()[..], &[0; 4], &caches.concat()].concat()
}

/// The bytes of each chunk.
fn chunks(state: &[u8]) -> Vec<Vec<u8>> {
    let cut = Cut::new(state, 3);
    cut.chunks().map(|chunk| chunk.into_iter().flat_map(|range| state[range].to_vec()).collect()).collect()
}

/// Each byte is in one chunk, or in the rest, once.
fn assert_covers(state: &[u8]) {
    let cut = Cut::new(state, 3);
    let mut seen = vec![0_u8; state.len()];
    let rest = cut.rest(state.len() as u64).expect("the cut is one of this state");
    for range in cut.chunks().flatten().chain(rest) {
        seen[range].iter_mut().for_each(|seen| *seen += 1);
    }
    assert!(seen.iter().all(|seen| *seen == 1));
    assert_eq!(cut.chunks().count(), cut.len().unwrap());
}

/// The same state as version 4 has it: two more numbers behind the number of layers.
fn as_version_4(state: &[u8], cells: usize) -> Vec<u8> {
    let behind = 8 + 4 + 4 + cells * 12 + 8;
    [&state[..behind], &[0; 8], &state[behind..]].concat()
}

#[test]
fn version_4_is_cut_at_the_same_rows_and_later_ones_by_content() {
    let former = state(&[cache(&positions(300), 4, 64, false)]);
    let state = as_version_4(&former, 300);
    let chunks_of = |version| -> Vec<Vec<u8>> {
        let cut = Cut::new(&state, version);
        assert!(cut.rest(state.len() as u64).is_some());
        cut.chunks().map(|chunk| chunk.into_iter().flat_map(|range| state[range].to_vec()).collect()).collect()
    };
    assert_eq!(chunks_of(4), chunks(&former));
    assert_eq!(Cut::new(&state, 3), Cut::by_content(&state), "version 3 has no such numbers");
    assert_eq!(Cut::new(&state, 5), Cut::by_content(&state));
}

#[test]
fn the_number_of_streams_is_that_of_the_cache() {
    let mut state = state(&[cache(&positions(3), 1, 8, false)]);
    assert_eq!(streams(&state), 1);
    state[8] = 4;
    assert_eq!(streams(&state), 4);
    assert_eq!(streams(&state[..10]), 1);
    state[11] = 255;
    assert_eq!(streams(&state), 1);
}

fn positions(tokens: u32) -> Vec<u32> {
    (0..tokens).collect()
}

#[test]
fn a_longer_conversation_has_the_chunks_of_its_beginning() {
    let short = chunks(&state(&[cache(&positions(200), 4, 64, false)]));
    let long = chunks(&state(&[cache(&positions(300), 4, 64, false)]));
    // 4 layers of K and V make one chunk of a run.
    assert_eq!((short.len(), long.len()), (4, 5));
    assert_eq!(short[..3], long[..3]);
    assert_ne!(short[3], long[3], "the last run was not full");
}

#[test]
fn layers_share_chunks_up_to_their_size() {
    // 64 rows of 4 KiB are 256 KiB: four sections a chunk.
    let state = state(&[cache(&positions(70), 3, 4096, false)]);
    let sizes: Vec<usize> = chunks(&state).iter().map(Vec::len).collect();
    assert_eq!(sizes, [1 << 20, 512 << 10, 96 << 10, 48 << 10]);
    assert_covers(&state);
}

#[test]
fn a_window_that_moved_is_cut_at_the_same_positions() {
    let window = |first: u32| (first..first + 256).collect::<Vec<_>>();
    let before = chunks(&state(&[cache(&positions(400), 2, 64, false), cache(&window(144), 2, 64, false)]));
    let after = chunks(&state(&[cache(&positions(430), 2, 64, false), cache(&window(174), 2, 64, false)]));
    let shared = after.iter().filter(|chunk| before.contains(chunk)).count();
    // Of the whole cache 6 full runs; of the window those from 192 to 384.
    assert_eq!(shared, 6 + 3);
}

#[test]
fn streams_and_transposed_v_are_covered() {
    let one = cache(&positions(100), 2, 64, false);
    // Three streams, of which the second has cells.
    let streams = [&3_u32.to_le_bytes()[..], &[0; 4], &one[4..], &[0; 4]].concat();
    let streams = state(&[streams]);
    assert_covers(&streams);
    assert_eq!(chunks(&streams).len(), 2);
    let transposed = state(&[cache(&positions(130), 2, 64, true)]);
    assert_covers(&transposed);
    // K in three runs, V of each layer by content.
    assert_eq!(Cut::new(&transposed, 3).blocks.len(), 3);
}

#[test]
fn what_is_unknown_is_cut_by_content() {
    let mut random = 1_u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 56) as u8
    };
    let bytes: Vec<u8> = (0..4_000_000).map(|_| next()).collect();
    assert_covers(&bytes);
    let before = chunks(&bytes);
    assert!(before.len() > 5 && before.iter().all(|chunk| chunk.len() <= 1 << 20));
    // Bytes that come in between change the chunks around them only.
    let longer = [&bytes[..1_000_000], &[7; 100], &bytes[1_000_000..]].concat();
    let changed = chunks(&longer).iter().filter(|chunk| !before.contains(chunk)).count();
    assert!(changed <= 2, "{changed} chunks changed");
}

#[test]
fn positions_in_no_order_make_no_chunk_of_each_row() {
    let scattered: Vec<u32> = (0..640).map(|n| n * 6_007 % 640_000).collect();
    let state = state(&[cache(&scattered, 1, 64, false)]);
    assert_eq!(chunks(&state).len(), 10);
    assert_covers(&state);
}

#[test]
fn a_cut_of_another_state_is_refused() {
    let state = state(&[cache(&positions(100), 2, 64, false)]);
    let cut = Cut::new(&state, 3);
    let size = state.len() as u64;
    assert!(cut.rest(size).is_some());
    assert!(cut.rest(size - 1).is_none(), "something lies outside");
    let changed = |change: fn(&mut Block)| {
        let mut cut = cut.clone();
        change(&mut cut.blocks[0]);
        cut.rest(size)
    };
    assert!(changed(|block| block.sections[1].offset -= 13).is_none(), "sections overlap");
    assert!(changed(|block| block.sections[0].row = u64::MAX).is_none());
    assert!(changed(|block| block.runs[0] = u64::MAX).is_none());
    assert!(changed(|block| block.runs.push(0)).is_none());
    assert!(changed(|block| block.groups[0] -= 1).is_none());
    assert!(changed(|block| block.groups.push(0)).is_none());
}

proptest! {
    #[test]
    fn every_byte_string_is_covered(bytes in proptest::collection::vec(any::<u8>(), 1..4096)) {
        assert_covers(&bytes);
    }

    /// A state in which something was changed is cut somehow, and covered.
    #[test]
    fn every_damaged_state_is_covered(
        tokens in 1_u32..150,
        layers in 1_u32..4,
        transposed: bool,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut_short in any::<prop::sample::Index>(),
        whole: bool,
    ) {
        let mut state = state(&[cache(&positions(tokens), layers, 16, transposed), cache(&positions(tokens / 2 + 1), 1, 8, false)]);
        // Most numbers lie in the first 2000 bytes.
        for (at, value) in changes {
            let at = at.index(state.len().min(2000));
            state[at] = value;
        }
        if !whole {
            state.truncate(cut_short.index(state.len()).max(1));
        }
        assert_covers(&state);
    }
}
