//! Started reads and writes.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc,
};

use futures::{executor::block_on, future::join_all};
use rdmabox::ProviderKind;

use crate::common::*;

#[test]
fn started_requests_end_in_any_form() {
    with_mounts(|mount| {
        let file = mount.create("f").unwrap();
        file.write_all_at(&[0; 64 << 10], 0).unwrap();
        let writes = (0..16_u64).map(|at| (at * 4096, vec![at as u8; 4096]));
        for write in file.start_writes(writes) {
            write.wait().unwrap();
        }
        let ranges = (0..16_u64).map(|at| (at * 4096, 4096));
        for (at, read) in file.start_reads(ranges.clone()).into_iter().enumerate() {
            assert_eq!(read.wait().unwrap(), vec![at as u8; 4096]);
        }
        let all = block_on(join_all(ranges.map(|(offset, len)| file.start_read(offset, len))));
        for (at, read) in all.into_iter().enumerate() {
            assert_eq!(read.unwrap(), vec![at as u8; 4096]);
        }
        let (send, receive) = mpsc::channel();
        let reply = send.clone();
        file.start_write_with(4096, vec![9; 10], false, move |written| {
            reply.send(written.map(|()| Vec::new())).unwrap();
        });
        assert_eq!(receive.recv_timeout(WAIT_LIMIT).unwrap().unwrap(), b"");
        file.start_read_with((4090, 10), false, move |read| send.send(read).unwrap());
        assert_eq!(receive.recv_timeout(WAIT_LIMIT).unwrap().unwrap(), [0, 0, 0, 0, 0, 0, 9, 9, 9, 9]);
    });
}

#[test]
fn started_requests_may_be_long_or_grow_the_file() {
    with_mounts(|mount| {
        let file = mount.create("f").unwrap();
        let grows = file.start_write(1 << 20, vec![7; 3 << 20]);
        grows.wait().unwrap();
        assert_eq!(file.stat().unwrap().size, 4 << 20);
        let read = file.start_read(1 << 20, 8 << 20).wait().unwrap();
        assert_eq!(read, vec![7; 3 << 20]);
        assert_eq!(file.start_read(1 << 40, 10).wait().unwrap(), b"");
        let reader = mount.open("f").unwrap();
        assert_eq!(errno(reader.start_write(0, vec![1]).wait()), EBADF);
        file.start_write(0, vec![1; 100]).wait().unwrap();
        drop(file);
        assert_eq!(reader.start_read(50, 51).wait().unwrap()[49..], [1, 0]);
    });
}

#[test]
fn a_read_of_any_length_ends() {
    with_mounts(|mount| {
        let file = mount.create("f").unwrap();
        file.write_all_at(b"bytes", 10).unwrap();
        assert_eq!(file.start_read(10, usize::MAX).wait().unwrap(), b"bytes");
        assert_eq!(file.start_read(u64::MAX, usize::MAX).wait().unwrap(), b"");
        assert_eq!(file.start_read(12, 1 << 40).wait().unwrap(), b"tes");
        assert_eq!(file.view(10, usize::MAX).unwrap().to_vec(), b"bytes");
        // A hole that no memory can hold.
        mount.set_len("f", (1 << 62) + 5).unwrap();
        assert_eq!(errno(file.start_read(0, usize::MAX).wait()), ENOMEM);
        assert_eq!(errno(file.view(0, usize::MAX)), ENOMEM);
        assert_eq!(errno(mount.read("f")), ENOMEM);
        assert_eq!(file.start_read(1 << 62, usize::MAX).wait().unwrap(), [0; 5]);
    });
}

#[test]
fn a_panic_of_a_caller_ends_only_its_request() {
    let server = TestServer::new(64 << 20);
    let mount = server.mount(ProviderKind::Tcp);
    let file = mount.create("f").unwrap();
    file.write_all_at(&[1; 100 << 10], 0).unwrap();
    for _ in 0..20 {
        // A long read runs on a worker.
        file.start_read_with((0, 64 << 10), false, |_| panic!("of the caller"));
    }
    for _ in 0..20 {
        assert_eq!(file.start_read(1, 64 << 10).wait().unwrap().len(), 64 << 10);
    }
}

/// Catches requests that are held back while the iterator of the caller runs: `set_len` waits for
/// all that are started.
#[test]
fn the_iterator_of_the_caller_may_wait_or_panic() {
    let server = TestServer::new(64 << 20);
    let mount = server.mount(ProviderKind::Tcp);
    let file = mount.create("f").unwrap();
    file.write_all_at(&[1; 64 << 10], 0).unwrap();
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let ranges = (0..4_u64).map(|at| {
            file.set_len(64 << 10).unwrap();
            (at * 4096, 4096)
        });
        assert!(file.start_reads(ranges).into_iter().all(|read| read.wait().unwrap() == [1; 4096]));
        let ranges = (0..4_u64).map(|at| if at == 3 { panic!("of the caller") } else { (at * 4096, 4096) });
        let started = catch_unwind(AssertUnwindSafe(|| file.start_reads(ranges).len()));
        assert!(started.is_err());
        send.send(file.set_len(0).is_ok())
    });
    assert_eq!(receive.recv_timeout(WAIT_LIMIT), Ok(true));
}

/// Catches a thread that sleeps until another one wakes it for each of its requests.
#[test]
fn a_thread_that_waits_polls_for_itself() {
    let server = TestServer::new(64 << 20);
    let mount = server.mount(ProviderKind::Tcp);
    let file = mount.create("f").unwrap();
    file.write_all_at(&[1; 64 << 10], 0).unwrap();
    let ran_here = || {
        let (send, receive) = mpsc::channel();
        for at in 0..16 {
            let send = send.clone();
            let done = move |read: Result<Vec<u8>, _>| {
                read.unwrap();
                send.send(std::thread::current().id()).unwrap();
            };
            file.start_read_with((at * 4096, 4096), true, done);
        }
        file.start_read(0, 4096).wait().unwrap();
        drop(send);
        receive.iter().any(|thread| thread == std::thread::current().id())
    };
    // The polling thread may be faster, but not always.
    assert!((0..1000).any(|_| ran_here()));
}

#[test]
fn started_requests_end_with_the_session() {
    for provider in [ProviderKind::Shm, ProviderKind::Tcp] {
        let server = TestServer::new(16 << 20);
        let mount = server.mount_with(provider, |options| options.reconnects = false);
        let file = mount.create("f").unwrap();
        file.write_all_at(&[1; 64 << 10], 0).unwrap();
        mount.disconnect();
        let reads = file.start_reads((0..16).map(|at| (at * 4096, 4096)));
        for read in reads {
            assert_eq!(errno(read.wait()), EHOSTDOWN);
        }
        assert_eq!(errno(file.start_write(0, vec![1; 4096]).wait()), EHOSTDOWN);
    }
}
