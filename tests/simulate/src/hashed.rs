//! Maps and sets by a hash that is fast and the same in each run.

use foldhash::fast::FixedState;

pub type HashMap<K, V> = std::collections::HashMap<K, V, FixedState>;
pub type HashSet<T> = std::collections::HashSet<T, FixedState>;
