//! `ls`: the manifests of a store, or its chunks.

use std::io::Write;

use kv_store_wasm::{ChunkEntry, DescriptorDigest, ManifestEntry, Store};
use serde_json::json;

use super::moment;
use crate::failure::{Failure, Outcome};
use crate::place::{Place, open_as_it_lies};
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
pub struct LsArguments {
    #[command(flatten)]
    place: Place,
    /// The chunks, by their hashes in hex
    #[arg(long)]
    chunks: bool,
    /// The descriptor that each lies under too, which reads each; "-" for one that has none, or is not what was put
    #[arg(long)]
    descriptors: bool,
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

pub fn run(arguments: &LsArguments) -> Outcome {
    let uri = &arguments.place.uri()?;
    let store = open_as_it_lies(uri)?;
    let (after, refused) = (arguments.after.clone(), || Failure::unable_of("list", store.uri()));
    let headed = (!arguments.json).then_some(if arguments.chunks { "HASH" } else { "NAME" });
    let descriptors = arguments.descriptors;
    let mut table = Table { out: std::io::BufWriter::new(std::io::stdout().lock()), headed, descriptors };
    let show = Show { store: &store, as_json: arguments.json, descriptors };
    let Some(limit) = arguments.page.map(|page| page as usize) else {
        return match arguments.chunks {
            true => store
                .chunk_pages(super::PAGE)
                .after(after)
                .try_for_each(|page| table.write(&show.chunks(&page.map_err(refused())?))),
            false => store
                .manifest_pages(super::PAGE)
                .after(after)
                .try_for_each(|page| table.write(&show.manifests(&page.map_err(refused())?))),
        };
    };
    let next = if arguments.chunks {
        let page = store.list_chunks(after.as_deref(), limit).map_err(refused())?;
        table.write(&show.chunks(&page.entries))?;
        page.next
    } else {
        let page = store.list_manifests(after.as_deref(), limit).map_err(refused())?;
        table.write(&show.manifests(&page.entries))?;
        page.next
    };
    if let Some(next) = next {
        eprintln!("kv-store: there may be more: --after {next:?}");
    }
    Ok(())
}

/// How entries are shown.
struct Show<'a> {
    store: &'a Store,
    as_json: bool,
    descriptors: bool,
}

impl Show<'_> {
    /// A line for each chunk.
    fn chunks(&self, entries: &[ChunkEntry]) -> Vec<String> {
        let hashes: Vec<&[u8]> = entries.iter().map(|entry| entry.hash.as_slice()).collect();
        // One at a time: values may be long. One that cannot be read has none that is known.
        let descriptor = |hash: &&[u8]| {
            let stored = self.store.get_stored(&[hash]).ok()?.pop()?.ok()??;
            stored.descriptor
        };
        let descriptors: Vec<_> =
            hashes.iter().map(|hash| self.descriptors.then(|| descriptor(hash)).flatten()).collect();
        entries.iter().zip(descriptors).map(|(entry, descriptor)| self.chunk(entry, descriptor)).collect()
    }

    /// A line for each manifest.
    fn manifests(&self, entries: &[ManifestEntry]) -> Vec<String> {
        let descriptor = |name: &str| self.store.get_stored_manifest(name).ok()??.descriptor;
        let line =
            |entry: &ManifestEntry| self.manifest(entry, self.descriptors.then(|| descriptor(&entry.name)).flatten());
        entries.iter().map(line).collect()
    }

    fn chunk(&self, entry: &ChunkEntry, descriptor: Option<DescriptorDigest>) -> String {
        let hash = hex::encode(&entry.hash);
        if !self.as_json {
            return self.row(entry.bytes, entry.stored, entry.used, descriptor, &hash);
        }
        let ChunkEntry { bytes, stored, used, layout, .. } = entry;
        let line = json!({ "hash": hash, "bytes": bytes, "stored": stored, "used": used, "layout": layout });
        self.described(line, descriptor).to_string()
    }

    fn manifest(&self, entry: &ManifestEntry, descriptor: Option<DescriptorDigest>) -> String {
        let ManifestEntry { name, bytes, stored, used, layout, .. } = entry;
        if !self.as_json {
            return self.row(*bytes, *stored, *used, descriptor, &format!("{name:?}"));
        }
        let line = json!({ "name": name, "bytes": bytes, "stored": stored, "used": used, "layout": layout });
        show::json_line(&self.described(line, descriptor)).unwrap_or_default()
    }

    fn described(&self, mut line: serde_json::Value, descriptor: Option<DescriptorDigest>) -> serde_json::Value {
        if let Some(line) = line.as_object_mut().filter(|_| self.descriptors) {
            line.insert("descriptor".to_owned(), json!(descriptor.map(|digest| digest.to_string())));
        }
        line
    }

    fn row(
        &self,
        bytes: Option<u64>,
        stored: Option<u64>,
        used: Option<u64>,
        descriptor: Option<DescriptorDigest>,
        name: &str,
    ) -> String {
        let shown = descriptor.map_or_else(|| "-".to_owned(), |digest| digest.to_string());
        let descriptor = if self.descriptors { format!("{shown:32}  ") } else { String::new() };
        row(bytes, stored, used, &format!("{descriptor}{name}"))
    }
}

/// A line for each entry, below a header that stands once, and only where there is an entry.
struct Table<W: Write> {
    out: W,
    /// What the last column is; none: there is no header, or it was written.
    headed: Option<&'static str>,
    descriptors: bool,
}

impl<W: Write> Table<W> {
    fn write(&mut self, lines: &[String]) -> Outcome {
        if let Some(last) = self.headed.take_if(|_| !lines.is_empty()) {
            let descriptor = if self.descriptors { format!("{:32}  ", "DESCRIPTOR") } else { String::new() };
            written(writeln!(
                self.out,
                "{:>10}  {:19}  {:19}  {descriptor}{last}",
                "SIZE", "STORED (UTC)", "USED (UTC)"
            ))?;
        }
        lines.iter().try_for_each(|line| written(writeln!(self.out, "{line}")))?;
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
