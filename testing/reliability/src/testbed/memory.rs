//! Memory usage of a process, from `/proc`.

use std::fs;

use crate::error::{Error, Result};

/// Memory usage of a process, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Resident memory, including shared memory.
    pub(crate) resident: u64,
    /// Private anonymous memory: heap and stacks.
    pub(crate) own: u64,
}

impl Memory {
    /// Returns the memory usage of a process.
    pub(crate) fn of(process: u32) -> Result<Memory> {
        let path = format!("/proc/{process}/status");
        let status = fs::read_to_string(path).map_err(Error::io("memory of a process"))?;
        parse(&status).ok_or_else(|| Error::Wrong(format!("process {process} has no memory: it has ended")))
    }
}

fn parse(status: &str) -> Option<Memory> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').trim().strip_suffix("kB")?.trim().parse().ok()
    };
    Some(Memory { resident: field("VmRSS")?, own: field("RssAnon")? })
}

/// Returns the change from `from` to `to` in percent of `from`.
pub(crate) fn growth(from: u64, to: u64) -> f64 {
    (to as f64 - from as f64) * 100.0 / from.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_status_file() {
        let status = "Name:\trfs-server\nVmRSS:\t  266240 kB\nRssAnon:\t    4096 kB\nRssFile:\t 1 kB\n";
        assert_eq!(parse(status), Some(Memory { resident: 266_240, own: 4096 }));
        assert_eq!(parse("Name:\tzombie\nState:\tZ\n"), None);
    }

    #[test]
    fn growth_is_negative_for_a_decrease() {
        assert_eq!((growth(200, 203), growth(200, 199)), (1.5, -0.5));
    }
}
