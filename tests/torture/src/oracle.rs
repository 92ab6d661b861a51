//! What a manifest may be, from what is known of the saves: the last one that was acknowledged, or one that was tried since.

/// A save's number; none: no manifest.
pub type State = Option<u64>;

/// The story of one manifest, of which there is one writer at a time.
#[derive(Clone, Debug)]
pub struct Name {
    /// In the order in which they were tried, the first from before.
    tried: Vec<State>,
    /// The last that was acknowledged. What was tried before it is gone for good.
    acknowledged: usize,
}

impl Default for Name {
    fn default() -> Self {
        Name::new(None)
    }
}

impl Name {
    pub fn new(state: State) -> Self {
        Name { tried: vec![state], acknowledged: 0 }
    }

    pub fn tries(&mut self, state: State) {
        self.tried.push(state);
    }

    /// What was tried last has succeeded. `believed`: by a backend that does not lie.
    pub fn acknowledge(&mut self, believed: bool) {
        if believed {
            self.acknowledged = self.tried.len() - 1;
        }
    }

    /// Where those begin that a reader may see who begins now.
    pub fn begin(&self) -> usize {
        self.acknowledged
    }

    /// Whether a reader that began then may see this.
    pub fn allows(&self, begun: usize, seen: State) -> bool {
        self.tried[begun..].contains(&seen)
    }

    /// It is this now. What was tried and is not seen may still be on its way, where a server does it.
    pub fn is_now(&mut self, seen: State) {
        let mut rest: Vec<State> = self.tried[self.acknowledged..].to_vec();
        rest.retain(|state| *state != seen);
        // The former one is gone, if this is another.
        if self.tried[self.acknowledged] != seen {
            rest.remove(0);
        }
        rest.insert(0, seen);
        *self = Name { tried: rest, acknowledged: 0 };
    }

    pub fn describe(&self) -> String {
        format!("{:?}", &self.tried[self.acknowledged..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_acknowledged_is_not_lost_and_what_failed_may_be_there() {
        let mut name = Name::default();
        name.tries(Some(1));
        name.acknowledge(true);
        name.tries(Some(2));
        assert!(name.allows(name.begin(), Some(1)) && name.allows(name.begin(), Some(2)));
        assert!(!name.allows(name.begin(), None) && !name.allows(name.begin(), Some(3)));
        name.tries(Some(3));
        name.acknowledge(true);
        assert!(!name.allows(name.begin(), Some(2)));
    }

    #[test]
    fn who_began_before_an_acknowledgement_may_see_what_was_then() {
        let mut name = Name::new(Some(1));
        let begun = name.begin();
        name.tries(Some(2));
        name.acknowledge(true);
        assert!(name.allows(begun, Some(1)));
        assert!(!name.allows(name.begin(), Some(1)));
    }

    #[test]
    fn a_liars_word_settles_nothing() {
        let mut name = Name::new(Some(1));
        name.tries(Some(2));
        name.acknowledge(false);
        assert!(name.allows(name.begin(), Some(1)));
    }

    #[test]
    fn what_was_seen_takes_the_place_of_what_was_before() {
        let mut name = Name::new(Some(1));
        name.tries(Some(2));
        name.tries(Some(3));
        name.is_now(Some(2));
        assert!(name.allows(name.begin(), Some(2)) && name.allows(name.begin(), Some(3)));
        assert!(!name.allows(name.begin(), Some(1)));
        let mut same = Name::new(Some(1));
        same.tries(Some(2));
        same.is_now(Some(1));
        assert!(same.allows(same.begin(), Some(1)) && same.allows(same.begin(), Some(2)));
    }
}
