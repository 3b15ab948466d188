//! Compares the bytes of every message with docs/design/protocol.md, and decodes truncated and
//! extended messages.

use crate::support::{attr, replies, requests, unhex};
use rfs_proto::{
    DecodeError, MAX_MESSAGE, OLDEST_VERSION, Reply, Request, VERSION, attach_version, decode_reply,
    decode_reply_with, decode_request, encode_reply, encode_reply_with, encode_request,
    encode_version_refusal, needed_version, refused_by_version,
};

/// Asserts that the protocol document shows these bytes.
fn assert_documented(hex: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/design/protocol.md");
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(&format!("`{hex}`")), "protocol.md lacks `{hex}`");
}

#[test]
fn requests_have_the_documented_bytes() {
    let mut out = vec![1, 2, 3];
    for (hex, request) in requests() {
        encode_request(&request, &mut out);
        assert_eq!(out, unhex(hex), "{request:?}");
        assert_eq!(decode_request(&out), Ok(request));
    }
}

#[test]
fn replies_have_the_documented_bytes() {
    let mut out = vec![1, 2, 3];
    for (hex, reply) in replies() {
        encode_reply(&reply, &mut out);
        assert_eq!(out, unhex(hex), "{reply:?}");
        assert_eq!(decode_reply(&out), Ok(reply));
    }
}

#[test]
fn attributes_of_a_directory_may_follow_a_reply() {
    let hex = "01 ac02 02 a403 01 e807 00 00 05 08 01 02 8001 02 07 01";
    let mut out = vec![1, 2, 3];
    encode_reply_with(&Reply::Done, &attr(), &mut out);
    assert_eq!(out, unhex(hex));
    assert_eq!(decode_reply_with(&out), Ok((Reply::Done, Some(attr()))));
    assert_eq!(decode_reply(&out), Err(DecodeError::Trailing(out.len() - 1)), "without a directory");
    for (hex, reply) in replies() {
        assert_eq!(decode_reply_with(&unhex(hex)), Ok((reply, None)));
    }
    for len in 2..out.len() {
        assert_eq!(decode_reply_with(&out[..len]), Err(DecodeError::Truncated), "cut to {len}");
    }
    out.push(0);
    assert_eq!(decode_reply_with(&out), Err(DecodeError::Trailing(1)));
    assert_documented(hex);
}

#[test]
fn the_examples_cover_every_variant() {
    let firsts = |all: Vec<&str>| {
        let mut firsts: Vec<u8> = all.into_iter().map(|hex| unhex(hex)[0]).collect();
        firsts.dedup();
        firsts
    };
    let request_numbers = firsts(requests().into_iter().map(|(hex, _)| hex).collect());
    assert_eq!(request_numbers, (0..48).collect::<Vec<u8>>());
    assert_eq!(decode_request(&[48]), Err(DecodeError::Malformed));
    let reply_numbers = firsts(replies().into_iter().map(|(hex, _)| hex).collect());
    assert_eq!(reply_numbers, (0..24).collect::<Vec<u8>>());
    assert_eq!(decode_reply(&[24]), Err(DecodeError::Malformed));
}

/// Catches a changed message of the last release. Its clients and servers read and write these
/// bytes.
#[test]
fn the_messages_of_the_oldest_version_are_the_same() {
    let crc = |all: &[&str]| crc32c::crc32c(all.join("\n").as_bytes());
    let old = requests().into_iter().filter(|(_, request)| request.since() == OLDEST_VERSION);
    let old_requests: Vec<&str> = old.map(|(hex, _)| hex).collect();
    let old = replies().into_iter().filter(|(_, reply)| !matches!(reply, Reply::Birth(_)));
    let old_replies: Vec<&str> = old.map(|(hex, _)| hex).collect();
    // As computed from the examples of the last release.
    assert_eq!(OLDEST_VERSION, 18);
    assert_eq!((old_requests.len(), crc(&old_requests)), (51, 0x7bd8_6025));
    assert_eq!((old_replies.len(), crc(&old_replies)), (27, 0x6042_5475));
}

/// Catches a request that a session of the last release sends and its server does not know.
#[test]
fn each_request_needs_the_version_that_has_it() {
    let mut out = Vec::new();
    for (_, request) in requests() {
        encode_request(&request, &mut out);
        let version = if out[0] < 46 { OLDEST_VERSION } else { 19 };
        assert_eq!((request.since(), needed_version(&out)), (version, version), "{request:?}");
        if request.may_be_once() {
            let mut envelope = Vec::new();
            encode_request(&Request::Once { slot: 7, sequence: 300, request: &out }, &mut envelope);
            assert_eq!(needed_version(&envelope), version, "{request:?}");
        }
    }
    assert_eq!(needed_version(&[0xff]), VERSION);
}

#[test]
fn the_protocol_document_shows_every_example() {
    let examples =
        requests().into_iter().map(|(hex, _)| hex).chain(replies().into_iter().map(|(hex, _)| hex));
    examples.for_each(assert_documented);
}

#[test]
fn the_version_of_an_attach_of_any_version_is_readable() {
    for (hex, version) in [
        ("00 01 01 63 01 65 01", Some(1)),
        ("00 8101 ff 01 02 03", Some(129)),
        ("00 ffffffff0f", Some(u32::MAX)),
        ("00", None),
        ("00 80", None),
        ("00 ffffffff1f", None),
        ("01 01 02 68 69", None),
        ("", None),
    ] {
        assert_eq!(attach_version(&unhex(hex)), version, "{hex}");
    }
}

#[test]
fn the_refusal_of_another_version_names_the_version_of_the_server() {
    let mut out = vec![1, 2, 3];
    encode_version_refusal(&mut out);
    let hex = "00 5d 13";
    assert_eq!(out, unhex(hex));
    assert_documented(hex);
    for (hex, version) in [
        (hex, Some(VERSION)),
        // The last release's.
        ("00 5d 12", Some(18)),
        ("00 5d 8101", Some(129)),
        ("00 5d", None),
        ("00 5d 80", None),
        ("00 5d 0e 00", None),
        ("00 1c 0e", None),
        ("01", None),
        ("", None),
    ] {
        assert_eq!(refused_by_version(&unhex(hex)), version, "{hex}");
    }
}

#[test]
fn missing_and_extra_bytes_are_refused() {
    for (hex, _) in requests() {
        let mut bytes = unhex(hex);
        for len in 0..bytes.len() {
            assert_eq!(decode_request(&bytes[..len]), Err(DecodeError::Truncated), "{hex} cut to {len}");
        }
        bytes.push(0);
        assert_eq!(decode_request(&bytes), Err(DecodeError::Trailing(1)), "{hex}");
    }
    for (hex, _) in replies() {
        let mut bytes = unhex(hex);
        for len in 0..bytes.len() {
            assert_eq!(decode_reply(&bytes[..len]), Err(DecodeError::Truncated), "{hex} cut to {len}");
        }
        bytes.extend([0, 0]);
        assert_eq!(decode_reply(&bytes), Err(DecodeError::Trailing(2)), "{hex}");
    }
}

#[test]
fn too_long_messages_are_refused_before_they_are_decoded() {
    let bytes = vec![0xff; MAX_MESSAGE + 1];
    assert_eq!(decode_request(&bytes), Err(DecodeError::TooLong(MAX_MESSAGE + 1)));
    assert_eq!(decode_reply(&bytes), Err(DecodeError::TooLong(MAX_MESSAGE + 1)));
}

#[test]
fn malformed_messages_are_refused() {
    for hex in [
        "00 01 01 ff",                        // a client name that is not UTF-8
        "05 01 01 66 a403 12 00 00 02",       // an invalid boolean
        "03 02 02",                           // an invalid optional
        "03 02 00 00 00 00 01 02",            // an unknown variant of SetTime
        "02 ffffffffffffffffff02",            // more than 64 bits
        "04 01 01 6e ffffffff1f 00 00 00 00", // more than 32 bits
    ] {
        assert_eq!(decode_request(&unhex(hex)), Err(DecodeError::Malformed), "{hex}");
    }
    // A length beyond the end of the message allocates no memory.
    assert_eq!(decode_request(&unhex("01 01 ffffffffffffffffff01 61")), Err(DecodeError::Truncated));
    assert_eq!(decode_reply(&unhex("05 00 ffffffff0f 00")), Err(DecodeError::Truncated));
    assert_eq!(
        decode_reply(&unhex("03 01 07 00 00 00 00 00 00 00 00 00 00 00 00")),
        Err(DecodeError::Malformed)
    );
}
