//! The facts that a node that joins has to know, and those that it tells: the sizes of the
//! deployment, and the nodes.
//!
//! A listed node is in the file of nodes, and has a part of the index. A joined node has a number
//! behind the list, and only a data table. The nodes of the list hand the numbers out: a number
//! belongs to the process whose random number is in the list of known processes.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use std::time::Duration;

use rdmabox::Address;

use crate::{
    error::NessieError,
    node::{
        members::{MAX_NODES, Members},
        options::NodeOptions,
    },
};

/// First byte of a request of this module. No command begins with it.
const LETTER: u8 = b'J';
const CLAIM: u8 = 1;
const ANNOUNCE: u8 = 2;
/// Longest address in bytes.
const MAX_ADDRESS: usize = 255;

/// A request of a node that joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JoinRequest {
    /// Asks for a number.
    Claim { incarnation: u64 },
    /// Tells where the node with this number is.
    Announce { number: u16, incarnation: u64, address: Address },
}

impl JoinRequest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, number, incarnation, address) = match self {
            JoinRequest::Claim { incarnation } => (CLAIM, 0, incarnation, String::new()),
            JoinRequest::Announce { number, incarnation, address } => {
                (ANNOUNCE, *number, incarnation, address.to_string())
            }
        };
        let mut bytes = vec![LETTER, kind];
        bytes.extend(number.to_le_bytes());
        bytes.extend(incarnation.to_le_bytes());
        bytes.extend(address.into_bytes());
        bytes
    }

    /// Decodes a request. `None` for other bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Option<JoinRequest> {
        let ([LETTER, kind], rest) = bytes.split_first_chunk()? else { return None };
        let (number, rest) = rest.split_first_chunk()?;
        let (incarnation, text) = rest.split_first_chunk()?;
        let (number, incarnation) = (u16::from_le_bytes(*number), u64::from_le_bytes(*incarnation));
        match (*kind, number) {
            (CLAIM, 0) if text.is_empty() => Some(JoinRequest::Claim { incarnation }),
            (ANNOUNCE, _) => {
                Some(JoinRequest::Announce { number, incarnation, address: parse_address(text)? })
            }
            _ => None,
        }
    }
}

fn parse_address(text: &[u8]) -> Option<Address> {
    let address: Address = std::str::from_utf8(text).ok()?.parse().ok()?;
    // It is passed on in its usual form.
    (address.to_string().len() <= MAX_ADDRESS).then_some(address)
}

/// Number of sizes in a roster.
const SIZES: usize = 10;

/// The deployment, as a node tells it to one that joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Roster {
    /// The number that the asking node has.
    pub(crate) number: u16,
    sizes: [u64; SIZES],
    /// Nodes whose address is known. The listed ones come first.
    pub(crate) nodes: Vec<(u16, Address)>,
}

impl Roster {
    pub(crate) fn new(number: u16, options: &NodeOptions, nodes: Vec<(u16, Address)>) -> Roster {
        let millis = |time: Duration| time.as_millis() as u64;
        let sizes = [
            options.members.count() as u64,
            u64::from(options.spare),
            options.index_bytes,
            options.ways as u64,
            options.max_key as u64,
            options.max_value as u64,
            u64::from(options.filter_bits),
            millis(options.reuse_delay),
            millis(options.lease),
            millis(options.patience),
        ];
        Roster { number, sizes, nodes }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.number.to_le_bytes().to_vec();
        bytes.extend(self.sizes.iter().flat_map(|size| size.to_le_bytes()));
        for (number, address) in &self.nodes {
            let text = address.to_string();
            bytes.extend(number.to_le_bytes());
            bytes.push(text.len().min(MAX_ADDRESS) as u8);
            bytes.extend(text.bytes().take(MAX_ADDRESS));
        }
        bytes
    }

    /// Decodes a roster. `None` for other bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Roster> {
        let (number, mut rest) = bytes.split_first_chunk()?;
        let mut sizes = [0; SIZES];
        for size in &mut sizes {
            let (bytes, more) = rest.split_first_chunk()?;
            (*size, rest) = (u64::from_le_bytes(*bytes), more);
        }
        let mut nodes = Vec::new();
        while let Some((number, more)) = rest.split_first_chunk() {
            let (&len, more) = more.split_first()?;
            let (text, more) = more.split_at_checked(usize::from(len))?;
            nodes.push((u16::from_le_bytes(*number), parse_address(text)?));
            rest = more;
            if nodes.len() > MAX_NODES {
                return None;
            }
        }
        rest.is_empty().then_some(Roster { number: u16::from_le_bytes(*number), sizes, nodes })
    }

    /// Returns the options of a node that joins this deployment.
    ///
    /// # Errors
    /// [`NessieError::Members`] if the roster lacks a listed node. [`NodeOptions::check`] checks
    /// the sizes.
    pub(crate) fn options(&self) -> Result<NodeOptions, NessieError> {
        let [listed, spare, index, ways, max_key, max_value, filter_bits, reuse, lease, patience] =
            self.sizes;
        let is_next = |(at, (number, _)): &(usize, &(u16, Address))| usize::from(*number) == *at;
        let known =
            self.nodes.iter().enumerate().take_while(is_next).map(|(_, (_, address))| address.clone());
        let addresses: Vec<Address> = known.take(usize::try_from(listed).unwrap_or(0)).collect();
        if addresses.len() as u64 != listed {
            let found = addresses.len();
            return Err(NessieError::Members(format!("the seed names {found} of {listed} nodes")));
        }
        let mut options = NodeOptions::new(self.number, Members::new(addresses)?);
        let number = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        // A size that does not fit is refused by the check.
        options.spare = spare.try_into().unwrap_or(u16::MAX);
        options.index_bytes = index;
        (options.ways, options.max_key, options.max_value) =
            (number(ways), number(max_key), number(max_value));
        options.filter_bits = filter_bits.try_into().unwrap_or(u32::MAX);
        options.reuse_delay = Duration::from_millis(reuse);
        options.lease = Duration::from_millis(lease);
        options.patience = Duration::from_millis(patience);
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn roster() -> Roster {
        let mut options = NodeOptions::new(0, Members::parse("0 127.0.0.1:1\n1 unix:/run/n\n").unwrap());
        options.spare = 3;
        options.max_value = 77;
        let nodes = vec![
            (0, "127.0.0.1:1".parse().unwrap()),
            (1, "unix:/run/n".parse().unwrap()),
            (4, "127.0.0.1:9".parse().unwrap()),
        ];
        Roster::new(3, &options, nodes)
    }

    #[test]
    fn a_roster_has_all_that_a_node_needs_to_join() {
        let roster = roster();
        assert_eq!(Roster::decode(&roster.encode()), Some(roster.clone()));
        let options = roster.options().unwrap();
        assert_eq!((options.id, options.spare, options.max_value), (3, 3, 77));
        assert_eq!(options.members.count(), 2);
        let lacks = Roster { nodes: roster.nodes[1..].to_vec(), ..roster };
        let error = lacks.options().unwrap_err().to_string();
        assert_eq!(error, "nodes file: the seed names 0 of 2 nodes");
    }

    #[test]
    fn requests_come_back() {
        let address: Address = "unix:/run/n".parse().unwrap();
        let claim = JoinRequest::Claim { incarnation: 7 };
        let announce = JoinRequest::Announce { number: 9, incarnation: 8, address };
        for request in [claim, announce] {
            assert_eq!(JoinRequest::decode(&request.encode()), Some(request));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes: Vec<u8>, kind in 0..4_u8, at in 0..200_usize, value: u8) {
            let _ = (Roster::decode(&bytes), JoinRequest::decode(&bytes));
            let _ = JoinRequest::decode(&[&[LETTER, kind], &bytes[..]].concat());
            let mut changed = roster().encode();
            let at = at % changed.len();
            changed[at] = value;
            if let Some(found) = Roster::decode(&changed) {
                let _ = found.options().map(|options| options.check());
            }
        }
    }
}
