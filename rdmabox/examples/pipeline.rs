//! Moves 64 MiB in pieces of 1 MiB in three ways, and prints how the runtime carried them out.
//!
//! - *one at a time*: a blocking WRITE for each piece;
//! - *started*: all pieces under way at once, awaited in order;
//! - *callbacks*: eight pieces under way, each completion starts the next one.
//!
//! Then everything is read back and compared. `cargo run --release -p rdmabox --example pipeline`
//! starts a host in this process; with `-- --connect ADDRESS` the host is another process with at
//! least 64 MiB (`examples/lend.rs`). It prints, with other rates on another machine:
//!
//! ```text
//! 64 pieces of 1 MiB, through TCP via tcp:127.0.0.1:46639 (not shared memory: ...)
//! | way           | MiB/s | merged | work requests | doorbells |
//! |---------------|-------|--------|---------------|-----------|
//! | one at a time |  1054 |      0 |            64 |        64 |
//! | started       |  1077 |     48 |            16 |        16 |
//! | callbacks     |  1720 |     38 |            26 |        25 |
//! ```
//!
//! A blocking WRITE finds no neighbour. The started pieces leave as one batch
//! ([`Session::together`]), so adjacent pieces merge up to `max_merge_bytes`, here 4 MiB. Callbacks
//! of one poll start their pieces together, so the number of pieces that merge depends on time.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::Instant,
};

use rdmabox::{MemoryServer, RemoteAddr, RequestError, Session};

const PIECE: usize = 1 << 20;
const PIECES: usize = 64;

/// Returns the bytes of a piece: each round and piece has its own.
fn piece(round: u8, index: usize) -> Vec<u8> {
    vec![round.wrapping_mul(64).wrapping_add(index as u8); PIECE]
}

fn at(base: RemoteAddr, index: usize) -> RemoteAddr {
    base.at((index * PIECE) as u64)
}

fn one_at_a_time(session: &Session, base: RemoteAddr) -> Result<(), RequestError> {
    (0..PIECES).try_for_each(|index| session.write(at(base, index), &piece(1, index)))
}

fn started(session: &Session, base: RemoteAddr) -> Result<(), RequestError> {
    // As one batch, so that adjacent pieces merge from the first one on.
    let transfers: Vec<_> =
        session.together(|| (0..PIECES).map(|i| session.start_write(at(base, i), piece(2, i))).collect());
    transfers.into_iter().try_for_each(|transfer| Ok(transfer.wait().map(drop)?))
}

/// The state that the callbacks of one round share.
struct Round {
    session: Arc<Session>,
    base: RemoteAddr,
    next: AtomicUsize,
    done: mpsc::Sender<Result<(), RequestError>>,
}

/// Writes the next piece; its completion does the same.
fn write_next(round: Arc<Round>) {
    let index = round.next.fetch_add(1, Ordering::Relaxed);
    if index >= PIECES {
        return;
    }
    let (session, place) = (Arc::clone(&round.session), at(round.base, index));
    session.write_then(place, piece(3, index), move |outcome| {
        // The receiver is gone only after an error.
        let _ = round.done.send(outcome.map(drop).map_err(RequestError::from));
        write_next(round);
    });
}

fn callbacks(session: &Arc<Session>, base: RemoteAddr) -> Result<(), RequestError> {
    const UNDER_WAY: usize = 8;
    let (done, outcomes) = mpsc::channel();
    let round = Arc::new(Round { session: Arc::clone(session), base, next: AtomicUsize::new(0), done });
    (0..UNDER_WAY).for_each(|_| write_next(Arc::clone(&round)));
    drop(round);
    outcomes.into_iter().take(PIECES).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (_host, address) = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--connect", address] => (None, address.parse()?),
        [] => {
            let host = MemoryServer::listen(&["127.0.0.1:0".parse()?], PIECES * PIECE)?;
            let address = host.addresses()[0].clone();
            (Some(host), address)
        }
        _ => return Err("usage: pipeline [--connect ADDRESS]".into()),
    };
    // Requests are posted even on mapped memory, so that there is something to count.
    let session = Session::builder().direct(false).max_merge_bytes(4 << 20).connect(&address)?;
    let base = MemoryServer::locate(&session)?.base();
    println!("64 pieces of 1 MiB, through {}", session.description());
    println!("| way           | MiB/s | merged | work requests | doorbells |");
    println!("|---------------|-------|--------|---------------|-----------|");
    type Way<'a> = (&'a str, &'a dyn Fn() -> Result<(), RequestError>);
    let ways: [Way<'_>; 3] = [
        ("one at a time", &|| one_at_a_time(&session, base)),
        ("started", &|| started(&session, base)),
        ("callbacks", &|| callbacks(&session, base)),
    ];
    for (round, (name, write)) in (1..).zip(ways) {
        let (before, began) = (session.stats(), Instant::now());
        write()?;
        let rate = PIECES as f64 / began.elapsed().as_secs_f64();
        let took = session.stats().since(&before);
        println!(
            "| {name:13} | {rate:5.0} | {:6} | {:13} | {:9} |",
            took.merged, took.work_requests, took.doorbells
        );
        let mut back = vec![0; PIECE];
        for index in 0..PIECES {
            session.read(at(base, index), &mut back)?;
            assert!(back == piece(round, index), "piece {index} of {name} has other bytes");
        }
    }
    Ok(())
}
