//! Options passed on to rfs-fuse and rfs-server.

use clap::Args;

/// Options passed on to rfs-fuse, which checks their values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Switches of the runtime (handed to rfs-fuse, which explains and checks them)")]
pub struct Switches {
    /// Combining of adjacent requests: single, merge, doorbell or hybrid.
    #[arg(long, value_name = "MODE")]
    pub batch: Option<String>,
    /// Data queue pairs of a session, 1 to 16.
    #[arg(long, value_name = "N")]
    pub queue_pairs: Option<String>,
    /// Bytes in flight: a number of bytes, or of powers of 1024, such as 7m.
    #[arg(long, value_name = "BYTES")]
    pub window: Option<String>,
    /// Requests up to this size are copied into registered memory: bytes, or auto.
    #[arg(long, value_name = "BYTES")]
    pub pre_mr_threshold: Option<String>,
    /// Polling for completions: busy, event, event-batch, hybrid, adaptive or shared-cq:M.
    #[arg(long, value_name = "MODE")]
    pub polling: Option<String>,
    /// Empty polls before an adaptive poller sleeps.
    #[arg(long, value_name = "N")]
    pub max_retry: Option<String>,
    /// Largest FUSE write (also passed to the null file system).
    #[arg(long, value_name = "BYTES")]
    pub max_write: Option<String>,
    /// Read-ahead of the kernel in bytes (also passed to the null file system).
    #[arg(long, value_name = "BYTES")]
    pub max_readahead: Option<String>,
    /// FUSE session threads: `--threads` of rfs-fuse (also passed to the null file system).
    #[arg(long, value_name = "N")]
    pub fuse_threads: Option<String>,
    /// Kernel caching: auto, none or writeback (also passed to the null file system).
    #[arg(long, value_name = "MODE")]
    pub cache: Option<String>,
    /// Disable the page cache (also passed to the null file system).
    #[arg(long)]
    pub direct_io: bool,
    /// Prefault all memory of the server (passed to rfs-server).
    #[arg(long)]
    pub prefault: bool,
    /// Other options of rfs-fuse: all arguments after `--`.
    #[arg(last = true, value_name = "RFS-FUSE OPTION")]
    pub extra: Vec<String>,
}

impl Switches {
    /// Returns true if the kernel caches pages of these mounts.
    pub fn keep_pages(&self) -> bool {
        !self.direct_io && self.cache.as_deref() != Some("none")
    }

    /// Returns the arguments for a mount of the null file system: only those that concern FUSE.
    pub fn fuse_args(&self) -> Vec<String> {
        let mut args = pairs(&[
            ("--max-write", &self.max_write),
            ("--max-readahead", &self.max_readahead),
            ("--threads", &self.fuse_threads),
            ("--cache", &self.cache),
        ]);
        args.extend(self.direct_io.then(|| "--direct-io".to_owned()));
        args
    }

    /// Returns all arguments for a mount of rfs.
    pub fn all_args(&self) -> Vec<String> {
        let mut args = pairs(&[
            ("--batch", &self.batch),
            ("--queue-pairs", &self.queue_pairs),
            ("--window", &self.window),
            ("--pre-mr-threshold", &self.pre_mr_threshold),
            ("--polling", &self.polling),
            ("--max-retry", &self.max_retry),
        ]);
        args.extend(self.fuse_args());
        args.extend(self.extra.iter().cloned());
        args
    }
}

fn pairs(options: &[(&str, &Option<String>)]) -> Vec<String> {
    options
        .iter()
        .filter_map(|(name, value)| value.as_ref().map(|value| [(*name).to_owned(), value.clone()]))
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parse;

    #[test]
    fn switches_are_passed_on() {
        let switches = parse::<Switches>(&[
            "--batch",
            "none",
            "--max-write=128k",
            "--direct-io",
            "--polling",
            "busy",
            "--fuse-threads=4",
            "--cache=writeback",
            "--",
            "--new-switch",
            "7",
        ]);
        let switches = switches.unwrap();
        assert_eq!(
            switches.fuse_args(),
            ["--max-write", "128k", "--threads", "4", "--cache", "writeback", "--direct-io"]
        );
        assert_eq!(
            switches.all_args(),
            [
                "--batch",
                "none",
                "--polling",
                "busy",
                "--max-write",
                "128k",
                "--threads",
                "4",
                "--cache",
                "writeback",
                "--direct-io",
                "--new-switch",
                "7"
            ]
        );
    }
}
