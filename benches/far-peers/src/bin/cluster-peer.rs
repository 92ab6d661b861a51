//! The cluster client of the `redis` crate, at the same work as the redis backend: one pipeline over all masters.
//!
//! Arguments: how many values at once, bytes of each, and the URIs of the nodes. Rounds are of the values from N on.

use std::time::Instant;

use anyhow::{Result, bail, ensure};
use far_peers::{noise, rounds};
use redis::cluster::{ClusterClient, cluster_pipe};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [count, size, nodes @ ..] = arguments.as_slice() else { bail!("COUNT SIZE NODE...") };
    let (count, size): (usize, usize) = (count.parse()?, size.parse()?);
    let mut connection = ClusterClient::new(nodes.to_vec())?.get_connection()?;
    let values: Vec<Vec<u8>> = (0..count as u64).map(|value| noise(size, value + 1)).collect();
    // An engine's blocks are where they are: what the crate hands over is copied there.
    let mut blocks = vec![vec![0; size]; count];
    rounds(|what, first| {
        let begun = Instant::now();
        let keys = (0..count as u64).map(|value| format!("peer:{:016x}", first + value));
        let mut pipeline = cluster_pipe();
        if what == "put" {
            for (key, value) in keys.zip(&values) {
                pipeline.set(key, value).ignore();
            }
            pipeline.query::<()>(&mut connection)?;
        } else {
            keys.for_each(|key| drop(pipeline.get(key)));
            let found: Vec<Vec<u8>> = pipeline.query(&mut connection)?;
            for (block, value) in blocks.iter_mut().zip(&found) {
                ensure!(value.len() == size, "a value of {} bytes", value.len());
                block.copy_from_slice(value);
            }
        }
        Ok(begun.elapsed().as_secs_f64())
    })
}
