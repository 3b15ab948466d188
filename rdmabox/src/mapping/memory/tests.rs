use std::sync::Arc;

use super::{pages::Pin, *};
use crate::mapping::page::RESIDENCY;

fn present(memory: &Memory) -> u64 {
    use std::os::unix::fs::MetadataExt;
    File::from(memory.peer_fd(true).unwrap()).metadata().unwrap().blocks() * 512
}

/// Returns the kernel's flags of the mapping.
fn flags(memory: &Memory) -> String {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let start = format!("{:x}-", memory.addr());
    let mut of_it = maps.lines().skip_while(|line| !line.starts_with(&start));
    of_it.find_map(|line| line.strip_prefix("VmFlags: ")).unwrap().to_owned()
}

#[test]
fn huge_pages_are_requested_for_large_shared_memory() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        eprintln!("not run: this kernel has no transparent huge pages");
        return;
    }
    let asks = |memory: &Memory| flags(memory).split(' ').any(|flag| flag == "hg");
    assert!(asks(&Memory::shared("test", HUGE).unwrap()));
    assert!(!asks(&Memory::shared("test", HUGE - page_size()).unwrap()));
    assert!(!asks(&Memory::private(2 * HUGE).unwrap()), "private buffers use small pages");
}

/// A caller's mistake is not the fault of a peer, and the message says which value is valid.
#[test]
fn invalid_lengths_and_names_are_named() {
    let said = |made: Result<Memory, MemoryError>| made.unwrap_err().to_string();
    let length =
        |len| format!("invalid length of memory, {len} bytes: choose at least 1 byte, and fewer than 2^63");
    let empty = tempfile::tempfile().unwrap();
    for made in [Memory::shared("test", 0), Memory::private(0), Memory::of_file(empty)] {
        assert_eq!(said(made), length(0));
    }
    for made in [Memory::shared("test", usize::MAX), Memory::private(usize::MAX)] {
        assert_eq!(said(made), length(usize::MAX));
    }
    let name =
        |name: &str| format!("invalid name of memory, {name:?}: choose at most 249 bytes, and no NUL byte");
    let longest = "x".repeat(249);
    assert!(Memory::shared(&longest, 1).is_ok());
    for wrong in ["a\0b", &format!("{longest}x")] {
        assert_eq!(said(Memory::shared(wrong, 1)), name(wrong));
    }
    let peers = Memory::shared("test", 1).unwrap().peer_fd(true).unwrap();
    assert!(matches!(Memory::from_peer(peers, 0, true), Err(MemoryError::BadHandle(_))));
}

#[test]
fn no_memory_is_part_of_a_core_dump() {
    let hidden = |memory: &Memory| flags(memory).split(' ').any(|flag| flag == "dd");
    let shared = Memory::shared("test", 2 * HUGE).unwrap();
    assert!(hidden(&shared));
    assert!(hidden(&Memory::private(4096).unwrap()));
    let view = Memory::from_peer(shared.peer_fd(true).unwrap(), 2 * HUGE, true).unwrap();
    assert!(hidden(&view));
    let file = tempfile::tempfile().unwrap();
    file.set_len(8192).unwrap();
    assert!(hidden(&Memory::of_file(file).unwrap()));
}

#[test]
fn zeroing_present_pages_allocates_no_pages() {
    let page = page_size();
    let memory = Memory::shared("test", 64 * page).unwrap();
    memory.write(3 * page, &vec![1; 2 * page]);
    memory.write(10 * page, &vec![1; page]);
    memory.write(20 * page, &[1]);
    let before = present(&memory);
    memory.zero_present(3 * page + 5, 10 * page);
    assert_eq!(present(&memory), before);
    let mut all = vec![0; 64 * page];
    memory.read(0, &mut all);
    let left: Vec<usize> = (0..all.len()).filter(|i| all[*i] != 0).collect();
    assert_eq!(left, [3 * page, 3 * page + 1, 3 * page + 2, 3 * page + 3, 3 * page + 4, 20 * page]);
    memory.zero_present(0, 64 * page);
    memory.read(0, &mut all);
    assert!(all.iter().all(|byte| *byte == 0));
    Memory::private(page).unwrap().zero_present(0, page);
    // More pages than one mincore call covers, with both ends inside pages.
    let pages = 3 * RESIDENCY;
    let memory = Memory::shared("test", pages * page).unwrap();
    let touched = [0, 1, RESIDENCY - 1, RESIDENCY, 2 * RESIDENCY + 7, pages - 1];
    for at in touched {
        memory.write(at * page, &vec![1; page]);
    }
    memory.zero_present(page - 1, (pages - 1) * page);
    assert_eq!(present(&memory), (touched.len() * page) as u64);
    let mut all = vec![0; pages * page];
    memory.read(0, &mut all);
    for (i, byte) in all.iter().enumerate() {
        assert_eq!(*byte == 1, i < page - 1 || i >= pages * page - 1, "byte {i}");
    }
}

#[test]
fn discarded_pages_read_as_zero_and_return_to_the_system() {
    let page = page_size();
    let memory = Memory::shared("test", 8 * page).unwrap();
    memory.write(0, &vec![1; 8 * page]);
    memory.discard(page / 2, 3 * page).unwrap();
    assert_eq!(present(&memory), 6 * page as u64);
    let mut all = vec![0; 8 * page];
    memory.read(0, &mut all);
    for (i, byte) in all.iter().enumerate() {
        assert_eq!(*byte == 0, (page / 2..page / 2 + 3 * page).contains(&i), "byte {i}");
    }
}

#[test]
fn pinned_memory_keeps_its_pages() {
    let page = page_size();
    let memory = Arc::new(Memory::shared("test", 8 * page).unwrap());
    memory.write(0, &vec![1; 4 * page]);
    let pins = [Pin::new(&memory), Pin::new(&memory)];
    for pin in pins {
        memory.discard(page, 2 * page).unwrap();
        assert_eq!(present(&memory), 4 * page as u64);
        // The read covers only present pages, because a read would allocate the others.
        let mut all = vec![0; 4 * page];
        memory.read(0, &mut all);
        assert!(all.iter().enumerate().all(|(i, byte)| *byte == u8::from(i / page == 0 || i / page == 3)));
        drop(pin);
    }
    memory.discard(page, 2 * page).unwrap();
    assert_eq!(present(&memory), 2 * page as u64);
}

#[test]
fn bytes_of_a_file_outlive_the_mapping() {
    let file = tempfile::tempfile().unwrap();
    assert!(Memory::of_file(file.try_clone().unwrap()).is_err(), "no bytes");
    file.set_len(8192).unwrap();
    Memory::of_file(file.try_clone().unwrap()).unwrap().write(5000, b"kept");
    let again = Memory::of_file(file).unwrap();
    let mut bytes = [0; 4];
    again.read(5000, &mut bytes);
    assert_eq!((again.len(), &bytes), (8192, b"kept"));
    again.zero_present(0, 8192);
    again.read(5000, &mut bytes);
    assert_eq!(bytes, [0; 4]);
}

#[test]
fn memory_that_a_peer_can_shrink_is_rejected() {
    let memory = Memory::shared("test", 4096).unwrap();
    let fd = memory.peer_fd(false).unwrap();
    assert!(Memory::from_peer(memory.peer_fd(true).unwrap(), 8192, true).is_err());
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &File::from(fd.try_clone().unwrap()).metadata().unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o400, "must not be reopened for writing");
    let view = Memory::from_peer(fd, 4096, false).unwrap();
    memory.write(7, b"x");
    let mut byte = [0];
    view.read(7, &mut byte);
    assert_eq!(byte, *b"x");
    let file = tempfile::tempfile().unwrap();
    file.set_len(4096).unwrap();
    let handed = || file.try_clone().unwrap().into();
    assert!(Memory::from_peer(handed(), 4096, false).is_ok(), "only the owner may write");
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o620)).unwrap();
    assert!(Memory::from_peer(handed(), 4096, false).is_err());
    assert!(Memory::from_peer(memory.peer_fd(false).unwrap(), 4096, true).is_err());
}
