//! A core dump of a mount contains no key. Of files it contains at most single requests. Needs root
//! to read the memory of the program.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt},
};

use measure::testing::{contains, dumped};

use crate::common::{TestServer, directory, providers};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 128 << 10;

/// Returns a text of digits that is not in this program.
fn secret() -> String {
    (0..64u32).map(|i| char::from_digit((i * i + i / 7) % 16, 16).expect("a digit")).collect()
}

/// Returns bytes of a block that no other block has, and that are not in the text of this program.
fn marker(block: u64) -> Vec<u8> {
    (0..4u64)
        .flat_map(|i| (block * 4 + i + 0x5eed).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect()
}

#[test]
fn a_core_dump_has_neither_the_key_nor_buffers_of_files() {
    let dir = directory();
    let secret = secret();
    let private = |name: &str, text: String| {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
        path
    };
    let key = private("key", format!("client {secret}\n"));
    let keys = private("keys", format!("client {secret} rfs rw\n"));
    let server = TestServer::with(64 * MIB, |config| config.keys = Some(keys));
    for over in providers() {
        let mount = server.mount(over, &["--key", key.to_str().expect("UTF-8")]);
        let path = mount.path("file");
        // Whole blocks of a marker, written and read through the kernel's pages and around them.
        for (flags, first) in [(0, 0), (libc::O_DIRECT, 100)] {
            let file =
                OpenOptions::new().create(true).write(true).custom_flags(flags).open(&path).expect("opened");
            for block in first..first + 20 {
                let mut bytes = vec![0; BLOCK];
                bytes.chunks_exact_mut(32).for_each(|part| part.copy_from_slice(&marker(block)));
                file.write_all_at(&bytes, block * BLOCK as u64).expect("written");
            }
        }
        let file = File::open(&path).expect("opened");
        for block in (0..20).chain(100..120) {
            let mut start = [0; 32];
            file.read_exact_at(&mut start, block * BLOCK as u64).expect("read");
            assert_eq!(start[..], marker(block), "block {block}");
        }
        let memory = dumped(mount.pid().as_raw_nonzero().get() as u32).expect("the memory of the mount");
        assert!(memory.len() > 100_000, "{} bytes are not all", memory.len());
        // The search works: the address is no secret.
        assert!(contains(&memory, server.address(over).as_bytes()));
        let bytes: Vec<u8> = secret
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16).expect("digits"))
            .collect();
        assert!(!contains(&memory, &bytes), "{over:?}: the secret");
        assert!(!contains(&memory, secret.as_bytes()), "{over:?}: the secret as the file has it");
        let found: Vec<u64> =
            (0..20).chain(100..120).filter(|block| contains(&memory, &marker(*block))).collect();
        // Over TCP, copies of a session thread's last small requests may be on the heap.
        assert!(found.len() <= 4, "{over:?}: blocks of the file: {found:?}");
        mount.unmount();
    }
}
