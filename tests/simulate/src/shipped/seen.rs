//! What is seen in the server of a backend, as the rules have it of a storage system.

use std::sync::Arc;

use crate::names::Stored;
use crate::threads::Moment;
use crate::world::{Entry, Origin, Request, Slot, World};

impl World {
    pub fn slot_mut(&mut self, place: &Stored) -> &mut Slot {
        if !self.slots.contains_key(place) {
            self.slots.insert(place.clone(), Slot::default());
        }
        self.slots.get_mut(place).expect("it was put there")
    }

    /// A backend's server has a value under a place. `by`: it is new, and of this request.
    pub fn found(&mut self, place: &Stored, bytes: &Arc<Vec<u8>>, by: Option<(&Request, Origin)>, now: Moment) {
        let lies = self.slots.get(place).and_then(|slot| slot.visible.as_ref());
        if lies.is_some_and(|lies| Arc::ptr_eq(&lies.bytes, bytes)) {
            return;
        }
        let former = self.slots.get(place).into_iter().flat_map(|slot| &slot.past);
        let former = former.filter_map(|(_, entry)| entry.as_ref()).find(|entry| Arc::ptr_eq(&entry.bytes, bytes));
        let mut entry = former.cloned().unwrap_or_else(|| self.entry(place, bytes));
        // What is removed may have lain before another version.
        let by = by.filter(|(request, _)| entry.version.is_none() || !request.removes(place));
        let is_nothing = by.is_none() && entry.version.is_none();
        if is_nothing || by.is_some_and(|(request, _)| !request.stores(place, bytes)) {
            (entry.sound, entry.version) = (false, None);
            self.slots.entry(place.clone()).or_default().rotted = Some(now);
        }
        if let Some(((request, origin), key)) = by.zip(self.keys.get(place).copied()) {
            self.oracle.applied(key, entry.version, origin, now);
            if matches!(request, Request::Put { replace: true, .. }) {
                self.oracle.mended(origin.process, key);
            }
        }
        if let (None, Some(key), Some(version)) = (by, self.keys.get(place), entry.version) {
            self.oracle.appears(*key, version);
        }
        // What a server is that keeps all that it has acknowledged.
        let durable = self.shape.durable.then(|| entry.clone());
        self.set(place, Some(entry), now);
        self.slots.entry(place.clone()).or_default().durable = durable;
    }

    /// The bytes under a place have changed by themselves.
    pub fn has_rotted(&mut self, place: &Stored, now: Moment) {
        let slot = self.slots.entry(place.clone()).or_default();
        slot.rotted = Some(now);
        let changed = slot.past.last_mut().and_then(|(_, entry)| entry.as_mut());
        for entry in slot.visible.iter_mut().chain(slot.durable.iter_mut()).chain(changed) {
            (entry.sound, entry.version) = (false, None);
        }
        // What is shorter than it was put counts as gone.
        if let Some(key) = self.keys.get(place) {
            self.oracle.touches(*key);
        }
    }

    /// It has nothing there any more.
    pub fn missed(&mut self, place: &Stored, by: Option<Origin>, now: Moment) {
        if self.slots.get(place).is_some_and(|slot| slot.visible.is_some()) {
            self.remove(place, by, now);
            self.slots.entry(place.clone()).or_default().durable = None;
        }
    }

    /// A file has something else under the path of a place. `by`: it was put there by this request.
    pub fn found_in_file(&mut self, place: &Stored, entry: Entry, by: Option<&(Origin, Request)>, now: Moment) {
        let there_was = self.slots.get(place).is_some_and(|slot| slot.visible.is_some());
        if let Some(((origin, request), key)) = by.zip(self.keys.get(place).copied()) {
            self.oracle.applied(key, entry.version, *origin, now);
            // What has another length is replaced by any put.
            if matches!(request, Request::Put { replace, .. } if *replace || there_was) {
                self.oracle.mended(origin.process, key);
            }
        }
        self.set(place, Some(entry), now);
    }

    /// The log says that a manifest is there: it says so of all that the manifest is over, too, whatever was evicted meanwhile.
    pub fn published_in_log(&mut self, by: Origin, over: &[Stored], now: Moment) {
        let is_there = |place: &&Stored| self.slots.get(*place).is_some_and(|slot| slot.visible.is_some());
        let missing = over.iter().find(|place| !is_there(place)).and_then(|place| self.keys.get(place).copied());
        if let Some(key) = missing {
            let text = format!("{key}: operation {} publishes over it, and the log has it no more", by.operation);
            self.oracle.violated("published-over-missing", text, now);
        }
    }

    /// For how long system calls of a process stood still between two moments, taken together.
    pub fn held_up(&self, process: usize, from: Moment, until: Moment) -> Moment {
        let of_process = self.stood_still.iter().filter(|(held_up, ..)| *held_up == process);
        of_process.map(|(_, begun, ended)| (*ended).min(until).saturating_sub((*begun).max(from))).sum()
    }

    /// A fault befell a call that asks what exists, or that publishes where all of it does. What cannot be looked at is told to be absent by both.
    pub fn may_be_told_absent(&mut self, request: &Request) {
        let (Request::Exists(places) | Request::Commit { fresh: places, .. }) = request else { return };
        for key in places.iter().filter_map(|place| self.keys.get(place)) {
            self.oracle.touches(*key);
        }
    }
}

impl Request {
    /// What it is about.
    pub fn places(&self) -> Vec<Stored> {
        match self {
            Request::Exists(places) | Request::Get(places) | Request::Delete(places) => places.clone(),
            Request::Put { chunks, .. } => chunks.iter().map(|(place, _)| place.clone()).collect(),
            Request::Commit { manifest, .. } => manifest.iter().map(|(place, _)| place.clone()).collect(),
            Request::GetManifest(place) | Request::DeleteManifest(place) => vec![place.clone()],
        }
    }

    /// Whether it publishes a manifest there.
    pub fn publishes(&self, place: &Stored) -> bool {
        matches!(self, Request::Commit { manifest: Some((name, _)), .. } if name == place)
    }

    /// Whether it stores these bytes, as they are: a manifest has its generation behind them.
    fn stores(&self, place: &Stored, bytes: &[u8]) -> bool {
        match self {
            Request::Put { chunks, .. } => chunks.iter().any(|(put, value)| put == place && ***value == *bytes),
            Request::Commit { manifest: Some((name, value)), .. } => {
                let mark = value.len().saturating_sub(16);
                name == place && value.len() == bytes.len() && value[..mark] == bytes[..mark]
            }
            _ => false,
        }
    }
}
