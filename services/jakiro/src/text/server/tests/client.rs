use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::Duration,
};

use crate::text::TextServer;

/// How long an answer may take.
pub(super) const DEADLINE: Duration = Duration::from_secs(60);

/// A client that knows which answers it wants.
pub(super) struct Client(pub(super) BufReader<TcpStream>);

impl Client {
    pub(super) fn connect(server: &TextServer) -> Client {
        let stream = TcpStream::connect(server.address()).expect("a connection");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        Client(BufReader::new(stream))
    }

    pub(super) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).expect("sent");
    }

    pub(super) fn expect(&mut self, wanted: impl AsRef<[u8]>) {
        let wanted = wanted.as_ref();
        let mut found = vec![0; wanted.len()];
        self.0.read_exact(&mut found).expect("an answer");
        assert!(found == wanted, "{:?} is not {:?}", text(&found), text(wanted));
    }

    pub(super) fn ask(&mut self, bytes: impl AsRef<[u8]>, wanted: impl AsRef<[u8]>) {
        self.send(bytes);
        self.expect(wanted);
    }

    pub(super) fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        line
    }

    pub(super) fn expect_end(&mut self) {
        let mut rest = Vec::new();
        // The server may close a connection whose bytes it has not read.
        self.0.read_to_end(&mut rest).ok();
        assert_eq!(text(&rest), "");
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned()
}
