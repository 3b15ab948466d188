//! Answers of etcd's JSON gateway. They are input: wrong ones are errors.
//!
//! - `kv`, `lease`, `watch`: the answers of these services of etcd.
//! - `fields`: fields that several answers have.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

mod fields;
mod kv;
mod lease;
#[cfg(test)]
mod tests;
mod watch;

pub(super) use self::{
    kv::{RangeAnswer, TxnAnswer},
    lease::{LeaseAnswer, RenewalAnswer},
    watch::WatchAnswer,
};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::key_store::KeyStoreError;

/// Returns an answer of the gateway, in its first JSON document.
///
/// # Errors
/// The bytes are no such answer.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, KeyStoreError> {
    let strange = |why: String| KeyStoreError::Away(format!("its answer is none of etcd: {why}"));
    let mut documents = serde_json::Deserializer::from_slice(bytes).into_iter::<T>();
    documents.next().ok_or_else(|| strange("it is empty".into()))?.map_err(|error| strange(error.to_string()))
}

/// Returns the error of an answer with a status of failure.
pub(super) fn failure(status: u16, bytes: &[u8]) -> KeyStoreError {
    let reason = parse::<Value>(bytes).ok().and_then(|answer| reason_in(&answer));
    let reason = reason.unwrap_or_else(|| format!("HTTP status {status}"));
    // 5xx: etcd has no leader, or a proxy has no etcd. 404 without a reason: no etcd at all.
    match status {
        400..500 if reason.starts_with("etcdserver: ") => KeyStoreError::Refused(reason),
        _ => KeyStoreError::Away(reason),
    }
}

/// Returns the reason in an answer: a text, or an object with a message.
fn reason_in(answer: &Value) -> Option<String> {
    let error = answer.get("error")?;
    let text = error.as_str().or_else(|| error.get("message")?.as_str())?;
    // A terminal obeys some bytes.
    Some(text.chars().take(300).collect::<String>().escape_debug().to_string())
}
