//! Decides on the answer to a request over HTTP. No I/O, no locks, no clock.

/// Maximum length of a request's head in bytes.
pub(super) const MAX_HEAD: usize = 8 << 10;
/// Maximum number of header lines.
const MAX_HEADERS: usize = 64;

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// More bytes have to arrive.
    Incomplete,
    /// The metrics.
    Metrics,
    /// The head of the metrics.
    Head,
    /// An error: status and reason.
    Refused(u16, &'static str),
}

/// Returns the answer to the request that begins with these bytes.
pub(super) fn judge(bytes: &[u8]) -> Verdict {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => return Verdict::Incomplete,
        Ok(httparse::Status::Partial) => return Verdict::Refused(431, "Request Header Fields Too Large"),
        Err(_) => return Verdict::Refused(400, "Bad Request"),
    }
    let path = request.path.unwrap_or_default();
    match (request.method.unwrap_or_default(), path.split('?').next()) {
        ("GET", Some("/metrics")) => Verdict::Metrics,
        ("HEAD", Some("/metrics")) => Verdict::Head,
        ("GET" | "HEAD", _) => Verdict::Refused(404, "Not Found"),
        _ => Verdict::Refused(405, "Method Not Allowed"),
    }
}

/// Returns the head of a response. It always ends the connection.
pub(super) fn head(status: u16, reason: &str, length: usize) -> String {
    format!(
        "HTTP/1.1 {status} {reason}\r\n\
         Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_metrics_are_served() {
        let judged = |line: &str| judge(format!("{line} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
        assert_eq!(judged("GET /metrics"), Verdict::Metrics);
        assert_eq!(judged("GET /metrics?x=1"), Verdict::Metrics);
        assert_eq!(judged("HEAD /metrics"), Verdict::Head);
        assert_eq!(judged("GET /"), Verdict::Refused(404, "Not Found"));
        assert_eq!(judged("POST /metrics"), Verdict::Refused(405, "Method Not Allowed"));
        assert_eq!(judge(b"GET /metrics HT"), Verdict::Incomplete);
        assert_eq!(judge(b"\0\x01"), Verdict::Refused(400, "Bad Request"));
    }

    #[test]
    fn a_head_has_bounds() {
        let many = format!("GET /metrics HTTP/1.1\r\n{}", "A: b\r\n".repeat(MAX_HEADERS + 1));
        assert!(matches!(judge(many.as_bytes()), Verdict::Refused(400, _)));
        let long = format!("GET /metrics HTTP/1.1\r\nA: {}", "b".repeat(MAX_HEAD));
        assert!(matches!(judge(long.as_bytes()), Verdict::Refused(431, _)));
    }
}
