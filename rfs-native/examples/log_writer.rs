//! Appends records of several threads to one log, and checks that each record is whole.
//!
//! Other programs and other machines may append at the same time: appends follow each other.
//!
//!     cargo run --release -p rfs-native --example log_writer -- ADDRESS [RECORDS]

use std::{error::Error, io::BufRead, io::BufReader, thread, time::Instant};

use rfs_native::{Mount, MountOptions, OpenOptions};

const THREADS: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or("usage: log_writer ADDRESS [RECORDS]")?;
    let records: usize = arguments.next().map_or(Ok(10_000), |number| number.parse())?;
    let mount = Mount::connect(&address, &MountOptions::default())?;
    let log = mount.open_with("log", OpenOptions::new().read(true).append(true).create(true))?;
    let begin = Instant::now();
    thread::scope(|scope| {
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let log = &log;
                scope.spawn(move || {
                    for record in 0..records {
                        log.append(format!("{thread} {record}\n").as_bytes())?;
                    }
                    Ok::<(), rfs_native::Error>(())
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().expect("a writer panicked"))
    })?;
    // The time of the last append is exact for other mounts from here on.
    log.sync()?;
    let each = begin.elapsed() / (THREADS * records).max(1) as u32;
    let mut next = [0; THREADS];
    for line in BufReader::new(log.cursor()).lines() {
        let line = line?;
        let (thread, record) = line.split_once(' ').ok_or("a torn record")?;
        let (thread, record) = (thread.parse::<usize>()?, record.parse::<usize>()?);
        let expected = next.get_mut(thread).ok_or("a record of no thread")?;
        if *expected % records != record {
            return Err(format!("record {record} of thread {thread} is out of order").into());
        }
        *expected += 1;
    }
    println!(
        "{} records of {THREADS} threads are whole and in order; {each:?} each",
        next.iter().sum::<usize>()
    );
    Ok(())
}
