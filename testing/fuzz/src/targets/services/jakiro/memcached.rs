//! Fuzzes the parser of the memcached text protocol.

use jakiro::{
    MAX_KEY, MAX_VALUE,
    text::protocol::{Command, Parser, Progress},
};

/// Runs an input: two bytes that select the length of pieces and of values, and the bytes of a
/// client. The commands must not depend on the pieces.
pub(in crate::targets) fn commands(bytes: &[u8]) {
    let Some((&[piece, max_value], input)) = bytes.split_first_chunk() else { return };
    let max_value = if max_value > 200 { MAX_VALUE } else { max_value.into() };
    let whole = parse(input, input.len().max(1), max_value);
    let pieces = parse(input, usize::from(piece) + 1, max_value);
    assert_eq!(whole, pieces, "pieces of {} bytes", usize::from(piece) + 1);
}

/// Parses input that comes in pieces. Returns the commands.
fn parse(input: &[u8], piece: usize, max_value: usize) -> Vec<String> {
    let (mut parser, mut rest, mut found) = (Parser::default(), Vec::new(), Vec::new());
    for piece in input.chunks(piece) {
        rest.extend_from_slice(piece);
        let mut at = 0;
        loop {
            let Progress { used, outcome } = parser.next(&rest[at..], max_value);
            at += used;
            match outcome {
                Ok(command) => {
                    check(&command, max_value);
                    found.push(format!("{command:?}"));
                }
                Err(needed) => {
                    assert!(needed > rest.len() - at, "{needed} bytes are needed, and all are here");
                    break;
                }
            }
        }
        rest.drain(..at);
    }
    found
}

fn check(command: &Command<'_>, max_value: usize) {
    let key = match command {
        Command::Store(store) => {
            assert!(store.value.len() <= max_value);
            store.key
        }
        Command::Key { key, .. }
        | Command::TooLong { key, .. }
        | Command::Delete { key, .. }
        | Command::Count { key, .. }
        | Command::Touch { key, .. } => key,
        _ => return,
    };
    assert!((1..=MAX_KEY).contains(&key.len()), "a key of {} bytes", key.len());
}

/// Returns valid conversations.
pub(in crate::targets) fn commands_seeds() -> Vec<Vec<u8>> {
    let conversations: [&[u8]; 6] = [
        b"set key 5 0 4\r\na\r\nb\r\nget key other\r\ngets key\r\n",
        b"add key 0 100 1 noreply\r\nx\r\ncas key 0 -1 2 18446744073709551615\r\nxy\r\n",
        b"append key 0 0 0\r\n\r\nprepend key 0 0 1\r\nx\r\nreplace key 1 2 3\r\nabc\r\n",
        b"incr key 1\r\ndecr key 5 noreply\r\ntouch key 9\r\ngat 9 key key\r\ngats 0 key\n",
        b"delete key\r\ndelete key 0 noreply\r\nflush_all 5 noreply\r\nverbosity 1\r\nstats\r\nversion\r\n",
        b"set long 0 0 300\r\nGET / HTTP/1.1\r\nquit\r\n",
    ];
    let pieces = [0, 2, 6, 255];
    conversations
        .iter()
        .zip(pieces.into_iter().cycle())
        .map(|(conversation, piece)| [&[piece, 201], *conversation].concat())
        .collect()
}
