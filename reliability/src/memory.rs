//! How much memory a process has, as the kernel counts it.

use std::fs;

use crate::{Error, Result};

/// Memory of a process, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// All that is there of it, shared memory too.
    pub(crate) resident: u64,
    /// What belongs to it alone: heap and stacks.
    pub(crate) own: u64,
}

impl Memory {
    /// That of a process.
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

/// How much more one is than another, in percent of that.
pub(crate) fn growth(from: u64, to: u64) -> f64 {
    (to as f64 - from as f64) * 100.0 / from.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read() {
        let status = "Name:\trfs-server\nVmRSS:\t  266240 kB\nRssAnon:\t    4096 kB\nRssFile:\t 1 kB\n";
        assert_eq!(parse(status), Some(Memory { resident: 266_240, own: 4096 }));
        assert_eq!(parse("Name:\tzombie\nState:\tZ\n"), None);
    }

    #[test]
    fn growth_has_a_sign() {
        assert_eq!((growth(200, 203), growth(200, 199)), (1.5, -0.5));
    }
}
