//! Addresses of etcd's clients port.
//!
//! # Concurrency
//! Plain values.

use std::{fmt, str::FromStr};

use ureq::http::Uri;

/// The address of an etcd, such as `http://127.0.0.1:2379`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdUrl(String);

impl EtcdUrl {
    /// Returns the URL without a slash at its end.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EtcdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for EtcdUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<EtcdUrl, String> {
        const EXAMPLE: &str = "give an address such as http://127.0.0.1:2379";
        let url: Uri = text.parse().map_err(|error| format!("{error}: {EXAMPLE}"))?;
        let is_bare = url.path() == "/" && url.query().is_none();
        let authority = url.authority().map(ToString::to_string).unwrap_or_default();
        match url.scheme_str() {
            Some("https") => Err("https is not supported: give the http address of a local etcd".into()),
            Some("http") if is_bare && url.host().is_some_and(|host| !host.is_empty()) => {
                match authority.contains('@') {
                    true => Err("etcd's users are not supported: give an address without a user".into()),
                    false => Ok(EtcdUrl(format!("http://{authority}"))),
                }
            }
            _ => Err(EXAMPLE.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_addresses_of_hosts_are_urls() {
        let url = |text: &str| text.parse::<EtcdUrl>().map(|url| url.to_string());
        assert_eq!(url("http://127.0.0.1:2379").as_deref(), Ok("http://127.0.0.1:2379"));
        assert_eq!(url("http://etcd.example/").as_deref(), Ok("http://etcd.example"));
        assert_eq!(url("http://[::1]:2379").as_deref(), Ok("http://[::1]:2379"));
        assert!(url("https://a:1").unwrap_err().contains("https"));
        assert!(url("http://me:secret@a:1").unwrap_err().contains("user"));
        for wrong in
            ["", "127.0.0.1:2379", "http://", "http:///", "http://a/v3", "ftp://a", "a b", "http://a?b"]
        {
            assert!(url(wrong).unwrap_err().contains("http://127.0.0.1:2379"), "{wrong}");
        }
    }
}
