//! Appending to one file from two mounts.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::Path,
    sync::{Arc, mpsc},
    thread,
    time::Instant,
};

use crate::common::{Mount, NOBODY, Over, TestServer, WAIT_LIMIT, each, pairs, providers, shell_as};
use rdmabox::{Op, RemoteAddr, Session, SessionOptions};
use rfs_proto::{
    Attached, ROOT_INO, Reply, Request, VERSION, decode_reply, encode_request,
    record::{self, appender},
};
use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::{Errno, write},
};

const MIB: u64 = 1 << 20;

/// Length of a record's header: its length, its writer, and its number.
const HEADER: usize = 12;

fn for_append(path: &Path) -> File {
    OpenOptions::new().read(true).append(true).create(true).open(path).expect("opened")
}

/// Creates a record of an odd length: mostly short, sometimes several pages, now and then most of
/// a request.
fn record(writer: u32, number: u32) -> Vec<u8> {
    let spread = (writer + 7 * number).wrapping_mul(2_654_435_761) >> 8;
    let body = match number % 50 {
        49 => 900_000 + spread % 99_999,
        n if n % 10 == 9 => 4000 + spread % 30_000,
        _ => spread % 3000,
    } | 1;
    let mut bytes = [HEADER as u32 + body, writer, number].map(u32::to_le_bytes).concat();
    bytes.resize(HEADER + body as usize, 1 + (writer * 50 + number % 50) as u8);
    bytes
}

/// Parses records, which must be whole and in order for each writer. Returns the rest.
fn check<'a>(mut bytes: &'a [u8], next: &mut [u32]) -> &'a [u8] {
    while let Some((header, _)) = bytes.split_first_chunk::<HEADER>() {
        let field =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (len, writer) = (field(0) as usize, field(4));
        assert!((writer as usize) < next.len(), "not the beginning of a record: {header:?}");
        let expected = record(writer, next[writer as usize]);
        if bytes.len() < len {
            assert!(expected.starts_with(bytes), "not the beginning of a record");
            return bytes;
        }
        assert!(bytes[..len] == expected, "record {} of {writer} is not whole", next[writer as usize]);
        next[writer as usize] += 1;
        bytes = &bytes[len..];
    }
    bytes
}

/// Appends `records` records, each with one system call.
fn append(path: &Path, writer: u32, records: u32) {
    let file = for_append(path);
    for number in 0..records {
        let bytes = record(writer, number);
        assert_eq!(write(&file, &bytes), Ok(bytes.len()));
    }
}

#[test]
fn no_record_of_two_mounts_is_lost_or_torn() {
    const RECORDS: u32 = 150;
    // Attribute timeouts of an hour, so that stale sizes are not refreshed by time.
    pairs(64 * MIB, &["--attr-timeout", "3600", "--entry-timeout", "3600"], |_, a, b| {
        thread::scope(|scope| {
            for (writer, mount) in [a, b, a, b].into_iter().enumerate() {
                scope.spawn(move || append(&mount.path("log"), writer as u32, RECORDS));
            }
        });
        for mount in [a, b] {
            let mut next = [0; 4];
            let bytes = fs::read(mount.path("log")).expect("read");
            assert_eq!((check(&bytes, &mut next), next), (&[][..], [RECORDS; 4]));
        }
    });
}

#[test]
fn a_concurrent_reader_sees_only_appended_bytes() {
    const RECORDS: u32 = 120;
    // Attribute timeout 0, so that the size is always fresh.
    pairs(64 * MIB, &["--attr-timeout", "0"], |_, a, b| {
        let path = a.path("log");
        drop(for_append(&path));
        thread::scope(|scope| {
            for (writer, mount) in [a, b].into_iter().enumerate() {
                scope.spawn(move || append(&mount.path("log"), writer as u32, RECORDS));
            }
            // Reads through the page cache of one mount, at the end of the file.
            let mut file = File::open(&path).expect("opened");
            let (mut bytes, mut next) = (Vec::new(), [0; 2]);
            let give_up = Instant::now() + WAIT_LIMIT;
            while next != [RECORDS; 2] {
                assert!(Instant::now() < give_up, "{next:?}");
                file.read_to_end(&mut bytes).expect("read");
                bytes = check(&bytes, &mut next).to_vec();
            }
            assert_eq!(bytes, b"");
        });
    });
}

#[test]
fn appends_on_one_mount_work_as_on_a_local_file_system() {
    each(64 * MIB, |_, mount| {
        let path = mount.path("file");
        let mut file = for_append(&path);
        file.write_all(b"abc").expect("appended");
        file.seek(SeekFrom::Start(1)).expect("position");
        file.write_all(b"def").expect("appended");
        assert_eq!(file.stream_position().expect("position"), 6);
        assert_eq!(file.metadata().expect("attributes").len(), 6);
        let mut bytes = [0; 9];
        assert_eq!(file.read_at(&mut bytes, 0).expect("read"), 6);
        // Without O_APPEND the file is written at the current position.
        fcntl_setfl(&file, fcntl_getfl(&file).expect("flags") - OFlags::APPEND).expect("set");
        file.write_all_at(b"X", 0).expect("written");
        fcntl_setfl(&file, OFlags::APPEND).expect("set");
        file.write_all(b"g").expect("appended");
        assert_eq!(fs::read(&path).expect("read"), b"Xbcdefg");
        // An append of more than one request.
        let long = crate::common::pattern(3 * MIB as usize + 5, 4);
        file.write_all(&long).expect("appended");
        assert!(fs::read(&path).expect("read")[7..] == long);
        // Like any write, an append clears suid.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4777)).expect("chmod");
        assert_eq!(shell_as(NOBODY, &mount.point, "echo x >> file"), Some(0));
        assert_eq!(fs::metadata(&path).expect("attributes").mode() & 0o7777, 0o777);
    });
}

/// The position follows this kernel's idea of the end, which differs from the actual offset of
/// the bytes.
#[test]
fn the_position_after_an_append_is_the_kernels() {
    pairs(64 * MIB, &["--attr-timeout", "3600", "--entry-timeout", "3600"], |_, a, b| {
        let [mut here, mut there] = [a, b].map(|mount| for_append(&mount.path("file")));
        there.write_all(b"theirs").expect("appended");
        here.write_all(b"abc").expect("appended");
        assert_eq!(here.stream_position().expect("position"), 3);
        assert_eq!(there.stream_position().expect("position"), 6);
        assert_eq!(fs::read(a.path("file")).expect("read"), b"theirsabc");
        // Now the kernel knows the new size.
        here.write_all(b"de").expect("appended");
        assert_eq!(here.stream_position().expect("position"), 11);
        assert_eq!(fs::read(b.path("file")).expect("read"), b"theirsabcde");
    });
}

/// Opens a session that reserves the end of a file and then does nothing.
fn stuck(server: &TestServer, over: Over, name: &[u8]) -> Arc<Session> {
    let session =
        Session::connect(&server.address(over).parse().expect("address"), &SessionOptions::default())
            .expect("connected");
    let ask = |request: Request<'_>| {
        let (mut bytes, mut reply) = (Vec::new(), Vec::new());
        encode_request(&request, &mut bytes);
        session.call(&bytes, &mut reply).expect("answered");
        decode_reply(&reply).expect("a message")
    };
    let Reply::Attached(Attached { table, session: number, .. }) = ask(Request::Attach {
        version: VERSION,
        client: "stuck",
        export: "",
        keeps: false,
        alone: false,
        mount: None,
    }) else {
        panic!("not attached")
    };
    let (perm, umask, uid, gid, exclusive) = (0o600, 0, 0, 0, false);
    let Reply::Opened(opened) =
        ask(Request::Create { parent: ROOT_INO, name, perm, umask, uid, gid, exclusive })
    else {
        panic!("not opened")
    };
    let word = u64::from(opened.attr.slot) * record::LEN as u64 + record::APPENDER as u64;
    let remote = RemoteAddr { addr: table.addr + word, rkey: table.rkey };
    let mut old = 1;
    session
        .execute(&mut [Op::CompareSwap { remote, compare: 0, swap: appender(number, 1), old: &mut old }])
        .expect("taken");
    assert_eq!(old, 0);
    session
}

#[test]
fn a_stuck_append_delays_others_until_its_session_ends() {
    for over in providers() {
        let server = TestServer::new(16 * MIB);
        let (mount, hasty) = (server.mount(over, &[]), server.mount(over, &["--timeout", "5"]));
        let mut file = for_append(&mount.path("file"));
        file.write_all(b"before").expect("appended");
        let holder = stuck(&server, over, b"file");
        let error = for_append(&hasty.path("file")).write_all(b"never").expect_err("held");
        assert_eq!(error.raw_os_error(), Some(Errno::TIMEDOUT.raw_os_error()));
        // Ordinary writes and other files are not affected.
        fs::write(hasty.path("other"), b"other").expect("written");
        // The end of the session releases the append.
        thread::scope(|scope| {
            let appending = scope.spawn(move || file.write_all(b", after"));
            holder.close(std::time::Duration::ZERO);
            appending.join().expect("no panic").expect("appended");
        });
        assert_eq!(fs::read(hasty.path("file")).expect("read"), b"before, after");
        hasty.unmount();
        mount.unmount();
    }
}

#[test]
fn a_read_during_an_append_does_not_hide_the_appended_bytes() {
    for over in providers() {
        let server = TestServer::new(16 * MIB);
        // The append waits as long as the reads take, on a machine of any speed.
        let mount = server.mount(over, &["--attr-timeout", "3600", "--timeout", "3600"]);
        let mut file = for_append(&mount.path("file"));
        file.write_all(b"before").expect("appended");
        let reader = File::open(mount.path("file")).expect("opened");
        let read = || {
            let mut bytes = [0; 100];
            let len = reader.read_at(&mut bytes, 0).expect("read");
            bytes[..len].to_vec()
        };
        let holder = stuck(&server, over, b"file");
        thread::scope(|scope| {
            let appending = scope.spawn(move || file.write_all(b", after"));
            // The kernel dropped the page for the waiting append. At some point a read brings the
            // page back without the appended bytes.
            for _ in 0..4_000 {
                assert_eq!(read(), b"before");
                thread::yield_now();
            }
            holder.close(std::time::Duration::ZERO);
            appending.join().expect("no panic").expect("appended");
        });
        assert_eq!(read(), b"before, after");
        drop(reader);
        mount.unmount();
    }
}

#[test]
fn a_killed_client_leaves_whole_records_and_delays_no_other() {
    for over in providers() {
        let server = TestServer::new(64 * MIB);
        let (mut dies, mount) = (server.mount(over, &[]), server.mount(over, &[]));
        let mut doomed = for_append(&dies.path("log"));
        thread::scope(|scope| {
            let (begun, has_begun) = mpsc::channel();
            let doomed = scope.spawn(move || -> io::Result<()> {
                loop {
                    doomed.write_all(&record(0, 0))?;
                    begun.send(()).ok();
                }
            });
            has_begun.recv().expect("it appends");
            // The other mount is killed at an arbitrary point of an append.
            let mut file = for_append(&mount.path("log"));
            (0..200).for_each(|_| file.write_all(&record(1, 0)).expect("appended"));
            dies.signal(rustix::process::Signal::KILL);
            dies.wait();
            (0..200).for_each(|_| file.write_all(&record(1, 0)).expect("appended"));
            doomed.join().expect("no panic").expect_err("its mount is dead");
        });
        let log = fs::read(mount.path("log")).expect("read");
        let (of_dead, of_living) = (record(0, 0), record(1, 0));
        let (mut bytes, mut living) = (&log[..], 0);
        while !bytes.is_empty() {
            bytes = match bytes.strip_prefix(&of_living[..]) {
                Some(rest) => {
                    living += 1;
                    rest
                }
                None => bytes.strip_prefix(&of_dead[..]).expect("a whole record"),
            };
        }
        assert_eq!(living, 400);
        mount.unmount();
    }
}

/// Returns a buffer of `len` bytes that identify their writer and number.
fn of_writer(writer: usize, number: usize, len: usize) -> Vec<u8> {
    crate::common::pattern(len, number as u64).iter().map(|byte| byte & 0x7f | (writer as u8) << 7).collect()
}

/// Parses the appends of two writers in buffers of `len` bytes. Returns the lengths of each
/// buffer's pieces.
fn pieces(log: &[u8], len: usize) -> Vec<Vec<usize>> {
    let (mut next, mut at, mut found) = ([0; 2], 0, BTreeMap::<_, Vec<usize>>::new());
    while at < log.len() {
        let writer = usize::from(log[at] >> 7);
        let (number, offset) = (next[writer] / len, next[writer] % len);
        let expected = &of_writer(writer, number, len)[offset..];
        let count = log[at..]
            .iter()
            .take(expected.len())
            .take_while(|byte| usize::from(**byte >> 7) == writer)
            .count();
        assert!(log[at..at + count] == expected[..count], "buffer {number} of {writer} at {offset}");
        found.entry((writer, number)).or_default().push(count);
        next[writer] += count;
        at += count;
    }
    assert_eq!(next[0], next[1], "all of both");
    found.into_values().collect()
}

/// Appends up to a request of the kernel less a page are whole, at any alignment. A longer append
/// is split into pieces of at least that length, each of them whole.
#[test]
fn a_buffer_longer_than_a_request_is_appended_in_whole_pieces() {
    const REQUEST: usize = 64 << 10;
    const WHOLE: usize = REQUEST - 4096;
    const BUFFERS: usize = 16;
    let append = |mount: &Mount, writer: usize, name: &str, (len, shift): (usize, usize)| {
        let file = for_append(&mount.path(name));
        let mut bytes = vec![0; len + 2 * 4096];
        let start = bytes.as_ptr().align_offset(4096) + shift;
        for number in 0..BUFFERS {
            bytes[start..start + len].copy_from_slice(&of_writer(writer, number, len));
            assert_eq!(write(&file, &bytes[start..start + len]), Ok(len));
        }
    };
    pairs(64 * MIB, &["--max-write", "64K"], |_, a, b| {
        for len in [WHOLE, WHOLE + 1, REQUEST + 1, 3 * REQUEST + 77] {
            // The capacity of a request depends on the buffer's offset in its page.
            for shift in [0, 1] {
                let name = format!("{len}.{shift}");
                thread::scope(|scope| {
                    for (writer, mount) in [a, b].into_iter().enumerate() {
                        let name = &name;
                        scope.spawn(move || append(mount, writer, name, (len, shift)));
                    }
                });
                let log = fs::read(b.path(&name)).expect("read");
                let found = pieces(&log, len);
                assert_eq!(found.len(), 2 * BUFFERS);
                for pieces in found {
                    let but_the_last = &pieces[..pieces.len() - 1];
                    assert!(but_the_last.iter().all(|piece| *piece >= WHOLE), "{len} bytes in {pieces:?}");
                    assert!(len > WHOLE || pieces == [len], "{len} bytes in {pieces:?}");
                }
                fs::remove_file(a.path(&name)).expect("removed");
            }
        }
    });
}
