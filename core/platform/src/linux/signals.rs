//! `sigtimedwait`.

/// Take one signal of a set, if it is pending; never wait.
pub fn take_pending(set: &libc::sigset_t) {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both are ours and filled.
    unsafe { libc::sigtimedwait(set, std::ptr::null_mut(), &now) };
}
