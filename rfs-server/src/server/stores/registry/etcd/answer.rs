//! Answers of etcd's JSON gateway. They are input: wrong ones are errors. No I/O, no locks, no
//! clock.
//!
//! The gateway writes 64-bit numbers as text, keys and values in base64, and leaves out fields that
//! are zero.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error},
};
use serde_json::Value;

use super::key_store::{Entry, KeyChange, KeyStoreError, Lease, Listing};

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

/// The answer to a range.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RangeAnswer {
    header: Header,
    kvs: Vec<KeyValue>,
}

impl RangeAnswer {
    /// Returns the entries.
    ///
    /// # Errors
    /// The answer has no revision, which etcd always has.
    pub(super) fn into_listing(self) -> Result<Listing, KeyStoreError> {
        let revision = self.header.revision.0;
        if revision < 1 {
            return Err(KeyStoreError::Away("its answer has no revision".into()));
        }
        let entries = self.kvs.into_iter().filter_map(KeyValue::into_entry).collect();
        Ok(Listing { revision, entries })
    }
}

/// The answer to a transaction.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TxnAnswer {
    header: Header,
    succeeded: bool,
}

impl TxnAnswer {
    /// Returns the revision of a transaction that was done.
    ///
    /// # Errors
    /// A transaction that was done has no revision.
    pub(super) fn revision(self) -> Result<Option<i64>, KeyStoreError> {
        match (self.succeeded, self.header.revision.0) {
            (false, _) => Ok(None),
            (true, revision @ 1..) => Ok(Some(revision)),
            (true, _) => Err(KeyStoreError::Away("its answer has no revision".into())),
        }
    }
}

/// A lease, as the answers to a grant, to a renewal and to a question have it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeaseAnswer {
    #[serde(rename = "ID")]
    id: Int,
    #[serde(rename = "TTL")]
    seconds: Int,
    error: String,
}

impl LeaseAnswer {
    /// Returns the lease of a grant.
    ///
    /// # Errors
    /// There is no lease in the answer.
    pub(super) fn granted(self) -> Result<Lease, KeyStoreError> {
        match (self.id.0, self.error.is_empty()) {
            (0, true) => Err(KeyStoreError::Away("its answer has no lease".into())),
            (id, true) => Ok(Lease(id)),
            (_, false) => Err(KeyStoreError::Refused(self.error.escape_debug().to_string())),
        }
    }

    /// Returns the rest of the lease in seconds; `None` if it has ended.
    pub(super) fn rest(&self) -> Option<u64> {
        u64::try_from(self.seconds.0).ok()
    }
}

/// The answer to a renewal. A lease that has ended has no time.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RenewalAnswer {
    result: LeaseAnswer,
}

impl RenewalAnswer {
    pub(super) fn is_alive(&self) -> bool {
        self.result.seconds.0 > 0
    }
}

/// A line of a watch.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WatchAnswer {
    result: WatchResult,
    error: Option<Value>,
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

impl WatchAnswer {
    /// Returns the changes; `None` if etcd ends the watch.
    pub(super) fn into_changes(self) -> Option<Vec<KeyChange>> {
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
struct Header {
    revision: Int,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct KeyValue {
    key: Base64,
    value: Base64,
    mod_revision: Int,
    lease: Int,
}

impl KeyValue {
    /// Returns the entry; `None` if the key is no text, and so is none of this program.
    fn into_entry(self) -> Option<Entry> {
        let key = String::from_utf8(self.key.0).ok().filter(|key| !key.is_empty())?;
        Some(Entry { key, value: self.value.0, revision: self.mod_revision.0, lease: Lease(self.lease.0) })
    }
}

/// A number, as text or as a number.
#[derive(Clone, Copy, Debug, Default)]
struct Int(i64);

impl<'de> Deserialize<'de> for Int {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Int, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(i64),
            Text(String),
        }
        match Form::deserialize(from)? {
            Form::Number(number) => Ok(Int(number)),
            Form::Text(text) => text.parse().map(Int).map_err(D::Error::custom),
        }
    }
}

/// Bytes in base64.
#[derive(Debug, Default)]
struct Base64(Vec<u8>);

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Base64, D::Error> {
        let text = String::deserialize(from)?;
        BASE64_STANDARD.decode(text).map(Base64).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads bytes as each kind of answer. None of them may panic.
    fn read_as_all(bytes: &[u8]) {
        let _ = parse::<RangeAnswer>(bytes).map(RangeAnswer::into_listing);
        let _ = parse::<TxnAnswer>(bytes).map(TxnAnswer::revision);
        let _ = parse::<LeaseAnswer>(bytes).map(|answer| (answer.rest(), answer.granted()));
        let _ = parse::<RenewalAnswer>(bytes).map(|answer| answer.is_alive());
        let _ = parse::<WatchAnswer>(bytes).map(WatchAnswer::into_changes);
        let _ = failure(400, bytes);
    }

    /// These are answers of etcd 3.4.23.
    #[test]
    fn answers_of_etcd_are_read() {
        let range = br#"{"header":{"cluster_id":"3","revision":"2","raft_term":"2"},"kvs":[{"key":"L2E=",
            "create_revision":"2","mod_revision":"2","version":"1","value":"aGk=","lease":"77"}],"count":"1"}"#;
        let entry = Entry { key: "/a".into(), value: b"hi".to_vec(), revision: 2, lease: Lease(77) };
        let listing = Listing { revision: 2, entries: vec![entry.clone()] };
        assert_eq!(parse::<RangeAnswer>(range).unwrap().into_listing(), Ok(listing));
        let done = br#"{"header":{"revision":"3"},"succeeded":true,"responses":[{"response_put":{}}]}"#;
        assert_eq!(parse::<TxnAnswer>(done).unwrap().revision(), Ok(Some(3)));
        let refused = br#"{"header":{"revision":"3"},"responses":[{"response_range":{"count":"1"}}]}"#;
        assert_eq!(parse::<TxnAnswer>(refused).unwrap().revision(), Ok(None));
        let granted = br#"{"header":{"revision":"2"},"ID":"2324035680301319431","TTL":"5"}"#;
        assert_eq!(parse::<LeaseAnswer>(granted).unwrap().granted(), Ok(Lease(2324035680301319431)));
        assert_eq!(parse::<LeaseAnswer>(br#"{"ID":"1","TTL":"-1"}"#).unwrap().rest(), None);
        let alive = |bytes: &[u8]| parse::<RenewalAnswer>(bytes).unwrap().is_alive();
        assert!(alive(b"{\"result\":{\"ID\":\"1234\",\"TTL\":\"10\"}}\n"));
        assert!(!alive(b"{\"result\":{\"header\":{\"revision\":\"2\"},\"ID\":\"1234\"}}\n"));
        let changes = |bytes: &[u8]| parse::<WatchAnswer>(bytes).unwrap().into_changes();
        assert_eq!(changes(br#"{"result":{"header":{"revision":"3"},"created":true}}"#), Some(vec![]));
        let events =
            br#"{"result":{"events":[{"kv":{"key":"L2E=","mod_revision":"2","value":"aGk=","lease":"77"}},
            {"type":"DELETE","kv":{"key":"L2I=","mod_revision":"5"}}]}}"#;
        assert_eq!(changes(events), Some(vec![KeyChange::Put(entry), KeyChange::Deleted("/b".into())]));
        assert_eq!(changes(br#"{"result":{"canceled":true}}"#), None);
        assert_eq!(changes(br#"{"error":{"grpc_code":14,"message":"leaving"}}"#), None);
    }

    #[test]
    fn failures_have_their_reason() {
        let answer = br#"{"error":"etcdserver: requested lease not found","code":5}"#;
        let refused = KeyStoreError::Refused("etcdserver: requested lease not found".into());
        assert_eq!(failure(404, answer), refused);
        assert_eq!(failure(404, b"<html>"), KeyStoreError::Away("HTTP status 404".into()));
        assert_eq!(failure(503, br#"{"error":"\u001b[1m"}"#), KeyStoreError::Away("\\u{1b}[1m".into()));
    }

    #[test]
    fn wrong_answers_are_errors() {
        let deep = [b"{\"kvs\":".as_slice(), &b"[".repeat(100_000)].concat();
        for wrong in [
            &b""[..],
            b"null",
            b"[]",
            b"{}",
            b"{\"header\":{\"revision\":\"-1\"}}",
            b"{\"kvs\":[{\"key\":\"!!\"}]}",
            b"{\"kvs\":[{\"key\":\"L2E\"}]}",
            b"{\"kvs\":[{\"mod_revision\":\"99999999999999999999\"}]}",
            b"{\"kvs\":[{\"mod_revision\":1.5}]}",
            b"{\"header\":{\"revision\":\"x\"}}",
            &deep,
        ] {
            let listing = parse::<RangeAnswer>(wrong).and_then(RangeAnswer::into_listing);
            assert!(listing.is_err(), "{}", wrong.escape_ascii());
            read_as_all(wrong);
        }
        assert!(parse::<TxnAnswer>(b"{\"succeeded\":true}").unwrap().revision().is_err());
        assert!(parse::<LeaseAnswer>(b"{}").unwrap().granted().is_err());
        assert!(parse::<LeaseAnswer>(b"{\"ID\":1,\"error\":\"full\"}").unwrap().granted().is_err());
        let no_text = b"{\"header\":{\"revision\":1},\"kvs\":[{\"key\":\"/w==\",\"value\":\"\"}]}";
        let empty = Listing { revision: 1, entries: Vec::new() };
        assert_eq!(parse::<RangeAnswer>(no_text).unwrap().into_listing(), Ok(empty));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            read_as_all(&bytes);
        }

        /// Damaged answers, which are mostly still JSON.
        #[test]
        fn any_damaged_answer_is_read_or_refused(at in 0_usize..200, byte in any::<u8>()) {
            let answers: [&[u8]; 3] = [
                br#"{"result":{"header":{"revision":"9"},"events":[{"type":"PUT","kv":{"key":"L2E=","mod_revision":"2","value":"aGk="}}]}}"#,
                br#"{"header":{"revision":"2"},"kvs":[{"key":"L2E=","mod_revision":"2","value":"aGk=","lease":"-1"}]}"#,
                br#"{"header":{"revision":"2"},"ID":"23240356","TTL":"5","error":"x","succeeded":true}"#,
            ];
            for answer in answers {
                let mut bytes = answer.to_vec();
                let at = at % bytes.len();
                bytes[at] = byte;
                read_as_all(&bytes);
                read_as_all(&bytes[..at]);
            }
        }
    }
}
