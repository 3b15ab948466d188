//! What a mount, or a server's memory, is known by.

use std::fmt;

use serde::{Deserialize, Serialize};

/// 128 bits that were chosen at random.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Identity(pub [u8; 16]);

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Who knows a mount's can come back in its place: no log shows more than tells it from others.
        write!(f, "Identity({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_shows_the_beginning() {
        let identity = Identity(std::array::from_fn(|at| at as u8));
        assert_eq!(format!("{identity:?}"), "Identity(0001..)");
        assert_eq!(identity.to_string(), "000102030405060708090a0b0c0d0e0f");
    }
}
