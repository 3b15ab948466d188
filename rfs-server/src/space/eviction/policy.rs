//! Rules of eviction, and the marks at which it begins and ends. No I/O, no locks, no clock.
//!
//! # Concurrency
//! Plain values.

use std::time::Duration;

/// Files go when more than this part of the space or of the inodes is in use, in percent.
const HIGH_MARK: u64 = 90;
/// Then files go until no more than this part is in use, in percent.
const LOW_MARK: u64 = 85;
/// The longest time between two looks for files that are too old.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Rules by which files leave an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictionPolicy {
    /// Files go when space or inodes run short, the least recently used file first.
    pub by_use: bool,
    /// Time from the last change of a file until it goes, whether or not space is short.
    pub ttl: Option<Duration>,
}

impl EvictionPolicy {
    /// Parses an option of an export: `evict=lru`, `ttl=SECONDS` or `evict=ttl=SECONDS`. Returns
    /// false for another option.
    ///
    /// # Errors
    /// A message for the user.
    pub fn parse(&mut self, option: &str) -> Result<bool, String> {
        let value = option.strip_prefix("evict=").unwrap_or(option);
        let seconds = value.strip_prefix("ttl=");
        match (value, seconds) {
            (_, Some(seconds)) => self.ttl = Some(parse_ttl(seconds)?),
            ("lru", _) if value != option => self.by_use = true,
            _ if value != option => {
                return Err(format!(
                    "invalid eviction {value:?}: give evict=lru, which removes unused files when space is short, or \
                     ttl=SECONDS, which removes old files"
                ));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the longest time between two looks for files that are too old; `None` without a TTL.
    /// A file may be closed, or the wall clock may jump, while the evictor sleeps.
    pub fn longest_pause(&self) -> Option<Duration> {
        self.ttl.map(|ttl| (ttl / 10).min(MAX_PAUSE))
    }

    /// Returns true if any file may go.
    pub fn is_on(&self) -> bool {
        self.by_use || self.ttl.is_some()
    }
}

fn parse_ttl(seconds: &str) -> Result<Duration, String> {
    let parsed = seconds.parse::<u32>().ok().filter(|seconds| *seconds > 0);
    let invalid = || format!("invalid ttl {seconds:?}: give a number of seconds from 1 on, such as ttl=3600");
    parsed.map(|seconds| Duration::from_secs(seconds.into())).ok_or_else(invalid)
}

/// How full an export is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filling {
    /// Bytes of the export.
    pub bytes: u64,
    /// Bytes that are free, or will be without another eviction.
    pub free_bytes: u64,
    /// Inodes of the export.
    pub inodes: u64,
    /// Inodes that are free, or will be without another eviction.
    pub free_inodes: u64,
}

impl Filling {
    /// Returns true if eviction begins.
    pub fn is_high(&self) -> bool {
        is_above(self.bytes, self.free_bytes, HIGH_MARK) || is_above(self.inodes, self.free_inodes, HIGH_MARK)
    }

    /// Returns the shortage of which eviction that has begun goes on; `None` if it ends.
    pub fn shortage(&self) -> Option<Shortage> {
        if is_above(self.inodes, self.free_inodes, LOW_MARK) {
            Some(Shortage::Inodes)
        } else if is_above(self.bytes, self.free_bytes, LOW_MARK) {
            Some(Shortage::Bytes)
        } else {
            None
        }
    }
}

fn is_above(all: u64, free: u64, mark: u64) -> bool {
    u128::from(all.saturating_sub(free)) * 100 > u128::from(all) * u128::from(mark)
}

/// The shortage that an eviction is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Bytes are short: a file helps if it has space that is handed out again.
    Bytes,
    /// Inodes are short, and maybe bytes. Each file helps.
    Inodes,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(options: &[&str]) -> Result<EvictionPolicy, String> {
        let mut policy = EvictionPolicy::default();
        for option in options {
            assert!(policy.parse(option)?, "{option}");
        }
        Ok(policy)
    }

    #[test]
    fn options_of_an_export() {
        let ttl = Some(Duration::from_secs(60));
        assert_eq!(parse(&["evict=lru"]), Ok(EvictionPolicy { by_use: true, ttl: None }));
        assert_eq!(parse(&["ttl=60"]), Ok(EvictionPolicy { by_use: false, ttl }));
        assert_eq!(parse(&["evict=ttl=60"]), parse(&["ttl=60"]));
        assert_eq!(parse(&["evict=lru", "ttl=60"]), Ok(EvictionPolicy { by_use: true, ttl }));
        for (wrong, says) in [
            ("evict=", "evict=lru"),
            ("evict=lfu", "\"lfu\""),
            ("evict=ttl", "ttl=SECONDS"),
            ("ttl=0", "from 1 on"),
            ("ttl=1h", "\"1h\""),
            ("ttl=-1", "ttl=3600"),
            ("evict=ttl=", "\"\""),
        ] {
            let message = parse(&[wrong]).unwrap_err();
            assert!(message.contains(says), "{wrong}: {message}");
        }
        for other in ["lru", "inodes=7", "", "evict"] {
            assert_eq!(EvictionPolicy::default().parse(other), Ok(false), "{other}");
        }
    }

    #[test]
    fn pauses_are_a_tenth_of_the_ttl() {
        let pause = |ttl| EvictionPolicy { by_use: true, ttl }.longest_pause();
        assert_eq!(pause(None), None);
        assert_eq!(pause(Some(Duration::from_secs(2))), Some(Duration::from_millis(200)));
        assert_eq!(pause(Some(Duration::from_secs(3600))), Some(MAX_PAUSE));
    }

    #[test]
    fn marks() {
        let full = |free_bytes, free_inodes| Filling { bytes: 1000, free_bytes, inodes: 1000, free_inodes };
        let above = |filling: Filling| (filling.is_high(), filling.shortage().is_some());
        assert_eq!(above(full(1000, 1000)), (false, false));
        assert_eq!(above(full(99, 1000)), (true, true));
        assert_eq!(above(full(100, 1000)), (false, true));
        assert_eq!(above(full(150, 1000)), (false, false));
        assert_eq!(above(full(1000, 99)), (true, true), "inodes count, too");
        assert_eq!(above(full(u64::MAX, u64::MAX)), (false, false), "more is free than there is");
        assert_eq!(above(Filling::default()), (false, false));
    }

    proptest! {
        /// A run that ends never leaves an export in which the next one begins at once.
        #[test]
        fn the_low_mark_is_below_the_high_mark(bytes: u64, free: u64, inodes: u64, free_inodes: u64) {
            let filling = Filling { bytes, free_bytes: free, inodes, free_inodes };
            prop_assert!(!filling.is_high() || filling.shortage().is_some());
        }
    }
}
