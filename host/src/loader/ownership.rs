//! Whether only this user, or root, decides what is found under a name.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// `S_ISVTX`, whose type is not the same on every system.
const STICKY: u32 = 0o1000;

/// Whether no other user can rename a directory on the way to this one, and so put another in its place: each belongs to this
/// user or to root, and is for its owner alone to write to, or has the sticky bit, like `/tmp`.
pub(super) fn check_way(real: &Path) -> Result<(), String> {
    for upper in real.ancestors().skip(1) {
        let meta = upper.symlink_metadata().map_err(|error| format!("{}: {error}", upper.display()))?;
        let upper = upper.display();
        if !owned_by_us(&meta) && meta.uid() != 0 {
            return Err(format!("lies below {upper}, which belongs to another user"));
        }
        if others_write(meta.mode(), meta.uid() == meta.gid()) && meta.mode() & STICKY == 0 {
            return Err(format!("lies below {upper}, where others can put another in its place (chmod go-w {upper})"));
        }
    }
    Ok(())
}

/// Whether others than the owner can write to something. A group of the owner's own number is the owner's own: so it is where
/// the umask is 002.
pub(super) fn others_write(mode: u32, own_group: bool) -> bool {
    let others = if own_group { 0o002 } else { 0o022 };
    mode & others != 0
}

pub(super) fn owned_by_us(meta: &Metadata) -> bool {
    meta.uid() == rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_of_ones_own_is_no_other() {
        assert!(others_write(0o770, false) && !others_write(0o770, true) && others_write(0o702, true));
        assert!(!others_write(0o755, false) && !others_write(0o755, true));
    }
}
