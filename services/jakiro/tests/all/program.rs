//! The program: its start and stop, its errors, and clients of a server that is killed.

use std::{
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use crate::support::{Program, WAYS, read_line};
use jakiro::{Client, ClientError, ClientOptions};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_jakiro-server")).args(args).output().expect("the program")
}

fn error_of(args: &[&str]) -> String {
    let output = run(args);
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_signal_ends_the_server_in_order_and_its_port_is_free() {
    for way in WAYS {
        let (address, _dir) = way.fixed_address();
        let mut program = Program::start(&address, &[]);
        let client = Client::connect(&program.address, &way.options()).unwrap();
        client.put(b"key", b"value").unwrap();
        let status = run(&["status", &program.address.to_string()]);
        let text = String::from_utf8(status.stdout).unwrap();
        let line = text.lines().find(|line| line.starts_with("stores ")).expect("a line");
        assert!(line.ends_with(" 1"), "{text}");

        let pid = program.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        assert!(program.child.wait().unwrap().success());
        assert_eq!(read_line(&mut program.output), "stopped: 1 items, 0 gets, 1 stores");
        let error = client.get(b"key", &mut Vec::new()).unwrap_err();
        assert!(error.is_disconnected(), "{error}");
        let again = Program::start(&program.address, &[]);
        let client = Client::connect(&again.address, &way.options()).unwrap();
        assert!(!client.get(b"key", &mut Vec::new()).unwrap());
    }
}

#[test]
fn a_server_whose_output_has_no_reader_serves() {
    let dir = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", dir.path().join("a").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_jakiro-server"));
    command.args(["--memory", "16m", "--threads", "1", "--listen", &address]).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the program");
    drop(child.stdout.take());
    let address = address.parse().unwrap();
    let began = Instant::now();
    while Client::connect(&address, &ClientOptions::default()).is_err() {
        assert!(child.try_wait().unwrap().is_none(), "the server has ended");
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_client_of_a_killed_server_gets_an_error_and_can_connect_to_the_next() {
    for way in WAYS {
        let (address, _dir) = way.fixed_address();
        let mut program = Program::start(&address, &[]);
        let client = Client::connect(&program.address, &way.options()).unwrap();
        let threads: Vec<ClientError> = std::thread::scope(|scope| {
            let load = |number: u32| {
                let client = &client;
                scope.spawn(move || {
                    let mut value = Vec::new();
                    loop {
                        let key = number.to_le_bytes();
                        let both = client.put(&key, &[1; 500]).and_then(|()| client.get(&key, &mut value));
                        match both {
                            Ok(found) => assert!(found && value == [1; 500]),
                            Err(error) => return error,
                        }
                    }
                })
            };
            let threads: Vec<_> = (0..3).map(load).collect();
            std::thread::sleep(Duration::from_millis(200));
            program.kill();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert!(threads.iter().all(ClientError::is_disconnected), "{threads:?}");
        assert!(threads[0].to_string().contains("connect again"), "{}", threads[0]);

        let address = program.address.clone();
        drop(program);
        let _next = Program::start(&address, &[]);
        let client = Client::connect(&address, &way.options()).unwrap();
        client.put(b"key", b"value").unwrap();
    }
}

#[test]
fn wrong_sizes_and_addresses_are_named_with_the_next_step() {
    let dir = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", dir.path().join("a").display());
    let error = error_of(&["--memory", "1m", "--threads", "2", "--listen", &socket]);
    assert!(error.contains("too small for values of 1048576 bytes: give each partition at least"), "{error}");
    let error = error_of(&["--memory", "900t", "--listen", &socket]);
    assert!(
        error.starts_with("jakiro-server: --memory 900 TiB: ") && error.contains("choose less"),
        "{error}"
    );
    let error = error_of(&["--memory", "16m", "--max-value", "2m", "--listen", &socket]);
    assert!(error.contains("values of 2097152 bytes: the limit is 1048576 bytes"), "{error}");
    let error = error_of(&["--memory", "16m", "--listen", "127.0.0.1:0"]);
    assert!(error.contains("is a network address") && error.contains("give keys"), "{error}");
    let error = error_of(&["status", &socket]);
    assert!(error.contains(&format!("cannot connect to {socket}")), "{error}");
    let help = String::from_utf8(run(&["--help"]).stdout).unwrap();
    for word in ["--memory", "--listen", "--threads", "--key", "status"] {
        assert!(help.contains(word), "{help}");
    }
}

/// The memory of the process stays near the given size.
#[test]
fn the_process_takes_the_memory_once() {
    let (address, _dir) = WAYS[0].address();
    let program = Program::start(&address, &[]);
    let resident = || {
        let text = std::fs::read_to_string(format!("/proc/{}/status", program.child.id())).unwrap();
        let line = text.lines().find(|line| line.starts_with("RssAnon:")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    };
    let before = resident();
    assert!(before > 16 << 20, "{before} bytes: not all of the memory is taken");
    let client = Client::connect(&program.address, &WAYS[0].options()).unwrap();
    let (began, mut round) = (Instant::now(), 0_u32);
    while round < 20 && began.elapsed() < Duration::from_secs(20) {
        for i in 0..200_u32 {
            let len = if round % 2 == 0 { 200_000 } else { 20_000 };
            client.put(&i.to_le_bytes(), &vec![round as u8; len]).unwrap();
        }
        (0..200_u32).for_each(|i| assert!(client.delete(&i.to_le_bytes()).is_ok()));
        round += 1;
    }
    let after = resident();
    assert!(after < before + (4 << 20), "{before} bytes before {round} rounds, {after} bytes afterwards");
}
