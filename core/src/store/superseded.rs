//! Manifests in layout 1 that a put in layout 2 has superseded. In a store that evicts, they are removed: once the newer one was
//! evicted, the older one would be answered.

use std::sync::Arc;

use super::open_store::OpenStore;
use crate::descriptor::Described;
use crate::log::{self, Level};

impl OpenStore {
    /// A manifest was published: remove what an earlier version published under its name, where the store may evict the newer
    /// one. By another thread: the save is done. Where it fails, the next put of the name tries again.
    pub(super) fn supersede(self: &Arc<Self>, name: &str) {
        if !self.reads_layout1(Described::NOT) || !self.may_evict() || !self.superseded.add(name) {
            return;
        }
        let (store, of_helper) = (self.clone(), name.to_owned());
        let handed = self.helpers().spawn_job(move || {
            let removed = store.enveloped.delete_layout1_manifest(&of_helper, &store.until());
            if let Err(error) = removed {
                store.superseded.forget(&of_helper);
                let uri = &store.uri;
                log::line(
                    Level::Warn,
                    format_args!(
                        "{uri}: manifest {of_helper:?} of an earlier version was superseded and stays: {error}"
                    ),
                );
            }
        });
        if !handed {
            self.superseded.forget(name);
        }
    }

    /// Whether something may leave the store that nobody removed. Of a directory it is known whether it is bounded; of a server, what its
    /// component says of it. One that keeps what it was given, and evicts nothing by itself, is asked nothing.
    fn may_evict(&self) -> bool {
        let bounded = self.kept.get().is_some_and(|kept| kept.evicts());
        let properties = self.features.properties;
        bounded || (self.reach.directory.is_none() && (properties.evicts || !properties.durable))
    }
}
