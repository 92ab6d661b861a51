//! A panic of ours is a line of the log and an error, and prints nothing else: the standard library's message goes to
//! standard error under a lock and waits for who reads it, so that a full pipe would hold the thread that panicked.
//!
//! The process may have panics of its own, where the library is linked into a Rust program: those of threads that are not in
//! our code go on to the hook that was there before.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::atomic::{AtomicBool, Ordering::AcqRel};

use crate::log::{self, Level};

thread_local! {
    /// How many of our entries this thread is in.
    static WITHIN: Cell<u32> = const { Cell::new(0) };
}

/// Run, with a panic turned into its text.
pub fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    struct LeaveGuard;
    impl Drop for LeaveGuard {
        fn drop(&mut self) {
            WITHIN.set(WITHIN.get().saturating_sub(1));
        }
    }
    install();
    WITHIN.set(WITHIN.get().saturating_add(1));
    let _leave = LeaveGuard;
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| text(&*panic).to_owned())
}

/// From now on all that this thread does is ours.
pub fn own_thread() {
    install();
    WITHIN.set(WITHIN.get().saturating_add(1));
}

fn install() {
    // Not a `Once`, which a fork in another thread could leave half done for ever.
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    // A hook cannot be changed by a thread that panics; the next one does it.
    if std::thread::panicking() || INSTALLED.swap(true, AcqRel) {
        return;
    }
    let former = take_hook();
    set_hook(Box::new(move |panic| if WITHIN.get() > 0 { report(panic) } else { former(panic) }));
}

fn report(panic: &PanicHookInfo) {
    let place = panic.location().map(|place| format!(" at {}:{}", place.file(), place.line())).unwrap_or_default();
    log::line(Level::Error, format_args!("a defect, please report it: panicked{place}: {}", text(panic.payload())));
}

fn text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_its_text_and_the_next_one_is_caught_too() {
        assert_eq!(caught(|| 7), Ok(7));
        assert_eq!(caught(|| panic!("one")), Err::<(), _>("one".into()));
        assert_eq!(caught(|| panic!("{}", 2)), Err::<(), _>("2".into()));
        assert_eq!(WITHIN.get(), 0);
    }

    #[test]
    fn a_full_pipe_holds_no_panic() {
        use std::os::fd::AsRawFd;
        let (reader, writer) = std::io::pipe().unwrap();
        assert!(crate::process::holds_in_a_child(AssertUnwindSafe(move || {
            // SAFETY: numbers only; one that waits for ever is killed.
            unsafe {
                libc::alarm(60);
                libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK);
                while libc::write(writer.as_raw_fd(), [0; 4096].as_ptr().cast(), 4096) > 0 {}
                libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, 0);
                libc::dup2(writer.as_raw_fd(), 2);
            }
            let caught = caught(|| panic!("held"));
            let open = reader.as_raw_fd() >= 0;
            open && caught == Err::<(), _>("held".into())
        })));
    }
}
