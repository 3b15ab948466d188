//! Connections that never authenticate: they send mutated handshakes, or stay silent.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    net::TcpStream,
    time::Duration,
};

use fastrand::Rng;
use rdmabox::{Address, fuzzing};

use super::{failure::Failure, target::Flood};
use crate::mutate::Mutator;

/// Number of connections that are held open without sending more.
const SILENT: usize = 100;
/// Time for which a stranger waits for an answer.
const LISTENS: Duration = Duration::from_millis(1);

/// Counts of the strangers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnauthenticatedPeers {
    /// Number of connections.
    pub connections: u64,
    /// Number of bytes sent.
    pub said: u64,
    /// Number of connections that the server answered.
    pub answered: u64,
}

pub(super) fn run(flood: &Flood) -> Result<UnauthenticatedPeers, Failure> {
    let failed = |source| Failure::Connect { client: "a stranger", source };
    let mut seeds = fuzzing::preamble_seeds();
    // The messages of later handshake steps, sent too early.
    let answers = fuzzing::answer_seeds();
    seeds.extend(
        seeds.clone().iter().flat_map(|first| answers.iter().map(|then| [&first[..], then].concat())),
    );
    let mutator = Mutator::new(seeds, flood.seed);
    let mut random = Rng::with_seed(flood.seed);
    let (mut did, mut silent, mut said) = (UnauthenticatedPeers::default(), VecDeque::new(), Vec::new());
    for number in 0..flood.connections {
        let mut stream = connect(&flood.address).map_err(failed)?;
        did.connections += 1;
        mutator.input(number, &mut said);
        let pieces = random.usize(1..4);
        for piece in said.chunks(said.len().div_ceil(pieces).max(1)) {
            // The server may have closed the connection.
            if stream.write_all(piece).is_err() {
                break;
            }
            did.said += piece.len() as u64;
        }
        match random.u8(..4) {
            0 => drop(stream),
            1 => {
                if silent.len() == SILENT {
                    silent.pop_front();
                }
                silent.push_back(stream);
            }
            _ => {
                stream.set_read_timeout(Some(LISTENS)).map_err(failed)?;
                did.answered += u64::from(stream.read(&mut [0; 256]).is_ok_and(|count| count > 0));
            }
        }
    }
    Ok(did)
}

fn connect(address: &Address) -> io::Result<TcpStream> {
    let Address::Tcp { host, port } = address else { return Err(io::ErrorKind::Unsupported.into()) };
    let stream = TcpStream::connect((host.as_str(), *port))?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    Ok(stream)
}
