//! Where a chunk is looked for, and where else.

use crate::backend::Layout;

/// Where a chunk is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lookup {
    pub first: Layout,
    /// Where it is looked for if it is not there.
    pub then: Option<Layout>,
}

impl Lookup {
    pub(super) const PLAIN: Lookup = Lookup { first: Layout::Plain, then: None };
    pub(super) const PLAIN_FIRST: Lookup = Lookup { first: Layout::Plain, then: Some(Layout::Enveloped) };

    pub(super) fn enveloped(then_plain: bool) -> Self {
        Lookup { first: Layout::Enveloped, then: then_plain.then_some(Layout::Plain) }
    }

    /// Where it is looked for in a turn, of two.
    pub fn layout(self, turn: usize) -> Option<Layout> {
        if turn == 0 { Some(self.first) } else { self.then }
    }
}
