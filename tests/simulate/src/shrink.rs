//! A history that breaks a rule is made shorter: steps, events and faults are left out as long as the same rule is broken.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::plan::{Less, Plan};
use crate::sim;
use crate::threads::Stacks;

/// What may be spent on it.
const AT_MOST: Duration = Duration::from_secs(20);

/// What is left of a history that breaks a rule.
pub fn shrink(plan: &Plan, rule: &str, stacks: &mut Stacks) -> Less {
    let begun = Instant::now();
    let mut breaks = |less: &Less| {
        begun.elapsed() < AT_MOST
            && sim::run(plan, less, stacks, false).violation.is_some_and(|violation| violation.rule == rule)
    };
    let steps = plan.steps().map(|step| step.number);
    let all: BTreeSet<u32> = steps.chain(plan.events.iter().map(|planned| planned.number)).collect();
    let mut less = Less { keep: Some(all.clone()), calm: BTreeSet::new() };
    if !breaks(&less) {
        return Less::default();
    }
    let mut shorter = true;
    while shorter {
        let (kept, calm) = (less.keep.clone().unwrap_or_default(), less.calm.clone());
        let fewer = without(&kept, |keep| breaks(&Less { keep: Some(keep.clone()), calm: calm.clone() }));
        // Without its faults a step may not be needed any more.
        let may_be_faulty: BTreeSet<u32> = fewer.difference(&calm).copied().collect();
        let faulty = without(&may_be_faulty, |faulty| {
            let calm = fewer.difference(faulty).copied().collect();
            breaks(&Less { keep: Some(fewer.clone()), calm })
        });
        shorter = fewer.len() < kept.len() || faulty.len() < may_be_faulty.len();
        let calm = fewer.difference(&faulty).copied().collect();
        less = Less { keep: Some(fewer), calm };
    }
    less
}

/// What is left of a set when parts of it were taken away, larger ones first, as long as something holds.
fn without(all: &BTreeSet<u32>, mut holds: impl FnMut(&BTreeSet<u32>) -> bool) -> BTreeSet<u32> {
    let mut left: Vec<u32> = all.iter().copied().collect();
    let mut size = left.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        while at < left.len() {
            let end = (at + size).min(left.len());
            let rest: BTreeSet<u32> = left[..at].iter().chain(&left[end..]).copied().collect();
            match holds(&rest) {
                true => left = rest.into_iter().collect(),
                false => at = end,
            }
        }
        if size == 1 {
            return left.into_iter().collect();
        }
        size = size.div_ceil(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_needed_is_left_out() {
        let all: BTreeSet<u32> = (1..100).collect();
        let needed = BTreeSet::from([3, 50, 51]);
        assert_eq!(without(&all, |left| needed.is_subset(left)), needed);
        assert!(without(&all, |_| true).is_empty());
        assert_eq!(without(&all, |_| false), all);
    }
}
