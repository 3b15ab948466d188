//! The JSON gateway of a running etcd.
//!
//! One request has one answer, with a limit of time and of bytes. After a failure the next request
//! goes to the next etcd of the list. No request is repeated here, because its effect is not known.
//!
//! # Concurrency
//! Any thread. No locks of its own.

use std::{
    io::{BufRead, BufReader, Read},
    ops::ControlFlow,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use ureq::{Agent, Body, http::Response};

use super::{
    answer::{LeaseAnswer, RangeAnswer, RenewalAnswer, TxnAnswer, WatchAnswer, failure, parse},
    key_store::{Guard, KeyChange, KeyStore, KeyStoreError, Lease, Listing, Put},
    url::EtcdUrl,
};

/// Limit of a request, from the connection to the end of the answer.
const REQUEST_LIMIT: Duration = Duration::from_secs(2);
/// Time after which a watch ends. It bounds how long a lost connection goes unnoticed.
const WATCH_LIMIT: Duration = Duration::from_secs(60);
/// Most bytes of an answer, and of a line of a watch. etcd refuses requests of more than 1.5 MiB.
const MAX_ANSWER: u64 = 32 << 20;

/// A running etcd, or several of one cluster.
#[derive(Debug)]
pub(super) struct Gateway {
    urls: Vec<EtcdUrl>,
    /// The URL for the next request.
    next: AtomicUsize,
    agent: Agent,
    watches: Agent,
}

impl Gateway {
    /// Returns the gateway of these addresses, at least one. Nothing is asked yet.
    pub(super) fn new(urls: &[EtcdUrl]) -> Gateway {
        let config = || {
            // Statuses of failure have a reason in their body. etcd is asked directly.
            let config = Agent::config_builder().http_status_as_error(false).proxy(None).max_redirects(0);
            config.user_agent(concat!("rfs-server/", env!("CARGO_PKG_VERSION")))
        };
        let limit = Some(REQUEST_LIMIT);
        let watches = config().timeout_resolve(limit).timeout_connect(limit).timeout_send_request(limit);
        let watches = watches.timeout_send_body(limit).timeout_recv_response(limit);
        Gateway {
            urls: urls.to_vec(),
            next: AtomicUsize::new(0),
            agent: config().timeout_global(limit).build().new_agent(),
            watches: watches.timeout_recv_body(Some(WATCH_LIMIT)).build().new_agent(),
        }
    }

    /// Sends a request, and returns the answer unless it has a status of failure.
    fn send(&self, agent: &Agent, path: &str, request: &Value) -> Result<Response<Body>, KeyStoreError> {
        let at = self.next.load(Ordering::Relaxed);
        let sent = self.urls.get(at % self.urls.len().max(1)).map(|url| {
            let sent = agent.post(format!("{}{path}", url.as_str()));
            sent.content_type("application/json").send(request.to_string())
        });
        let away = |reason: String| {
            // Of several threads that fail at once, one goes on to the next.
            let _ = self.next.compare_exchange(at, at + 1, Ordering::Relaxed, Ordering::Relaxed);
            KeyStoreError::Away(reason)
        };
        let response = match sent {
            Some(Ok(response)) => response,
            Some(Err(error)) => return Err(away(error.to_string())),
            None => return Err(away("no address of etcd is known".into())),
        };
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        match failure(status, &body(response).unwrap_or_default()) {
            KeyStoreError::Away(reason) => Err(away(reason)),
            refused => Err(refused),
        }
    }

    fn ask<T: DeserializeOwned>(&self, path: &str, request: &Value) -> Result<T, KeyStoreError> {
        parse(&body(self.send(&self.agent, path, request)?)?)
    }
}

/// Returns the bytes of an answer.
fn body(mut response: Response<Body>) -> Result<Vec<u8>, KeyStoreError> {
    let body = response.body_mut().with_config().limit(MAX_ANSWER).read_to_vec();
    body.map_err(|error| KeyStoreError::Away(error.to_string()))
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// Returns the end of the range of all keys that begin so.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // The last byte of an ASCII text can be raised.
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

impl KeyStore for Gateway {
    fn place(&self) -> String {
        let urls: Vec<String> = self.urls.iter().map(ToString::to_string).collect();
        format!("etcd at {}", urls.join(", "))
    }

    fn list(&self, prefix: &str) -> Result<Listing, KeyStoreError> {
        let range = json!({ "key": encode(prefix), "range_end": encode(end_of(prefix)) });
        self.ask::<RangeAnswer>("/v3/kv/range", &range)?.into_listing()
    }

    fn put_if(&self, guards: &[Guard<'_>], puts: &[Put<'_>]) -> Result<Option<i64>, KeyStoreError> {
        let guard = |guard: &Guard<'_>| {
            json!({ "key": encode(guard.key), "target": "MOD", "result": "EQUAL",
                "mod_revision": guard.revision.to_string() })
        };
        let put = |put: &Put<'_>| {
            let lease = put.lease.map_or(0, |lease| lease.0).to_string();
            json!({ "request_put": { "key": encode(put.key), "value": encode(put.value), "lease": lease } })
        };
        let compare: Vec<Value> = guards.iter().map(guard).collect();
        let success: Vec<Value> = puts.iter().map(put).collect();
        let transaction = json!({ "compare": compare, "success": success });
        self.ask::<TxnAnswer>("/v3/kv/txn", &transaction)?.revision()
    }

    fn grant(&self, time: Duration) -> Result<Lease, KeyStoreError> {
        let grant = json!({ "TTL": time.as_secs().to_string() });
        self.ask::<LeaseAnswer>("/v3/lease/grant", &grant)?.granted()
    }

    fn keep_alive(&self, lease: Lease) -> Result<bool, KeyStoreError> {
        let renewal = json!({ "ID": lease.0.to_string() });
        Ok(self.ask::<RenewalAnswer>("/v3/lease/keepalive", &renewal)?.is_alive())
    }

    fn rest_of(&self, lease: Lease) -> Result<Option<Duration>, KeyStoreError> {
        let question = json!({ "ID": lease.0.to_string() });
        let answer = self.ask::<LeaseAnswer>("/v3/lease/timetolive", &question)?;
        Ok(answer.rest().map(Duration::from_secs))
    }

    fn revoke(&self, lease: Lease) -> Result<(), KeyStoreError> {
        let question = json!({ "ID": lease.0.to_string() });
        self.ask::<Value>("/v3/lease/revoke", &question).map(drop)
    }

    fn watch(
        &self,
        prefix: &str,
        from: i64,
        changed: &mut dyn FnMut(Vec<KeyChange>) -> ControlFlow<()>,
    ) -> Result<(), KeyStoreError> {
        let create = json!({ "key": encode(prefix), "range_end": encode(end_of(prefix)),
            "start_revision": from.to_string() });
        let request = json!({ "create_request": create });
        let response = self.send(&self.watches, "/v3/watch", &request)?;
        let mut lines = BufReader::new(response.into_body().into_reader());
        loop {
            let mut line = Vec::new();
            let read = (&mut lines).take(MAX_ANSWER).read_until(b'\n', &mut line);
            read.map_err(|error| KeyStoreError::Away(error.to_string()))?;
            if line.last() != Some(&b'\n') {
                return Err(KeyStoreError::Away("the watch has ended".into()));
            }
            let Some(changes) = parse::<WatchAnswer>(&line)?.into_changes() else {
                return Err(KeyStoreError::Away("etcd has ended the watch".into()));
            };
            if changed(changes).is_break() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        net::{TcpListener, TcpStream},
        thread,
        time::Instant,
    };

    use super::*;

    /// Returns the gateway of a program that answers each connection so.
    fn answered_by(answer: impl Fn(TcpStream) + Send + 'static) -> Gateway {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        thread::spawn(move || listener.incoming().flatten().for_each(&answer));
        Gateway::new(&[url.parse().expect("a URL")])
    }

    /// Reads a part of the request, and sends a text.
    fn send(mut stream: &TcpStream, text: &str) -> bool {
        let mut request = [0; 1024];
        let _ = stream.read(&mut request);
        stream.write_all(text.as_bytes()).is_ok()
    }

    #[test]
    fn a_program_that_is_no_etcd_is_away() {
        for answer in [
            "",
            "nonsense\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhallo",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n",
            "HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        ] {
            let gateway = answered_by(move |stream| _ = send(&stream, answer));
            let listed = gateway.list("/rdmabox/p/");
            assert!(matches!(listed, Err(KeyStoreError::Away(_))), "{answer:?}: {listed:?}");
            let ended = gateway.watch("/rdmabox/p/", 1, &mut |_| ControlFlow::Continue(()));
            assert!(matches!(ended, Err(KeyStoreError::Away(_))), "{answer:?}: {ended:?}");
        }
        let nothing_there = Gateway::new(&["http://127.0.0.1:1".parse().expect("a URL")]);
        assert!(matches!(nothing_there.keep_alive(Lease(1)), Err(KeyStoreError::Away(_))));
    }

    /// Answers that do not end are cut off, by time or by length.
    #[test]
    fn a_silent_or_endless_answer_has_an_end() {
        let begin = Instant::now();
        let silent = answered_by(|stream| {
            thread::spawn(move || {
                thread::sleep(Duration::from_secs(30));
                drop(stream);
            });
        });
        assert!(matches!(silent.list("/"), Err(KeyStoreError::Away(_))));
        let endless = answered_by(|stream| {
            thread::spawn(move || {
                let mut goes_on = send(&stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"kvs\":\"");
                let part = "a".repeat(1 << 16);
                while goes_on {
                    goes_on = (&stream).write_all(part.as_bytes()).is_ok();
                }
            });
        });
        assert!(matches!(endless.list("/"), Err(KeyStoreError::Away(_))));
        let ended = endless.watch("/", 1, &mut |_| ControlFlow::Continue(()));
        assert!(matches!(ended, Err(KeyStoreError::Away(_))), "{ended:?}");
        assert!(begin.elapsed() < Duration::from_secs(25), "{:?}", begin.elapsed());
    }
}
