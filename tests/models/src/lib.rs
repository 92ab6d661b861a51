//! Each backend's protocol of manifests as a small model, searched by `stateright` for an order of events that undoes an acknowledged
//! change. `docs/models.md` says what was found.

pub mod check;
pub mod cluster;
pub mod history;
pub mod hold;
pub mod local_fs;
pub mod memkv;
pub mod mooncake;
pub mod redis;
pub mod s3;
pub mod sessions;

use check::Case;

/// Every variant of every model.
pub fn cases() -> Vec<Case> {
    let models = [local_fs::cases, memkv::cases, redis::cases, cluster::cases, s3::cases, mooncake::cases, hold::cases];
    models.into_iter().flat_map(|cases| cases()).collect()
}

#[cfg(test)]
mod tests {
    /// Each variant does what it is known to do: those of today break, and how; those to be built hold in every state.
    #[test]
    fn every_variant_does_what_it_is_known_to_do() {
        let cases = super::cases();
        let outcomes: Vec<_> = cases.iter().map(super::check::Case::run).collect();
        let wrong: Vec<String> = outcomes
            .iter()
            .filter(|outcome| !outcome.as_expected)
            .map(|outcome| {
                let super::check::Outcome { model, variant, scenario, breaks, steps, impossible, .. } = outcome;
                format!("{model}, {variant}, {scenario}: breaks {breaks:?} by {steps:?}, never {impossible:?}")
            })
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        // A search that looks at next to nothing shows nothing.
        let held = cases.iter().zip(&outcomes).filter(|(case, _)| case.expects == super::check::Expects::Holds);
        for (case, outcome) in held {
            assert!(outcome.states > 200, "{}, {}: {} states", case.model, case.variant, outcome.states);
        }
    }
}
