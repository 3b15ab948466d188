use proptest::prelude::*;

use super::{
    super::key_store::{Entry, KeyChange, KeyStoreError, Lease, Listing},
    *,
};

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
