//! Fuzzes the conversation of an NBD server with a client.

use rfs_paging::nbd::{Conversation, Effect};

/// Size of the export in bytes.
const SIZE: u64 = 1 << 20;
/// Most bytes that the server waits for at once.
const MAX_NEEDED: usize = 32 << 20;

/// Runs an input: all bytes that a client sends. Ranges of the memory have to be in the export.
pub(in crate::targets) fn conversation(bytes: &[u8]) {
    let mut conversation = Conversation::new("memory", SIZE);
    let mut rest = bytes;
    while let Some((now, later)) = rest.split_at_checked(conversation.needed()) {
        rest = later;
        let Ok(step) = conversation.advance(now) else { return };
        assert!(step.send.len() <= 512, "{} bytes for an option", step.send.len());
        match step.effect {
            Effect::None => {}
            Effect::Close => return,
            Effect::Read { offset, len, .. } | Effect::Zero { offset, len, .. } => {
                assert!(offset + u64::from(len) <= SIZE, "{len} bytes at {offset}");
            }
            Effect::Write { offset, .. } => assert!(offset + now.len() as u64 <= SIZE, "a write at {offset}"),
        }
        assert!(conversation.needed() <= MAX_NEEDED);
    }
}

/// Returns valid conversations.
pub(in crate::targets) fn conversation_seeds() -> Vec<Vec<u8>> {
    let option = |number: u32, data: &[u8]| {
        [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
    };
    let request = |command: u16, offset: u64, len: u32| {
        let mut bytes = vec![0x25, 0x60, 0x95, 0x13, 0, 0];
        bytes.extend(command.to_be_bytes());
        bytes.extend(7_u64.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes
    };
    let go = option(7, b"\0\0\0\x06memory\0\x01\0\x03");
    let write = [request(1, 4096, 5), b"bytes".to_vec()].concat();
    let requests = [request(0, 0, 4096), write, request(3, 0, 0), request(4, 0, 8192), request(6, 9, 9)];
    vec![
        [b"\0\0\0\x03".to_vec(), option(3, b""), option(6, b"\0\0\0\0\0\0"), option(2, b"")].concat(),
        [b"\0\0\0\x03".to_vec(), go, requests.concat(), request(2, 0, 0)].concat(),
        [b"\0\0\0\x01".to_vec(), option(8, b""), option(1, b"memory"), request(0, 1 << 19, 1 << 19)].concat(),
    ]
}
