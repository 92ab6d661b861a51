//! Memory that goes to the consumer, who frees it.

use std::ffi::{CString, c_int};
use std::ptr::null_mut;

use super::{bytes, expect};
use crate::{Case, Needs, Subject, Verdict};

pub const CASES: &[Case] = &[Case {
    name: "output-malloc",
    asks: "outputs are memory of the C library's malloc, the consumer's to grow and to free",
    needs: Needs::Nothing,
    run: malloc,
}];

fn malloc(subject: &Subject) -> Verdict {
    let (store, v) = (subject.fresh()?, subject.library.vtable());
    let (Some(get_chunk), Some(get_manifest)) = (v.get_chunk, v.get_manifest) else { return Ok(()) };
    let name = subject.c_name("m");
    for (number, len) in [(1, 1), (2, 100_000), (3, 3 << 20)] {
        let (key, data) = (subject.hash(number), bytes(number, len));
        expect("put_chunk", store.put_chunk(&key, &data)?, 0)?;
        expect("put_manifest", store.put_manifest(&subject.name("m"), &data)?, 0)?;
        // SAFETY: pointers to as many bytes as said, a C string, and valid outputs.
        taken("get_chunk", &data, |out, len| unsafe { get_chunk(store.raw, key.as_ptr(), key.len(), out, len) })?;
        // SAFETY: as above.
        taken("get_manifest", &data, |out, len| unsafe { get_manifest(store.raw, name.as_ptr(), out, len) })?;
    }
    Ok(())
}

/// Do with an output what its owner may do.
fn taken(call: &str, expected: &[u8], get: impl FnOnce(*mut *mut u8, *mut usize) -> c_int) -> Verdict {
    let (mut data, mut len) = (null_mut(), 0);
    expect(call, get(&mut data, &mut len), 0)?;
    expect(&format!("the length that {call} answered"), len, expected.len())?;
    // SAFETY: on success the output is `len` bytes of malloc, ours to look at, grow and free. A library that broke that
    // promise may end the process here.
    unsafe {
        let usable = kv_platform::memory::usable(data.cast());
        if usable < len || usable > len + len / 4 + 4096 {
            return Err(format!("{call} answered {len} bytes in memory of {usable}"));
        }
        let grown: *mut u8 = libc::realloc(data.cast(), len + 1).cast();
        if grown.is_null() {
            libc::free(data.cast());
            return Err(format!("the {len} bytes that {call} answered can not be grown"));
        }
        let same = std::slice::from_raw_parts(grown, len) == expected;
        libc::free(grown.cast());
        if same { Ok(()) } else { Err(format!("{call} answered other bytes than were put")) }
    }
}

impl Subject<'_> {
    /// [`Subject::name`] for raw calls.
    pub(super) fn c_name(&self, name: &str) -> CString {
        CString::new(self.name(name)).unwrap_or_default()
    }
}
