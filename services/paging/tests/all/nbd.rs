//! A client that speaks the NBD protocol, byte by byte, with a server over paged memory.

use std::{
    io::{Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::support::{ChildLender, Lenders, MIB, PAGE, Places, Provider, options, pager, wait_for};
use fastrand::Rng;
use rdmabox::Address;
use rfs_paging::{
    PagerOptions, Redundancy, RemotePager,
    nbd::{NbdAddress, NbdServer, NbdServerError},
};

const PAGES: usize = 600;
const SIZE: usize = PAGES * PAGE;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;

trait Wire: Read + Write {}
impl<T: Read + Write> Wire for T {}

/// The client's side of a connection.
struct Client {
    wire: Box<dyn Wire>,
    cookie: u64,
}

impl Client {
    /// Connects, and takes the greeting.
    fn connect(address: &NbdAddress) -> Client {
        let wire: Box<dyn Wire> = match address {
            NbdAddress::Unix(path) => Box::new(UnixStream::connect(path).expect("a connection")),
            NbdAddress::Tcp(address) => Box::new(TcpStream::connect(address).expect("a connection")),
        };
        let mut client = Client { wire, cookie: 0 };
        assert_eq!(client.take(18), b"NBDMAGICIHAVEOPT\0\x03");
        client.send(&[&3_u32.to_be_bytes()]);
        client
    }

    /// Connects, and enters the transmission with GO.
    fn ready(address: &NbdAddress) -> Client {
        let mut client = Client::connect(address);
        client.option(7, &[&0_u32.to_be_bytes()[..], &0_u16.to_be_bytes()].concat());
        let (kind, export) = client.option_reply(7);
        assert_eq!((kind, &export[..2], &export[2..10]), (3, &[0, 0][..], &(SIZE as u64).to_be_bytes()[..]));
        let (kind, blocks) = client.option_reply(7);
        assert_eq!((kind, &blocks[..6]), (3, &[0, 3, 0, 0, 0, 1][..]));
        assert_eq!(client.option_reply(7), (1, vec![]));
        client
    }

    fn send(&mut self, parts: &[&[u8]]) {
        self.wire.write_all(&parts.concat()).expect("sent");
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.wire.read_exact(&mut bytes).expect("received");
        bytes
    }

    fn option(&mut self, option: u32, data: &[u8]) {
        self.send(&[b"IHAVEOPT", &option.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data]);
    }

    fn option_reply(&mut self, option: u32) -> (u32, Vec<u8>) {
        let header = self.take(20);
        let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("four bytes"));
        assert_eq!((&header[..8], number(8)), (&0x0003_e889_0455_65a9_u64.to_be_bytes()[..], option));
        (number(12), self.take(number(16) as usize))
    }

    fn request(&mut self, command: u16, offset: usize, len: usize, data: &[u8]) {
        self.cookie += 1;
        self.send(&[
            &0x2560_9513_u32.to_be_bytes(),
            &0_u16.to_be_bytes(),
            &command.to_be_bytes(),
            &self.cookie.to_be_bytes(),
            &(offset as u64).to_be_bytes(),
            &(len as u32).to_be_bytes(),
            data,
        ]);
    }

    /// Sends a request and takes the header of its reply. Returns the error.
    fn call(&mut self, command: u16, offset: usize, len: usize, data: &[u8]) -> u32 {
        self.request(command, offset, len, data);
        let reply = self.take(16);
        assert_eq!(reply[..4], 0x6744_6698_u32.to_be_bytes());
        assert_eq!(reply[8..], self.cookie.to_be_bytes());
        u32::from_be_bytes(reply[4..8].try_into().expect("four bytes"))
    }

    fn read(&mut self, offset: usize, len: usize) -> Vec<u8> {
        assert_eq!(self.call(READ, offset, len, &[]), 0);
        self.take(len)
    }

    fn write(&mut self, offset: usize, data: &[u8]) {
        assert_eq!(self.call(WRITE, offset, data.len(), data), 0);
    }

    /// Checks that the server closes the connection.
    fn expect_end(mut self) {
        assert!(matches!(self.wire.read(&mut [0]), Ok(0) | Err(_)));
    }
}

/// Lenders, a pager and a server.
struct Fixture {
    server: NbdServer,
    _pager: RemotePager,
    lenders: Vec<ChildLender>,
    _places: Places,
}

impl Fixture {
    fn start(redundancy: Redundancy, listen: &str) -> Fixture {
        let mut places = Places::new();
        let start = |_| ChildLender::start(&places.address(Provider::Tcp), 16 * MIB);
        let lenders: Vec<_> = (0..redundancy.servers()).map(start).collect();
        let addresses: Vec<_> = lenders.iter().map(|lender| lender.address.clone()).collect();
        let pager = pager(&addresses, options(Provider::Tcp, 64).0.redundancy(redundancy));
        let memory = pager.map(SIZE).expect("memory");
        let address = listen.parse().expect("an address");
        let server = NbdServer::listen(&address, "memory", memory).expect("a server");
        Fixture { server, _pager: pager, lenders, _places: places }
    }
}

fn random_use(client: &mut Client, shadow: &mut [u8], rng: &mut Rng, steps: usize) {
    for _ in 0..steps {
        let most = if rng.u32(..10) == 0 { 1_500_000 } else { 20_000 };
        let (offset, mut len) = (rng.usize(..SIZE), rng.usize(..most));
        len = len.min(SIZE - offset);
        let range = offset..offset + len;
        match rng.u32(..8) {
            0..3 => assert!(client.read(offset, len) == shadow[range], "{len} bytes at {offset}"),
            3..6 => {
                rng.fill(&mut shadow[range.clone()]);
                client.write(offset, &shadow[range]);
            }
            6 => {
                let command = if rng.bool() { TRIM } else { WRITE_ZEROES };
                assert_eq!(client.call(command, offset, len, &[]), 0);
                shadow[range].fill(0);
            }
            _ => assert_eq!(client.call(FLUSH, 0, 0, &[]), 0),
        }
    }
}

#[test]
fn a_client_finds_its_bytes_and_a_code_survives_a_kill() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = format!("unix:{}", folder.path().join("nbd.sock").display());
    for listen in [socket.as_str(), "127.0.0.1:0"] {
        let mut fixture = Fixture::start(Redundancy::Coded { data: 2, parity: 1 }, listen);
        let mut client = Client::ready(fixture.server.address());
        let (mut shadow, mut rng) = (vec![0; SIZE], Rng::with_seed(5));
        random_use(&mut client, &mut shadow, &mut rng, 300);
        fixture.lenders[1].kill();
        random_use(&mut client, &mut shadow, &mut rng, 300);
        // A second connection sees the same bytes.
        let mut other = Client::ready(fixture.server.address());
        assert!(other.read(0, SIZE) == shadow);
        other.request(DISCONNECT, 0, 0, &[]);
        other.expect_end();
        assert_eq!(client.read(SIZE - 1, 1), shadow[SIZE - 1..]);
        drop(fixture.server);
        client.expect_end();
    }
    assert!(!folder.path().join("nbd.sock").exists());
}

#[test]
fn lost_pages_are_errors_and_other_pages_stay() {
    const EIO: u32 = 5;
    let mut fixture = Fixture::start(Redundancy::None, "127.0.0.1:0");
    let mut client = Client::ready(fixture.server.address());
    for page in 0..PAGES {
        client.write(page * PAGE, &[7; PAGE]);
    }
    fixture.lenders[0].kill();
    wait_for("an error", || {
        (0..PAGES).any(|page| match client.call(READ, page * PAGE, PAGE, &[]) {
            0 => {
                client.take(PAGE);
                false
            }
            error => {
                assert_eq!(error, EIO);
                assert_eq!(client.call(WRITE, page * PAGE + 5, 1, b"x"), EIO);
                true
            }
        })
    });
    // Space that is given up is usable again.
    assert_eq!(client.call(TRIM, 0, 32 * PAGE, &[]), 0);
    assert!(client.read(0, 32 * PAGE) == [0; 32 * PAGE]);
    client.write(PAGE, b"new");
    assert_eq!(client.read(PAGE, 3), b"new");
}

#[test]
fn bad_input_ends_its_connection_only() {
    let fixture = Fixture::start(Redundancy::None, "127.0.0.1:0");
    let address = fixture.server.address();
    let mut good = Client::ready(address);
    good.write(0, b"here");
    let mut flags = Client::connect(address);
    flags.option(3, b"");
    assert_eq!(flags.option_reply(3), (2, [&6_u32.to_be_bytes()[..], b"memory"].concat()));
    assert_eq!(flags.option_reply(3), (1, vec![]));
    flags.send(&[b"GET / HTTP/1.1\r\n"]);
    flags.expect_end();
    let mut name = Client::connect(address);
    name.option(1, b"other");
    name.expect_end();
    let mut length = Client::ready(address);
    length.request(WRITE, 0, 1 << 30, &[]);
    length.expect_end();
    let mut rng = Rng::with_seed(1);
    for _ in 0..200 {
        let mut client = if rng.bool() { Client::ready(address) } else { Client::connect(address) };
        let mut bytes = vec![0; rng.usize(..300)];
        rng.fill(&mut bytes);
        // The server may have closed the connection already.
        client.wire.write_all(&bytes).ok();
    }
    assert_eq!(good.call(READ, SIZE, 1, &[]), 22);
    assert_eq!(good.call(WRITE, SIZE - 1, 2, b"xx"), 28);
    assert_eq!(good.read(0, 5), b"here\0");
}

#[test]
fn a_server_ends_also_without_its_socket() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("nbd.sock");
    let fixture = Fixture::start(Redundancy::None, &format!("unix:{}", socket.display()));
    let client = Client::ready(fixture.server.address());
    std::fs::remove_file(&socket).expect("removed");
    let other = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    drop(fixture.server);
    client.expect_end();
    assert!(UnixStream::connect(&socket).is_ok(), "the socket of another server stays");
    drop(other);
}

#[test]
fn qemu_finds_its_bytes() {
    if Command::new("qemu-io").arg("--version").output().is_err() {
        let required = std::env::var_os("RFS_REQUIRE_PAGING_TOOLS").is_some();
        assert!(!required, "not run: qemu-io (qemu-utils) is not installed");
        println!("not run: qemu-io (qemu-utils) is not installed");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("nbd.sock");
    let fixture = Fixture::start(Redundancy::Mirror, &format!("unix:{}", socket.display()));
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw"]).arg(format!("nbd+unix:///memory?socket={}", socket.display()));
    for step in [
        "write -P 0x5a 0 2m",
        "write -P 0x33 4095 4098",
        "read -P 0x5a 0 4095",
        "read -P 0x33 4095 4098",
        "write -z 64k 68k",
        "discard 512k 256k",
        "flush",
        "read -P 0 64k 68k",
        "read -P 0 512k 256k",
        "read -P 0x5a 768k 1280k",
    ] {
        command.args(["-c", step]);
    }
    let output = command.output().expect("qemu-io");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !text.contains("failed"), "{output:?}");
    drop(fixture);
}

#[test]
fn other_machines_cannot_connect() {
    let lenders = Lenders::start(Provider::Shm, 1, 2 * MIB);
    let pager = pager(&lenders.addresses(), PagerOptions::new(MIB));
    let memory = pager.map(SIZE).expect("memory");
    let address = "0.0.0.0:0".parse().expect("an address");
    let refused = NbdServer::listen(&address, "", memory);
    assert!(matches!(refused, Err(NbdServerError::NotLoopback(_))), "{refused:?}");
}

/// Starts `rfs-paging nbd`, and waits until it serves.
fn start_program(folder: &Path, addresses: &[Address], options: &[&str]) -> (Child, NbdAddress) {
    let listen = format!("unix:{}", folder.join("nbd.sock").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-paging"));
    let size = SIZE.to_string();
    command.args(["nbd", "--size", &size, "--local", "1m", "--listen", &listen]).args(options);
    for address in addresses {
        command.args(["--server", &address.to_string()]);
    }
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the program");
    let mut text = [0; 6];
    child.stdout.as_mut().expect("a pipe").read_exact(&mut text).expect("a line");
    assert_eq!(&text, b"ready:");
    (child, listen.parse().expect("an address"))
}

#[test]
fn the_program_serves_until_it_is_told_to_end() {
    let lenders = Lenders::start(Provider::Shm, 2, 8 * MIB);
    let folder = tempfile::tempdir().expect("a folder");
    let (mut child, listen) = start_program(folder.path(), &lenders.addresses(), &["--redundancy", "mirror"]);
    let mut client = Client::ready(&listen);
    client.write(100, b"bytes");
    assert_eq!(client.read(99, 7), b"\0bytes\0");
    // SAFETY: The child runs.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGTERM) }, 0);
    assert!(child.wait().expect("its end").success());
    client.expect_end();
    assert!(!folder.path().join("nbd.sock").exists());
}

/// Catches a request that waits for a page and that nothing can interrupt.
#[test]
fn the_program_can_be_killed_while_it_waits_for_a_stopped_lender() {
    let lender = ChildLender::start(&Places::new().address(Provider::Tcp), 8 * MIB);
    let folder = tempfile::tempdir().expect("a folder");
    let addresses = [lender.address.clone()];
    let (mut child, listen) = start_program(folder.path(), &addresses, &["--switches", "provider=tcp"]);
    let mut client = Client::ready(&listen);
    client.write(0, &[7; SIZE]);
    lender.stop();
    client.request(READ, 0, SIZE, &[]);
    std::thread::sleep(Duration::from_millis(500));
    assert!(matches!(child.try_wait(), Ok(None)), "the program waits for a page");
    let begin = Instant::now();
    child.kill().expect("a running program");
    child.wait().expect("its end");
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    client.expect_end();
}
