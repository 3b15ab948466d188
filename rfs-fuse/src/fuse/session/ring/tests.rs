//! Tests of requests in the kernel's layout: the calls that they become, and the answers.

use std::{
    ffi::OsStr,
    sync::Arc,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;
use proptest::prelude::*;
use rfs_proto::LockClass;
use zerocopy::{FromZeros, IntoBytes};

use super::{
    abi::{EntryHeaders, PART},
    answers::{Answer, Answers, Payload},
    entry::Entry,
};
use crate::fuse::session::{
    slot::Slot,
    wire::{
        abi::{InHeader, ReadWriteIn, SetattrIn},
        decode::{Incoming, dispatch},
    },
    *,
};

const UNIQUE: u64 = 77;
const PAYLOAD: usize = 8192;
const EIO: i32 = 5;
const ENOSYS: i32 = 38;

/// Records its calls.
#[derive(Default)]
struct Witness(Mutex<Vec<String>>);

impl Witness {
    fn asked(&self, what: String) {
        self.0.lock().push(what);
    }
}

fn attr() -> FileAttr {
    FileAttr {
        ino: INodeNo(9),
        size: 5,
        blocks: 8,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0o644,
        nlink: 1,
        uid: 1,
        gid: 2,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

const TTL: Duration = Duration::new(3, 4);

impl Filesystem for Witness {
    fn init(&mut self, _: &mut KernelConfig) {}

    fn lookup(&self, by: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.asked(format!("lookup {}/{}/{} {} {name:?}", by.uid(), by.gid(), by.pid(), parent.0));
        reply.entry_with_ttls(&TTL, &Duration::from_secs(7), &attr(), Generation(0));
    }

    fn getattr(&self, _: &Request, ino: INodeNo, reply: ReplyAttr) {
        self.asked(format!("getattr {}", ino.0));
        reply.attr(&TTL, &attr());
    }

    fn statx(&self, _: &Request, ino: INodeNo, births: bool, reply: ReplyStatx) {
        self.asked(format!("statx {} {births}", ino.0));
        let device = FileAttr { kind: FileType::CharDevice, rdev: 0x0120_5634, ..attr() };
        reply.attr(&TTL, &device, births.then(|| UNIX_EPOCH + Duration::new(6, 7)));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let by = handle.map_or_else(String::new, |handle| format!(" by {}", handle.0));
        self.asked(format!(
            "setattr {} {mode:?} {uid:?} {gid:?} {size:?} {atime:?} {mtime:?} {ctime:?}{by}",
            ino.0
        ));
        reply.error(Errno::EPERM);
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        self.asked(format!("mkdir {} {name:?} {mode:o} {umask:o}", parent.0));
        drop(reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.asked(format!("unlink {} {name:?}", parent.0));
        reply.ok();
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.asked(format!("rmdir {} {name:?}", parent.0));
        reply.ok();
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.asked(format!("rename {} {name:?} {} {newname:?} {}", parent.0, newparent.0, flags.bits()));
        reply.ok();
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.asked(format!("open {} {}", ino.0, flags.0));
        reply.opened(FileHandle(11), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.asked(format!("create {} {name:?} {mode:o} {umask:o} {flags}", parent.0));
        reply.created(&TTL, &attr(), Generation(0), FileHandle(11), FopenFlags::empty());
    }

    fn tmpfile(&self, _: &Request, parent: INodeNo, mode: u32, umask: u32, flags: i32, reply: ReplyCreate) {
        self.asked(format!("tmpfile {} {mode:o} {umask:o} {flags}", parent.0));
        reply.created(&TTL, &attr(), Generation(0), FileHandle(11), FopenFlags::empty());
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        (offset, size): (u64, u32),
        flags: OpenFlags,
        reply: ReplyData,
    ) {
        self.asked(format!("read {} {} {offset} {size} {}", ino.0, handle.0, flags.0));
        reply.data(b"bytes");
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        how: WriteFlags,
        flags: OpenFlags,
        reply: ReplyWrite,
    ) {
        self.asked(format!("write {} {} {offset} {data:?} {} {}", ino.0, handle.0, how.bits(), flags.0));
        reply.written(data.len() as u32);
    }

    fn flush(&self, _: &Request, ino: INodeNo, handle: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        self.asked(format!("flush {} {} {}", ino.0, handle.0, owner.0));
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, handle: FileHandle, reply: ReplyEmpty) {
        self.asked(format!("fsync {} {}", ino.0, handle.0));
        reply.ok();
    }

    fn readdir(&self, _: &Request, ino: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.asked(format!("readdir {} {} {offset}", ino.0, handle.0));
        for at in 1.. {
            if reply.add(INodeNo(at), at, FileType::Directory, OsStr::new("name")) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, reply: ReplyStatfs) {
        reply.statfs(1, 2, 3, 4, 5, 6, 7, 8);
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.asked(format!("getxattr {} {name:?} {size}", ino.0));
        reply.data(b"value");
    }

    fn setxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, value: &[u8], flags: i32, reply: ReplyEmpty) {
        self.asked(format!("setxattr {} {name:?} {value:?} {flags}", ino.0));
        reply.ok();
    }

    fn setlk(&self, _: &Request, ino: INodeNo, by: LockedBy, lock: Lock, sleep: bool, reply: ReplyEmpty) {
        let class = if by.class == LockClass::Flock { "flock" } else { "record" };
        let Lock { start, end, typ, pid } = lock;
        self.asked(format!(
            "setlk {} {} {} {class} {start}-{end} {typ} {pid} {sleep}",
            ino.0, by.handle.0, by.owner.0
        ));
        reply.ok();
    }
}

/// Outcome of a request: the recorded calls, the error number, and the payload of the answer.
type Outcome = (Vec<String>, i32, Vec<u8>);

fn ask(opcode: u32, nodeid: u64, op: &[u8], payload: &[u8]) -> Outcome {
    ask_over(false, opcode, nodeid, op, payload)
}

fn ask_over(over_device: bool, opcode: u32, nodeid: u64, op: &[u8], payload: &[u8]) -> Outcome {
    let memory = Entry::new(PAYLOAD).unwrap();
    // SAFETY: no other thread has the entry.
    unsafe { memory.payload_mut(payload.len()) }.copy_from_slice(payload);
    // As if an earlier request had left these bytes. A device has none behind the structure.
    let mut structure = [0xff; PART];
    structure[..op.len()].copy_from_slice(op);
    let structure = if over_device { op } else { &structure[..] };
    let header =
        InHeader { opcode, nodeid, uid: 1, gid: 2, pid: 3, unique: UNIQUE, ..InHeader::new_zeroed() };
    let answers = Arc::new(Answers::new().unwrap());
    let slot = Slot::new(Arc::clone(&answers), (4, memory), UNIQUE, OtherRequests::Few);
    let witness = Witness::default();
    // SAFETY: as in a worker.
    let payload = unsafe { memory.payload(payload.len()) };
    dispatch(&witness, &Incoming { header, op: structure, payload }, slot);
    let mut given = Vec::new();
    answers.take(&mut given);
    let [Answer { entry: 4, unique: UNIQUE, errno, payload }] = &given[..] else { panic!("{given:?}") };
    let payload = match payload {
        Payload::Small(bytes, len) => bytes[..*len].to_vec(),
        // SAFETY: the request is answered.
        Payload::InPlace(len) => unsafe { memory.payload(*len) }.to_vec(),
    };
    (witness.0.into_inner(), *errno, payload)
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn halves(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[test]
fn requests_are_read_as_the_kernel_writes_them() {
    let read = ReadWriteIn {
        fh: 8,
        offset: 4096,
        size: 3,
        read_write_flags: 1,
        lock_owner: 6,
        flags: 2,
        padding: 0,
    };
    let lock = [words(&[8, 6, 10, 20]), halves(&[1, 33, 1, 0])].concat();
    let cases: [(u32, Vec<u8>, &[u8], &str); 20] = [
        (1, vec![], b"name\0", "lookup 1/2/3 5 \"name\""),
        (3, words(&[0, 0]), b"", "getattr 5"),
        (52, [words(&[0, 0]), halves(&[0, 0xfff])].concat(), b"", "statx 5 true"),
        (52, [words(&[0, 0]), halves(&[0, 0x7ff])].concat(), b"", "statx 5 false"),
        (9, halves(&[0o755, 0o22]), b"d\0", "mkdir 5 \"d\" 755 22"),
        (10, vec![], b"\xff\0", "unlink 5 \"\\xFF\""),
        (11, vec![], b"d\0", "rmdir 5 \"d\""),
        // Only RENAME2 has flags.
        (12, words(&[6]), b"a\0bc\0", "rename 5 \"a\" 6 \"bc\" 0"),
        (45, [words(&[6]), halves(&[1, 0])].concat(), b"a\0bc\0", "rename 5 \"a\" 6 \"bc\" 1"),
        (14, halves(&[2, 0]), b"", "open 5 2"),
        (35, halves(&[65, 0o100_644, 0o22, 0]), b"f\0", "create 5 \"f\" 100644 22 65"),
        (51, halves(&[66, 0o100_600, 0o22, 0]), b"/\0", "tmpfile 5 100600 22 66"),
        (15, read.as_bytes().to_vec(), b"", "read 5 8 4096 3 2"),
        (16, read.as_bytes().to_vec(), b"abc", "write 5 8 4096 [97, 98, 99] 1 2"),
        (25, words(&[8, 0, 6]), b"", "flush 5 8 6"),
        (20, words(&[8, 1]), b"", "fsync 5 8"),
        (22, halves(&[9, 0]), b"user.x\0", "getxattr 5 \"user.x\" 9"),
        (21, halves(&[2, 1]), b"user.x\0vw", "setxattr 5 \"user.x\" [118, 119] 1"),
        (33, lock.clone(), b"", "setlk 5 8 6 flock 10-20 1 33 true"),
        (32, [&lock[..40], &halves(&[0, 0])].concat(), b"", "setlk 5 8 6 record 10-20 1 33 false"),
    ];
    for (opcode, op, payload, asked) in cases {
        for over_device in [false, true] {
            assert_eq!(ask_over(over_device, opcode, 5, &op, payload).0, [asked], "opcode {opcode}");
        }
    }
}

#[test]
fn only_the_given_attributes_are_set() {
    let with = |valid| SetattrIn {
        valid,
        mode: 0o600,
        uid: 5,
        gid: 6,
        size: 7,
        atime: 8,
        atimensec: 9,
        mtime: -2,
        mtimensec: 250_000_000,
        ctime: 1,
        fh: 77,
        ..SetattrIn::new_zeroed()
    };
    let asked = |valid| ask(4, 5, with(valid).as_bytes(), b"").0.remove(0);
    assert_eq!(asked(0), "setattr 5 None None None None None None None");
    assert_eq!(asked(0b1011), "setattr 5 Some(384) Some(5) None Some(7) None None None");
    assert_eq!(asked(1 << 7 | 1 << 4 | 4), "setattr 5 None None Some(6) None Some(Now) None None");
    assert_eq!(asked(0b100_1000), "setattr 5 None None None Some(7) None None None by 77");
    let before = ask(4, 5, with(1 << 5).as_bytes(), b"").0.remove(0);
    let meant = TimeOrNow::SpecificTime(UNIX_EPOCH - Duration::new(2, 250_000_000));
    assert_eq!(
        before,
        format!("setattr 5 None None None None None {:?} None", Some(meant)),
        "as fuser has it"
    );
}

#[test]
fn answers_are_what_the_kernel_reads() {
    let (_, errno, entry) = ask(1, 1, &[], b"name\0");
    assert_eq!((errno, entry.len()), (0, 128));
    assert_eq!(entry[..40], [words(&[9, 0, 7, 3]), halves(&[0, 4])].concat());
    assert_eq!(entry[40..64], words(&[9, 5, 8]));
    assert_eq!(entry[100..128], halves(&[0o100_644, 1, 1, 2, 0, 4096, 0]));
    assert_eq!(ask(3, 1, &[], b"").2.len(), 104);
    let statx = |mask| ask(52, 1, &[words(&[0, 0]), halves(&[0, mask])].concat(), b"").2;
    let (with, without) = (statx(0x800), statx(0x7ff));
    assert_eq!((with.len(), without.len()), (288, 288));
    assert_eq!(with[..32], [words(&[3]), halves(&[4, 0]), words(&[0, 0])].concat());
    assert_eq!(with[32..60], [halves(&[0xfff, 4096]), words(&[0]), halves(&[1, 1, 2])].concat());
    assert_eq!(with[60..64], 0o20_644_u32.to_ne_bytes());
    assert_eq!(with[64..96], words(&[9, 5, 8, 0]));
    assert_eq!(with[96..160], words(&[0, 0, 6, 7, 0, 0, 0, 0]));
    assert_eq!(with[160..176], halves(&[0x056, 0x1234, 0, 0]));
    assert_eq!((&without[32..36], &without[112..128]), (&halves(&[0x7ff])[..], &[0; 16][..]));
    assert_eq!(ask(14, 1, &[], b"").2, [words(&[11]), halves(&[2, 0])].concat());
    assert_eq!(ask(35, 1, &[], b"f\0").2.len(), 144);
    assert_eq!(ask(15, 1, &[], b""), (vec![ask(15, 1, &[], b"").0.remove(0)], 0, b"bytes".to_vec()));
    let write = ReadWriteIn { size: 3, ..ReadWriteIn::new_zeroed() };
    assert_eq!(ask(16, 1, write.as_bytes(), b"abc").2, halves(&[3, 0]));
    // The value overwrites the name.
    assert_eq!(ask(22, 1, &[], b"user.x\0").2, b"value");
    let counts = [words(&[1, 2, 3, 4, 5]), halves(&[6, 7, 8, 0, 0, 0, 0, 0, 0, 0])].concat();
    assert_eq!(ask(17, 1, &[], b"").2, counts);
    assert_eq!(ask(10, 1, &[], b"a\0"), (vec!["unlink 1 \"a\"".to_owned()], 0, vec![]));
    assert_eq!(ask(4, 1, SetattrIn::new_zeroed().as_bytes(), b"").1, 1);
}

#[test]
fn a_listing_is_no_longer_than_asked_for() {
    let list = |size| {
        let op = ReadWriteIn { size, ..ReadWriteIn::new_zeroed() };
        ask(28, 1, op.as_bytes(), b"").2
    };
    // An entry with a name of four bytes has 28 bytes, and 32 with its padding.
    assert_eq!(list(31).len(), 0);
    assert_eq!(list(32), [words(&[1, 1]), halves(&[4, 4]), b"name\0\0\0\0".to_vec()].concat());
    assert_eq!(list(100).len(), 96);
    assert_eq!(list(u32::MAX).len(), PAYLOAD);
}

#[test]
fn malformed_and_unknown_requests_are_errors() {
    // Names without a terminator, and missing names.
    for (opcode, payload) in [(1, &b"name"[..]), (10, b""), (12, b"a\0b"), (6, b"a\0"), (21, b"user.x\0")] {
        assert_eq!(ask(opcode, 1, &halves(&[1, 0]), payload), (vec![], EIO, vec![]), "opcode {opcode}");
    }
    // A write with fewer bytes than its length says.
    let write = ReadWriteIn { size: 3, ..ReadWriteIn::new_zeroed() };
    assert_eq!(ask(16, 1, write.as_bytes(), b"ab"), (vec![], EIO, vec![]));
    // The file system drops the reply.
    assert_eq!(ask(9, 1, &halves(&[0, 0]), b"d\0").1, EIO);
    // Missing in the trait, missing in this file system, and missing in all kernels.
    for opcode in [34, 43, 4096] {
        assert_eq!(ask(opcode, 1, &[], b""), (vec![], ENOSYS, vec![]), "opcode {opcode}");
    }
}

#[test]
fn an_answer_wakes_a_sleeping_thread_and_no_other() {
    let answers = Arc::new(Answers::new().unwrap());
    let slot = |unique| {
        Slot::new(Arc::clone(&answers), (0, Entry::new(PAYLOAD).unwrap()), unique, OtherRequests::Few)
    };
    let (first, second, third) = (slot(1), slot(2), slot(3));
    let wakes = || {
        let mut count = [0; 8];
        rustix::io::read(answers.wake(), &mut count).map(|_| u64::from_ne_bytes(count))
    };
    let mut given = Vec::new();
    // The thread does not sleep while there is an answer.
    first.done();
    assert!(!answers.may_sleep());
    answers.take(&mut given);
    assert_eq!(given.drain(..).count(), 1);
    assert!(answers.may_sleep());
    thread::scope(|scope| {
        scope.spawn(|| second.done());
        assert_eq!(wakes(), Ok(1));
    });
    // The thread is awake, and finds the answer itself.
    third.done();
    answers.take(&mut given);
    assert_eq!(given.iter().map(|answer| answer.unique).collect::<Vec<_>>(), [2, 3]);
    rustix::fs::fcntl_setfl(answers.wake(), rustix::fs::OFlags::NONBLOCK).unwrap();
    assert_eq!(wakes(), Err(rustix::io::Errno::AGAIN));
}

proptest! {
    /// Arbitrary bytes in an entry get exactly one answer.
    #[test]
    fn arbitrary_requests_are_answered_once(
        opcode in 0..60_u32,
        nodeid: u64,
        op in proptest::collection::vec(any::<u8>(), 0..PART),
        payload in proptest::collection::vec(any::<u8>(), 0..600),
    ) {
        let (_, errno, answer) = ask(opcode, nodeid, &op, &payload);
        prop_assert!(errno >= 0 && (errno == 0 || answer.is_empty()));
    }
}

/// Detects a thread that takes a LOOKUP, or bytes of an earlier request, for a small read.
#[test]
fn only_reads_and_writes_move_bytes() {
    let moved = |opcode| {
        let mut headers = EntryHeaders::new_zeroed();
        let header = InHeader { opcode, ..InHeader::new_zeroed() };
        header.write_to_prefix(&mut headers.in_out).unwrap();
        ReadWriteIn { size: 4096, ..ReadWriteIn::new_zeroed() }.write_to_prefix(&mut headers.op_in).unwrap();
        headers.bytes_moved()
    };
    let moving: Vec<u32> = (0..60).filter(|&opcode| moved(opcode).is_some()).collect();
    assert_eq!(moving, [15, 16]);
    assert_eq!((moved(15), moved(16)), (Some(4096), Some(4096)));
}
