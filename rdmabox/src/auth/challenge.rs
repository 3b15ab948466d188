//! Mutual proof of a shared secret. No I/O, no locks, no clock; nonces use random numbers.
//!
//! Both sides record all bytes of the stream so far, including both nonces, in a [`Transcript`].
//! A proof is the HMAC-SHA256 of a label and the transcript under the secret. Each side has its
//! own label, so a proof cannot be reflected. Fresh nonces prevent replay. The proofs also cover
//! all other messages, such as the session's parameters and the host's answer, so changes on the
//! way are detected. The session's secret is derived in the same way, with a third label.

use std::{fmt, io};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::key::Secret;

const LEN: usize = 32;

/// The proving side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Host,
}

impl Side {
    /// Returns the label. No label is a prefix of another one.
    fn label(self) -> &'static [u8] {
        match self {
            Side::Client => b"rdmabox 1 client knows\0",
            Side::Host => b"rdmabox 1 host knows\0",
        }
    }
}

const SESSION: &[u8] = b"rdmabox 1 session\0";

/// A random number, used once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub(crate) struct Nonce(pub(crate) [u8; LEN]);

impl Nonce {
    pub(crate) fn random() -> io::Result<Nonce> {
        let mut nonce = Nonce::default();
        getrandom::fill(&mut nonce.0).map_err(|e| io::Error::other(e.to_string()))?;
        Ok(nonce)
    }
}

/// Evidence that a side knows the secret.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub(crate) struct Proof(pub(crate) [u8; LEN]);

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proof")
    }
}

/// The bytes exchanged on a stream, with the secret that both sides claim to know.
pub(crate) struct Transcript {
    secret: Secret,
    bytes: Vec<u8>,
}

impl fmt::Debug for Transcript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transcript").field("bytes", &self.bytes.len()).finish_non_exhaustive()
    }
}

impl Transcript {
    /// Starts a transcript with the given bytes.
    pub(crate) fn new(secret: Secret, bytes: &[u8]) -> Transcript {
        Transcript { secret, bytes: bytes.to_vec() }
    }

    /// Appends bytes of either side. Messages contain their length, so different exchanges have
    /// different bytes.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the proof that `side` knows the secret and has seen the same bytes.
    pub(crate) fn prove(&self, side: Side) -> Proof {
        Proof(self.mac(side.label()))
    }

    /// Returns true if the proof is right for `side`. The time does not depend on the bytes of the
    /// proof.
    pub(crate) fn is_proof(&self, side: Side, proof: &Proof) -> bool {
        self.mac(side.label()).ct_eq(&proof.0).into()
    }

    /// Derives a secret for further streams of the two sides. It depends on all bytes so far.
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
        mac.update(&self.bytes);
        mac.finalize().into_bytes().into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn transcript(secret: u8, bytes: &[u8]) -> Transcript {
        Transcript::new(Secret::new(&[secret; 32]).unwrap(), bytes)
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The values were computed with another implementation:
    /// `printf 'rdmabox 1 client knows\0hello' |`
    /// `openssl dgst -sha256 -mac HMAC -macopt hexkey:0707..07`.
    #[test]
    fn proofs_and_secrets_have_fixed_values() {
        let transcript = transcript(7, b"hello");
        assert_eq!(
            hex(&transcript.prove(Side::Client).0),
            "9a8a5480ab6e0bb8f96e0a4b8f9ecc36fd90188066642c61dedef526852c7e3b"
        );
        assert_eq!(
            hex(&transcript.prove(Side::Host).0),
            "59fa73a2324d600b18db0eef613b9e14451bb472c89361521b90027e7d2a3e55"
        );
        assert_eq!(
            *transcript.session_secret().to_hex(),
            "8db588563399e65ecc78f3fd60661f0881007e23c513ecdc2514ebe79fff1476"
        );
    }

    #[test]
    fn a_proof_is_valid_for_one_side_only() {
        let transcript = transcript(1, b"hello");
        for (side, other) in [(Side::Client, Side::Host), (Side::Host, Side::Client)] {
            let proof = transcript.prove(side);
            assert!(transcript.is_proof(side, &proof));
            assert!(!transcript.is_proof(other, &proof), "it was sent back");
            assert_ne!(transcript.session_secret().bytes(), proof.0);
        }
    }

    #[test]
    fn nonces_differ() {
        assert_ne!(Nonce::random().unwrap(), Nonce::random().unwrap());
    }

    proptest! {
        #[test]
        fn a_changed_transcript_secret_or_proof_is_rejected(
            bytes in proptest::collection::vec(any::<u8>(), 1..300),
            at in any::<prop::sample::Index>(),
            bit in 0u8..8,
        ) {
            let proof = transcript(1, &bytes).prove(Side::Client);
            let mut other = bytes.clone();
            other[at.index(bytes.len())] ^= 1 << bit;
            let mut forged = proof;
            forged.0[at.index(LEN)] ^= 1 << bit;
            prop_assert!(transcript(1, &bytes).is_proof(Side::Client, &proof));
            prop_assert!(!transcript(1, &other).is_proof(Side::Client, &proof));
            prop_assert!(!transcript(1, &bytes[1..]).is_proof(Side::Client, &proof));
            prop_assert!(!transcript(2, &bytes).is_proof(Side::Client, &proof));
            prop_assert!(!transcript(1, &bytes).is_proof(Side::Client, &forged));
        }
    }
}
