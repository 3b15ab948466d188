//! Keys: a name, and a secret shared by client and host.
//!
//! Secrets are erased when dropped and never printed. Comparing them takes the same time for any
//! difference.
//!
//! # Concurrency
//! Plain values.

use std::{fmt, io, str::FromStr, sync::Arc};

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::mapping::Hidden;

/// Valid lengths of a secret, in bytes.
const SECRET_LEN: std::ops::RangeInclusive<usize> = 16..=64;
/// Length of a generated secret, in bytes.
const NEW_SECRET: usize = 32;
/// Maximum length of a key's name, in bytes.
const MAX_ID: usize = 32;

/// Hexadecimal digits of the shortest secret.
const SECRET_DIGITS: usize = 2 * *SECRET_LEN.start();

/// Returns a word of a key file as error messages show it. A word as long as a secret is replaced
/// by its length, because it may be a misplaced secret.
pub fn shown(word: &str) -> String {
    match word.len() {
        len @ SECRET_DIGITS.. => format!("a word of {len} bytes"),
        _ => format!("{word:?}"),
    }
}

/// The name of a key. It is not secret: clients send it in clear, and logs show it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId([u8; MAX_ID]);

impl KeyId {
    /// Returns the wire form, padded with zeros.
    pub(crate) fn to_wire(self) -> [u8; MAX_ID] {
        self.0
    }

    /// Returns `None` if the bytes are not a valid name.
    pub(crate) fn from_wire(bytes: [u8; MAX_ID]) -> Option<KeyId> {
        let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(MAX_ID);
        let (name, padding) = bytes.split_at(len);
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
        let good = len > 0 && name.iter().all(plain) && padding.iter().all(|byte| *byte == 0);
        good.then_some(KeyId(bytes))
    }
}

impl FromStr for KeyId {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<KeyId, KeyError> {
        let wrong = || KeyError::Id(shown(text));
        // Logs show names, so a misplaced secret must not become a name.
        if text.contains('\0') || (text.len() >= SECRET_DIGITS && text.bytes().all(|b| b.is_ascii_hexdigit()))
        {
            return Err(wrong());
        }
        let mut bytes = [0; MAX_ID];
        bytes.get_mut(..text.len()).ok_or_else(wrong)?.copy_from_slice(text.as_bytes());
        KeyId::from_wire(bytes).ok_or_else(wrong)
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0.split(|byte| *byte == 0).next().unwrap_or_default();
        // A name is always ASCII.
        f.pad(str::from_utf8(name).unwrap_or_default())
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

/// The secret of a key: 16 to 64 bytes, excluded from core dumps.
#[derive(Clone)]
pub struct Secret(Arc<Hidden>);

impl Secret {
    /// Generates a secret from the system's random numbers.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn random() -> io::Result<Secret> {
        let mut bytes = Hidden::zeros(NEW_SECRET);
        getrandom::fill(bytes.as_mut_slice()).map_err(|e| io::Error::other(e.to_string()))?;
        Ok(Secret(Arc::new(bytes)))
    }

    /// Creates a secret from bytes.
    ///
    /// # Errors
    /// [`KeyError::Secret`] for fewer than 16 bytes, or more than 64.
    pub fn new(bytes: &[u8]) -> Result<Secret, KeyError> {
        match SECRET_LEN.contains(&bytes.len()) {
            true => Ok(Secret(Arc::new(Hidden::copy_of(bytes)))),
            false => Err(KeyError::Secret),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_slice()
    }

    /// Returns the secret in hexadecimal digits, the form of key files.
    pub fn to_hex(&self) -> Zeroizing<String> {
        let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
        // Allocated at full size: a growing string would leave copies of the secret behind.
        let mut text = Zeroizing::new(String::with_capacity(2 * self.bytes().len()));
        self.bytes().iter().for_each(|byte| text.extend([digit(byte >> 4), digit(byte & 15)]));
        text
    }
}

impl FromStr for Secret {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Secret, KeyError> {
        let (pairs, odd) = text.as_bytes().as_chunks::<2>();
        if !odd.is_empty() || !SECRET_LEN.contains(&pairs.len()) {
            return Err(KeyError::Secret);
        }
        let mut bytes = Hidden::zeros(pairs.len());
        for (byte, pair) in bytes.as_mut_slice().iter_mut().zip(pairs) {
            let [high, low] = pair.map(|digit| char::from(digit).to_digit(16));
            let (Some(high), Some(low)) = (high, low) else { return Err(KeyError::Secret) };
            *byte = (high << 4 | low) as u8;
        }
        Ok(Secret(Arc::new(bytes)))
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.bytes().ct_eq(other.bytes()).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A key: a name and a secret. A client gives it to
/// [`SessionBuilder::key`](crate::SessionBuilder::key), a host has a
/// [`Keyring`](crate::Keyring). [Keys](crate::guide#keys) has an example.
// Exhaustive: a key has these two parts, in key files and in the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// The name.
    pub id: KeyId,
    /// The secret whose knowledge proves possession of the key.
    pub secret: Secret,
}

impl Key {
    /// Reads a name and a hexadecimal secret from the first two words of a line.
    ///
    /// # Errors
    /// A word is missing or invalid. The error text does not contain the secret.
    pub fn from_words<'a>(words: &mut impl Iterator<Item = &'a str>) -> Result<Key, KeyError> {
        let id = words.next().ok_or(KeyError::Missing)?.parse()?;
        let secret = words.next().ok_or(KeyError::Missing)?.parse()?;
        Ok(Key { id, secret })
    }
}

/// Error of an invalid key. Its text contains no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Invalid name.
    #[error(
        "invalid key name {0}: expected 1 to 32 letters, digits, dots, dashes and underscores, but not the hexadecimal digits of a secret"
    )]
    Id(String),
    /// Invalid secret.
    #[error("a secret is written as 32 to 128 hexadecimal digits")]
    Secret,
    /// Missing word.
    #[error("a key is a name and a secret")]
    Missing,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names() {
        for name in ["a", "laptop-7.home_x", &"x".repeat(32)] {
            let id: KeyId = name.parse().unwrap();
            assert_eq!((id.to_string().as_str(), KeyId::from_wire(id.to_wire())), (name, Some(id)));
        }
        for name in ["", "a b", "é", "a\0", "a/b", &"x".repeat(33)] {
            assert!(name.parse::<KeyId>().is_err(), "{name:?}");
        }
        assert_eq!(KeyId::from_wire([0; 32]), None);
        let mut gap = [0; 32];
        (gap[0], gap[2]) = (b'a', b'b');
        assert_eq!(KeyId::from_wire(gap), None);
    }

    #[test]
    fn secrets_are_random_and_not_printed() {
        let secret = Secret::random().unwrap();
        assert_ne!(secret, Secret::random().unwrap());
        assert_eq!(secret.bytes().len(), 32);
        let key = Key { id: "k".parse().unwrap(), secret };
        assert_eq!(format!("{key:?}"), r#"Key { id: "k", secret: Secret }"#);
    }

    #[test]
    fn lines() {
        let digits = "00112233445566778899aAbBcCdDeEfF";
        let line = format!("  k {digits} rest ");
        let mut words = line.split_whitespace();
        let key = Key::from_words(&mut words).unwrap();
        assert_eq!((key.id, &**key.secret.to_hex()), ("k".parse().unwrap(), &*digits.to_lowercase()));
        assert_eq!(words.next(), Some("rest"));
        let error = |line: &str| Key::from_words(&mut line.split_whitespace()).unwrap_err();
        assert_eq!(error(""), KeyError::Missing);
        assert_eq!(error("k"), KeyError::Missing);
        assert_eq!(error("k! x"), KeyError::Id("\"k!\"".into()));
        // A secret in the place of the name must not be shown.
        assert_eq!(error(&format!("{} x", &digits[..32])), KeyError::Id("a word of 32 bytes".into()));
        assert_eq!(error(&format!("{}! x", &digits[..32])), KeyError::Id("a word of 33 bytes".into()));
        let long = "0".repeat(130);
        for wrong in [&digits[2..], &digits[1..], &long, "zz112233445566778899aabbccddeeff", "-"] {
            let error = error(&format!("k {wrong}"));
            assert_eq!(error, KeyError::Secret);
            assert!(!error.to_string().contains(wrong) || wrong == "-");
        }
        assert_eq!(Secret::new(&[0; 15]), Err(KeyError::Secret));
        assert_eq!(Secret::new(&[0; 65]), Err(KeyError::Secret));
    }

    proptest! {
        #[test]
        fn secrets_survive_a_round_trip_through_hexadecimal(bytes in proptest::collection::vec(any::<u8>(), 16..=64)) {
            let secret = Secret::new(&bytes).unwrap();
            prop_assert_eq!(secret.to_hex().parse::<Secret>(), Ok(secret));
        }

        #[test]
        fn no_text_is_too_strange(text in ".{0,140}") {
            let _ = text.parse::<KeyId>();
            let _ = text.parse::<Secret>();
            let _ = Key::from_words(&mut text.split_whitespace());
        }
    }
}
