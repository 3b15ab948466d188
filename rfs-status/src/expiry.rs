//! Warnings about certificates that expire. No I/O, no locks, no clock.

use std::time::{Duration, SystemTime};

use crate::text::duration;

/// Time before the end at which warnings begin.
const SOON: Duration = Duration::from_secs(30 * 86_400);

/// Returns a warning about the certificate of an option if it has expired, or expires soon.
pub fn warning(option: &str, expiry: SystemTime, now: SystemTime) -> Option<String> {
    match expiry.duration_since(now) {
        Ok(left) if left > SOON => None,
        Ok(left) => {
            let left = duration(left.as_secs_f64());
            Some(format!(
                "{option}: the certificate expires in {left}: renew it, then send SIGHUP to rfs-server"
            ))
        }
        Err(past) => {
            let past = duration(past.duration().as_secs_f64());
            Some(format!("{option}: the certificate expired {past} ago, and peers refuse it: renew it"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_begin_thirty_days_before_the_end() {
        let day = |count: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(count * 86_400);
        let warn = |end, now| warning("--tls-cert", day(end), day(now));
        assert_eq!(warn(100, 69), None);
        assert!(warn(100, 80).unwrap().starts_with("--tls-cert: the certificate expires in 20 d"));
        assert!(warn(100, 103).unwrap().starts_with("--tls-cert: the certificate expired 3 d ago"));
    }
}
