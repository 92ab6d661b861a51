//! Relative paths as guests may write them. Checked once, by a pure function, before anything is opened.

use crate::error::Error;

/// Segments of 1 to 255 bytes joined by `/`, none of them `.`, `..`, or the host's own `.kv-...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelativePath {
    path: String,
    name_at: usize,
}

/// The longest path that Linux resolves, less its NUL.
const MAX_PATH_BYTES: usize = 4095;

impl RelativePath {
    pub fn parse(path: String) -> Result<Self, Error> {
        if path.len() > MAX_PATH_BYTES {
            return Err(Error::invalid(format!("a path of {} bytes is too long", path.len())));
        }
        // Many bytes at a time: this is done for each file of each batch.
        let (bytes, mut begin) = (path.as_bytes(), 0);
        let mut fine = memchr::memchr3(b'\0', b'\\', b':', bytes).is_none();
        for at in memchr::memchr_iter(b'/', bytes) {
            fine &= is_segment(bytes, begin, at);
            begin = at + 1;
        }
        if !(fine && is_segment(bytes, begin, bytes.len())) {
            return Err(Error::invalid(format!("{path:?} is no path that a component may use")));
        }
        Ok(RelativePath { path, name_at: begin })
    }

    pub fn as_str(&self) -> &str {
        &self.path
    }

    /// The last segment.
    pub fn name(&self) -> &str {
        self.path.get(self.name_at..).unwrap_or_default()
    }

    /// The path of the directory that it lies in; "" for the granted one.
    pub fn parent(&self) -> &str {
        self.path.get(..self.name_at.saturating_sub(1)).unwrap_or_default()
    }

    /// The directories on the way, the nearest first, the granted one ("") last.
    pub fn ancestors(&self) -> impl Iterator<Item = &str> {
        std::iter::successors(Some(self.parent()), |path| {
            (!path.is_empty()).then(|| path.rsplit_once('/').map_or("", |(upper, _)| upper))
        })
    }
}

/// Whether the bytes between two places may be a segment, as far as its length and its first bytes tell.
fn is_segment(bytes: &[u8], begin: usize, end: usize) -> bool {
    let segment = bytes.get(begin..end).unwrap_or_default();
    (1..=255).contains(&segment.len())
        && (segment.first() != Some(&b'.') || !(segment == b"." || segment == b".." || segment.starts_with(b".kv-")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_lead_elsewhere_is_refused() {
        for path in ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.", ".kv-tmp", "a/.kv-x", "a\\b", "c:", "a\0"]
        {
            assert!(RelativePath::parse(path.into()).is_err(), "{path:?}");
        }
        assert!(RelativePath::parse("x".repeat(256)).is_err());
        assert!(RelativePath::parse("x/".repeat(3000) + "x").is_err());
    }

    #[test]
    fn a_path_knows_its_parts() {
        let path = RelativePath::parse("a/b/...".into()).unwrap();
        assert_eq!((path.parent(), path.name()), ("a/b", "..."));
        assert_eq!(path.ancestors().collect::<Vec<_>>(), ["a/b", "a", ""]);
        let top = RelativePath::parse("a".into()).unwrap();
        assert_eq!((top.parent(), top.name(), top.ancestors().count()), ("", "a", 1));
    }

    proptest::proptest! {
        #[test]
        fn what_is_accepted_leads_down(path in "(\\PC|/|\\.){0,60}") {
            if let Ok(path) = RelativePath::parse(path) {
                let segments: Vec<&str> = path.as_str().split('/').collect();
                assert!(segments.iter().all(|segment| !segment.is_empty() && *segment != "." && *segment != ".."));
                assert_eq!(path.ancestors().count(), segments.len());
            }
        }
    }
}
