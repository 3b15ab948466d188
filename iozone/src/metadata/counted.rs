//! What a server has been asked, by its own count.

use std::collections::BTreeMap;

use rdmabox::{Session, SessionOptions};
use rfs_proto::{Reply, Request, VERSION, decode_reply, encode_request};

use crate::{Error, Result};

/// Requests by name.
pub type Counts = BTreeMap<String, u64>;

/// A session with a server that asks for nothing but its counters.
#[derive(Debug)]
pub struct Counters(std::sync::Arc<Session>);

impl Counters {
    /// Of the server at that address.
    pub fn of(address: &str) -> Result<Counters> {
        let parsed = address.parse().map_err(|e| Error::Usage(format!("{address}: {e}")))?;
        let options = SessionOptions { queue_pairs: 1, ..SessionOptions::default() };
        let counters = Counters(Session::connect(&parsed, &options).map_err(failed)?);
        match counters.call(&Request::Attach {
            version: VERSION,
            client: "rfs-metadata",
            export: "",
            keeps: false,
            alone: false,
            mount: None,
        })? {
            Reply::Attached(_) => Ok(counters),
            _ => Err(failed("it does not let this program in")),
        }
    }

    /// The counts now, without those of reading them.
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

/// What came since `before`, without what did not.
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
    fn only_what_came_counts() {
        let counts = |pairs: &[(&str, u64)]| -> Counts {
            pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        let before = counts(&[("a", 3), ("b", 4)]);
        assert_eq!(since(&counts(&[("a", 3), ("b", 9), ("c", 1)]), &before), counts(&[("b", 5), ("c", 1)]));
    }
}
