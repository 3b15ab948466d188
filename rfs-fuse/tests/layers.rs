//! An overlayfs with layers on a mount: below all is well, and above it is refused.

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use common::{Mount, directory, each, is_mounted};

const MIB: u64 = 1 << 20;

/// An overlayfs, until it is dropped.
struct Overlay {
    point: tempfile::TempDir,
}

impl Overlay {
    /// Over `lower`, with what is changed in `upper`, and a directory of its own beside that. What mount(8) says if that is refused.
    fn over(lower: &Path, upper: &Path, work: &Path) -> Result<Overlay, String> {
        let point = directory();
        let [lower, upper, work] = [lower, upper, work].map(Path::display);
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        let mut command = Command::new("mount");
        command.args(["--internal-only", "-t", "overlay", "-o", &options, "overlay"]).arg(point.path());
        let out = command.env("LC_ALL", "C").output().expect("mount");
        match out.status.success() {
            true => Ok(Overlay { point }),
            false => Err(String::from_utf8(out.stderr).expect("UTF-8")),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.point.path().join(name)
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        Command::new("umount").args(["--internal-only", "--"]).arg(self.point.path()).status().ok();
        assert!(std::thread::panicking() || !is_mounted(self.point.path()));
    }
}

fn made(mount: &Mount, names: [&str; 3]) -> [PathBuf; 3] {
    names.map(|name| {
        fs::create_dir(mount.path(name)).expect("made");
        mount.path(name)
    })
}

/// What is changed goes to another file system: the layer on the mount is only read.
#[test]
fn a_lower_layer_is_read_and_stays_as_it_is() {
    each(32 * MIB, |_, mount| {
        let [lower, ..] = made(mount, ["lower", "a", "b"]);
        fs::create_dir(lower.join("dir")).expect("made");
        for (name, bytes) in [("file", "old"), ("gone", "x"), ("dir/inner", "kept")] {
            fs::write(lower.join(name), bytes).expect("written");
        }
        // A file system of this machine's memory.
        let above = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let [upper, work] = ["upper", "work"].map(|name| {
            fs::create_dir(above.path().join(name)).expect("made");
            above.path().join(name)
        });
        let overlay = Overlay::over(&lower, &upper, &work).expect("mounted");
        assert_eq!(fs::read(overlay.path("file")).expect("read"), b"old");
        fs::write(overlay.path("file"), "new").expect("copied up");
        fs::remove_file(overlay.path("gone")).expect("hidden");
        fs::rename(overlay.path("dir/inner"), overlay.path("dir/outer")).expect("renamed");
        let names = |path: PathBuf| {
            let entries = fs::read_dir(path).expect("listed").map(|entry| entry.expect("entry").file_name());
            let mut names: Vec<_> = entries.collect();
            names.sort();
            names
        };
        assert_eq!(names(overlay.path("")), ["dir", "file"]);
        assert_eq!(names(overlay.path("dir")), ["outer"]);
        assert_eq!(fs::read(overlay.path("file")).expect("read"), b"new");
        assert_eq!(names(lower.clone()), ["dir", "file", "gone"]);
        assert_eq!(names(lower.join("dir")), ["inner"]);
        assert_eq!(fs::read(lower.join("file")).expect("read"), b"old");
    });
}

/// It wants RENAME_WHITEOUT of an upper layer that may change behind its back.
#[test]
fn an_upper_layer_is_refused() {
    each(32 * MIB, |_, mount| {
        let [lower, upper, work] = made(mount, ["lower", "upper", "work"]);
        let refused = Overlay::over(&lower, &upper, &work).map(drop).expect_err("not there");
        assert!(refused.contains("wrong fs type") || refused.contains("Invalid argument"), "{refused}");
    });
}
