//! `object_store`, the crate that most Rust programs reach S3 with, at the same work as the s3 backend.
//!
//! Arguments: the endpoint, the bucket, how many objects at once, bytes of each. The keys are those of the environment. Standard input holds a line
//! for each round, `put N` or `get N`, of the objects from N on; the answer is a line with the seconds that it took.

use std::time::Instant;

use anyhow::{Result, ensure};
use bytes::Bytes;
use far_peers::{noise, rounds};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{ObjectStore, PutPayload};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [endpoint, bucket, count, size] = arguments.as_slice() else { anyhow::bail!("ENDPOINT BUCKET COUNT SIZE") };
    let (count, size): (usize, usize) = (count.parse()?, size.parse()?);
    let store = AmazonS3Builder::new()
        .with_endpoint(endpoint)
        .with_allow_http(true)
        .with_bucket_name(bucket)
        .with_region("us-east-1")
        .with_access_key_id(std::env::var("S3_ACCESS_KEY_ID")?)
        .with_secret_access_key(std::env::var("S3_SECRET_ACCESS_KEY")?)
        .build()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // No two objects are alike.
    let objects: Vec<Bytes> = (0..count as u64).map(|object| noise(size, object + 1).into()).collect();
    let path = |first: u64, object: usize| Path::from(format!("peer/{}", first + object as u64));
    rounds(|what, first| {
        let begun = Instant::now();
        runtime.block_on(async {
            match what {
                "put" => {
                    let puts = stream::iter(objects.iter().enumerate()).map(|(object, bytes)| {
                        let (path, store) = (path(first, object), &store);
                        async move { store.put(&path, PutPayload::from(bytes.clone())).await }
                    });
                    puts.buffer_unordered(count).try_for_each(|_| async { Ok(()) }).await?;
                }
                _ => {
                    // An engine's blocks are where they are: what the crate hands over is copied there.
                    let mut blocks = vec![vec![0; size]; count];
                    let gets = stream::iter(0..count).map(|object| {
                        let (path, store) = (path(first, object), &store);
                        async move { Ok::<_, object_store::Error>((object, store.get(&path).await?.bytes().await?)) }
                    });
                    let mut gets = gets.buffer_unordered(count);
                    while let Some(found) = gets.next().await {
                        let (object, bytes) = found?;
                        ensure!(bytes.len() == size, "an object of {} bytes", bytes.len());
                        blocks[object].copy_from_slice(&bytes);
                    }
                }
            }
            Ok::<_, anyhow::Error>(())
        })?;
        Ok(begun.elapsed().as_secs_f64())
    })
}
