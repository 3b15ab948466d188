//! The identity of a mount or of a server's memory.

use std::fmt;

use serde::{Deserialize, Serialize};

/// 128 random bits.
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
        // A peer that knows the identity of a mount could reconnect in its place. Logs show only
        // enough of it to tell mounts apart.
        write!(f, "Identity({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_hides_most_of_an_identity() {
        let identity = Identity(std::array::from_fn(|at| at as u8));
        assert_eq!(format!("{identity:?}"), "Identity(0001..)");
        assert_eq!(identity.to_string(), "000102030405060708090a0b0c0d0e0f");
    }
}
