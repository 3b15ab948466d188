//! How long a lock takes from one mount to another: `lock_handover DIRECTORY DIRECTORY [ROUNDS [HELD_MS]]`.
//!
//! The directories are the same one, seen through two mounts (or one mount twice). One side holds a `flock` while the other
//! waits for it, and gives it up: counted is the time from then until the other one has it. Then they change places.
//! Prints the median, the ninth of ten and the longest, in microseconds.

use std::{
    error::Error,
    fs::{File, OpenOptions},
    path::Path,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{FlockOperation, flock};

fn open(directory: &str) -> std::io::Result<File> {
    let path = Path::new(directory).join("lock-handover");
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// Gives a lock up that somebody waits for, and takes it again behind him: when that was, and when he had it.
fn hand_over(from: &File, to: &File, held: Duration) -> Result<Duration, Box<dyn Error + Send + Sync>> {
    thread::scope(|scope| {
        let (told, waits) = mpsc::channel();
        let waiter = scope.spawn(move || {
            told.send(()).ok();
            flock(to, FlockOperation::LockExclusive).map(|()| Instant::now())
        });
        waits.recv()?;
        thread::sleep(held);
        let begun = Instant::now();
        flock(from, FlockOperation::Unlock)?;
        let got = waiter.join().map_err(|_| "the waiter had panicked")??;
        Ok(got.saturating_duration_since(begun))
    })
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [one, two, numbers @ ..] = &arguments[..] else {
        return Err("usage: lock_handover DIRECTORY DIRECTORY [ROUNDS [HELD_MS]]".into());
    };
    let number = |at: usize, or: u64| numbers.get(at).map_or(Ok(or), |number| number.parse());
    let (rounds, held) = (number(0, 100)?.max(1), Duration::from_millis(number(1, 30)?));
    let (mut from, mut to) = (open(one)?, open(two)?);
    flock(&from, FlockOperation::LockExclusive)?;
    let mut times = Vec::new();
    for _ in 0..rounds {
        times.push(hand_over(&from, &to, held)?);
        std::mem::swap(&mut from, &mut to);
    }
    times.sort_unstable();
    let micros = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_micros();
    println!("median {} us, 90% {} us, longest {} us", micros(0.5), micros(0.9), micros(1.0));
    Ok(())
}
