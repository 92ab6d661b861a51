//! todo
use crate::place::Place;
pub fn run(_place: &Place, _json: bool) -> anyhow::Result<()> {
    Ok(())
}
