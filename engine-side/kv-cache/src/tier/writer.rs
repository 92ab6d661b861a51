//! What the one writer of a tier owns besides the index: the order of use, the budget's account, and the reservations.
//! Bookkeeping only; the tier holds its lock around it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::entry::Row;
use crate::key::Key;

/// The account of a tier's budget. The writer alone changes it; anyone may look, and sees it as it was a moment ago.
#[derive(Default)]
pub(crate) struct Account {
    /// Rows in the order of use.
    rows: AtomicU64,
    /// Their bytes.
    used: AtomicU64,
    /// Bytes of the reservations.
    reserved: AtomicU64,
}

impl Account {
    pub fn rows(&self) -> u64 {
        self.rows.load(Relaxed)
    }

    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    pub fn reserved(&self) -> u64 {
        self.reserved.load(Relaxed)
    }
}

fn more(number: &AtomicU64, by: u64) {
    // What a file says of its size may be anything.
    number.store(number.load(Relaxed).saturating_add(by), Relaxed);
}

fn less(number: &AtomicU64, by: u64) {
    number.store(number.load(Relaxed).saturating_sub(by), Relaxed);
}

#[derive(Default)]
pub(crate) struct Writer {
    account: Arc<Account>,
    /// By the moment of their last use as it was known when they were filed. Uses since then are in the rows: see
    /// [`Writer::oldest`].
    order: BTreeMap<u64, Arc<Row>>,
    reservations: HashMap<Key, Reservation>,
    tokens: u64,
}

struct Reservation {
    token: u64,
    bytes: u64,
    expires: Duration,
}

impl Writer {
    pub fn account(&self) -> Arc<Account> {
        self.account.clone()
    }

    pub fn used(&self) -> u64 {
        self.account.used()
    }

    pub fn reserved(&self) -> u64 {
        self.account.reserved()
    }

    pub fn rows(&self) -> usize {
        self.order.len()
    }

    pub fn add(&mut self, row: Arc<Row>) {
        more(&self.account.used, row.charged);
        more(&self.account.rows, 1);
        // Two rows of one moment cannot be: each use takes a moment of its own.
        self.order.insert(row.filed.load(Relaxed), row);
    }

    /// Forget this very row. False where it is not in the order.
    pub fn remove(&mut self, row: &Arc<Row>) -> bool {
        let filed = row.filed.load(Relaxed);
        match self.order.get(&filed) {
            Some(there) if Arc::ptr_eq(there, row) => {
                self.order.remove(&filed);
                less(&self.account.used, row.charged);
                less(&self.account.rows, 1);
                true
            }
            _ => false,
        }
    }

    /// The row whose last use was before that of all others, from the moment `after` on.
    ///
    /// Readers note a use in the row and touch nothing here; so a row that comes first may have been used since, and is
    /// filed anew. What is then first is the oldest: no row was used before it was filed.
    pub fn oldest(&mut self, after: u64) -> Option<Arc<Row>> {
        loop {
            let (filed, row) = self.order.range(after..).next()?;
            let (filed, used) = (*filed, row.used.load(Relaxed));
            if used == filed {
                return Some(row.clone());
            }
            if let Some(row) = self.order.remove(&filed) {
                row.filed.store(used, Relaxed);
                self.order.insert(used, row);
            }
        }
    }

    /// All rows, oldest first as they are filed.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Row>> {
        self.order.values()
    }

    /// Set `bytes` apart for a row that is being written. `None` where another writer has the key.
    pub fn reserve(&mut self, key: Key, bytes: u64, now: Duration, time_to_live: Duration) -> Option<u64> {
        if self.has_live_reservation(&key, now) {
            return None;
        }
        self.tokens += 1;
        let reservation = Reservation { token: self.tokens, bytes, expires: now.saturating_add(time_to_live) };
        more(&self.account.reserved, bytes);
        if let Some(former) = self.reservations.insert(key, reservation) {
            less(&self.account.reserved, former.bytes);
        }
        Some(self.tokens)
    }

    pub fn is_reserved(&self, key: &Key) -> bool {
        self.reservations.contains_key(key)
    }

    pub fn has_live_reservation(&self, key: &Key, now: Duration) -> bool {
        self.reservations.get(key).is_some_and(|reservation| now < reservation.expires)
    }

    /// Whether this reservation is still the live one.
    pub fn is_live(&self, key: &Key, token: u64, now: Duration) -> bool {
        self.reservations.get(key).is_some_and(|reservation| reservation.token == token && now < reservation.expires)
    }

    pub fn release(&mut self, key: &Key, token: u64) {
        if self.reservations.get(key).is_some_and(|reservation| reservation.token == token)
            && let Some(reservation) = self.reservations.remove(key)
        {
            less(&self.account.reserved, reservation.bytes);
        }
    }

    /// Forget the reservations whose time is over.
    pub fn expire(&mut self, now: Duration) {
        let account = &self.account;
        self.reservations.retain(|_, reservation| {
            let live = now < reservation.expires;
            if !live {
                less(&account.reserved, reservation.bytes);
            }
            live
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::Body;
    use super::*;

    fn row(n: u8, used: u64) -> Arc<Row> {
        Arc::new(Row::new(Key([n; 32]), 1, 0, 10, Body::Memory(Default::default()), used))
    }

    #[test]
    fn the_oldest_is_the_one_used_least_recently_whatever_the_filing_says() {
        let mut writer = Writer::default();
        let rows = [row(0, 1), row(1, 2), row(2, 3)];
        rows.iter().for_each(|row| writer.add(row.clone()));
        rows[0].used.store(4, Relaxed);
        assert_eq!(writer.oldest(0).unwrap().key, rows[1].key);
        rows[1].used.store(5, Relaxed);
        assert_eq!(writer.oldest(0).unwrap().key, rows[2].key);
        assert!(writer.remove(&rows[2]) && !writer.remove(&rows[2]));
        assert_eq!((writer.oldest(0).unwrap().key, writer.used(), writer.rows()), (rows[0].key, 20, 2));
        assert_eq!(writer.oldest(5).unwrap().key, rows[1].key);
    }

    #[test]
    fn a_reservation_is_exclusive_until_its_time_is_over() {
        let (mut writer, key, ttl) = (Writer::default(), Key([1; 32]), Duration::from_secs(10));
        let second = Duration::from_secs;
        let first = writer.reserve(key, 100, second(0), ttl).unwrap();
        assert_eq!(writer.reserve(key, 100, second(9), ttl), None);
        assert!(writer.is_live(&key, first, second(9)) && !writer.is_live(&key, first, second(10)));
        let next = writer.reserve(key, 50, second(10), ttl).unwrap();
        assert!(!writer.is_live(&key, first, second(10)) && writer.is_live(&key, next, second(10)));
        assert_eq!(writer.reserved(), 50);
        writer.release(&key, first);
        assert_eq!(writer.reserved(), 50, "the first writer cannot release what is no longer its own");
        writer.expire(second(19));
        assert_eq!(writer.reserved(), 50);
        writer.expire(second(20));
        assert_eq!(writer.reserved(), 0);
    }
}
