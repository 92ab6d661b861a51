//! Names of manifests that are easily taken for one another. The host ends each name in a character of its own, so these go to the
//! instances as they are, unless the backend takes no others than the host's.

use kv_store_wasm::raw::backend::stored_name;

use super::CaseResult;
use super::tap::Instances;

/// Ends of names that a path, a query or a file system takes for the same, or for something else.
const ENDS: [&str; 20] = [
    "x", "X", "x/", "x//", "/x", "x/.", "x/..", "x?", "x?y", "x?z", "x#y", "x%2f", "x%2F", "x+", "x ", "x.", "x\\",
    "x&y=z", "x;y", "x*",
];

pub fn run(instances: &Instances, salt: u64) -> CaseResult {
    let names = ENDS.map(|end| format!("names~{:016x}/{end}", salt));
    let [first, ..] = &names;
    let names = if instances.publish_as_is(first, &[1; 50])? { names } else { names.map(|name| stored_name(&name)) };
    let verdict = (|| {
        for (name, number) in names.iter().zip(1..) {
            if !instances.publish_as_is(name, &[number; 50])? {
                return Err(format!("commit: does not publish {name:?}"));
            }
        }
        for (name, number) in names.iter().zip(1_u8..) {
            let found = instances.manifest_as_is(name)?;
            if !found.is_some_and(|found| found.starts_with(&[number; 50])) {
                return Err(format!("get-manifest: {name:?} is not what was published under this name"));
            }
        }
        let (removed, kept) = names.split_at(ENDS.len() / 2);
        removed.iter().try_for_each(|name| instances.delete_manifest_as_is(name))?;
        for (list, there) in [(removed, false), (kept, true)] {
            for name in list {
                if instances.manifest_as_is(name)?.is_some() != there {
                    let what = if there { "was removed with another one" } else { "is there after its removal" };
                    return Err(format!("the manifest {name:?} {what}"));
                }
            }
        }
        Ok(())
    })();
    names.iter().for_each(|name| drop(instances.delete_manifest_as_is(name)));
    verdict
}
