use proptest::prelude::*;

use super::*;
use crate::store::{Delta, StoreMode};

/// A command that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owned(String);

/// Parses input that comes in pieces. Returns the commands, and the bytes that are left.
fn commands(pieces: &[&[u8]], max_value: usize) -> (Vec<Owned>, Vec<u8>) {
    let (mut parser, mut input, mut found) = (Parser::default(), Vec::new(), Vec::new());
    for piece in pieces {
        input.extend_from_slice(piece);
        let mut at = 0;
        loop {
            let rest = &input[at..];
            let Progress { used, outcome } = parser.next(rest, max_value);
            assert!(used <= rest.len());
            at += used;
            match outcome {
                Ok(command) => found.push(owned(command)),
                Err(needed) => {
                    let left = input.len() - at;
                    assert!(needed > left, "{needed} bytes are needed, and {left} are here");
                    break;
                }
            }
        }
        input.drain(..at);
    }
    (found, input)
}

fn all(input: &[u8]) -> Vec<Owned> {
    let (found, left) = commands(&[input], MAX_VALUE);
    assert!(left.is_empty(), "{left:?}");
    found
}

fn owned(command: Command<'_>) -> Owned {
    Owned(format!("{command:?}"))
}

#[test]
fn keys_of_a_retrieval_come_one_by_one() {
    let plain = Retrieval { has_version: false, exptime: None };
    let touching = Retrieval { has_version: true, exptime: Some(-5) };
    let key = |key, retrieval| owned(Command::Key { key, retrieval });
    let end = owned(Command::EndOfKeys);
    assert_eq!(all(b"get a\r\n"), [key(b"a", plain), end.clone()]);
    let wanted = [key(b"a", touching), key(b"bc", touching), end.clone(), owned(Command::Version)];
    assert_eq!(all(b" gats -5  a bc \nversion\r\n"), wanted);
    assert_eq!(all(b"gat 5\r\n"), [end]);
}

#[test]
fn values_may_contain_line_breaks() {
    let store =
        Store { mode: StoreMode::Set, key: b"k", flags: 1, exptime: 2, value: b"a\r\nb", quiet: false };
    assert_eq!(all(b"set k 1 2 4\r\na\r\nb\r\n"), [owned(Command::Store(store))]);
    let empty = Store { mode: StoreMode::CompareVersion(9), value: b"", quiet: true, ..store };
    assert_eq!(all(b"cas k 1 2 0 9 noreply\r\n\r\n"), [owned(Command::Store(empty))]);
}

#[test]
fn a_value_of_another_length_is_a_bad_chunk() {
    let fault = |fault| owned(Command::Malformed { fault, quiet: false });
    assert_eq!(all(b"set k 0 0 1\r\nabc\r\n"), [fault(Fault::Chunk), fault(Fault::Unknown)]);
    assert_eq!(all(b"set k 0 0 3\r\nab\r\nx\r\n"), [fault(Fault::Chunk), fault(Fault::Unknown)]);
}

#[test]
fn a_long_value_is_dropped_and_the_next_command_found() {
    let input = [&b"set k 0 0 6\r\n"[..], b"get a\n", b"\r\nversion\r\n"].concat();
    let wanted =
        [owned(Command::TooLong { key: b"k", mode: StoreMode::Set, quiet: false }), owned(Command::Version)];
    assert_eq!(commands(&[&input], 5).0, wanted);
    assert_eq!(commands(&[&input[..15], &input[15..]], 5).0, wanted);
    let input = format!("add k 0 0 {} noreply\r\n", MAX_VALUE + 1);
    let wanted = [owned(Command::TooLong { key: b"k", mode: StoreMode::Add, quiet: true })];
    assert_eq!(commands(&[input.as_bytes()], usize::MAX), (wanted.to_vec(), vec![]));
}

#[test]
fn the_limit_for_values_may_shrink_while_a_value_comes() {
    let mut parser = Parser::default();
    let input = b"set k 0 0 5\r\nab";
    assert_eq!(parser.next(input, 5), Progress::more(0, 20));
    let command = Command::TooLong { key: b"k", mode: StoreMode::Set, quiet: false };
    assert_eq!(parser.next(input, 4), Progress::command(13, command));
    assert_eq!(parser.next(b"ab", 4), Progress::more(2, 1));
    assert_eq!(parser.next(b"cde\r\nquit\n", 4), Progress::command(10, Command::Quit));
}

#[test]
fn lines_have_a_longest_length() {
    let end = owned(Command::Stray(Some(Fault::LineLength)));
    for line in ["x".repeat(MAX_LINE + 1), format!("set{}", " ".repeat(MAX_LINE)), " ".repeat(MAX_LINE + 9)] {
        for text in [line.clone(), line + "\r\nversion\r\n"] {
            assert_eq!(commands(&[text.as_bytes()], MAX_VALUE).0, std::slice::from_ref(&end), "{text}");
        }
    }
    let keys = format!("get{}\n", " k".repeat((MAX_GET_LINE - 3) / 2));
    assert_eq!(all(keys.as_bytes()).len(), (MAX_GET_LINE - 3) / 2 + 1);
    let keys = format!("get{}", " k".repeat(MAX_GET_LINE / 2));
    assert_eq!(commands(&[keys.as_bytes()], MAX_VALUE).0, [end]);
}

#[test]
fn nothing_follows_the_end_of_a_connection() {
    assert_eq!(all(b"quit\r\nversion\r\n"), [owned(Command::Quit)]);
    assert_eq!(all(b"POST / HTTP/1.1\r\nversion\r\n"), [owned(Command::Stray(None))]);
    let mut parser = Parser::default();
    parser.next(b"quit\n", MAX_VALUE);
    assert!(parser.is_done());
}

#[test]
fn counters_and_other_commands_follow_each_other() {
    let wanted = [
        owned(Command::Count { key: b"n", delta: Delta::Up(3), quiet: true }),
        owned(Command::Touch { key: b"n", exptime: 0, quiet: false }),
        owned(Command::Stats(None)),
    ];
    assert_eq!(all(b"incr n 3 noreply\r\ntouch n 0\r\nstats\r\n"), wanted);
}

/// Returns texts that look like commands, and other bytes.
fn input() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof!["[0-9]{1,3}", "-?[0-9]{1,12}"];
    let line = (
        prop_oneof![
            Just("get"),
            Just("gats 5"),
            Just("set"),
            Just("cas"),
            Just("append"),
            Just("delete"),
            Just("incr"),
            Just("flush_all"),
            Just("stats"),
        ],
        proptest::collection::vec(prop_oneof![number, "[a-z ]{1,4}", Just("noreply".to_owned())], 0..6),
        prop_oneof![Just("\r\n"), Just("\n"), Just("\r")],
    );
    let line = line.prop_map(|(name, words, end)| format!("{name} {}{end}", words.join(" ")).into_bytes());
    let store = ("[a-z]{1,5}", proptest::collection::vec(any::<u8>(), 0..40)).prop_map(|(key, value)| {
        [format!("set {key} 5 0 {}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat()
    });
    let noise = proptest::collection::vec(any::<u8>(), 0..20);
    let part = prop_oneof![3 => line, 3 => store, 1 => noise];
    proptest::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn splits_change_no_command(
        input in input(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..10),
        max_value in 0..60_usize,
    ) {
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
        places.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for place in places.into_iter().chain([input.len()]) {
            pieces.push(&input[from..place]);
            from = place;
        }
        let bytes: Vec<&[u8]> = input.chunks(1).collect();
        let whole = commands(&[&input], max_value);
        prop_assert_eq!(&commands(&pieces, max_value), &whole);
        prop_assert_eq!(&commands(&bytes, max_value), &whole);
    }
}
