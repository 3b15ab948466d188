//! Request counters of a server.

use std::collections::BTreeMap;

use rdmabox::Session;
use rfs_proto::{Reply, Request, VERSION, decode_reply, encode_request};

use crate::{Error, Result};

/// Number of requests by name.
pub type Counts = BTreeMap<String, u64>;

/// A session that only reads the counters of a server.
#[derive(Debug)]
pub struct Counters(std::sync::Arc<Session>);

impl Counters {
    /// Connects to the server at an address.
    pub fn of(address: &str) -> Result<Counters> {
        let parsed = address.parse().map_err(|e| Error::Usage(format!("{address}: {e}")))?;
        let counters = Counters(Session::builder().queue_pairs(1).connect(&parsed).map_err(failed)?);
        match counters.call(&Request::Attach {
            version: VERSION,
            client: "rfs-iozone",
            export: "",
            keeps: false,
            alone: false,
            mount: None,
        })? {
            Reply::Attached(_) => Ok(counters),
            _ => Err(failed("it does not let this program in")),
        }
    }

    /// Returns the counters, without the requests that read them.
    pub fn read(&self) -> Result<Counts> {
        match self.call(&Request::Stats)? {
            Reply::Stats(stats) => Ok(stats.calls.into_iter().filter(|(name, _)| name != "stats").collect()),
            _ => Err(failed("it has no counters")),
        }
    }

    fn call(&self, request: &Request<'_>) -> Result<Reply> {
        let (mut bytes, mut reply) = (Vec::new(), Vec::new());
        encode_request(request, &mut bytes);
        self.0.call(&bytes, &mut reply).map_err(failed)?;
        decode_reply(&reply).map_err(failed)
    }
}

fn failed(what: impl ToString) -> Error {
    Error::Child { program: "rfs-server".into(), what: what.to_string() }
}

/// Returns the increase since `before`. Omits counters that did not change.
pub fn since(after: &Counts, before: &Counts) -> Counts {
    let more = |(name, count): (&String, &u64)| {
        let more = count.saturating_sub(before.get(name).copied().unwrap_or(0));
        (more > 0).then(|| (name.clone(), more))
    };
    after.iter().filter_map(more).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changed_counters_remain() {
        let counts = |pairs: &[(&str, u64)]| -> Counts {
            pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        let before = counts(&[("a", 3), ("b", 4)]);
        assert_eq!(since(&counts(&[("a", 3), ("b", 9), ("c", 1)]), &before), counts(&[("b", 5), ("c", 1)]));
    }
}
