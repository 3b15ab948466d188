//! Bytes that are read in place.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use rdmabox::ProviderKind;
use rfs_native::OpenOptions;

use crate::common::*;

#[test]
fn a_view_has_the_bytes_of_the_file() {
    with_mounts(|mount| {
        let file = mount.create("f").unwrap();
        let data: Vec<u8> = (0..100_000).map(|at| (at % 251) as u8).collect();
        file.write_all_at(&data, 0).unwrap();
        let view = file.view(10, 50_000).unwrap();
        assert_eq!(view.to_vec(), data[10..50_010]);
        let mut out = [0; 20];
        assert_eq!(view.copy_to(49_990, &mut out), 10);
        assert_eq!(view.copy_to(50_001, &mut out), 0);
        assert_eq!(file.view(99_990, 100).unwrap().to_vec(), data[99_990..]);
        assert!(file.view(1 << 40, 100).unwrap().is_empty());
    });
}

#[test]
fn views_of_mapped_memory_are_in_place() {
    let server = TestServer::new(64 << 20);
    let mount = server.mount(ProviderKind::Shm);
    let file = mount.create("f").unwrap();
    file.write_all_at(&[1; 8192], 0).unwrap();
    let view = file.view(0, 8192).unwrap();
    assert!(view.is_in_place() && view.memory().is_some());
    file.write_all_at(&[2; 8192], 0).unwrap();
    assert_eq!(view.to_vec(), [2; 8192], "the bytes are those of the file");
    drop(view);
    file.set_len(1 << 20).unwrap();
    assert!(!file.view(0, 1 << 20).unwrap().is_in_place(), "it has a hole");
    let remote = server.mount(ProviderKind::Tcp);
    assert!(!remote.open("f").unwrap().view(0, 8192).unwrap().is_in_place());
}

#[test]
fn a_truncation_waits_for_a_view() {
    let server = TestServer::new(16 << 20);
    let (one, two) = (server.mount(ProviderKind::Shm), server.mount(ProviderKind::Shm));
    let file = one.create("f").unwrap();
    file.write_all_at(&[1; 1 << 20], 0).unwrap();
    let view = file.view(0, 1 << 20).unwrap();
    assert!(view.is_in_place());
    drop(file);
    let dropped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let truncates = scope.spawn(|| {
            two.set_len("f", 0).unwrap();
            assert!(dropped.load(Ordering::SeqCst), "the view still exists");
            // Its space goes to other files.
            let others = two.open_with("g", OpenOptions::new().write(true).create(true)).unwrap();
            others.write_all_at(&[2; 12 << 20], 0).unwrap();
        });
        std::thread::sleep(Duration::from_millis(300));
        assert!(!truncates.is_finished());
        assert_eq!(view.to_vec(), vec![1; 1 << 20]);
        dropped.store(true, Ordering::SeqCst);
        drop(view);
        truncates.join().unwrap();
    });
    assert_eq!(one.stat("f").unwrap().size, 0);
}
