//! The same commands to memcached and to this server, at random.

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fastrand::Rng;

use super::{client::DEADLINE, start};
use crate::text::TextOptions;

const KEYS: [&str; 5] = ["a", "b", "key", "other-key", COUNTER];
/// The key of `incr` and `decr`. Whether memcached fills a shorter number up with spaces depends on
/// its threads. So its values are compared without spaces, and the tests append nothing to them.
const COUNTER: &str = "n";

trait Wire: Read + Write {}
impl<T: Read + Write> Wire for T {}

/// A server, and the versions of items that it has told last.
struct Side {
    wire: Box<dyn Wire>,
    versions: HashMap<String, String>,
}

/// A command. In the text, `{version}` is the version of the key that the server has told last.
#[derive(Debug)]
struct Line {
    key: &'static str,
    text: Vec<u8>,
}

impl Side {
    /// Sends commands in pieces. Returns the answers, without the versions.
    fn ask(&mut self, lines: &[Line], pieces: &mut Rng) -> String {
        let mut bytes = Vec::new();
        for line in lines {
            let version = self.versions.get(line.key).map_or("1", String::as_str);
            let at = line.text.windows(9).position(|part| part == b"{version}");
            match at {
                Some(at) => {
                    bytes.extend([&line.text[..at], version.as_bytes(), &line.text[at + 9..]].concat())
                }
                None => bytes.extend(&line.text),
            }
        }
        bytes.extend(b"version\r\n");
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let len = if pieces.u32(..3) == 0 { pieces.usize(1..=rest.len()) } else { rest.len() };
            self.wire.write_all(&rest[..len]).expect("sent");
            rest = &rest[len..];
        }
        self.answers()
    }

    /// Takes answers up to that of `version`.
    fn answers(&mut self) -> String {
        let (mut found, mut piece) = (Vec::new(), [0; 4096]);
        let is_end = |found: &[u8]| {
            found.ends_with(b"\r\n")
                && found[..found.len() - 2]
                    .rsplit(|byte| *byte == b'\n')
                    .next()
                    .is_some_and(|line| line.starts_with(b"VERSION "))
        };
        while !is_end(&found) {
            let count = self.wire.read(&mut piece).expect("answers");
            assert!(count > 0, "the connection ended after {:?}", String::from_utf8_lossy(&found));
            found.extend(&piece[..count]);
        }
        self.comparable(&String::from_utf8_lossy(&found))
    }

    /// Returns answers without the parts that may differ.
    fn comparable(&mut self, answers: &str) -> String {
        let (mut text, mut is_counter) = (String::new(), false);
        for line in answers.split_inclusive('\n') {
            let words: Vec<&str> = line.split_whitespace().collect();
            let was_counter = std::mem::replace(&mut is_counter, false);
            match words[..] {
                ["VALUE", key, flags, len, ref version @ ..] => {
                    is_counter = key == COUNTER;
                    let len = if is_counter { "LENGTH" } else { len };
                    text += &format!("VALUE {key} {flags} {len} {}\n", version.len());
                    if let [version] = version {
                        self.versions.insert(key.into(), (*version).into());
                    }
                }
                ["VERSION", ..] => {}
                _ if was_counter => text += &format!("{}\n", line.trim_end()),
                _ => text += line,
            }
        }
        text
    }
}

fn number(rng: &mut Rng) -> String {
    let all = ["0", "1", "7", "10", "99", "100", "18446744073709551615", "9223372036854775808"];
    rng.choice(all).map_or(String::new(), str::to_owned)
}

fn value(rng: &mut Rng) -> Vec<u8> {
    match rng.u32(..6) {
        0 => Vec::new(),
        1..4 => number(rng).into_bytes(),
        4 => b"text\r\nEND\r\n".to_vec(),
        _ => vec![b'v'; rng.usize(..3000)],
    }
}

fn exptime(rng: &mut Rng) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs();
    match rng.u32(..8) {
        0 => "-1".into(),
        1 => "2592001".into(),
        2 => "2592000".into(),
        3 => (now + 1000).to_string(),
        4 => (now - 1000).to_string(),
        _ => "0".into(),
    }
}

/// Returns a line that is no command, or a command of which a part is wrong.
fn wrong(rng: &mut Rng, key: &str) -> String {
    let long = "k".repeat(251);
    let all = [
        "\r\n".into(),
        "  \n".into(),
        "nonsense\r\n".into(),
        "get\r\n".into(),
        "gat 0\r\n".into(),
        format!("gat x {key}\r\n"),
        format!("get {key} {long} {key}\r\n"),
        format!("GET {key}\r\n"),
        format!("set {key} 0 0\r\n"),
        format!("set {key} 0 0 x\r\n"),
        format!("set {key} -1 0 1\r\n"),
        format!("set {key} x 0 1 noreply\r\n"),
        format!("set {key} 0 0 -1\r\n"),
        format!("set {key} 0 0 1 2 3\r\n"),
        format!("set {long} 0 0 1\r\nx\r\n"),
        format!("cas {key} 0 0 1\r\nx\r\n"),
        format!("cas {key} 0 0 1 x\r\nx\r\n"),
        format!("set {key} 0 0 3\r\nlonger\r\n"),
        format!("set {key} 0 0 3 noreply\r\nab\r\nabc\r\n"),
        format!("incr {key}\r\n"),
        format!("incr {key} x\r\n"),
        format!("decr {key} -1\r\n"),
        format!("touch {key}\r\n"),
        format!("touch {key} x\r\n"),
        format!("delete\r\ndelete {key} 1\r\ndelete {key} 0 0\r\ndelete {key} x noreply\r\n"),
        format!("delete {long}\r\n"),
        "flush_all x\r\n".into(),
        "flush_all 0 noreply x\r\n".into(),
        "verbosity\r\n".into(),
        "verbosity x\r\n".into(),
        "verbosity 0 noreply\r\n".into(),
    ];
    rng.choice(all).unwrap_or_default()
}

fn command(rng: &mut Rng) -> Line {
    let key = KEYS[rng.usize(..KEYS.len())];
    let quiet = if rng.u32(..5) == 0 { " noreply" } else { "" };
    let end = if rng.u32(..9) == 0 { "\n" } else { "\r\n" };
    let keys = |rng: &mut Rng| {
        (0..rng.usize(1..30)).map(|_| KEYS[rng.usize(..KEYS.len())]).collect::<Vec<_>>().join(" ")
    };
    let text = match rng.u32(..24) {
        0..8 => {
            let verbs = ["set", "set", "add", "replace", "cas", "cas", "append", "prepend"];
            let verb = verbs[rng.usize(..if key == COUNTER { 6 } else { 8 })];
            let (value, flags, exptime) = (value(rng), number(rng), exptime(rng));
            let flags = if flags.len() > 9 { "4294967295" } else { &flags };
            let version = match (verb, rng.u32(..5)) {
                ("cas", 0) => " 1",
                ("cas", _) => " {version}",
                _ => "",
            };
            let head = format!("{verb} {key} {flags} {exptime} {}{version}{quiet}{end}", value.len());
            [head.as_bytes(), &value, b"\r\n"].concat()
        }
        8..13 => format!("gets {}{end}", keys(rng)).into(),
        13 => format!("get  {} {end}", keys(rng)).into(),
        14 => format!("gats {} {}{end}", exptime(rng), keys(rng)).into(),
        15 => format!("delete {key}{}{quiet}{end}", if rng.bool() { " 0" } else { "" }).into(),
        16..18 => format!("incr {COUNTER} {}{quiet}{end}", number(rng)).into(),
        18..20 => format!("decr {COUNTER} {}{quiet}{end}", number(rng)).into(),
        20 => format!("touch {key} {}{quiet}{end}", exptime(rng)).into(),
        21 if rng.u32(..8) == 0 => {
            format!("flush_all{}{quiet}{end}", if rng.bool() { " 0" } else { "" }).into()
        }
        21 if rng.u32(..20) == 0 => {
            let len = 1_100_000;
            [format!("set {key} 0 0 {len}{quiet}\r\n").as_bytes(), &vec![b'v'; len], b"\r\n"].concat()
        }
        _ => wrong(rng, key).into(),
    };
    Line { key, text }
}

fn has_long_key(line: &Line) -> bool {
    line.text.split(|byte| *byte == b' ').any(|word| word.len() > 250)
}

/// A memcached on a Unix socket.
struct Memcached(Child);

impl Memcached {
    fn start(socket: &Path) -> Option<Memcached> {
        let mut command = Command::new("memcached");
        command.arg("-s").arg(socket).args(["-u", "root", "-U", "0", "-t", "1"]);
        Some(Memcached(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?))
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn memcached_gives_the_same_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("memcached.sock");
    let Some(_memcached) = Memcached::start(&socket) else {
        let required = std::env::var_os("RFS_REQUIRE_MEMCACHED").is_some();
        assert!(!required, "not run: memcached is not installed");
        println!("not run: memcached is not installed");
        return;
    };
    let server = start(&TextOptions::default());
    for seed in 0..20 {
        let peer = (0..600).find_map(|_| {
            thread::sleep(Duration::from_millis(if socket.exists() { 0 } else { 50 }));
            UnixStream::connect(&socket).ok()
        });
        let peer = peer.expect("memcached");
        peer.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        let ours = TcpStream::connect(server.address()).expect("a connection");
        ours.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        ours.set_nodelay(true).expect("an option");
        let mut peer = Side { wire: Box::new(peer), versions: HashMap::new() };
        let mut ours = Side { wire: Box::new(ours), versions: HashMap::new() };
        let mut rng = Rng::with_seed(seed);
        for step in 0..150 {
            let mut lines: Vec<Line> = (0..rng.usize(1..8)).map(|_| command(&mut rng)).collect();
            // With the answer to such a command, memcached drops the answers before it.
            let is_alone = lines.iter().position(|line| line.text.starts_with(b"get ") && has_long_key(line));
            if let Some(place) = is_alone {
                lines = vec![lines.swap_remove(place)];
            }
            let wanted = peer.ask(&lines, &mut rng.fork());
            let found = ours.ask(&lines, &mut rng.fork());
            if found != wanted {
                let short = |line: &Line| String::from_utf8_lossy(&line.text).chars().take(200).collect();
                let texts: Vec<String> = lines.iter().map(short).collect();
                panic!("seed {seed}, step {step}: {texts:#?}\nmemcached: {wanted}\nhere: {found}");
            }
        }
    }
}
