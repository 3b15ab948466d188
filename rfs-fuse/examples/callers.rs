//! Measures operations on a mounted directory, for one caller and for two callers at once.
//!
//! `cargo run --release -p rfs-fuse --example callers -- DIRECTORY`
//!
//! Prints microseconds per operation: the elapsed time divided by the operations of all callers.
//! With `--cache none` each operation is a request to the mount. To compare two mounts, alternate
//! between them.

use std::{
    env,
    error::Error,
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Time for which each operation is repeated.
const TIME: Duration = Duration::from_millis(100);
const SMALL: usize = 4 << 10;
const LARGE: usize = 1 << 20;
/// Bytes of the file that is read and written.
const FILE_LEN: usize = 16 * LARGE;

/// An operation on a directory, a file there, a buffer, and the number of operations before.
type Operation = fn(&Path, &File, &mut [u8], usize) -> io::Result<()>;

const OPERATIONS: [(&str, Operation); 6] = [
    ("attributes of an open file", |_, file, _, _| file.metadata().map(drop)),
    ("a name that does not exist", |directory, _, _, nth| {
        match fs::symlink_metadata(directory.join(["absent", "missing", "gone", "nowhere"][nth % 4])) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            found => found.and(Err(io::ErrorKind::AlreadyExists.into())),
        }
    }),
    ("read of 4 KiB", |_, file, data, nth| file.read_exact_at(&mut data[..SMALL], place(nth, SMALL))),
    ("write of 4 KiB", |_, file, data, nth| file.write_all_at(&data[..SMALL], place(nth, SMALL))),
    ("read of 1 MiB", |_, file, data, nth| file.read_exact_at(data, place(nth, LARGE))),
    ("write of 1 MiB", |_, file, data, nth| file.write_all_at(data, place(nth, LARGE))),
];

fn place(nth: usize, len: usize) -> u64 {
    (nth * len % FILE_LEN) as u64
}

/// Returns microseconds per operation for a number of callers, each with a file of its own.
fn measure(directory: &Path, callers: usize, operation: Operation) -> io::Result<f64> {
    let (barrier, is_over) = (Barrier::new(callers), AtomicBool::new(false));
    let call = |caller: usize| -> io::Result<(usize, Duration)> {
        let path = directory.join(format!("file {caller}"));
        let made = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let made = made.and_then(|file| file.write_all_at(&vec![1; FILE_LEN], 0).map(|()| file));
        let mut data = vec![1; LARGE];
        // After an error, too: the other callers wait at the barrier.
        barrier.wait();
        let file = made?;
        let (begin, mut done) = (Instant::now(), 0);
        while !is_over.load(Ordering::Relaxed) {
            operation(directory, &file, &mut data, done)?;
            done += 1;
            if begin.elapsed() >= TIME {
                is_over.store(true, Ordering::Relaxed);
            }
        }
        let took = begin.elapsed();
        fs::remove_file(&path)?;
        Ok((done, took))
    };
    thread::scope(|scope| {
        let call = &call;
        let calling: Vec<_> = (0..callers).map(|caller| scope.spawn(move || call(caller))).collect();
        let (mut done, mut took) = (0, Duration::ZERO);
        for caller in calling {
            let (operations, time) = caller.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
            (done, took) = (done + operations, took.max(time));
        }
        Ok(took.as_secs_f64() * 1e6 / done.max(1) as f64)
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = env::args_os().nth(1).ok_or("a directory is needed")?;
    println!("{:28} {:>10} {:>10}", "microseconds", "1 caller", "2 callers");
    for (name, operation) in OPERATIONS {
        let one = measure(directory.as_ref(), 1, operation)?;
        let two = measure(directory.as_ref(), 2, operation)?;
        println!("{name:28} {one:10.2} {two:10.2}");
    }
    Ok(())
}
