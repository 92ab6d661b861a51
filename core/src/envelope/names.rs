//! A bounded set of names of manifests. What it forgets is new again.

use std::collections::HashSet;

use kv_platform::sync::Mutex;
use twox_hash::XxHash3_128;

/// Holds the last [`REMEMBERED_NAMES`](crate::limits::REMEMBERED_NAMES) names at least, and twice as many at most, by their XXH3-128.
#[derive(Default)]
pub struct RecentNames(Mutex<Names>);

#[derive(Default)]
struct Names {
    young: HashSet<u128>,
    old: HashSet<u128>,
}

impl RecentNames {
    /// Whether a name is new here.
    pub fn add(&self, name: &str) -> bool {
        let name = XxHash3_128::oneshot(name.as_bytes());
        let mut names = self.0.lock();
        if names.young.contains(&name) || names.old.contains(&name) {
            return false;
        }
        if names.young.len() >= crate::limits::REMEMBERED_NAMES {
            names.old = std::mem::take(&mut names.young);
        }
        names.young.insert(name)
    }

    /// It is new again.
    pub fn forget(&self, name: &str) {
        let name = XxHash3_128::oneshot(name.as_bytes());
        let mut names = self.0.lock();
        names.young.remove(&name);
        names.old.remove(&name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::REMEMBERED_NAMES;

    #[test]
    fn a_name_is_new_once_and_names_are_bounded() {
        let recent = RecentNames::default();
        assert!(recent.add("m") && !recent.add("m") && recent.add("n"));
        recent.forget("m");
        assert!(recent.add("m"));
        (0..5 * REMEMBERED_NAMES).for_each(|n| assert!(recent.add(&n.to_string())));
        let names = recent.0.lock();
        assert!(names.young.len() <= REMEMBERED_NAMES && names.old.len() <= REMEMBERED_NAMES);
    }
}
