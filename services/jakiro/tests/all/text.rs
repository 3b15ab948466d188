//! The text protocol of the program: the tests of libmemcached, and the end of the program.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Command, Stdio},
    time::Duration,
};

use crate::support::{Program, WAYS, Way};
use jakiro::Client;

const SHM: Way = WAYS[0];

/// Starts the program. Returns the address of the text protocol.
fn start(more: &[&str]) -> (Program, String, tempfile::TempDir) {
    let (address, dir) = SHM.address();
    let program = Program::start(&address, &[&["--text", "127.0.0.1:0"], more].concat());
    let text = program.text.clone().expect("an address");
    (program, text, dir)
}

fn connect(address: &str) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    BufReader::new(stream)
}

fn ask(stream: &mut BufReader<TcpStream>, commands: &str, wanted: &str) {
    stream.get_mut().write_all(commands.as_bytes()).expect("sent");
    let mut found = vec![0; wanted.len()];
    stream.read_exact(&mut found).expect("an answer");
    assert_eq!(String::from_utf8_lossy(&found), wanted);
}

#[test]
fn both_protocols_have_the_same_items() {
    let (program, text, _dir) = start(&[]);
    let native = Client::connect(&program.address, &SHM.options()).expect("a client");
    let mut stream = connect(&text);
    native.put(b"key", b"native").expect("stored");
    ask(&mut stream, "get key\r\nset key 0 0 4\r\ntext\r\n", "VALUE key 0 6\r\nnative\r\nEND\r\nSTORED\r\n");
    let mut value = Vec::new();
    assert!(native.get(b"key", &mut value).expect("a reply"));
    assert_eq!(value, b"text");
}

#[test]
fn a_signal_closes_the_connections() {
    let (mut program, text, _dir) = start(&["--text-threads", "2", "--text-connections", "2"]);
    let mut streams = [connect(&text), connect(&text)];
    for stream in &mut streams {
        ask(stream, "get key\r\n", "END\r\n");
    }
    let mut line = String::new();
    connect(&text).read_line(&mut line).expect("an answer");
    assert_eq!(line, "ERROR Too many open connections\r\n");
    let pid = program.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
    assert!(program.child.wait().expect("its end").success());
    for stream in &mut streams {
        assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
    }
}

#[test]
fn an_address_that_others_reach_is_refused_with_the_next_step() {
    let (address, _dir) = SHM.address();
    let output = Command::new(env!("CARGO_BIN_EXE_jakiro-server"))
        .args(["--memory", "16m", "--threads", "1", "--text", "0.0.0.0:0", "--listen", &address.to_string()])
        .output()
        .expect("the program");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("0.0.0.0:0 is no loopback address"), "{text}");
    assert!(text.contains("give --text-allow-anyone"), "{text}");
}

#[test]
fn the_tests_of_libmemcached_pass() {
    if Command::new("memccapable").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        let required = std::env::var_os("RFS_REQUIRE_MEMCACHED").is_some();
        assert!(!required, "not run: memccapable (libmemcached-tools) is not installed");
        println!("not run: memccapable (libmemcached-tools) is not installed");
        return;
    }
    let (_program, text, _dir) = start(&[]);
    let (host, port) = text.rsplit_once(':').expect("a port");
    let output = Command::new("memccapable").args(["-a", "-v", "-t", "60", "-h", host, "-p", port]).output();
    let output = output.expect("memccapable");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("All tests passed"), "{text}");
}
