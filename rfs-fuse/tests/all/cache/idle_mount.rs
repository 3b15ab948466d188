//! A mount that caches a directory and only receives recalls for it returns the names. Later
//! changes of other mounts then cost nothing more.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::Path,
};

use crate::common::{TestServer, eventually, pairs};

const MIB: u64 = 1 << 20;
const FILES: u32 = 100;

/// Returns the number of handled requests of this kind.
fn count(server: &TestServer, kind: &str) -> u64 {
    let calls = server.inner.stats().calls;
    calls.iter().find(|(name, _)| name == kind).map(|(_, count)| *count).expect("a kind of request")
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).expect("listed");
    entries.map(|entry| entry.expect("listed").file_name().into_string().expect("text")).collect()
}

#[test]
fn names_that_only_other_mounts_use_are_returned() {
    pairs(64 * MIB, &[], |server, a, b| {
        let (here, there) = (a.path("dir"), b.path("dir"));
        fs::create_dir(&here).expect("made");
        for name in ["old", "replaced", "stays"] {
            fs::write(here.join(name), name).expect("written");
        }
        fs::create_dir(here.join("below")).expect("made");
        assert_eq!(names(&there).len(), 4);
        assert!(!there.join("absent").exists() && there.join("old").exists() && there.join("below").exists());
        let mut made = 0;
        let returned = eventually(|| {
            File::create(here.join(format!("file{made}"))).expect("made");
            made += 1;
            count(server, "returnnames") > 0
        });
        assert!(returned, "after {made} recalls");
        // Waits for the last recall, which recalls all names.
        File::create(here.join("last")).expect("made");
        let before = count(server, "recalls");
        for number in 0..FILES {
            File::create(here.join(format!("more{number}"))).expect("made");
        }
        for number in 0..FILES {
            fs::remove_file(here.join(format!("more{number}"))).expect("removed");
        }
        assert_eq!(count(server, "recalls") - before, 0, "recalls for {FILES} files");
        // Names that the mount uses are still recalled.
        fs::remove_file(here.join("old")).expect("removed");
        fs::rename(here.join("stays"), here.join("replaced")).expect("renamed");
        fs::remove_dir(here.join("below")).expect("removed");
        fs::write(here.join("absent"), b"new").expect("written");
        assert!(
            !there.join("old").exists() && !there.join("below").exists() && !there.join("stays").exists()
        );
        assert_eq!(fs::read(there.join("absent")).expect("read"), b"new");
        assert_eq!(fs::read(there.join("replaced")).expect("read"), b"stays");
        assert_eq!(names(&there), names(&here));
        // The directory is cached again.
        fs::remove_file(here.join("absent")).expect("removed");
        assert!(!there.join("absent").exists() && !names(&there).contains("absent"));
    });
}

#[test]
fn names_that_are_used_here_stay() {
    pairs(64 * MIB, &[], |server, a, b| {
        let (here, there) = (a.path("dir"), b.path("dir"));
        fs::create_dir(&here).expect("made");
        fs::write(here.join("file"), b"").expect("written");
        assert_eq!(names(&there).len(), 1);
        for number in 0..FILES {
            File::create(here.join(format!("file{number}"))).expect("made");
            if number % 4 == 0 {
                assert!(there.join("file").exists());
            }
        }
        assert_eq!(count(server, "returnnames"), 0);
    });
}
