//! Messages come back, and no bytes panic.

use proptest::prelude::*;

use super::*;
use crate::store::{Delta, StoreMode};

fn mode() -> impl Strategy<Value = StoreMode> {
    prop_oneof![
        Just(StoreMode::Set),
        Just(StoreMode::Add),
        Just(StoreMode::Replace),
        Just(StoreMode::Append),
        Just(StoreMode::Prepend),
        any::<u64>().prop_map(StoreMode::CompareVersion),
    ]
}

prop_compose! {
    fn change()(mode in mode(), flags: u32, time in prop::option::of(0..u64::MAX)) -> StoreRequest {
        StoreRequest { mode, flags, time_to_live: time }
    }
}

proptest! {
    #[test]
    fn requests_come_back(
        change in change(),
        key in prop::collection::vec(any::<u8>(), 0..256),
        value in prop::collection::vec(any::<u8>(), 0..300),
        number: u64,
        transfer: u32,
    ) {
        let (key, time_to_live) = (&key[..], change.time_to_live);
        let requests = [
            Request::Hello,
            Request::Get { with_version: number % 2 == 0, key },
            Request::GetAndTouch { time_to_live, key },
            Request::GetMany { keys: &value },
            Request::Store { change, key, value: &value },
            Request::Delete { key },
            Request::Touch { time_to_live, key },
            Request::ChangeNumber { delta: Delta::Up(number), key },
            Request::ChangeNumber { delta: Delta::Down(number), key },
            Request::BeginUpload { change, value_len: transfer, key },
            Request::ContinueUpload { transfer, part: &value },
            Request::FinishUpload { transfer },
            Request::ContinueDownload { transfer },
            Request::Flush { delay: number },
            Request::Counters,
        ];
        for request in requests {
            let mut bytes = Vec::new();
            request.encode(&mut bytes);
            prop_assert_eq!(Request::decode(&bytes), Ok(request));
        }
    }

    #[test]
    fn any_bytes_are_a_request_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        if let Ok(request) = Request::decode(&bytes) {
            let mut again = Vec::new();
            request.encode(&mut again);
            prop_assert_eq!(Request::decode(&again), Ok(request));
        }
    }

    #[test]
    fn value_replies_come_back(
        value in prop::collection::vec(any::<u8>(), 0..100),
        flags: u32,
        version: Option<u64>,
        transfer: Option<(u32, u32)>,
    ) {
        let ending = ValueReply { status: Status::Done, flags, version, transfer };
        let mut reply = value.clone();
        ending.encode(&mut reply);
        prop_assert_eq!(ValueReply::take(&mut reply), Ok(ending));
        prop_assert_eq!(reply, value);
    }

    #[test]
    fn entries_come_back(values in prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 0..50)), 0..20)) {
        let entry = |value: &Option<Vec<u8>>, out: &mut Vec<u8>| match value {
            Some(value) => Entry::Found(value).encode(out),
            None => Entry::Missing.encode(out),
        };
        let mut reply = Vec::new();
        values.iter().for_each(|value| entry(value, &mut reply));
        reply.push(Status::Done.code());
        let found: Result<Vec<Entry<'_>>, DecodeError> = Entries::decode(&reply).unwrap().collect();
        let wanted: Vec<Entry<'_>> =
            values.iter().map(|value| value.as_deref().map_or(Entry::Missing, Entry::Found)).collect();
        prop_assert_eq!(found, Ok(wanted));
    }

    #[test]
    fn any_bytes_are_a_reply_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let _ = ValueReply::take(&mut bytes.clone());
        let _ = Hello::decode(&bytes);
        if let Ok(entries) = Entries::decode(&bytes) {
            prop_assert!(entries.count() <= bytes.len());
        }
    }
}

#[test]
fn a_plain_value_costs_one_byte() {
    let mut reply = b"value".to_vec();
    ValueReply::of_status(Status::Done).encode(&mut reply);
    assert_eq!(reply.len(), 6);
}

#[test]
fn another_version_is_named() {
    let mut bytes = Vec::new();
    Request::Hello.encode(&mut bytes);
    bytes[0] = bytes[0] & 0x1f | 2 << 5;
    let refused = Request::decode(&bytes).unwrap_err();
    assert_eq!(refused, DecodeError::Version(2));
    assert!(refused.to_string().contains("version 2 of the protocol, and this side has version 1"));
}

#[test]
fn a_hello_comes_back() {
    let addresses =
        vec![vec!["tcp:h:1".to_owned(), "unix:/a".into()], vec!["tcp:h:2".into(), "unix:/b".into()]];
    let hello = Hello { seed: 7, max_value: 1 << 20, partition: 1, addresses };
    let mut bytes = Vec::new();
    hello.encode(&mut bytes);
    assert_eq!(Hello::decode(&bytes), Ok(hello));
    assert!(Hello::decode(&bytes[1..]).is_err());
}

#[test]
fn statuses_come_back() {
    for code in 0..=u8::MAX {
        if let Ok(status) = Status::of_code(code) {
            assert_eq!(status.code(), code);
        }
    }
    assert_eq!(Status::of_code(8), Ok(Status::OtherPartition));
    assert!(Status::of_code(9).is_err());
}
