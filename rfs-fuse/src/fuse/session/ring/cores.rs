//! Assigns the queues of a mount to threads.
//!
//! Only [`Cores::of_system`] does I/O. No locks, no clock.

use std::{fs, io};

/// Lists of the cores that the system may have, and that are online.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// The cores of a system. The kernel has a queue for each possible core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cores {
    /// True for a core that is online, by core number.
    online: Vec<bool>,
}

/// The queues of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// The core that the thread is bound to.
    pub(super) core: Option<usize>,
    pub(super) queues: Vec<u16>,
}

impl Cores {
    pub(super) fn of_system() -> io::Result<Cores> {
        let (possible, online) = (fs::read_to_string(POSSIBLE)?, fs::read_to_string(ONLINE)?);
        Cores::read(&possible, &online).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Parses lists of the system, such as `0-3,8`.
    fn read(possible: &str, online: &str) -> Option<Cores> {
        let count = list(possible)?.into_iter().max()?.checked_add(1)?;
        // Queue numbers have 16 bits.
        let mut cores = vec![false; count.min(usize::from(u16::MAX) + 1)];
        for core in list(online)? {
            *cores.get_mut(core)? = true;
        }
        Some(Cores { online: cores })
    }
}

fn list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        numbers.extend((first..=last).map(usize::from));
    }
    Some(numbers)
}

/// Assigns `threads` threads to each online core. As many threads together serve the queues of
/// all other cores, from which requests rarely come.
pub(super) fn shares(cores: &Cores, threads: usize) -> Vec<Share> {
    let queue = |core: usize| core as u16;
    let (mut shares, mut unused) = (Vec::new(), Vec::new());
    for (core, online) in cores.online.iter().enumerate() {
        match online {
            true => {
                let share = Share { core: Some(core), queues: vec![queue(core)] };
                shares.extend(std::iter::repeat_n(share, threads));
            }
            false => unused.push(queue(core)),
        }
    }
    if !unused.is_empty() {
        shares.extend(std::iter::repeat_n(Share { core: None, queues: unused }, threads));
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_parsed() {
        assert_eq!(Cores::read("0-1\n", "0-1\n"), Some(Cores { online: vec![true, true] }));
        let gaps = Cores::read("0-4\n", "0,2-3\n").unwrap();
        assert_eq!(gaps.online, [true, false, true, true, false]);
        for (possible, online) in [("", "0"), ("0", "a"), ("0-1", "2"), ("1-x", "0")] {
            assert_eq!(Cores::read(possible, online), None, "{possible:?} {online:?}");
        }
    }

    #[test]
    fn each_online_core_has_its_threads_and_the_others_share_some() {
        let cores = Cores::read("0-3", "0,2").unwrap();
        let on = |core: u16| Share { core: Some(core.into()), queues: vec![core] };
        let rest = Share { core: None, queues: vec![1, 3] };
        assert_eq!(shares(&cores, 2), [on(0), on(0), on(2), on(2), rest.clone(), rest]);
        assert_eq!(shares(&Cores::read("0", "0").unwrap(), 1), [on(0)]);
    }
}
