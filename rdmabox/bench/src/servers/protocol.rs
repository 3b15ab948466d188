//! The calls that a server of this program answers. No I/O, no locks, no clock.
//!
//! A request begins with its kind in one byte. Numbers are little-endian.
//!
//! | kind | request | reply |
//! |-|-|-|
//! | 1, where | nothing more | `rdbench1`, address (8), key (4), bytes (8) |
//! | 2, usage | nothing more | user and system µs, voluntary and involuntary switches (8 each) |
//! | 3, echo | three unused bytes, bytes of the reply (4), payload | as many zeros |

use rdmabox::{MAX_CALL, RemoteAddr};

use crate::{load::MIN_CALL, usage::Usage};

const MAGIC: &[u8; 8] = b"rdbench1";
const WHERE: u8 = 1;
const USAGE: u8 = 2;
const ECHO: u8 = 3;

/// The memory that a server exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// Address of its first byte.
    pub base: RemoteAddr,
    /// Its length in bytes.
    pub len: u64,
}

/// Encodes a request for the location of the memory.
pub fn ask_where() -> [u8; 1] {
    [WHERE]
}

/// Encodes a request for the usage of the server.
pub fn ask_usage() -> [u8; 1] {
    [USAGE]
}

/// Encodes an echo request with a reply of `reply` bytes. `request` has at least [`MIN_CALL`]
/// bytes.
pub fn make_echo(request: &mut [u8], reply: u32) {
    debug_assert!(request.len() as u64 >= MIN_CALL);
    request[0] = ECHO;
    request[4..8].copy_from_slice(&reply.to_le_bytes());
}

/// Writes the reply to a request into the empty `reply`.
pub fn answer(
    request: &[u8],
    reply: &mut Vec<u8>,
    lent: impl FnOnce() -> Lent,
    usage: impl FnOnce() -> Usage,
) -> Result<(), String> {
    match request {
        [WHERE] => {
            let Lent { base, len } = lent();
            reply.extend_from_slice(MAGIC);
            reply.extend_from_slice(&base.to_le_bytes());
            reply.extend_from_slice(&len.to_le_bytes());
        }
        [USAGE] => {
            let Usage { user_us, system_us, voluntary_switches, involuntary_switches } = usage();
            for number in [user_us, system_us, voluntary_switches, involuntary_switches] {
                reply.extend_from_slice(&number.to_le_bytes());
            }
        }
        [ECHO, _, _, _, a, b, c, d, ..] => {
            let len = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
            if len > MAX_CALL {
                return Err(format!("an echo of {len} bytes, the limit is {MAX_CALL}"));
            }
            reply.resize(len, 0);
        }
        _ => return Err("no request of this program".into()),
    }
    Ok(())
}

/// Decodes the reply to [`ask_where`]; `None` if it is malformed.
pub fn read_where(reply: &[u8]) -> Option<Lent> {
    let rest = reply.strip_prefix(MAGIC)?;
    let (base, len) = rest.split_first_chunk()?;
    Some(Lent { base: RemoteAddr::from_le_bytes(*base), len: u64::from_le_bytes(len.try_into().ok()?) })
}

/// Decodes the reply to [`ask_usage`]; `None` if it is malformed.
pub fn read_usage(reply: &[u8]) -> Option<Usage> {
    let (numbers, []) = reply.as_chunks::<8>() else { return None };
    let [user_us, system_us, voluntary_switches, involuntary_switches] =
        <[[u8; 8]; 4]>::try_from(numbers).ok()?.map(u64::from_le_bytes);
    Some(Usage { user_us, system_us, voluntary_switches, involuntary_switches })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LENT: Lent = Lent { base: RemoteAddr { addr: 0x0102_0304_0506_0708, rkey: 9 }, len: 1 << 33 };
    const USED: Usage = Usage { user_us: 1, system_us: 2, voluntary_switches: 3, involuntary_switches: 4 };

    fn ask(request: &[u8]) -> Result<Vec<u8>, String> {
        let mut reply = Vec::new();
        answer(request, &mut reply, || LENT, || USED).map(|()| reply)
    }

    #[test]
    fn answers_are_understood() {
        assert_eq!(read_where(&ask(&ask_where()).unwrap()), Some(LENT));
        assert_eq!(read_usage(&ask(&ask_usage()).unwrap()), Some(USED));
        let mut echo = [7; 20];
        make_echo(&mut echo, 300);
        assert_eq!(ask(&echo).unwrap(), [0; 300]);
        make_echo(&mut echo, MAX_CALL as u32 + 1);
        assert!(ask(&echo).is_err());
    }

    proptest! {
        #[test]
        fn bytes_of_a_stranger_are_refused_or_answered_within_limits(
            bytes in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            if let Ok(reply) = ask(&bytes) {
                prop_assert!(reply.len() <= MAX_CALL);
            }
            prop_assert_eq!(read_where(&bytes), None);
            prop_assert!(bytes.len() == 32 || read_usage(&bytes).is_none());
        }
    }
}
