//! What one function costs the compiler beyond its bytes.
//!
//! For each local the compiler finds out which value it has at each place where ways of the program meet, so that its time
//! and memory grow with locals times such places: 50,000 locals take 10 bytes, and 600 KB of blocks then take gigabytes.
//!
//! Each loop has a check of the deadline at its head. 12 KB of the compiler's memory go into one, nested or not, and the time grows with the
//! square of their number: 10,000 took 130 MB and 9 s, 20,000 took 30 s.

use wasmparser::{FunctionBody, Operator};

use super::broken;
use crate::error::Error;

/// What one function costs.
pub(super) struct Cost {
    /// Locals times places where ways meet.
    pub ways: u64,
    pub loops: u64,
}

pub(super) fn cost(body: &FunctionBody) -> Result<Cost, Error> {
    let mut locals = 1_u64;
    for declared in body.get_locals_reader().map_err(broken)? {
        locals = locals.saturating_add(declared.map_err(broken)?.0.into());
    }
    let (mut meetings, mut loops) = (0_u64, 0);
    let mut operators = body.get_operators_reader().map_err(broken)?;
    while !operators.eof() {
        let operator = operators.read().map_err(broken)?;
        loops += u64::from(matches!(operator, Operator::Loop { .. }));
        meetings += match operator {
            Operator::Block { .. } | Operator::Loop { .. } | Operator::If { .. } | Operator::Else => 1,
            Operator::Br { .. } | Operator::BrIf { .. } => 1,
            Operator::BrTable { targets } => u64::from(targets.len()) + 1,
            _ => 0,
        };
    }
    Ok(Cost { ways: locals.saturating_mul(meetings), loops })
}
