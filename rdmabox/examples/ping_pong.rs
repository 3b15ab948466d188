//! Measures latency: one request of each kind at a time, and a word in the memory of a third
//! process. Two clients pass that word to and fro.
//!
//! `cargo run --release -p rdmabox --example ping_pong` starts a host in this process. With
//! `-- --connect ADDRESS` the host is another process (`examples/lend.rs`). It prints, with other
//! numbers on another machine:
//!
//! ```text
//! 1000 of each, one at a time, through shared memory via unix:/tmp/ping-pong-881.sock
//! |                        | median us | 99 % us |
//! |------------------------|----------:|--------:|
//! | read 8 bytes           |      0.98 |    4.87 |
//! | write 8 bytes          |      0.91 |    2.63 |
//! | read 4 KiB             |      1.08 |    3.58 |
//! | write 4 KiB            |      1.08 |    5.04 |
//! | fetch and add          |      1.04 |    4.61 |
//! | call                   |     15.69 |   31.21 |
//! | there and back         |      2.96 |    9.84 |
//! ```

use std::{
    error::Error,
    time::{Duration, Instant},
};

use rdmabox::{Address, MemoryServer, RemoteAddr, RequestError, Session, SessionOptions};

const ROUNDS: u64 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (_host, address) = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--connect", address] => (None, address.parse()?),
        [] => {
            let socket = std::env::temp_dir().join(format!("ping-pong-{}.sock", std::process::id()));
            let host = MemoryServer::listen(&[Address::Unix(socket)], 64 * 1024)?;
            let address = host.addresses()[0].clone();
            (Some(host), address)
        }
        _ => return Err("usage: ping_pong [--connect ADDRESS]".into()),
    };
    let session = Session::connect(&address, &SessionOptions::default())?;
    let base = MemoryServer::locate(&session)?.base();
    let mut buffer = [0; 4096];

    println!("{ROUNDS} of each, one at a time, through {}", session.description());
    println!("| {:<22} | median us | 99 % us |", "");
    println!("|{}|----------:|--------:|", "-".repeat(24));
    row("read 8 bytes", || session.read(base, &mut buffer[..8]))?;
    row("write 8 bytes", || session.write(base, &[1; 8]))?;
    row("read 4 KiB", || session.read(base, &mut buffer))?;
    row("write 4 KiB", || session.write(base, &[1; 4096]))?;
    row("fetch and add", || session.fetch_add(base, 1).map(drop))?;
    row("call", || MemoryServer::locate(&session).map(drop))?;

    let other = Session::connect(&address, &SessionOptions::default())?;
    let (ping, pong) = (base, base.at(64));
    session.write(ping, &[0; 8])?;
    session.write(pong, &[0; 8])?;
    std::thread::scope(|scope| {
        // The other player answers each number with the same number.
        let player = scope.spawn(|| {
            (1..=ROUNDS).try_for_each(|n| {
                wait_for(&other, ping, n)?;
                other.write(pong, &n.to_ne_bytes())
            })
        });
        let mut n = 0u64;
        row("there and back", || {
            n += 1;
            session.write(ping, &n.to_ne_bytes())?;
            wait_for(&session, pong, n)
        })?;
        player.join().map_err(|_| "the other player is gone")??;
        Ok(())
    })
}

/// Loads a word until it is `n`.
fn wait_for(session: &Session, word: RemoteAddr, n: u64) -> Result<(), RequestError> {
    while session.load_u64(word)? != n {}
    Ok(())
}

/// Measures a request and prints its row.
fn row(name: &str, mut request: impl FnMut() -> Result<(), RequestError>) -> Result<(), RequestError> {
    let mut times = (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            request().map(|()| began.elapsed())
        })
        .collect::<Result<Vec<Duration>, _>>()?;
    times.sort_unstable();
    let us = |part: usize| times[times.len() * part / 100].as_secs_f64() * 1e6;
    println!("| {name:<22} | {:>9.2} | {:>7.2} |", us(50), us(99));
    Ok(())
}
