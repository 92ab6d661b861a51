//! Whole listings and evictions, call by call. A component may answer `next` or `more` for ever, so each ends here: where it goes in
//! a circle, brings nothing for long, or takes more calls than any store needs.

use super::Store;
use super::contents::{ChunkEntry, Evicted, Eviction, ManifestEntry, Page};
use crate::error::{Error, ErrorKind, contract_violation};
use crate::limits::{MAX_EMPTY_EVICTIONS, MAX_EMPTY_PAGES, MAX_EVICTION_CALLS, MAX_PAGES};

type FetchPage<'a, T> = Box<dyn FnMut(Option<&str>) -> Result<Page<T>, Error> + 'a>;

/// The pages of a listing, one after the other. A listing ends after an error, also where a component would go on for ever.
pub struct Pages<'a, T> {
    fetch: FetchPage<'a, T>,
    /// Outer none: there is no further page.
    after: Option<Option<String>>,
    course: Course,
}

impl<T> Pages<'_, T> {
    /// Begin after a page: with its `next`.
    #[must_use]
    pub fn after(mut self, next: Option<String>) -> Self {
        self.after = Some(next);
        self
    }
}

impl<T> Iterator for Pages<'_, T> {
    type Item = Result<Vec<T>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let after = self.after.take()?;
        let page = (self.fetch)(after.as_deref()).and_then(|page| {
            if let Some(next) = &page.next {
                self.course.advance(page.entries.len(), next)?;
            }
            Ok(page)
        });
        Some(page.map(|Page { entries, next }| {
            self.after = next.map(Some);
            entries
        }))
    }
}

/// What has come of a listing so far.
#[derive(Default)]
struct Course {
    pages: u64,
    /// In a row.
    empty: u64,
    /// The `next` of page 1, 2, 4, 8 and so on. A listing that repeats itself comes past one of them again.
    mark: Option<String>,
}

impl Course {
    fn advance(&mut self, entries: usize, next: &str) -> Result<(), Error> {
        self.pages += 1;
        self.empty = if entries == 0 { self.empty + 1 } else { 0 };
        if self.mark.as_deref() == Some(next) {
            return Err(contract_violation("answered the `next` of an earlier page: the listing goes in a circle"));
        }
        if self.empty >= MAX_EMPTY_PAGES {
            let message = format_args!("listed nothing on {MAX_EMPTY_PAGES} pages in a row, and there is a `next`");
            return Err(contract_violation(message));
        }
        if self.pages >= MAX_PAGES {
            return Err(contract_violation(format_args!("listed {MAX_PAGES} pages, and there is a `next`")));
        }
        if self.pages.is_power_of_two() {
            self.mark = Some(next.to_owned());
        }
        Ok(())
    }
}

impl Store {
    /// All chunks, page by page of at most `limit` entries.
    pub fn chunk_pages(&self, limit: usize) -> Pages<'_, ChunkEntry> {
        let fetch = move |after: Option<&str>| self.list_chunks(after, limit);
        Pages { fetch: Box::new(fetch), after: Some(None), course: Course::default() }
    }

    /// All manifests, page by page of at most `limit` entries.
    pub fn manifest_pages(&self, limit: usize) -> Pages<'_, ManifestEntry> {
        let fetch = move |after: Option<&str>| self.list_manifests(after, limit);
        Pages { fetch: Box::new(fetch), after: Some(None), course: Course::default() }
    }

    /// Evict until as much is gone as was asked for, or no more may go. [`Evicted::more`] is then false.
    ///
    /// # Errors
    /// As those of [`evict`](Self::evict); what was evicted before is gone.
    pub fn evict_all(&self, what: &Eviction) -> Result<Evicted, Error> {
        evict_all(*what, |what| self.evict(what))
    }
}

fn evict_all(mut what: Eviction, mut evict: impl FnMut(&Eviction) -> Result<Evicted, Error>) -> Result<Evicted, Error> {
    let mut all = Evicted::default();
    let mut empty = 0;
    for _ in 0..MAX_EVICTION_CALLS {
        if what.bytes == 0 && what.unused_since.is_none() {
            return Ok(all);
        }
        let evicted = evict(&what)?;
        all.bytes = all.bytes.saturating_add(evicted.bytes);
        all.chunks = all.chunks.saturating_add(evicted.chunks);
        all.manifests = all.manifests.saturating_add(evicted.manifests);
        what.bytes = what.bytes.saturating_sub(evicted.bytes);
        let nothing = evicted.bytes == 0 && evicted.chunks == 0 && evicted.manifests == 0;
        if !evicted.more {
            what.unused_since = None;
            if evicted.bytes == 0 {
                return Ok(all);
            }
        }
        empty = if nothing { empty + 1 } else { 0 };
        if empty >= MAX_EMPTY_EVICTIONS {
            let message =
                format_args!("evicted nothing in {MAX_EMPTY_EVICTIONS} calls in a row, and says that there is more");
            return Err(contract_violation(message));
        }
    }
    let message = format!(
        "evict was called {MAX_EVICTION_CALLS} times, and says that {} bytes went and that there is more: if the store has become \
         smaller, evict again",
        all.bytes
    );
    Err(Error::new(ErrorKind::Component, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of these many entries and these `next`, and what became of the listing.
    fn listed(pages: impl IntoIterator<Item = (usize, Option<String>)>) -> (u64, Result<(), Error>) {
        let mut pages = pages.into_iter();
        let fetch = move |_: Option<&str>| {
            let (entries, next) = pages.next().expect("it was to end");
            Ok(Page { entries: vec![(); entries], next })
        };
        let mut listing = Pages { fetch: Box::new(fetch), after: Some(None), course: Course::default() };
        let mut count = 0;
        let outcome = listing.by_ref().try_for_each(|page| page.map(|_| count += 1));
        assert!(listing.next().is_none(), "it has ended");
        (count, outcome)
    }

    #[test]
    fn a_listing_ends_with_its_last_page() {
        let next = |n: u64| (n < 99).then(|| n.to_string());
        let (count, outcome) = listed((0..).map(|n| (usize::from(n % 7 == 0), next(n))));
        assert_eq!((count, outcome.is_ok()), (100, true));
    }

    #[test]
    fn a_listing_that_goes_in_a_circle_ends() {
        for (before, around) in [(0, 2), (0, 1000), (1000, 3), (5, 64)] {
            let next = |n: u64| if n < before { n } else { before + (n - before) % around };
            let (count, outcome) = listed((0..).map(|n| (1, Some(next(n).to_string()))));
            assert!(outcome.unwrap_err().to_string().contains("goes in a circle"));
            assert!(count <= 4 * (before + around), "{count} pages of {before} and {around}");
        }
    }

    #[test]
    fn a_listing_without_end_ends() {
        let (count, outcome) = listed((0..).map(|n: u64| (0, Some(n.to_string()))));
        assert_eq!(count, MAX_EMPTY_PAGES - 1);
        assert!(outcome.unwrap_err().to_string().contains("listed nothing on"));
        let (count, outcome) = listed((0..).map(|n: u64| (1, Some(n.to_string()))));
        assert_eq!(count, MAX_PAGES - 1);
        assert!(outcome.unwrap_err().to_string().contains("and there is a `next`"));
    }

    #[test]
    fn an_eviction_ends_when_it_has_what_it_asked_for() {
        let mut asked = Vec::new();
        let evicted = evict_all(Eviction::new(25, None, 0), |what| {
            asked.push(what.bytes);
            Ok(Evicted { bytes: 10, chunks: 1, manifests: 0, more: true })
        });
        assert_eq!((asked, evicted.unwrap().bytes), (vec![25, 15, 5], 30));
        let kept = evict_all(Eviction::new(25, Some(1), 0), |_| Ok(Evicted::default()));
        assert_eq!(kept.unwrap(), Evicted::default());
    }

    #[test]
    fn an_eviction_without_end_ends() {
        let mut calls = 0;
        let endless = evict_all(Eviction::new(25, None, 0), |_| {
            calls += 1;
            Ok(Evicted { more: true, ..Evicted::default() })
        });
        assert!(endless.unwrap_err().to_string().contains("evicted nothing in"));
        assert_eq!(calls, MAX_EMPTY_EVICTIONS);
        let endless =
            evict_all(Eviction::new(25, Some(1), 0), |_| Ok(Evicted { bytes: 1, chunks: 1, manifests: 0, more: true }));
        assert!(endless.unwrap_err().to_string().contains("evict again"));
    }
}
