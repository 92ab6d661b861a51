//! A bounded set of names of manifests. What it forgets is new again.

use std::hash::RandomState;

use kv_platform::sync::Mutex;
use twox_hash::XxHash3_128;

use crate::limits::REMEMBERED_NAMES;
use crate::recent::RecentMap;

/// The last [`REMEMBERED_NAMES`] names, by their XXH3-128.
pub struct RecentNames(Mutex<RecentMap<u128, (), RandomState>>);

impl Default for RecentNames {
    fn default() -> Self {
        RecentNames(Mutex::new(RecentMap::new(REMEMBERED_NAMES)))
    }
}

impl RecentNames {
    /// Whether a name is new here.
    pub fn add(&self, name: &str) -> bool {
        let name = XxHash3_128::oneshot(name.as_bytes());
        let mut names = self.0.lock();
        let is_new = !names.contains(&name);
        if is_new {
            names.insert(name, ());
        }
        is_new
    }

    /// It is new again.
    pub fn forget(&self, name: &str) {
        self.0.lock().remove(&XxHash3_128::oneshot(name.as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_new_once_and_names_are_bounded() {
        let recent = RecentNames::default();
        assert!(recent.add("m") && !recent.add("m") && recent.add("n"));
        recent.forget("m");
        assert!(recent.add("m"));
        (0..5 * REMEMBERED_NAMES).for_each(|n| assert!(recent.add(&n.to_string())));
        assert!(recent.add("m"), "it is forgotten");
    }
}
