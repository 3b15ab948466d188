//! Settings of the library, from environment variables.
//!
//! # Concurrency
//! Pure.

use rdmabox::{Address, Key, Session};
use rfs_paging::{PagerOptions, Switches};

/// Smallest value of [`MIN_SIZE`].
const MIN_SIZE_LIMIT: usize = 64 << 10;

/// Local budget in bytes. The library is idle without it.
pub(crate) const LOCAL: &str = "RFS_PAGING_LOCAL";
/// Addresses of the servers, separated by commas.
pub(crate) const SERVERS: &str = "RFS_PAGING_SERVERS";
/// The redundancy of pages, such as `mirror`.
pub(crate) const REDUNDANCY: &str = "RFS_PAGING_REDUNDANCY";
/// Length of the longest block that sequential faults read, in bytes.
pub(crate) const READ_AHEAD: &str = "RFS_PAGING_READ_AHEAD";
/// `0` leaves the fault thread where the kernel puts it.
pub(crate) const FOLLOW: &str = "RFS_PAGING_FOLLOW";
/// Length in bytes from which allocations are paged.
pub(crate) const MIN_SIZE: &str = "RFS_PAGING_MIN_SIZE";
/// Address space for small allocations in bytes; none are paged without it.
pub(crate) const SMALL: &str = "RFS_PAGING_SMALL";
/// Path of a file with the key for the servers.
pub(crate) const KEY: &str = "RFS_PAGING_KEY";
/// Switches of the runtime, such as `batch=single,queue-pairs=1`.
pub(crate) const SWITCHES: &str = "RFS_PAGING_SWITCHES";
/// `1` prints the counters when the program ends, but not when a child of `fork` does.
pub(crate) const STATS: &str = "RFS_PAGING_STATS";

/// The process whose memory is paged. The first process with the library sets it; `exec` keeps it.
pub(crate) const PROCESS: &str = "RFS_PAGING_PROCESS";

/// All variables.
pub(crate) const ALL: [&str; 11] =
    [LOCAL, SERVERS, REDUNDANCY, READ_AHEAD, FOLLOW, MIN_SIZE, SMALL, KEY, SWITCHES, STATS, PROCESS];

/// The settings in the variables.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) servers: Vec<Address>,
    pub(crate) options: PagerOptions,
    pub(crate) min_size: usize,
    /// Zero if small allocations are not paged.
    pub(crate) small: usize,
    pub(crate) prints_stats: bool,
}

impl Settings {
    /// Reads the variables with `get`. `None` if the library is not configured.
    ///
    /// # Errors
    /// The name of a variable, and the reason.
    pub(crate) fn read(get: impl Fn(&str) -> Option<String>) -> Result<Option<Settings>, String> {
        let Some(local) = get(LOCAL) else { return Ok(None) };
        let mut options = PagerOptions::new(number(LOCAL, &local)?);
        if let Some(redundancy) = get(REDUNDANCY) {
            options.redundancy = redundancy.parse().map_err(|error| format!("{REDUNDANCY}: {error}"))?;
        }
        if let Some(read_ahead) = get(READ_AHEAD) {
            options.read_ahead = number(READ_AHEAD, &read_ahead)?;
        }
        options.follow = get(FOLLOW).is_none_or(|value| value != "0");
        if let Some(path) = get(KEY) {
            let key = Key::load(path.as_ref()).map_err(|error| format!("{KEY}: {error}"))?;
            options.session = Session::builder().options(options.session).key(key).into_options();
        }
        if let Some(switches) = get(SWITCHES) {
            let switches: Switches = switches.parse().map_err(|error| format!("{SWITCHES}: {error}"))?;
            switches.apply(&mut options.session);
        }
        let servers = get(SERVERS).unwrap_or_default();
        let address = |text: &str| text.parse().map_err(|error| format!("{SERVERS}: {error}"));
        let servers =
            servers.split(',').filter(|text| !text.is_empty()).map(address).collect::<Result<_, _>>()?;
        let min_size = get(MIN_SIZE).map_or(Ok(1 << 20), |size| number(MIN_SIZE, &size))? as usize;
        let small = get(SMALL).map_or(Ok(0), |size| number(SMALL, &size))? as usize;
        Ok(Some(Settings {
            servers,
            options,
            min_size: min_size.max(MIN_SIZE_LIMIT),
            small,
            prints_stats: get(STATS).is_some_and(|value| value == "1"),
        }))
    }
}

fn number(name: &str, text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{name} is {text:?}, not a number of bytes"))
}

/// Removes this library from a list as in `LD_PRELOAD`.
pub(crate) fn without_this_library(list: &str) -> String {
    let is_other = |path: &&str| !path.is_empty() && !path.contains("librfs_paging_preload");
    list.split([':', ' ']).filter(is_other).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use rfs_paging::Redundancy;

    use super::*;

    fn read(values: &[(&str, &str)]) -> Result<Option<Settings>, String> {
        let find = |name: &str| values.iter().find(|(key, _)| *key == name);
        Settings::read(|name| find(name).map(|(_, value)| value.to_string()))
    }

    #[test]
    fn the_library_is_idle_without_a_budget() {
        assert!(read(&[(SERVERS, "10.0.0.1:7450")]).expect("valid").is_none());
    }

    #[test]
    fn all_variables_are_read() {
        let settings = read(&[
            (LOCAL, "1048576"),
            (SERVERS, "10.0.0.1:7450,unix:/run/lend.sock"),
            (REDUNDANCY, "2+1"),
            (MIN_SIZE, "1"),
            (READ_AHEAD, "4096"),
            (SMALL, "67108864"),
            (SWITCHES, "queue-pairs=2"),
            (STATS, "1"),
        ]);
        let settings = settings.expect("valid").expect("a budget");
        assert_eq!(settings.options.session.queue_pairs, 2);
        assert_eq!((settings.servers.len(), settings.min_size), (2, 64 << 10));
        assert_eq!(settings.options.redundancy, Redundancy::Coded { data: 2, parity: 1 });
        assert_eq!(settings.small, 64 << 20);
        assert!(settings.prints_stats);
        for wrong in [(LOCAL, "much"), (SERVERS, "unix:"), (REDUNDANCY, "-1")] {
            assert!(read(&[wrong, (LOCAL, "1048576")]).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn children_run_without_the_library() {
        assert_eq!(without_this_library("/x/librfs_paging_preload.so"), "");
        assert_eq!(without_this_library("/a.so:/x/librfs_paging_preload.so /b.so"), "/a.so:/b.so");
    }
}
