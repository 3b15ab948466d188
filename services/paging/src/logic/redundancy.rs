//! How many servers get the bytes of a page, and in which form.
//!
//! # Concurrency
//! Plain values.

use std::{fmt, str::FromStr};

/// Most pages of a stripe.
const MAX_DATA: usize = 16;
/// Most parity pages of a stripe.
const MAX_PARITY: usize = 4;

/// How the pager keeps pages when servers are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Redundancy {
    /// Each page has one server. Its loss is the loss of the page.
    #[default]
    None,
    /// Each page has two servers. One may be lost.
    Mirror,
    /// Reed-Solomon code: `data` pages and `parity` parity pages are at as many servers. Any
    /// `parity` of these may be lost.
    Coded {
        /// Pages of a stripe, 2 to 16.
        data: usize,
        /// Parity pages of a stripe, 1 to 4.
        parity: usize,
    },
}

impl Redundancy {
    /// Returns the number of servers that a pager needs.
    pub fn servers(self) -> usize {
        match self {
            Redundancy::None => 1,
            Redundancy::Mirror => 2,
            Redundancy::Coded { data, parity } => data.saturating_add(parity),
        }
    }

    /// Returns true if the numbers of pages are in their ranges.
    pub(crate) fn is_valid(self) -> bool {
        match self {
            Redundancy::None | Redundancy::Mirror => true,
            Redundancy::Coded { data, parity } => {
                (2..=MAX_DATA).contains(&data) && (1..=MAX_PARITY).contains(&parity)
            }
        }
    }
}

impl fmt::Display for Redundancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Redundancy::None => write!(f, "none"),
            Redundancy::Mirror => write!(f, "mirror"),
            Redundancy::Coded { data, parity } => write!(f, "{data}+{parity}"),
        }
    }
}

/// A text names no [`Redundancy`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of: none, mirror, and DATA+PARITY with 2 to 16 data pages and 1 to 4 parity pages")]
pub struct ParseRedundancyError(String);

impl FromStr for Redundancy {
    type Err = ParseRedundancyError;

    /// Parses `none`, `mirror`, or for example `4+2`.
    fn from_str(text: &str) -> Result<Redundancy, ParseRedundancyError> {
        let coded = || {
            let (data, parity) = text.split_once('+')?;
            Some(Redundancy::Coded { data: data.parse().ok()?, parity: parity.parse().ok()? })
        };
        let redundancy = match text {
            "none" => Some(Redundancy::None),
            "mirror" => Some(Redundancy::Mirror),
            _ => coded(),
        };
        redundancy
            .filter(|redundancy| redundancy.is_valid())
            .ok_or_else(|| ParseRedundancyError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip() {
        let coded = Redundancy::Coded { data: 4, parity: 2 };
        for (redundancy, text, servers) in
            [(Redundancy::None, "none", 1), (Redundancy::Mirror, "mirror", 2), (coded, "4+2", 6)]
        {
            assert_eq!((redundancy.to_string().as_str(), text.parse()), (text, Ok(redundancy)));
            assert_eq!(redundancy.servers(), servers);
        }
        for wrong in ["", "2", "1+1", "17+1", "4+0", "4+5", "4+", "+", "-4+2", "99999999999999999999+1"] {
            assert!(wrong.parse::<Redundancy>().is_err(), "{wrong}");
        }
    }
}
