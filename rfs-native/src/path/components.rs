//! The components of a path. No I/O, no locks, no clock.

use rfs_proto::{Errno, MAX_NAME};

/// Maximum length of a path in bytes, as PATH_MAX less the NUL.
pub(crate) const MAX_PATH: usize = 4095;

/// Checks a path.
///
/// # Errors
/// ENOENT if it is empty, ENAMETOOLONG beyond 4095 bytes, EINVAL if it contains a NUL.
pub(crate) fn check_path(path: &[u8]) -> Result<(), Errno> {
    match path.len() {
        0 => Err(Errno::ENOENT),
        1..=MAX_PATH if path.contains(&0) => Err(Errno::EINVAL),
        1..=MAX_PATH => Ok(()),
        _ => Err(Errno::ENAMETOOLONG),
    }
}

/// Checks the length of a name.
///
/// # Errors
/// ENAMETOOLONG beyond 255 bytes.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() <= MAX_NAME { Ok(()) } else { Err(Errno::ENAMETOOLONG) }
}

/// The components of a path, without empty ones.
#[derive(Clone, Debug)]
pub(crate) struct Components<'p> {
    rest: &'p [u8],
}

impl<'p> Components<'p> {
    pub(crate) fn of(path: &'p [u8]) -> Components<'p> {
        Components { rest: path }
    }

    fn skip_slashes(&mut self) {
        let slashes = self.rest.iter().take_while(|byte| **byte == b'/').count();
        self.rest = &self.rest[slashes..];
    }

    /// Returns the next component, and whether it is the last one.
    pub(crate) fn next(&mut self) -> Option<(&'p [u8], bool)> {
        self.skip_slashes();
        if self.rest.is_empty() {
            return None;
        }
        let end = self.rest.iter().position(|byte| *byte == b'/').unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        self.skip_slashes();
        Some((name, self.rest.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(path: &[u8]) -> Vec<&[u8]> {
        let mut components = Components::of(path);
        std::iter::from_fn(|| components.next()).map(|(name, _)| name).collect()
    }

    #[test]
    fn slashes_separate() {
        assert_eq!(all(b"/a//b/"), [b"a", b"b"]);
        assert_eq!(all(b"///"), Vec::<&[u8]>::new());
        assert_eq!(Components::of(b"a/").next(), Some((&b"a"[..], true)));
        assert_eq!(Components::of(b"a/b").next(), Some((&b"a"[..], false)));
    }

    #[test]
    fn paths_have_limits() {
        assert_eq!(check_path(b""), Err(Errno::ENOENT));
        assert_eq!(check_path(&[b'a'; MAX_PATH]), Ok(()));
        assert_eq!(check_path(&[b'a'; MAX_PATH + 1]), Err(Errno::ENAMETOOLONG));
        assert_eq!(check_path(b"a\0b"), Err(Errno::EINVAL));
        assert_eq!(check_name(&[b'a'; 255]), Ok(()));
        assert_eq!(check_name(&[b'a'; 256]), Err(Errno::ENAMETOOLONG));
    }

    proptest! {
        #[test]
        fn components_are_those_of_a_split(path in prop::collection::vec(prop::sample::select(b"ab/.".to_vec()), 0..40)) {
            let split: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
            prop_assert_eq!(all(&path), split.clone());
            let mut components = Components::of(&path);
            let lasts: Vec<bool> = std::iter::from_fn(|| components.next()).map(|(_, last)| last).collect();
            let expected: Vec<bool> = (1..=split.len()).map(|at| at == split.len()).collect();
            prop_assert_eq!(lasts, expected);
        }
    }
}
