//! Measures the hand-over of a lock between mounts: `lock_handover DIRECTORY DIRECTORY [ROUNDS
//! [HELD_MS]]`.
//!
//! Both arguments name the same directory, through two mounts or through one. One side holds a
//! `flock` while the other side waits for it. The measured time begins with the unlock and ends
//! when the other side has the lock. Then the sides swap. Prints the median, the 90th percentile
//! and the maximum, in microseconds.

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

/// Releases a lock that another thread waits for. Returns the time from the unlock until the
/// waiter has the lock.
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
