//! `jakiro-server status`: the counters of a running server.
//!
//! # Concurrency
//! One thread.

use std::{
    error::Error,
    io::{ErrorKind, Write},
};

use jakiro::{Client, ClientOptions, Counters};
use rdmabox::Key;

use jakiro::cli::StatusArgs;

/// Prints each counter on a line.
pub(crate) fn show(args: &StatusArgs) -> Result<(), Box<dyn Error>> {
    let mut options = ClientOptions::default();
    options.session.key = args.key.as_deref().map(Key::load).transpose()?;
    let counters = Client::connect(&args.address, &options)?.counters()?;
    match std::io::stdout().write_all(lines(&counters).as_bytes()) {
        // The reader of the output has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        outcome => Ok(outcome?),
    }
}

fn lines(counters: &Counters) -> String {
    let values = counters.values();
    Counters::NAMES.iter().zip(values).map(|(name, value)| format!("{name:16}{value:>16}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_has_a_line() {
        let text = lines(&Counters::default());
        assert_eq!(text.lines().count(), Counters::NAMES.len());
        assert!(text.lines().all(|line| line.ends_with(" 0")));
    }
}
