//! The end of a certificate's validity. No I/O, no locks, no clock.
//!
//! rustls checks certificates of peers, and not those that this side presents. So the few fields
//! up to the validity are read here (RFC 5280, section 4.1).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;

const SEQUENCE: u8 = 0x30;
/// The version, which certificates of version 1 leave out.
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Takes one element. Returns its tag, its contents, and the rest.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..0x80 => (usize::from(first), rest),
        _ => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let len = bytes
                .iter()
                .try_fold(0usize, |len, &byte| Some(len.checked_mul(256)? + usize::from(byte)))?;
            (len, rest)
        }
    };
    let (contents, rest) = rest.split_at_checked(len)?;
    Some((tag, contents, rest))
}

/// Takes one element of this kind. Returns its contents and the rest.
fn expect(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, contents, rest) = element(der)?;
    (found == tag).then_some((contents, rest))
}

/// Returns the days from 1970-01-01 to a date.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    // The year begins in March, so a leap day is its last day.
    let (year, month) = if month < 3 { (year.checked_sub(1)?, month + 9) } else { (year, month - 3) };
    let of_years = 365 * year + year / 4 - year / 100 + year / 400;
    (of_years + (153 * month + 2) / 5 + day).checked_sub(719_469)
}

/// Returns a time of a certificate, which is in UTC to the second.
fn time(tag: u8, text: &[u8]) -> Option<SystemTime> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let (year, rest) = match tag {
        UTC_TIME => {
            let (year, rest) = text.split_at_checked(2)?;
            let year: u64 = year.parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = text.split_at_checked(4)?;
            (year.parse().ok()?, rest)
        }
        _ => return None,
    };
    if rest.len() != 10 || !rest.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let part = |at: usize| rest[2 * at..2 * at + 2].parse::<u64>().ok();
    let (month, day) = (part(0)?, part(1)?);
    if !(1..=12).contains(&month) {
        return None;
    }
    let seconds = days(year, month, day)? * 86_400 + part(2)? * 3600 + part(3)? * 60 + part(4)?;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// Returns the last time at which a certificate is valid. `None` if it cannot be told.
pub(super) fn end(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let (certificate, _) = expect(certificate, SEQUENCE)?;
    let (mut fields, _) = expect(certificate, SEQUENCE)?;
    if let Some((VERSION, _, rest)) = element(fields) {
        fields = rest;
    }
    // Serial number, algorithm of the signature, issuer.
    for _ in 0..3 {
        fields = element(fields)?.2;
    }
    let (validity, _) = expect(fields, SEQUENCE)?;
    let (tag, end, _) = element(element(validity)?.2)?;
    time(tag, end)
}

/// Returns the earliest end of certificates.
pub(super) fn earliest(certificates: &[CertificateDer<'_>]) -> Option<SystemTime> {
    certificates.iter().filter_map(end).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(tag: u8, text: &str) -> Option<u64> {
        let time = time(tag, text.as_bytes())?;
        Some(time.duration_since(UNIX_EPOCH).unwrap().as_secs())
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(seconds(UTC_TIME, "700101000000Z"), Some(0));
        assert_eq!(seconds(UTC_TIME, "260228235959Z"), Some(1_772_323_199));
        assert_eq!(seconds(GENERALIZED_TIME, "20240229120000Z"), Some(1_709_208_000));
        assert_eq!(seconds(GENERALIZED_TIME, "20000301000000Z"), Some(951_868_800));
        assert_eq!(seconds(UTC_TIME, "491231235959Z"), Some(2_524_607_999));
        for wrong in ["", "Z", "260228235959", "2602282359Z", "26x228235959Z", "261328235959Z"] {
            assert_eq!(seconds(UTC_TIME, wrong), None, "{wrong}");
        }
    }

    /// Any bytes are no panic, and the end of a certificate is found.
    #[test]
    fn the_end_of_a_certificate() {
        let mut parameters = rcgen::CertificateParams::new(vec!["host".into()]).unwrap();
        parameters.not_after = rcgen::date_time_ymd(2031, 5, 6);
        let key = rcgen::KeyPair::generate().unwrap();
        let der = parameters.self_signed(&key).unwrap().der().to_vec();
        let expected = UNIX_EPOCH + Duration::from_secs(1_935_792_000);
        assert_eq!(end(&CertificateDer::from(der.clone())), Some(expected));
        for len in 0..der.len() {
            end(&CertificateDer::from(der[..len].to_vec()));
        }
        for at in 0..200 {
            let mut damaged = der.clone();
            damaged[at] ^= 0xff;
            end(&CertificateDer::from(damaged));
        }
    }
}
