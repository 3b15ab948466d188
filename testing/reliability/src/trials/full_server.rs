//! Fills a server. Writers must get ENOSPC and no other error, written data must stay intact, and
//! freed space must be usable again.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use crate::{
    error::{Error, Result},
    report::Report,
    testbed::{Plan, Testbed, time_until},
    users::content,
};

/// Sizes of the files. When a size no longer fits, the next smaller size is tried.
const SIZES: [usize; 3] = [4 << 20, 64 << 10, 4 << 10];
/// Length of a write in bytes.
const PIECE: usize = 128 << 10;
/// Required usable part of the memory, in percent.
const USABLE: f64 = 97.0;

/// A file, with the length that was written.
#[derive(Debug)]
struct Written {
    name: PathBuf,
    stream: u64,
    len: u64,
}

/// The results of a writer.
#[derive(Debug, Default)]
struct Filled {
    files: Vec<Written>,
    full: u64,
    others: Vec<String>,
}

impl Filled {
    fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.len).sum()
    }

    /// Records an error. Returns true if it is ENOSPC.
    fn note(&mut self, what: &str, e: &io::Error) -> bool {
        let full = e.kind() == io::ErrorKind::StorageFull;
        match full {
            true => self.full += 1,
            false => self.others.push(format!("{what}: {e}")),
        }
        full
    }
}

/// Fills a server through two mounts, twice.
pub(crate) fn run(plan: &Plan) -> Result<Report> {
    let mut testbed = Testbed::start(plan)?;
    let mounts = [testbed.mount()?, testbed.mount()?];
    let points = [0, 1].map(|at| mounts[at].point.clone());
    let mut report =
        Report::new(format!("a full server of {} MiB over {}", plan.capacity() >> 20, plan.provider));

    let mut filled: Vec<Filled> = thread::scope(|scope| {
        let writers = [0, 1].map(|at| {
            let point = &points[at];
            scope.spawn(move || fill(point, &format!("writer{at}"), at as u64 + 1))
        });
        writers.into_iter().map(|writer| writer.join().unwrap_or_default()).collect()
    });
    let bytes: u64 = filled.iter().map(Filled::bytes).sum();
    let percent = bytes as f64 * 100.0 / plan.capacity() as f64;
    report.check("written before it was full", format!("{percent:.2} %"), "97 %", percent >= USABLE);
    let mut while_full = Filled::default();
    use_full(&points[0], &mut while_full);
    filled.push(while_full);
    note_errors(&mut report, &filled);
    // Each mount reads the files of the other mount.
    let wrong: Vec<String> =
        filled[..2].iter().zip(points.iter().rev()).flat_map(|(f, p)| wrong(f, p)).collect();
    let count: usize = filled.iter().map(|filled| filled.files.len()).sum();
    report.check(
        "files, and those with a wrong byte",
        format!("{count}, {}", wrong.len()),
        "none",
        wrong.is_empty(),
    );
    wrong.iter().take(5).for_each(|text| report.note("wrong", text));

    for point in &points {
        for entry in fs::read_dir(point).map_err(Error::io("listing"))? {
            let path = entry.map_err(Error::io("listing"))?.path();
            fs::remove_dir_all(path).map_err(Error::io("removing"))?;
        }
    }
    // The kernel releases closed files in the background.
    time_until(Duration::from_secs(30), || {
        free(&points[0]).is_ok_and(|free| free >= plan.capacity() / 100 * 98)
    });
    let again = fill(&points[1], "again", 9);
    let percent = again.bytes() as f64 * 100.0 / plan.capacity() as f64;
    report.check("usable after removing all", format!("{percent:.2} %"), "97 %", percent >= USABLE);
    let again_wrong = wrong_in(&again, &points[0]);
    report.check("wrong bytes in that", again_wrong, "none", again_wrong == 0);
    note_errors(&mut report, &[again]);
    for mount in mounts {
        mount.unmount()?;
    }
    testbed.stop()?;
    Ok(report)
}

fn note_errors(report: &mut Report, filled: &[Filled]) {
    let full: u64 = filled.iter().map(|filled| filled.full).sum();
    let others: Vec<&String> = filled.iter().flat_map(|filled| &filled.others).collect();
    report.note("told ENOSPC, times", full);
    report.check("other errors", others.len(), "none", others.is_empty() && full > 0);
    others.iter().take(5).for_each(|text| report.note("error", text));
}

/// Writes files until not even the smallest size fits.
fn fill(point: &Path, name: &str, stream: u64) -> Filled {
    let mut filled = Filled::default();
    let dir = PathBuf::from(name);
    if let Err(e) = fs::create_dir(point.join(&dir)) {
        filled.note("mkdir", &e);
        return filled;
    }
    for size in SIZES {
        loop {
            let number = filled.files.len() as u64;
            let file = Written { name: dir.join(format!("{number}")), stream: stream << 32 | number, len: 0 };
            if write(point, file, size, &mut filled).is_err() {
                break;
            }
        }
    }
    filled
}

/// Writes a file. Returns an error if any operation failed, ENOSPC included. The bytes written
/// before the failure count.
fn write(point: &Path, mut file: Written, size: usize, filled: &mut Filled) -> std::result::Result<(), ()> {
    let handle = match File::create_new(point.join(&file.name)) {
        Ok(handle) => handle,
        Err(e) => {
            filled.note("create", &e);
            return Err(());
        }
    };
    let mut bytes = vec![0; PIECE];
    let mut outcome = Ok(());
    while file.len < size as u64 {
        let piece = PIECE.min(size - file.len as usize);
        content::fill(file.stream, file.len, &mut bytes[..piece]);
        match handle.write_at(&bytes[..piece], file.len) {
            Ok(count) => file.len += count as u64,
            Err(e) => {
                filled.note("write", &e);
                outcome = Err(());
                break;
            }
        }
    }
    if let Err(e) = handle.sync_all() {
        filled.note("fsync", &e);
    }
    filled.files.push(file);
    outcome
}

/// Performs operations on a full file system. Those that need space may fail with ENOSPC.
fn use_full(point: &Path, errors: &mut Filled) {
    let first = point.join("writer0/0");
    let moved = point.join("writer0/moved");
    let steps: [(&str, io::Result<()>); 7] = [
        ("mkdir", fs::create_dir(point.join("directory"))),
        ("symlink", std::os::unix::fs::symlink("target", point.join("directory/symlink"))),
        ("empty file", fs::write(point.join("directory/empty"), b"")),
        ("one byte", fs::write(point.join("directory/byte"), b"x")),
        ("rename", fs::rename(&first, &moved)),
        ("rename", fs::rename(&moved, &first)),
        ("stat", fs::metadata(&first).map(drop)),
    ];
    for (what, result) in steps {
        if let Err(e) = result {
            errors.note(what, &e);
        }
    }
}

/// Returns the free bytes according to statvfs(3).
fn free(point: &Path) -> io::Result<u64> {
    let totals = rustix::fs::statvfs(point)?;
    Ok(totals.f_bavail * totals.f_frsize)
}

fn wrong_in(filled: &Filled, point: &Path) -> usize {
    wrong(filled, point).len()
}

/// Returns the files whose content differs from the written content, with the reason.
fn wrong(filled: &Filled, point: &Path) -> Vec<String> {
    let wrong = |file: &Written| {
        let path = point.join(&file.name);
        let why = match fs::read(&path) {
            Err(e) => e.to_string(),
            Ok(bytes) if bytes.len() as u64 != file.len => format!("{} bytes are {}", file.len, bytes.len()),
            Ok(bytes) => format!("byte {} is wrong", content::first_wrong(file.stream, 0, &bytes)?),
        };
        Some(format!("{}: {why}", path.display()))
    };
    filled.files.iter().filter_map(wrong).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_other_content_is_found() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        let mut filled = Filled::default();
        for number in 0..2 {
            let file = Written { name: format!("d/{number}").into(), stream: number, len: 0 };
            write(dir.path(), file, 300_000, &mut filled).unwrap();
        }
        assert_eq!((filled.bytes(), filled.full), (600_000, 0));
        assert_eq!(wrong(&filled, dir.path()), [""; 0]);
        fs::copy(dir.path().join("d/0"), dir.path().join("d/1")).unwrap();
        assert_eq!(wrong_in(&filled, dir.path()), 1);
    }

    #[test]
    fn only_enospc_is_expected() {
        let mut filled = Filled::default();
        assert!(filled.note("write", &io::ErrorKind::StorageFull.into()));
        assert!(!filled.note("write", &io::ErrorKind::NotConnected.into()));
        assert_eq!((filled.full, filled.others.len()), (1, 1));
    }
}
