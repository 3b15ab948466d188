//! Warnings about certificates that expire. No I/O, no locks, no clock.

use std::time::{Duration, SystemTime};

use crate::text::duration;

/// Time before the end at which warnings begin.
const SOON: Duration = Duration::from_secs(30 * 86_400);

/// Returns a warning about the certificate of an option if it has expired, or expires soon.
/// `next_step` says how the program gets to know a renewed certificate.
pub fn warning(option: &str, expiry: SystemTime, now: SystemTime, next_step: &str) -> Option<String> {
    let state = match expiry.duration_since(now) {
        Ok(left) if left > SOON => return None,
        Ok(left) => format!("expires in {}", duration(left.as_secs_f64())),
        Err(past) => format!("expired {} ago, and peers refuse it", duration(past.duration().as_secs_f64())),
    };
    Some(format!("{option}: the certificate {state}: {next_step}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_begin_thirty_days_before_the_end() {
        let day = |count: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(count * 86_400);
        let warn = |end, now| warning("--tls-cert", day(end), day(now), "renew it");
        assert_eq!(warn(100, 69), None);
        let soon = warn(100, 80).unwrap();
        assert!(soon.starts_with("--tls-cert: the certificate expires in 20 d"), "{soon}");
        let late = warn(100, 103).unwrap();
        assert!(late.starts_with("--tls-cert: the certificate expired 3 d ago"), "{late}");
        assert!(soon.ends_with(": renew it") && late.ends_with(": renew it"), "{soon} {late}");
    }
}
