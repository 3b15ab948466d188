//! The lines of a watch.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use serde::Deserialize;
use serde_json::Value;

use super::{super::key_store::KeyChange, fields::KeyValue};

/// A line of a watch.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct WatchAnswer {
    result: WatchResult,
    error: Option<Value>,
}

impl WatchAnswer {
    /// Returns the changes; `None` if etcd ends the watch.
    pub(in super::super) fn into_changes(self) -> Option<Vec<KeyChange>> {
        if self.error.is_some() || self.result.canceled {
            return None;
        }
        let change = |event: Event| {
            let entry = event.kv.into_entry()?;
            Some(match event.kind.as_str() {
                "DELETE" => KeyChange::Deleted(entry.key),
                _ => KeyChange::Put(entry),
            })
        };
        Some(self.result.events.into_iter().filter_map(change).collect())
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WatchResult {
    canceled: bool,
    events: Vec<Event>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    kv: KeyValue,
}
