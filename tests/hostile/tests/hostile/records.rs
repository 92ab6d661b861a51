//! Guests that use a store of records as they must not.

use kv_store_wasm::ErrorKind::{Component, Exhausted, Invalid};

use super::{Case, case, fails, goes_on, open, place, probing};

/// A guest that asks of `records` what no backend would, all of which is refused or bounded.
fn lying(how: &'static str) -> Case {
    case(&format!("probe {how}"), move || {
        let folder = place(how);
        std::fs::create_dir_all(&folder).unwrap();
        let store = open(&format!("hostile-probe://{}", folder.display()));
        fails(Invalid, "refused", || store.get_manifest(&format!("do:{how}")));
        let files: Vec<_> =
            std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap()).collect();
        let bytes: u64 = files.iter().map(std::fs::Metadata::len).sum();
        assert!(bytes <= (32 << 20) + (4 << 20), "{bytes} bytes in {} files", files.len());
        goes_on(&store);
    })
}

pub fn cases() -> Vec<Case> {
    vec![
        probing("record-options", Component, "memory_bytes = 33554432"),
        lying("records-names"),
        lying("records-many"),
        lying("records-large"),
        case("probe records-flood", || {
            let folder = place("records-flood");
            std::fs::create_dir_all(&folder).unwrap();
            let store = open(&format!("hostile-probe://{}", folder.display()));
            fails(Exhausted, "requested > memory_bytes", || store.get_manifest("do:records-flood"));
            goes_on(&store);
        }),
    ]
}
