//! `rfs-fuse scrub ADDRESS`: has a server verify all blocks of its files against their checksums.
//!
//! The server verifies 1 MiB per call. After each call the program pauses for as long as the call
//! took. A client of the files therefore waits for one call at most.
//!
//! # Concurrency
//! Runs on the main thread and takes no locks.

use std::{
    ffi::OsString,
    io::{self, IsTerminal, Write},
    thread,
    time::{Duration, Instant},
};

use clap::{CommandFactory, Parser};
use rdmabox::{
    Address, Key, KeyFileError, Session,
    tls::{TlsClient, TlsError},
};
use rfs_proto::{BLOCK, BadBlock, Verified};

use crate::cli::{Connection, USAGE, UsageError, parse};
use rfs_client::{AttachError, AttachOptions, Client, ClientError};
use rfs_status::logging::{self, LogFormat};

/// Exit code if a block is bad.
const BAD: u8 = 1;
/// Exit code if the scrub did not reach its end.
const FAILED: u8 = 3;

/// Has a server verify its files against their checksums (rfs-server --checksum), and lists every
/// bad block.
///
/// Files can be used meanwhile. A read-only key suffices. A bad block has changed since it was
/// written: reads of it fail with EIO. Writing the whole block, or the whole file, heals it.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "rfs-fuse scrub",
    override_usage = "rfs-fuse scrub [OPTIONS] ADDRESS",
    max_term_width = 110,
    after_help = "Exit status: 0 if no block is bad, 1 if a block is bad, 2 for an invalid command line, 3 if the scrub \
                  did not reach its end."
)]
pub(crate) struct ScrubArgs {
    /// The server's address, as for a mount
    #[arg(value_name = "ADDRESS")]
    address: Address,

    /// Do not pause between two calls
    #[arg(long)]
    full_speed: bool,

    #[command(flatten)]
    connection: Connection,
}

/// An error that ends a scrub early.
#[derive(Debug, thiserror::Error)]
enum ScrubError {
    #[error("{0}")]
    Usage(#[from] UsageError),
    #[error(transparent)]
    Key(#[from] KeyFileError),
    #[error("cannot use TLS: {0}")]
    Tls(#[from] TlsError),
    #[error("{0}")]
    Attach(#[from] AttachError),
    #[error("{0}")]
    Client(#[from] ClientError),
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
}

/// Totals of a scrub, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Outcome {
    blocks: u64,
    bad: u64,
}

impl Outcome {
    /// Adds the server's result for the blocks from `place` on.
    ///
    /// # Errors
    /// The server does not advance: the next place is `place` again.
    fn add(&mut self, place: (u64, u64), part: &Verified) -> Result<(), ScrubError> {
        if part.next == Some(place) {
            return Err(ClientError::Protocol("a comparison that gets no further").into());
        }
        self.blocks = self.blocks.saturating_add(part.blocks);
        self.bad = self.bad.saturating_add(part.bad.len() as u64);
        Ok(())
    }
}

/// Returns the command line of the command.
pub(crate) fn command_line() -> clap::Command {
    ScrubArgs::command().name("scrub")
}

/// Runs a scrub and returns the exit code.
pub(crate) fn main(arguments: &[OsString]) -> u8 {
    let args = match parse::<ScrubArgs>(arguments) {
        Ok(args) => args,
        Err(code) => return code,
    };
    logging::init("warn", LogFormat::default());
    match run(args, &mut io::stdout().lock()) {
        Ok(Outcome { bad: 0, .. }) => 0,
        Ok(_) => BAD,
        Err(e) => {
            eprintln!("rfs-fuse scrub: {e}");
            if matches!(e, ScrubError::Usage(_)) { USAGE } else { FAILED }
        }
    }
}

fn run(args: ScrubArgs, out: &mut impl Write) -> Result<Outcome, ScrubError> {
    let tls = args.connection.tls(Some(&args.address))?;
    let key = args.connection.key.as_deref().map(Key::load).transpose()?;
    let tls = tls.as_ref().map(TlsClient::load).transpose()?;
    let options = Session::builder()
        .provider(args.connection.provider)
        .rdma(args.connection.rdma())
        .key(key)
        .tls(tls)
        .queue_pairs(1)
        .into_options();
    let attach =
        AttachOptions { export: args.connection.export, needs_checksums: true, ..AttachOptions::default() };
    let client = Client::connect(&args.address, &options, &attach)?;
    let totals = client.export.statfs()?;
    let used = totals.blocks.saturating_sub(totals.blocks_free);
    let shows = io::stderr().is_terminal();
    let mut outcome = Outcome::default();
    let mut at = Some((0, 0));
    let mut shown = Instant::now();
    while let Some(place) = at {
        let begun = Instant::now();
        let part = client.export.verify(place)?;
        outcome.add(place, &part)?;
        for bad in &part.bad {
            writeln!(out, "{}", describe(bad))?;
        }
        at = part.next;
        if shows && shown.elapsed() > Duration::from_millis(500) {
            eprint!("\r{}", progress(outcome, used));
            shown = Instant::now();
        }
        if !args.full_speed {
            thread::sleep(begun.elapsed());
        }
    }
    if shows {
        eprint!("\r{:60}\r", "");
    }
    writeln!(out, "{}", summary(outcome))?;
    client.close_session();
    Ok(outcome)
}

fn describe(bad: &BadBlock) -> String {
    let BadBlock { ino, offset, arena, expected, found, path } = bad;
    let path = String::from_utf8_lossy(path);
    // Escapes control characters of the name, which a terminal would obey.
    let name = if path.is_empty() { "a file without a name".into() } else { path.escape_debug().to_string() };
    format!(
        "{name}: bytes {offset} to {} are bad (inode {ino}, {arena} in the arena, check {found:08x} instead of {expected:08x})",
        offset.saturating_add(BLOCK - 1)
    )
}

fn progress(Outcome { blocks, bad }: Outcome, used: u64) -> String {
    let percent = blocks.saturating_mul(100).checked_div(used).unwrap_or(100).min(100);
    format!("{percent:3} % of {}, {bad} blocks bad", byte_size::show(used.saturating_mul(BLOCK)))
}

fn summary(Outcome { blocks, bad }: Outcome) -> String {
    let compared = format!("compared {} ({blocks} blocks)", byte_size::show(blocks.saturating_mul(BLOCK)));
    match bad {
        0 => format!("{compared}: nothing is bad"),
        1 => format!("{compared}: 1 block is bad"),
        _ => format!("{compared}: {bad} blocks are bad"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_well_formed() {
        use clap::CommandFactory;
        ScrubArgs::command().debug_assert();
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert!(ScrubArgs::try_parse_from(words("scrub a:1 --key k --export e")).is_ok());
    }

    #[test]
    fn reports_name_the_bad_block_and_the_totals() {
        let bad =
            BadBlock { ino: 7, offset: 8192, arena: 4096, expected: 1, found: 2, path: b"/a\x1b".to_vec() };
        assert_eq!(
            describe(&bad),
            "/a\\u{1b}: bytes 8192 to 12287 are bad (inode 7, 4096 in the arena, check 00000002 instead of 00000001)"
        );
        assert!(describe(&BadBlock { path: vec![], ..bad }).starts_with("a file without a name: bytes"));
        assert_eq!(progress(Outcome { blocks: 1, bad: 1 }, 4), " 25 % of 16 KiB, 1 blocks bad");
        assert_eq!(progress(Outcome::default(), 0), "100 % of 0 B, 0 blocks bad");
        assert_eq!(summary(Outcome { blocks: 256, bad: 0 }), "compared 1 MiB (256 blocks): nothing is bad");
        assert!(summary(Outcome { blocks: 1, bad: 1 }).ends_with("1 block is bad"));
    }

    /// Malicious replies of a server neither crash this program nor let it run for ever.
    #[test]
    fn replies_of_a_malicious_server_are_bounded() {
        let bad =
            BadBlock { ino: 7, offset: u64::MAX - 3, arena: 0, expected: 1, found: 2, path: b"/a".to_vec() };
        assert!(describe(&bad).contains("bytes 18446744073709551612 to 18446744073709551615 are bad"));
        let mut outcome = Outcome::default();
        let part = Verified { blocks: u64::MAX, bad: vec![bad], next: Some((7, 9)) };
        outcome.add((7, 8), &part).unwrap();
        outcome.add((7, 10), &part).unwrap();
        assert_eq!(outcome, Outcome { blocks: u64::MAX, bad: 2 });
        assert!(
            progress(outcome, u64::MAX).starts_with("  1 % of 16.0 EiB"),
            "{}",
            progress(outcome, u64::MAX)
        );
        assert!(summary(outcome).contains(&u64::MAX.to_string()));
        assert!(matches!(outcome.add((7, 9), &part), Err(ScrubError::Client(ClientError::Protocol(_)))));
    }
}
