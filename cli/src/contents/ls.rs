//! `ls`: the manifests of a store, or its chunks.

use std::io::Write;

use kv_store_wasm::{ChunkEntry, ManifestEntry};
use serde_json::json;

use super::moment;
use crate::failure::{Failure, Outcome};
use crate::place::{Place, open_existing};
use crate::show;

/// List the manifests of a store, or its chunks
///
/// Each with its size, the time when it was stored and the time when it was last used, as far as the backend knows; --json has
/// the size in bytes. Entries that
/// are stored or removed meanwhile may be listed or not.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kv-store ls local-fs:///var/cache/kv\n  kv-store ls redis://cache.svc:6379/3 --chunks --json\n\n\
    Exit codes: 0 listed; 2 the store does not open, or its backend lists nothing."
)]
pub struct Arguments {
    #[command(flatten)]
    place: Place,
    /// The chunks, by their hashes in hex
    #[arg(long)]
    chunks: bool,
    /// Only one page, of at most this many entries; standard error then names the --after for the next one
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=4096))]
    page: Option<u32>,
    /// Continue after a page: the text that it named
    #[arg(long, value_name = "PLACE")]
    after: Option<String>,
    /// A JSON object on standard output for each entry
    #[arg(long)]
    pub json: bool,
}

pub fn run(arguments: &Arguments) -> Outcome {
    let uri = &arguments.place.uri()?;
    let store = open_existing(uri)?;
    let (after, refused) = (arguments.after.clone(), || Failure::unable_of("list", store.uri()));
    let headed = (!arguments.json).then_some(if arguments.chunks { "HASH" } else { "NAME" });
    let mut table = Table { out: std::io::BufWriter::new(std::io::stdout().lock()), headed };
    let Some(limit) = arguments.page.map(|page| page as usize) else {
        return match arguments.chunks {
            true => store
                .chunk_pages(super::PAGE)
                .after(after)
                .try_for_each(|page| table.write(&page.map_err(refused())?, |entry| chunk(entry, arguments.json))),
            false => store
                .manifest_pages(super::PAGE)
                .after(after)
                .try_for_each(|page| table.write(&page.map_err(refused())?, |entry| manifest(entry, arguments.json))),
        };
    };
    let next = if arguments.chunks {
        let page = store.list_chunks(after.as_deref(), limit).map_err(refused())?;
        table.write(&page.entries, |entry| chunk(entry, arguments.json))?;
        page.next
    } else {
        let page = store.list_manifests(after.as_deref(), limit).map_err(refused())?;
        table.write(&page.entries, |entry| manifest(entry, arguments.json))?;
        page.next
    };
    if let Some(next) = next {
        eprintln!("kv-store: there may be more: --after {next:?}");
    }
    Ok(())
}

fn chunk(entry: &ChunkEntry, as_json: bool) -> String {
    let hash = show::hex(&entry.hash);
    match as_json {
        true => json!({ "hash": hash, "bytes": entry.bytes, "stored": entry.stored, "used": entry.used, "layout": entry.layout }).to_string(),
        false => row(entry.bytes, entry.stored, entry.used, &hash),
    }
}

fn manifest(entry: &ManifestEntry, as_json: bool) -> String {
    let ManifestEntry { name, bytes, stored, used, layout, .. } = entry;
    match as_json {
        true => {
            let entry = json!({ "name": name, "bytes": bytes, "stored": stored, "used": used, "layout": layout });
            show::json_line(&entry).unwrap_or_default()
        }
        false => row(*bytes, *stored, *used, &format!("{name:?}")),
    }
}

/// A line for each entry, below a header that stands once, and only where there is an entry.
struct Table<W: Write> {
    out: W,
    /// What the last column is; none: there is no header, or it was written.
    headed: Option<&'static str>,
}

impl<W: Write> Table<W> {
    fn write<T>(&mut self, entries: &[T], line: impl Fn(&T) -> String) -> Outcome {
        if let Some(last) = self.headed.take_if(|_| !entries.is_empty()) {
            written(writeln!(self.out, "{:>10}  {:19}  {:19}  {last}", "SIZE", "STORED (UTC)", "USED (UTC)"))?;
        }
        entries.iter().try_for_each(|entry| written(writeln!(self.out, "{}", line(entry))))?;
        written(self.out.flush())
    }
}

fn row(bytes: Option<u64>, stored: Option<u64>, used: Option<u64>, name: &str) -> String {
    let bytes = bytes.map_or_else(|| "-".to_owned(), show::bytes);
    format!("{bytes:>10}  {:19}  {:19}  {name}", moment(stored), moment(used))
}

fn written(outcome: std::io::Result<()>) -> Outcome {
    outcome.map_err(|error| Failure::unable(format!("standard output: {error}")))
}
