//! The counters that `--stats-on-exit` prints.

use std::io::{self, Write};

use crate::fuse::Placement;
use rfs_client::Client;

/// Prints the counters of pinning and of the session. In the background they go to the log.
pub(super) fn report_counters(client: Option<&Client>, placement: &Placement, to_log: bool) {
    fn object(counters: impl IntoIterator<Item = (&'static str, u64)>) -> serde_json::Value {
        let counters = counters.into_iter().map(|(name, value)| (name.to_owned(), value.into()));
        serde_json::Value::Object(counters.collect())
    }
    let mut report = serde_json::json!({ "placement": object(placement.counters()) });
    if let Some(client) = client {
        report["session"] = client.description().into();
        report["counters"] = object(client.counters());
    }
    if to_log {
        log::info!("{report}");
    } else {
        // If stdout is closed, the error has no place to go.
        writeln!(io::stdout(), "{report:#}").ok();
    }
}
