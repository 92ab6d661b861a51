//! How far a library lies from itself, and what it must come to beside a former one.

use std::collections::HashMap;

/// Beyond it a library is measured by what it does, and not by how long that takes.
pub const SPREAD: f64 = 0.03;
/// What a row must come to.
pub const GOAL: f64 = 0.97;

/// By row, how far a library lies from itself.
pub type Spreads = HashMap<String, f64>;
