mod client;
mod peer;

use std::{
    io::{BufRead, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use self::client::{Client, DEADLINE};
use super::*;
use crate::store::{MAX_VALUE, StoreOptions};

fn store() -> Arc<Store> {
    Arc::new(Store::new(&StoreOptions::new(32 << 20).partitions(3)).expect("a store"))
}

fn start(options: &TextOptions) -> TextServer {
    TextServer::listen("127.0.0.1:0", options, store()).expect("a server")
}

/// Waits until a condition holds.
fn wait_for(name: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < DEADLINE, "in vain: {name}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn commands_are_answered_in_order() {
    let server = start(&TextOptions::default());
    let mut client = Client::connect(&server);
    client.ask(
        "set a 5 0 3\r\nabc\r\nget a b a\r\n",
        "STORED\r\nVALUE a 5 3\r\nabc\r\nVALUE a 5 3\r\nabc\r\nEND\r\n",
    );
    client.ask(
        "append a 0 0 1\r\nd\r\nprepend a 0 0 1\r\n_\r\nget a\n",
        "STORED\r\nSTORED\r\nVALUE a 5 5\r\n_abcd\r\nEND\r\n",
    );
    client.ask("add a 0 0 1\r\nx\r\nreplace b 0 0 1\r\nx\r\n", "NOT_STORED\r\nNOT_STORED\r\n");
    client.ask(
        "set n 0 0 2\r\n10\r\ndecr n 1\r\nget n\r\nincr n 1\r\n",
        "STORED\r\n9\r\nVALUE n 0 1\r\n9\r\nEND\r\n10\r\n",
    );
    client.ask("delete n noreply\r\ndelete n\r\ntouch a 5\r\n", "NOT_FOUND\r\nTOUCHED\r\n");
    client.ask(
        "set a 0 0 1 noreply\r\nxy\r\n\r\nset a 0 0 1\r\nxy\r\n\r\n",
        "ERROR\r\nERROR\r\nCLIENT_ERROR bad data chunk\r\nERROR\r\nERROR\r\n",
    );
    client.send("gets a\r\n");
    let head = client.line();
    let version: u64 = head.split_whitespace().nth(4).expect("a version").parse().expect("a number");
    client.expect("_abcd\r\nEND\r\n");
    client.ask(format!("cas a 1 0 1 {}\r\nx\r\n", version + 1), "EXISTS\r\n");
    client.ask(format!("cas a 1 0 1 {version}\r\nx\r\n"), "STORED\r\n");
    client.ask(format!("cas b 1 0 1 {version}\r\nx\r\n"), "NOT_FOUND\r\n");
    client.ask(
        "get a\r\nflush_all\r\nget a\r\nverbosity 1\r\n",
        "VALUE a 1 1\r\nx\r\nEND\r\nOK\r\nEND\r\nOK\r\n",
    );
    client.ask("version\r\nquit\r\nversion\r\n", format!("VERSION {}\r\n", env!("CARGO_PKG_VERSION")));
    client.expect_end();
}

#[test]
fn input_may_come_byte_by_byte() {
    let server = start(&TextOptions::default());
    let mut client = Client::connect(&server);
    client.0.get_mut().set_nodelay(true).expect("an option");
    for byte in b"set key 0 0 5\r\nab\r\nc\r\nget key nokey\r\n" {
        client.send([*byte]);
        thread::sleep(Duration::from_millis(1));
    }
    client.expect("STORED\r\nVALUE key 0 5\r\nab\r\nc\r\nEND\r\n");
}

#[test]
fn many_commands_may_come_at_once() {
    let server = start(&TextOptions::default().workers(2));
    let mut clients: Vec<Client> = (0..8).map(|_| Client::connect(&server)).collect();
    let count = 5000;
    for (number, client) in clients.iter_mut().enumerate() {
        let commands: String = (0..count)
            .map(|step| format!("set {number}.{step} 1 0 4\r\n{step:04}\r\nget {number}.{step} none\r\n"))
            .collect();
        let mut writer = client.0.get_ref().try_clone().expect("a socket");
        thread::spawn(move || writer.write_all(commands.as_bytes()).expect("sent"));
    }
    for (number, client) in clients.iter_mut().enumerate() {
        for step in 0..count {
            client.expect(format!("STORED\r\nVALUE {number}.{step} 1 4\r\n{step:04}\r\nEND\r\n"));
        }
    }
}

#[test]
fn values_of_one_mebibyte_are_kept_and_longer_ones_refused() {
    let server = start(&TextOptions::default());
    let mut client = Client::connect(&server);
    let value: Vec<u8> = (0..MAX_VALUE).map(|place| (place % 251) as u8).collect();
    let set = |len: usize| [format!("set long 0 0 {len}\r\n").as_bytes(), &value[..len], b"\r\n"].concat();
    client.ask(set(MAX_VALUE), "STORED\r\n");
    client.send("get long long long\r\n");
    for _ in 0..3 {
        client.expect([format!("VALUE long 0 {MAX_VALUE}\r\n").as_bytes(), &value, b"\r\n"].concat());
    }
    client.expect("END\r\n");
    client.ask("append long 0 0 1\r\nx\r\n", "SERVER_ERROR object too large for cache\r\n");
    let longer = [format!("set long 0 0 {}\r\n", MAX_VALUE + 1).as_bytes(), &value, b"x\r\n"].concat();
    client.ask(longer, "SERVER_ERROR object too large for cache\r\n");
    client.ask("get long\r\n", "END\r\n");
    for len in [70_000, 300_000, 1000, 65_536] {
        client.ask(set(len), "STORED\r\n");
        let wanted = [format!("VALUE long 0 {len}\r\n").as_bytes(), &value[..len], b"\r\nEND\r\n"].concat();
        client.ask("get long\r\n", wanted);
    }
}

#[test]
fn a_slow_reader_does_not_block_others() {
    let server = start(&TextOptions::default());
    let (mut slow, mut other) = (Client::connect(&server), Client::connect(&server));
    let value = vec![b'v'; 1 << 20];
    slow.ask([b"set long 0 0 1048576\r\n", &value[..], b"\r\n"].concat(), "STORED\r\n");
    let mut writer = slow.0.get_ref().try_clone().expect("a socket");
    // Nothing reads the answers, which fill all buffers on their way.
    let count = 200;
    let commands = "get long\r\n".repeat(count) + "version\r\n";
    thread::spawn(move || writer.write_all(commands.as_bytes()).expect("sent"));
    for step in 0..2000 {
        other.ask(
            format!("set k 0 0 4\r\n{step:04}\r\nget k\r\n"),
            format!("STORED\r\nVALUE k 0 4\r\n{step:04}\r\nEND\r\n"),
        );
    }
    let wanted = [b"VALUE long 0 1048576\r\n", &value[..], b"\r\nEND\r\n"].concat();
    for _ in 0..count {
        slow.expect(&wanted);
    }
    slow.expect(format!("VERSION {}\r\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(slow.0.buffer().len(), 0);
}

#[test]
fn a_client_that_goes_in_the_midst_harms_no_other() {
    let server = start(&TextOptions::default().max_connections(10));
    let mut good = Client::connect(&server);
    good.ask([b"set long 0 0 500000\r\n", &vec![b'v'; 500_000][..], b"\r\n"].concat(), "STORED\r\n");
    for step in 0..100 {
        let mut client = Client::connect(&server);
        match step % 4 {
            0 => client.send("set k 0 0 1000000\r\nabc"),
            1 => client.send("get long long long long long long long long\r\n"),
            2 => client.send("get"),
            _ => {}
        }
        drop(client);
        wait_for("the end of a connection", || {
            good.send("stats\r\n");
            let mut count = None;
            loop {
                let line = good.line();
                count = count.or(line.strip_prefix("STAT curr_connections ").map(|rest| rest.trim() == "1"));
                if line == "END\r\n" {
                    break count == Some(true);
                }
            }
        });
    }
    assert!(server.shared.room.is_unused());
}

#[test]
fn connections_above_the_limit_get_an_answer() {
    let server = start(&TextOptions::default().max_connections(3).workers(2));
    let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(&server)).collect();
    for client in &mut clients {
        client.ask("get a\r\n", "END\r\n");
    }
    let mut late = Client::connect(&server);
    assert_eq!(late.line(), "ERROR Too many open connections\r\n");
    late.expect_end();
    clients.pop();
    wait_for("a free place", || {
        let mut client = Client::connect(&server);
        client.0.get_mut().write_all(b"get a\r\n").ok();
        let mut line = String::new();
        client.0.read_line(&mut line).is_ok() && line == "END\r\n"
    });
}

#[test]
fn other_machines_cannot_connect_unless_it_is_said() {
    let options = TextOptions::default();
    let refused = TextServer::listen("0.0.0.0:0", &options, store());
    let Err(error @ TextServerError::NotLoopback(_)) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains("--text-allow-anyone"), "{error}");
    let server = TextServer::listen("0.0.0.0:0", &options.allow_anyone(true), store());
    assert!(server.is_ok(), "{server:?}");
    let wrong = TextServer::listen("nonsense", &TextOptions::default(), store());
    assert!(matches!(wrong, Err(TextServerError::Listen { .. })), "{wrong:?}");
}

#[test]
fn items_end_and_a_flush_may_be_delayed() {
    let server = start(&TextOptions::default());
    let mut client = Client::connect(&server);
    client.ask("set a 0 -1 1\r\nx\r\nset b 0 1 1\r\ny\r\nset c 0 0 1\r\nz\r\n", "STORED\r\n".repeat(3));
    client.ask("get a c\r\n", "VALUE c 0 1\r\nz\r\nEND\r\n");
    wait_for("the end of an item", || {
        client.send("get b\r\n");
        let is_over = client.line() == "END\r\n";
        if !is_over {
            client.expect("y\r\nEND\r\n");
        }
        is_over
    });
    client.ask("flush_all 1\r\nget c\r\n", "OK\r\nVALUE c 0 1\r\nz\r\nEND\r\n");
    wait_for("a delayed flush", || {
        client.send("get c\r\n");
        let is_over = client.line() == "END\r\n";
        if !is_over {
            client.expect("z\r\nEND\r\n");
        }
        is_over
    });
}

#[test]
fn the_end_of_the_server_closes_its_connections() {
    let server = start(&TextOptions::default().workers(2));
    let mut clients: Vec<Client> = (0..20).map(|_| Client::connect(&server)).collect();
    for client in &mut clients {
        client.ask("version\r\nset a 0 0 10\r\nab", format!("VERSION {}\r\n", env!("CARGO_PKG_VERSION")));
    }
    let address = server.address();
    drop(server);
    for client in &mut clients {
        client.expect_end();
    }
    assert!(TcpStream::connect(address).is_err());
}
