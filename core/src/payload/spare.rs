//! Memory that this thread has ready for what it is about to receive, so that it is not fresh: fresh memory costs a page fault
//! for each 4 KiB.

use std::cell::RefCell;

use super::Buffer;

thread_local! {
    static READY: RefCell<Vec<Buffer>> = const { RefCell::new(Vec::new()) };
}

/// Run work whose new buffers use these where their lengths are the same; returns what is left of them too.
pub fn with_ready<T>(buffers: Vec<Buffer>, work: impl FnOnce() -> T) -> (T, Vec<Buffer>) {
    READY.set(buffers);
    let done = work();
    (done, READY.take())
}

/// Ready memory of this length, if there is some.
pub(super) fn take(len: u64) -> Option<Buffer> {
    READY.with_borrow_mut(|ready| {
        let at = ready.iter().rposition(|buffer| buffer.len() as u64 == len)?;
        Some(ready.swap_remove(at))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_ready_is_used_for_what_is_as_long() {
        let [five, six] = [5, 6].map(|len| Buffer::concat(&[&vec![1; len]]).unwrap());
        let place = five.as_ptr();
        let (filled, left) =
            with_ready(vec![five, six], || [b"abcde", b"fghij"].map(|text| Buffer::concat(&[text]).unwrap()));
        assert_eq!((&*filled[0], &*filled[1], filled[0].as_ptr()), (&b"abcde"[..], &b"fghij"[..], place));
        assert!(left.len() == 1 && left[0].len() == 6);
        assert!(take(6).is_none(), "nothing is ready any more");
    }
}
