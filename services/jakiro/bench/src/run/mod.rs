//! Runs a load on a running server, and measures it.
//!
//! # Concurrency
//! One thread for each client. They begin and end together.

mod sample;

use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

pub(crate) use self::sample::Sample;
use crate::{
    error::Error,
    load::{Load, Requests, key},
    peer::{Connection, Server},
};

/// Stores all keys of a load.
pub(crate) fn fill(server: &dyn Server, load: &Load) -> Result<(), Error> {
    let (mut connection, mut value) = (server.connect()?, Vec::new());
    (0..load.keys).try_for_each(|number| {
        value_of(number, load, &mut value);
        connection.put(&key(number), &value)
    })
}

/// Runs a load with `threads` clients.
pub(crate) fn measure(
    server: &dyn Server,
    load: &Load,
    threads: usize,
    duration: Duration,
) -> Result<Sample, Error> {
    let connections = (0..threads).map(|_| server.connect()).collect::<Result<Vec<_>, _>>()?;
    let (begin, is_over) = (Barrier::new(threads + 1), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let workers: Vec<_> = connections
            .into_iter()
            .enumerate()
            .map(|(number, connection)| {
                let (begin, is_over) = (&begin, &is_over);
                scope.spawn(move || {
                    begin.wait();
                    work(connection, load, number as u64, is_over)
                })
            })
            .collect();
        begin.wait();
        let began = Instant::now();
        std::thread::sleep(duration);
        is_over.store(true, Ordering::Relaxed);
        let mut sum = Sample::new();
        for worker in workers {
            sum.add(&worker.join().map_err(|_| Error::Thread)??);
        }
        sum.took(began.elapsed());
        Ok(sum)
    })
}

/// Makes requests until the time is over.
fn work(
    mut connection: Box<dyn Connection>,
    load: &Load,
    seed: u64,
    is_over: &AtomicBool,
) -> Result<Sample, Error> {
    let (mut requests, mut sample) = (Requests::new(*load, seed), Sample::new());
    let (mut found, mut value) = (Vec::new(), Vec::new());
    let fetches = connection.fetches();
    while !is_over.load(Ordering::Relaxed) {
        let request = requests.next();
        let key = key(request.key);
        let began = Instant::now();
        if request.is_get {
            let is_found = connection.get(&key, &mut found)?;
            sample.record(began.elapsed());
            // All keys are present and fit, so each get finds its value.
            if !is_found || found.len() != load.lengths.of(request.key) {
                return Err(Error::WrongValue("the load"));
            }
        } else {
            value_of(request.key, load, &mut value);
            let began = Instant::now();
            connection.put(&key, &value)?;
            sample.record(began.elapsed());
        }
    }
    sample.fetched(connection.fetches() - fetches);
    Ok(sample)
}

/// Makes the value of a key.
fn value_of(number: u64, load: &Load, value: &mut Vec<u8>) {
    value.clear();
    value.resize(load.lengths.of(number), number as u8);
}
