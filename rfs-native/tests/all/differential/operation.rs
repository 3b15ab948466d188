//! Operations of the differential test, and their outcomes on a native mount.

use std::collections::BTreeMap;

use rfs_native::{Error, File, Mount, OpenOptions, RenameMode, SetTime, Stat, Times};

/// Operations on open files that exist at a time, at most.
const MAX_FILES: usize = 6;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) create: bool,
    pub(crate) create_new: bool,
    pub(crate) truncate: bool,
    pub(crate) follow: bool,
}

/// One operation. Files are numbers of open files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Open(String, Opening, u32),
    Close(usize),
    ReadAt(usize, u64, usize),
    WriteAt(usize, u64, Vec<u8>),
    Append(usize, Vec<u8>),
    SetFileLen(usize, u64),
    StatFile(usize),
    Stat(String, bool),
    SetLen(String, u64),
    MakeDir(String, u32),
    RemoveDir(String),
    RemoveFile(String),
    Link(String, String),
    Symlink(String, String),
    ReadLink(String),
    Rename(String, String, RenameMode),
    SetMode(String, u32),
    SetOwner(String, Option<u32>, Option<u32>),
    SetTimes(String, SetTime, SetTime),
    /// Whether the user may read, write, and execute or search.
    Access(String, [bool; 3]),
    SetXattr(String, &'static str, Vec<u8>),
    GetXattr(String, &'static str),
    RemoveXattr(String, &'static str),
    Allocate(usize, u64, u64),
    PunchHole(usize, u64, u64),
    List(String),
    /// All paths with their attributes and contents.
    Tree,
}

/// Attributes that both file systems share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Length of a file.
    pub(crate) size: Option<u64>,
}

/// The outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Failed(i32),
    Bytes(Vec<u8>),
    Number(u64),
    Stat(Shown),
    Text(String),
    Names(Vec<String>),
    Tree(BTreeMap<String, (Shown, String)>),
}

/// Paths that are likely to exist: made of few names.
#[derive(Debug, Default)]
pub(crate) struct Paths(());

impl Paths {
    fn any(&mut self, random: &mut fastrand::Rng) -> String {
        const NAMES: [&str; 6] = ["a", "b", "c", "d", ".", ".."];
        const ENDS: [&str; 6] = ["/", "//", "/.", "/..", "/./", "/../"];
        if random.u8(..30) == 0 {
            return Paths::odd(random);
        }
        let mut path = String::new();
        if random.u8(..8) == 0 {
            path.push('/');
        }
        for at in 0..random.usize(1..4) {
            if at > 0 {
                path.push_str(if random.u8(..16) == 0 { "//" } else { "/" });
            }
            let names = if random.u8(..4) == 0 { &NAMES[..] } else { &NAMES[..4] };
            path.push_str(names[random.usize(..names.len())]);
        }
        if random.u8(..8) == 0 {
            path.push_str(ENDS[random.usize(..ENDS.len())]);
        }
        path
    }

    /// Returns a path at a limit, or a name at one.
    fn odd(random: &mut fastrand::Rng) -> String {
        match random.u8(..7) {
            0 => String::new(),
            1 => "/".into(),
            2 => "n".repeat(255),
            3 => format!("a/{}", "n".repeat(256)),
            4 => format!("{}/a", "n".repeat(256)),
            5 => format!("{}a", "./".repeat(2047)),
            _ => format!("{}ab", "./".repeat(2047)),
        }
    }
}

/// Returns the capability CAP_NET_RAW of a program.
fn capability() -> Vec<u8> {
    [&[0, 0, 0, 2, 0, 0x20][..], &[0; 14]].concat()
}

impl Operation {
    pub(crate) fn any(random: &mut fastrand::Rng, paths: &mut Paths, files: usize) -> Operation {
        let on_file = files > 0 && random.u8(..3) == 0;
        if on_file {
            return Operation::on_file(random, random.clone().usize(..files));
        }
        let mut path = || paths.any(random);
        let (one, two) = (path(), path());
        const PERMS: [u32; 13] = [
            0o755, 0o777, 0o644, 0o700, 0o070, 0o007, 0o4755, 0o2755, 0o2777, 0o6711, 0o2666, 0o6666, 0o2767,
        ];
        let perm = PERMS[random.usize(..PERMS.len())];
        match random.u8(..22) {
            0..5 if files < MAX_FILES => Operation::Open(one, Opening::any(random), perm & 0o777),
            0..5 => Operation::Close(random.usize(..files)),
            5 => Operation::Stat(one, random.bool()),
            6 => Operation::SetLen(one, random.u64(..20_000)),
            7 | 8 => Operation::MakeDir(one, perm & 0o777),
            9 => Operation::RemoveDir(one),
            10 => Operation::RemoveFile(one),
            11 => Operation::Link(one, two),
            12 => Operation::Symlink(one, two),
            13 => Operation::ReadLink(one),
            14 | 15 => {
                let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
                Operation::Rename(one, two, modes[random.usize(..3)])
            }
            16 => match random.bool() {
                true => Operation::SetMode(one, perm),
                false => {
                    let any = |random: &mut fastrand::Rng, of: [u32; 3]| {
                        let id = of[random.usize(..3)];
                        (random.u8(..3) > 0).then_some(id)
                    };
                    let (uid, gid) = (any(random, [0, 1001, 1002]), any(random, [2001, 2002, 2003]));
                    Operation::SetOwner(one, uid, gid)
                }
            },
            17 | 18 => Operation::on_xattr(random, one),
            19 => {
                let times = [SetTime::Keep, SetTime::Now, SetTime::At(1_000_000_000)];
                Operation::SetTimes(one, times[random.usize(..3)], times[random.usize(..3)])
            }
            20 => Operation::Access(one, [random.bool(), random.bool(), random.bool()]),
            _ => Operation::List(one),
        }
    }

    fn on_xattr(random: &mut fastrand::Rng, path: String) -> Operation {
        const NAMES: [&str; 4] = ["security.capability", "security.capability", "user.a", "trusted.a"];
        let name = NAMES[random.usize(..4)];
        match random.u8(..4) {
            0 | 1 if name == "security.capability" => Operation::SetXattr(path, name, capability()),
            0 | 1 => Operation::SetXattr(path, name, vec![random.u8(..); random.usize(1..50)]),
            2 => Operation::GetXattr(path, name),
            _ => Operation::RemoveXattr(path, name),
        }
    }

    fn on_file(random: &mut fastrand::Rng, file: usize) -> Operation {
        let bytes = |random: &mut fastrand::Rng| {
            let len = if random.u8(..8) == 0 { 0 } else { random.usize(1..9000) };
            let byte = random.u8(1..);
            (0..len).map(|at| byte.wrapping_add((at / 7) as u8)).collect()
        };
        let offset = random.u64(..40_000);
        match random.u8(..12) {
            0..2 => Operation::ReadAt(file, offset, random.usize(..20_000)),
            2 => Operation::Allocate(file, offset, random.u64(1..20_000)),
            3 => Operation::PunchHole(file, offset, random.u64(1..20_000)),
            4..6 => Operation::WriteAt(file, offset, bytes(random)),
            6 => Operation::Append(file, bytes(random)),
            7 | 8 => Operation::SetFileLen(file, offset),
            9 | 10 => Operation::StatFile(file),
            _ => Operation::Close(file),
        }
    }

    /// Returns the open file of the operation.
    pub(crate) fn file(&self) -> Option<usize> {
        use Operation::*;
        match self {
            Close(file) | ReadAt(file, ..) | WriteAt(file, ..) | Append(file, _) => Some(*file),
            SetFileLen(file, _) | StatFile(file) | Allocate(file, ..) | PunchHole(file, ..) => Some(*file),
            _ => None,
        }
    }

    /// Runs the operation on a native mount.
    pub(crate) fn run(&self, mount: &Mount, files: &mut Vec<File>) -> Outcome {
        self.try_run(mount, files).unwrap_or_else(|e| Outcome::Failed(e.errno()))
    }

    fn try_run(&self, mount: &Mount, files: &mut Vec<File>) -> Result<Outcome, Error> {
        use Operation::*;
        let done = |done: Result<(), Error>| done.map(|()| Outcome::Done);
        match self {
            Open(path, opening, mode) => {
                files.push(opening.options(*mode).open(mount, path)?);
                Ok(Outcome::Done)
            }
            Close(file) => done(files.remove(*file).close()),
            ReadAt(file, offset, len) => {
                let mut out = vec![0xee; *len];
                let read = files[*file].read_at(&mut out, *offset)?;
                out.truncate(read);
                Ok(Outcome::Bytes(out))
            }
            WriteAt(file, offset, data) => {
                files[*file].write_at(data, *offset).map(|len| Outcome::Number(len as u64))
            }
            Append(file, data) => files[*file].append(data).map(Outcome::Number),
            SetFileLen(file, len) => done(files[*file].set_len(*len)),
            StatFile(file) => files[*file].stat().map(|stat| Outcome::Stat(shown(&stat))),
            Stat(path, true) => mount.stat(path).map(|stat| Outcome::Stat(shown(&stat))),
            Stat(path, false) => mount.stat_link(path).map(|stat| Outcome::Stat(shown(&stat))),
            SetLen(path, len) => done(mount.set_len(path, *len)),
            MakeDir(path, perm) => done(mount.make_dir(path, *perm)),
            RemoveDir(path) => done(mount.remove_dir(path)),
            RemoveFile(path) => done(mount.remove_file(path)),
            Link(from, to) => done(mount.link(from, to)),
            Symlink(target, path) => done(mount.symlink(target, path)),
            ReadLink(path) => mount.read_link(path).map(|to| Outcome::Text(to.display().to_string())),
            Rename(from, to, mode) => done(mount.rename_with(from, to, *mode)),
            SetMode(path, perm) => done(mount.set_mode(path, *perm)),
            SetOwner(path, uid, gid) => done(mount.set_owner(path, *uid, *gid)),
            SetTimes(path, accessed, modified) => {
                done(mount.set_times(path, Times { accessed: *accessed, modified: *modified }))
            }
            Access(path, [read, write, execute]) => done(mount.access(path, *read, *write, *execute)),
            SetXattr(path, name, value) => done(mount.set_xattr(path, name, value)),
            GetXattr(path, name) => mount.xattr(path, name).map(Outcome::Bytes),
            RemoveXattr(path, name) => done(mount.remove_xattr(path, name)),
            Allocate(file, offset, len) => done(files[*file].allocate(*offset, *len)),
            PunchHole(file, offset, len) => done(files[*file].punch_hole(*offset, *len)),
            List(path) => {
                let entries = mount.list(path)?;
                let mut names: Vec<String> =
                    entries.iter().map(|entry| entry.name().display().to_string()).collect();
                names.sort();
                Ok(Outcome::Names(names))
            }
            Tree => {
                let mut tree = BTreeMap::new();
                collect(mount, "", &mut tree)?;
                Ok(Outcome::Tree(tree))
            }
        }
    }
}

impl Opening {
    fn any(random: &mut fastrand::Rng) -> Opening {
        let (read, write) = [(true, false), (false, true), (true, true)][random.usize(..3)];
        let create = random.u8(..if write { 2 } else { 6 }) == 0;
        Opening {
            read,
            write,
            create,
            create_new: create && random.u8(..4) == 0,
            truncate: random.u8(..if write { 4 } else { 12 }) == 0,
            follow: random.u8(..4) > 0,
        }
    }

    fn options(&self, mode: u32) -> OpenOptions {
        let mut options = OpenOptions::new();
        options.read(self.read).write(self.write).create(self.create).create_new(self.create_new);
        options.truncate(self.truncate).follow(self.follow).mode(mode);
        options
    }
}

fn shown(stat: &Stat) -> Shown {
    let size = stat.is_file().then_some(stat.size);
    Shown { mode: stat.mode(), nlink: stat.nlink, uid: stat.uid, gid: stat.gid, size }
}

fn collect(mount: &Mount, dir: &str, tree: &mut BTreeMap<String, (Shown, String)>) -> Result<(), Error> {
    for entry in mount.list(format!("/{dir}"))? {
        let path = format!("{dir}/{}", entry.name().display());
        let stat = entry.stat();
        let contents = match stat {
            stat if stat.is_symlink() => mount.read_link(&path)?.display().to_string(),
            stat if stat.is_file() => format!("{:?}", mount.read(&path)?),
            _ => String::new(),
        };
        tree.insert(path.clone(), (shown(&stat), contents));
        if stat.is_dir() {
            collect(mount, &path, tree)?;
        }
    }
    Ok(())
}
