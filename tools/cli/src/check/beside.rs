//! What the contract asks of two stores of one server: each has what was put into it, and nothing of the other. A connection that one of
//! them has set up and given back must not serve the other.

use super::CaseResult;
use super::tap::{Chunk, Instances, Tap};

pub const NAME: &str = "beside";
pub const ASKS: &str = "two stores of one server, used in turns, have nothing of each other";

/// How often both are used. A connection that was given back serves whoever comes next.
const ROUNDS: u8 = 3;

pub fn run(tap: &Tap, uri: &str, beside: &str, salt: u64) -> Result<CaseResult, String> {
    let open = |uri: &str| Instances::open(tap, uri).map_err(|why| format!("{uri}: {why}"));
    let stores = [open(uri)?, open(beside)?];
    let name = format!("{NAME}~{salt:016x}");
    let hash = |store: usize| [&salt.to_le_bytes()[..], NAME.as_bytes(), &[store as u8]].concat();
    let both = hash(2);
    let verdict = (0..ROUNDS).try_for_each(|round| {
        for (store, instances) in stores.iter().enumerate() {
            let chunk = |hash: Vec<u8>| -> Chunk { (hash, vec![store as u8 + 2 * round; 3000]) };
            instances.put(&[chunk(hash(store)), chunk(both.clone())], true)?;
            instances.commit(&[], Some((&name, &[store as u8 + 2 * round; 100])))?;
        }
        for (store, instances) in stores.iter().enumerate() {
            let expected = Some(vec![store as u8 + 2 * round; 3000]);
            let [own, other] = [hash(store), hash(1 - store)];
            let found = instances.get(&[own, both.clone(), other.clone()])?;
            let wrong = match found.as_slice() {
                [own, both, _] if *own != expected || *both != expected => "a chunk has not the bytes that were put into it",
                [_, _, Some(_)] => "a chunk of the other store is found",
                _ if instances.exists(&[other])? != [None] => "a chunk of the other store is `present`",
                _ if instances.manifest(&name)?.as_deref() != Some(&[store as u8 + 2 * round; 100]) => {
                    "a manifest is not the one that was published in it"
                }
                _ => continue,
            };
            let uri = if store == 0 { uri } else { beside };
            return Err(format!(
                "in {uri}: {wrong}. The session of a connection names all that was set up on it, the database and the user included"
            ));
        }
        Ok(())
    });
    for (store, instances) in stores.iter().enumerate() {
        let _ = (instances.delete(&[hash(store), both.clone()]), instances.delete_manifest(&name));
    }
    Ok(verdict)
}
