//! Connections that say anything, or nothing.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    net::TcpStream,
    time::Duration,
};

use fastrand::Rng;
use rdmabox::{Address, fuzzing};

use super::{Failure, Flood};
use crate::mutate::Mutator;

/// Connections that are kept open and say no more.
const SILENT: usize = 100;
/// For so long a stranger listens to what is said to it.
const LISTENS: Duration = Duration::from_millis(1);

/// What strangers did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strangers {
    /// Connections.
    pub connections: u64,
    /// Bytes that they have said.
    pub said: u64,
    /// How many of them were answered.
    pub answered: u64,
}

pub(super) fn run(flood: &Flood) -> Result<Strangers, Failure> {
    let failed = |source| Failure::Connect { who: "a stranger", source };
    let mut seeds = fuzzing::preamble_seeds();
    // What may come later, too early.
    let answers = fuzzing::answer_seeds();
    seeds.extend(
        seeds.clone().iter().flat_map(|first| answers.iter().map(|then| [&first[..], then].concat())),
    );
    let mutator = Mutator::new(seeds, flood.seed);
    let mut random = Rng::with_seed(flood.seed);
    let (mut did, mut silent, mut said) = (Strangers::default(), VecDeque::new(), Vec::new());
    for number in 0..flood.connections {
        let mut stream = connect(&flood.address).map_err(failed)?;
        did.connections += 1;
        mutator.input(number, &mut said);
        let pieces = random.usize(1..4);
        for piece in said.chunks(said.len().div_ceil(pieces).max(1)) {
            // The server may have hung up.
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
