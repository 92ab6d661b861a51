//! What the contract asks of `exists`. The C ABI shows it in part only: a backend that is written through and says of every chunk that
//! it is there passes all of its cases, and then loses what another process wanted to store.

use kv_store_wasm::{BatchOptions, Presence, Store};

use super::CaseResult;

pub const NAME: &str = "exists";
pub const ASKS: &str =
    "exists answers absent for a chunk that was never put, and present, with its length if any, for one that was";

/// Chunks of each kind.
const COUNT: u64 = 5;

pub fn run(store: &Store, salt: u64) -> CaseResult {
    // Wide enough that nobody else has put them.
    let hash = |number: u64| [number.to_be_bytes(), salt.to_be_bytes(), *b"exists-c", number.to_le_bytes()].concat();
    let put: Vec<Vec<u8>> = (0..COUNT).map(hash).collect();
    let never: Vec<Vec<u8>> = (COUNT..2 * COUNT).map(hash).collect();
    for (number, hash) in put.iter().enumerate() {
        store.put_chunk(hash, &vec![7; 100 + number]).map_err(|error| format!("put-chunks: {error}"))?;
    }
    store.flush().map_err(|error| format!("put-chunks: {error}"))?;
    // Mixed, so that an answer in another order is seen.
    let asked: Vec<&[u8]> =
        put.iter().zip(&never).flat_map(|(put, never)| [put.as_slice(), never.as_slice()]).collect();
    let answers = store.exists_many(&asked, &BatchOptions::default()).map_err(|error| format!("exists: {error}"))?;
    for (at, answer) in answers.into_iter().enumerate() {
        let (number, is_put) = (at / 2, at % 2 == 0);
        match answer.map_err(|error| format!("exists: {error}"))? {
            Presence::Absent if is_put => return Err("exists: a chunk that was put is answered absent".into()),
            Presence::Present(_) if !is_put => {
                return Err("exists: a chunk that nobody has put is answered present: it would never be stored".into());
            }
            Presence::Present(Some(len)) if len != 100 + number as u64 => {
                return Err(format!("exists: a chunk of {} bytes is answered with length {len}", 100 + number));
            }
            _ => {}
        }
    }
    Ok(())
}
