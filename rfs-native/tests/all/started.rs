//! Started reads and writes.

use std::sync::mpsc;

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
        assert_eq!(receive.recv_timeout(PATIENCE).unwrap().unwrap(), b"");
        file.start_read_with((4090, 10), false, move |read| send.send(read).unwrap());
        assert_eq!(receive.recv_timeout(PATIENCE).unwrap().unwrap(), [0, 0, 0, 0, 0, 0, 9, 9, 9, 9]);
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
    let lender = Lender::new(64 << 20);
    let mount = lender.mount(ProviderKind::Tcp);
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

/// Catches requests that stay in a batch: `set_len` waits for them.
#[test]
fn requests_are_sent_although_the_iterator_of_the_caller_panics() {
    let lender = Lender::new(64 << 20);
    let mount = lender.mount(ProviderKind::Tcp);
    let file = mount.create("f").unwrap();
    file.write_all_at(&[1; 64 << 10], 0).unwrap();
    let ranges = (0..4_u64).map(|at| if at == 3 { panic!("of the caller") } else { (at * 4096, 4096) });
    let started = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| file.start_reads(ranges).len()));
    assert!(started.is_err());
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || send.send(file.set_len(0)));
    assert_eq!(receive.recv_timeout(PATIENCE).unwrap().ok(), Some(()));
}

#[test]
fn started_requests_end_with_the_session() {
    for provider in [ProviderKind::Shm, ProviderKind::Tcp] {
        let lender = Lender::new(16 << 20);
        let mount = lender.mount_with(provider, |options| options.reconnects = false);
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
