//! Tests that a TCP peer can only redirect a client to a Unix socket of root or of the client's
//! own user.

use rdmabox::{Address, MemoryServer, ProviderKind, Session, SessionOptions};

const USER: u32 = 1234;

/// Connects to a host whose sockets belong to `user`. Returns the provider of the session.
fn provider_of(user: u32) -> ProviderKind {
    let directory = tempfile::tempdir().unwrap();
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(directory.path(), permissions).unwrap();
    let listen =
        [Address::Unix(directory.path().join("socket")), Address::Tcp { host: "127.0.0.1".into(), port: 0 }];
    let host = std::thread::spawn(move || {
        // SAFETY: the system call changes the credentials of this thread and its later children,
        // and no memory.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) };
        assert_eq!(changed, 0, "this test changes users, and has to be run as root");
        MemoryServer::listen(&listen, 4096).unwrap()
    });
    let host = host.join().unwrap();
    let tcp = host.addresses().iter().find(|address| matches!(address, Address::Tcp { .. })).unwrap();
    let session = Session::connect(tcp, &SessionOptions::default()).unwrap();
    session.provider()
}

#[test]
fn the_socket_of_another_user_is_not_taken_on_a_peers_word() {
    assert_eq!(provider_of(0), ProviderKind::Shm, "root's is");
    assert_eq!(provider_of(USER), ProviderKind::Tcp);
}
