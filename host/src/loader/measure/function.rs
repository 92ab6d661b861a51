//! What one function costs the compiler beyond its bytes.
//!
//! For each local the compiler finds out which value it has at each place where ways of the program meet, so that its time
//! and memory grow with locals times such places: 50,000 locals take 10 bytes, and 600 KB of blocks then take gigabytes.

use wasmparser::{FunctionBody, Operator};

use super::broken;
use crate::error::Error;

/// Locals times places where ways meet.
pub(super) fn ways(body: &FunctionBody) -> Result<u64, Error> {
    let mut locals = 1_u64;
    for declared in body.get_locals_reader().map_err(broken)? {
        locals = locals.saturating_add(declared.map_err(broken)?.0.into());
    }
    let mut meetings = 0_u64;
    let mut operators = body.get_operators_reader().map_err(broken)?;
    while !operators.eof() {
        meetings += match operators.read().map_err(broken)? {
            Operator::Block { .. } | Operator::Loop { .. } | Operator::If { .. } | Operator::Else => 1,
            Operator::Br { .. } | Operator::BrIf { .. } => 1,
            Operator::BrTable { targets } => u64::from(targets.len()) + 1,
            _ => 0,
        };
    }
    Ok(locals.saturating_mul(meetings))
}
