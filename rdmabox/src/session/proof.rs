//! Proving to each other that both sides know a secret, without saying it. Pure, but for the randomness of nonces.
//!
//! Both sides keep what was said on the stream, byte by byte, their nonces among it: the dialogue. A proof is
//! HMAC-SHA256 under the secret of a label and of the dialogue so far. The label is that of the side that proves, so that
//! neither side's proof can be sent back to it; the nonces are new each time, so that none can be used again; and
//! whatever else was said (what the session is to be, the host's answer) cannot be changed on the way without being noticed.
//! The secret of a session is made in the same way, under a label of its own.

use std::{fmt, io};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::key::Secret;

const LEN: usize = 32;

/// Who proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Host,
}

impl Side {
    /// None is the beginning of another one.
    fn label(self) -> &'static [u8] {
        match self {
            Side::Client => b"rdmabox 1 client knows\0",
            Side::Host => b"rdmabox 1 host knows\0",
        }
    }
}

const SESSION: &[u8] = b"rdmabox 1 session\0";

/// Random, and never used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub(crate) struct Nonce(pub(super) [u8; LEN]);

impl Nonce {
    pub(crate) fn random() -> io::Result<Nonce> {
        let mut nonce = Nonce::default();
        getrandom::fill(&mut nonce.0).map_err(|e| io::Error::other(e.to_string()))?;
        Ok(nonce)
    }
}

/// What shows that a side knows the secret.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub(crate) struct Proof(pub(super) [u8; LEN]);

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proof")
    }
}

/// What was said on a stream, between two who say that they know a secret.
pub(crate) struct Dialogue {
    secret: Secret,
    said: Vec<u8>,
}

impl fmt::Debug for Dialogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialogue").field("said", &self.said.len()).finish_non_exhaustive()
    }
}

impl Dialogue {
    /// It begins with `said`.
    pub(crate) fn new(secret: Secret, said: &[u8]) -> Dialogue {
        Dialogue { secret, said: said.to_vec() }
    }

    /// One side has said more. Messages tell their length, so that no two dialogues have the same bytes.
    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.said.extend_from_slice(bytes);
    }

    /// That `side` knows the secret and has heard the same.
    pub(crate) fn prove(&self, side: Side) -> Proof {
        Proof(self.mac(side.label()))
    }

    /// Whether it is a proof of `side`; the time that it takes does not tell how much of it is right.
    pub(crate) fn is_proof(&self, side: Side, proof: &Proof) -> bool {
        self.mac(side.label()).ct_eq(&proof.0).into()
    }

    /// A secret that only the two can know, for other streams of theirs. Another one after each further word.
    pub(crate) fn session_secret(&self) -> Secret {
        let bytes = zeroize::Zeroizing::new(self.mac(SESSION));
        match Secret::new(&*bytes) {
            Ok(secret) => secret,
            Err(_) => unreachable!("32 bytes are a secret"),
        }
    }

    fn mac(&self, label: &[u8]) -> [u8; LEN] {
        let mut mac = match Hmac::<Sha256>::new_from_slice(self.secret.bytes()) {
            Ok(mac) => mac,
            Err(_) => unreachable!("a key of HMAC may have any length"),
        };
        mac.update(label);
        mac.update(&self.said);
        mac.finalize().into_bytes().into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn dialogue(secret: u8, said: &[u8]) -> Dialogue {
        Dialogue::new(Secret::new(&[secret; 32]).unwrap(), said)
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Computed with another implementation:
    /// `printf 'rdmabox 1 client knows\0hello' | openssl dgst -sha256 -mac HMAC -macopt hexkey:0707..07`.
    #[test]
    fn the_bytes_are_fixed() {
        let dialogue = dialogue(7, b"hello");
        assert_eq!(
            hex(&dialogue.prove(Side::Client).0),
            "9a8a5480ab6e0bb8f96e0a4b8f9ecc36fd90188066642c61dedef526852c7e3b"
        );
        assert_eq!(
            hex(&dialogue.prove(Side::Host).0),
            "59fa73a2324d600b18db0eef613b9e14451bb472c89361521b90027e7d2a3e55"
        );
        assert_eq!(
            *dialogue.session_secret().to_hex(),
            "8db588563399e65ecc78f3fd60661f0881007e23c513ecdc2514ebe79fff1476"
        );
    }

    #[test]
    fn each_side_has_proofs_of_its_own() {
        let dialogue = dialogue(1, b"hello");
        for (side, other) in [(Side::Client, Side::Host), (Side::Host, Side::Client)] {
            let proof = dialogue.prove(side);
            assert!(dialogue.is_proof(side, &proof));
            assert!(!dialogue.is_proof(other, &proof), "it was sent back");
            assert_ne!(dialogue.session_secret().bytes(), proof.0);
        }
    }

    #[test]
    fn nonces_differ() {
        assert_ne!(Nonce::random().unwrap(), Nonce::random().unwrap());
    }

    proptest! {
        #[test]
        fn another_word_another_secret_or_another_bit_is_no_proof(
            said in proptest::collection::vec(any::<u8>(), 1..300),
            at in any::<prop::sample::Index>(),
            bit in 0u8..8,
        ) {
            let proof = dialogue(1, &said).prove(Side::Client);
            let mut other = said.clone();
            other[at.index(said.len())] ^= 1 << bit;
            let mut forged = proof;
            forged.0[at.index(LEN)] ^= 1 << bit;
            prop_assert!(dialogue(1, &said).is_proof(Side::Client, &proof));
            prop_assert!(!dialogue(1, &other).is_proof(Side::Client, &proof));
            prop_assert!(!dialogue(1, &said[1..]).is_proof(Side::Client, &proof));
            prop_assert!(!dialogue(2, &said).is_proof(Side::Client, &proof));
            prop_assert!(!dialogue(1, &said).is_proof(Side::Client, &forged));
        }
    }
}
