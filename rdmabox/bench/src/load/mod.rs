//! The options of a load, and the checked load that they describe.

mod args;
pub mod model;
pub mod paging;
pub mod pattern;
pub mod value;

use std::{sync::Arc, time::Duration};

use rdmabox::{
    Address, BatchMode, CallsBy, MAX_CALL, PollingMode, PreMrThreshold, ProviderKind, Session,
    SessionOptions,
    admission::{LatencyWindow, LatencyWindowOptions},
};
use serde::Serialize;

use crate::{Error, Result};
pub use args::{Admission, Direct, LoadArgs, OpKind, Pollers, Submit};
use paging::Paging;
use pattern::{Cursor, Pattern};
use value::{Extent, Reg, Window, as_text};

/// Distance in bytes between the words of compare-and-swaps: one cache line.
pub const WORD_STRIDE: u64 = 64;
/// Default minimum memory of a server, in bytes.
const MIN_AREA: u64 = 64 << 20;
/// Minimum length of a call, which holds its kind and the length of the reply.
pub const MIN_CALL: u64 = 8;
/// Maximum number of operations in an ordered list of the runtime.
const MAX_LIST: u32 = 64;

/// A checked load.
#[derive(Clone, Debug, Serialize)]
pub struct Load {
    /// Operation.
    pub op: OpKind,
    /// Provider.
    #[serde(serialize_with = "as_text")]
    pub provider: ProviderKind,
    /// Bytes of a request.
    pub size: u64,
    /// Bytes of a reply, for calls.
    pub reply: Option<u64>,
    /// Threads.
    pub threads: u32,
    /// Requests outstanding per thread.
    pub depth: u32,
    /// Queue pairs per peer.
    pub qps: u32,
    /// Order of addresses.
    pub pattern: Pattern,
    /// Sharing of the sequential cursor.
    pub cursor: Cursor,
    /// Requests of a burst and the gap after it, for bursts.
    pub burst: Option<Burst>,
    /// The paged program, for paging.
    pub paging: Option<Paging>,
    /// Work of the program for each request on a modelled card; `None` for the card's.
    pub think: Option<Duration>,
    /// Batching.
    #[serde(serialize_with = "as_text")]
    pub mode: BatchMode,
    /// Memory of work requests.
    #[serde(serialize_with = "as_text")]
    pub reg: Reg,
    /// Polling mode.
    #[serde(serialize_with = "as_text")]
    pub polling: PollingMode,
    /// Empty polls before adaptive polling sleeps; `None` for the runtime's default.
    pub max_retry: Option<u32>,
    /// Admission window.
    #[serde(serialize_with = "as_text")]
    pub window: Window,
    /// Limit of merged work requests in bytes; `None` for the runtime's default.
    pub max_merge: Option<u64>,
    /// Control of the window.
    pub admission: Admission,
    /// Distance of signaled work requests in a chain.
    pub signal_interval: u32,
    /// Limit of inline data; `None` for the runtime's default.
    pub max_inline: Option<u32>,
    /// Whether the caller executes single requests itself.
    pub direct: Direct,
    /// Servers.
    pub peers: u32,
    /// Bytes used on each server.
    pub area: u64,
    /// How replies to sends come.
    #[serde(serialize_with = "as_text")]
    pub calls: CallsBy,
    /// The action of pollers of callbacks while no request is outstanding.
    pub pollers: Pollers,
    /// How requests are submitted.
    pub submit: Submit,
    /// Length of the measurement.
    pub extent: Extent,
    /// Length of the warm-up.
    pub warmup: Extent,
}

/// The shape of bursts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Burst {
    /// Requests, all of which complete before the gap.
    pub requests: u32,
    /// Microseconds without a request.
    pub gap_us: u64,
}

impl Load {
    /// Checks the options for consistency. `connect` are the given servers, if any.
    pub fn resolve(op: OpKind, args: &LoadArgs, connect: &[Address]) -> Result<Load> {
        let op = args.op.unwrap_or(op);
        let alone = matches!(op, OpKind::Cas | OpKind::Send | OpKind::Paging);
        let depth = args.depth.unwrap_or(if alone || args.submit == Some(Submit::Blocking) { 1 } else { 16 });
        let (size, reply) = lengths(op, args, depth)?;
        let submit = submission(op, args, depth)?;
        let area = area(op, args, size, depth)?;
        let peers = args.peers.unwrap_or(connect.len().max(1) as u32);
        if !connect.is_empty() && peers as usize > connect.len() {
            return usage(format!("--peers {peers}, but --connect is there only {} times", connect.len()));
        }
        let provider = match (args.provider, connect.first()) {
            (Some(given), _) => given,
            (None, Some(address)) => address.provider(),
            (None, None) => ProviderKind::Shm,
        };
        let burst = (args.pattern == Pattern::Bursts && op != OpKind::Paging).then(|| Burst {
            requests: args.burst,
            gap_us: u64::try_from(args.gap.as_micros()).unwrap_or(u64::MAX),
        });
        Ok(Load {
            op,
            provider,
            size,
            reply,
            threads: args.threads,
            depth,
            qps: args.qps,
            pattern: args.pattern,
            cursor: args.cursor,
            burst,
            paging: (op == OpKind::Paging).then_some(Paging { load: args.load, local: args.local }),
            think: args.think,
            mode: args.mode,
            reg: args.reg,
            polling: args.polling,
            max_retry: args.max_retry,
            window: args.window,
            max_merge: args.max_merge,
            admission: args.admission,
            signal_interval: args.signal_interval,
            max_inline: args.max_inline,
            direct: args.direct,
            peers,
            area,
            calls: args.calls,
            pollers: args.pollers,
            submit,
            extent: args.ops.map_or(Extent::Time(args.duration), Extent::Ops),
            warmup: args.warmup,
        })
    }

    /// Returns the distance between the addresses of consecutive requests, in bytes.
    pub fn stride(&self) -> u64 {
        if self.op == OpKind::Cas { WORD_STRIDE } else { self.size }
    }

    /// Returns the total size of this process's buffers, in bytes.
    pub fn buffers(&self) -> u64 {
        let each = if self.paging.is_some() { paging::MAX_PAGES } else { self.depth };
        self.size.saturating_mul(u64::from(self.threads)).saturating_mul(u64::from(each))
    }

    /// Returns the options of the load's sessions.
    pub fn session_options(&self) -> SessionOptions {
        let defaults = SessionOptions::default();
        let mut options = Session::builder()
            .provider(self.provider)
            .queue_pairs(self.qps as usize)
            .window_bytes(self.window.bytes())
            .max_merge_bytes(self.max_merge.unwrap_or(defaults.max_merge_bytes))
            .batch(self.mode)
            .pre_mr_threshold(match self.reg {
                Reg::Pre => PreMrThreshold::Bytes(u64::MAX),
                Reg::Dyn => PreMrThreshold::Bytes(0),
                Reg::Auto | Reg::Registered => PreMrThreshold::Auto,
                Reg::Threshold(bytes) => PreMrThreshold::Bytes(bytes),
            })
            .polling(self.polling)
            .max_retry(self.max_retry)
            .signal_interval(self.signal_interval)
            .max_inline(self.max_inline.unwrap_or(defaults.max_inline))
            .direct(self.direct == Direct::On)
            .calls(self.calls)
            .standing_pollers(self.pollers == Pollers::Stand)
            .into_options();
        options.admission = (self.admission == Admission::Latency).then(|| self.latency_window() as _);
        options
    }

    fn latency_window(&self) -> Arc<LatencyWindow> {
        let mut options = LatencyWindowOptions::default();
        options.start = match self.window {
            Window::Bytes(bytes) => bytes,
            Window::None => options.max,
        };
        options.max = options.max.max(options.start);
        Arc::new(LatencyWindow::new(options))
    }

    /// Returns a one-line description.
    pub fn summary(&self) -> String {
        let plural = |n: u32, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let mut parts = vec![match self.op {
            OpKind::Cas => format!("{} words", self.area / WORD_STRIDE),
            OpKind::Send => {
                format!(
                    "{} out, {} back",
                    byte_size::show(self.size),
                    byte_size::show(self.reply.unwrap_or(0))
                )
            }
            _ => byte_size::show(self.size),
        }];
        parts.push(plural(self.threads, "thread"));
        match self.paging {
            Some(paging) => parts.push(paging.summary()),
            None => parts.push(format!("depth {}", self.depth)),
        }
        parts.push(plural(self.peers, "peer"));
        if self.op != OpKind::Send {
            parts.push(plural(self.qps, "queue pair"));
            let pattern = format!("{:?}", self.pattern).to_lowercase();
            parts.extend((self.op != OpKind::Paging).then(|| match self.burst {
                Some(burst) => format!("bursts of {} and {} us gaps", burst.requests, burst.gap_us),
                None if self.pattern != Pattern::Rand && self.threads > 1 => {
                    format!("{pattern} ({} cursor)", format!("{:?}", self.cursor).to_lowercase())
                }
                None => pattern,
            }));
            parts.push(format!("mode {}", self.mode));
            parts.push(format!("reg {}", self.reg));
            parts.push(match self.admission {
                Admission::Static => format!("window {}", self.window),
                Admission::Latency => format!("window by latency from {}", self.window),
            });
        } else if self.calls != CallsBy::Auto {
            parts.push(format!("calls by {}", self.calls));
        }
        parts.push(format!("polling {}", self.polling));
        parts.push(format!("submit {}", format!("{:?}", self.submit).to_lowercase()));
        parts.extend((self.pollers == Pollers::Stand).then(|| "standing pollers".to_owned()));
        parts.push(self.extent.to_string());
        parts.join(", ")
    }
}

fn usage<T>(text: String) -> Result<T> {
    Err(Error::usage(text))
}

/// Returns the bytes of a request and, for calls, of a reply.
fn lengths(op: OpKind, args: &LoadArgs, depth: u32) -> Result<(u64, Option<u64>)> {
    let size = match op {
        OpKind::Read | OpKind::Write => args.size.unwrap_or(4096),
        OpKind::Paging if args.size.is_some_and(|size| size != paging::PAGE) => {
            return usage("--size: a page has 4096 bytes".into());
        }
        OpKind::Paging => paging::PAGE,
        OpKind::Send => args.size.unwrap_or(64),
        OpKind::Cas if args.size.is_some_and(|size| size != 8) => {
            return usage("--size: a compare-and-swap has 8 bytes".into());
        }
        OpKind::Cas => 8,
    };
    let reply = (op == OpKind::Send).then(|| args.reply.unwrap_or(size));
    if op == OpKind::Send {
        if depth > 1 {
            return usage("--depth: a call is made one at a time; give more --threads".into());
        }
        for (what, bytes, least) in [("--size", size, MIN_CALL), ("--reply", reply.unwrap_or(0), 1)] {
            if !(least..=MAX_CALL as u64).contains(&bytes) {
                return usage(format!("{what}: a call has {least} to {MAX_CALL} bytes"));
            }
        }
    }
    if op == OpKind::Paging && depth > 1 {
        return usage("--depth: a thread waits for its page fault; give more --threads".into());
    }
    if op == OpKind::Cas && depth > MAX_LIST {
        return usage(format!("--depth: a list of compare-and-swaps has {MAX_LIST} steps at most"));
    }
    Ok((size, reply))
}

/// Returns how requests are submitted.
fn submission(op: OpKind, args: &LoadArgs, depth: u32) -> Result<Submit> {
    let submit = args.submit.unwrap_or(match (depth, op) {
        (_, OpKind::Paging) => Submit::Started,
        (1, _) if args.reg != Reg::Registered => Submit::Blocking,
        (_, OpKind::Cas) => Submit::Vectored,
        _ => Submit::Started,
    });
    let starts = matches!(submit, Submit::Started | Submit::Callback);
    if starts && matches!(op, OpKind::Cas | OpKind::Send) {
        let name = format!("{submit:?}").to_lowercase();
        return usage(format!("--submit {name}: there is no started {}", op.name()));
    }
    if args.reg == Reg::Registered && !starts {
        return usage("--reg registered: only started requests use the memory of their buffers".into());
    }
    if op == OpKind::Paging && !starts {
        return usage("--submit: a pager starts its requests; choose started or callback".into());
    }
    if args.pollers == Pollers::Stand && submit != Submit::Callback {
        return usage(
            "--pollers stand: only requests with callbacks have pollers; give --submit callback".into(),
        );
    }
    if submit == Submit::Blocking && depth > 1 {
        return usage("--submit blocking has one request outstanding: leave --depth out".into());
    }
    Ok(submit)
}

/// Returns the bytes that are used on each server.
fn area(op: OpKind, args: &LoadArgs, size: u64, depth: u32) -> Result<u64> {
    let stride = if op == OpKind::Cas { WORD_STRIDE } else { size };
    let outstanding = stride.saturating_mul(u64::from(args.threads)).saturating_mul(u64::from(depth));
    let area = match op {
        OpKind::Cas => WORD_STRIDE * u64::from(args.words),
        OpKind::Send => MIN_AREA,
        _ => args.area.unwrap_or(MIN_AREA.max(outstanding.saturating_mul(2))),
    };
    let blocks = area / stride;
    if blocks == 0 {
        return usage(format!(
            "--area {} holds no request of {}",
            byte_size::show(area),
            byte_size::show(size)
        ));
    }
    if args.cursor == Cursor::Own && blocks < u64::from(args.threads) {
        return usage("--cursor own: there are fewer blocks than threads".into());
    }
    Ok(area)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::settings::Settings;

    fn load(op: OpKind, settings: &[(&str, &str)]) -> Result<Load> {
        let settings = Settings::from_pairs(settings.iter().copied());
        Load::resolve(op, &settings.parse().unwrap(), &[])
    }

    #[track_caller]
    fn refused(op: OpKind, settings: &[(&str, &str)], says: &str) {
        let err = load(op, settings).unwrap_err();
        assert_eq!(err.exit_code(), 2);
        assert!(err.to_string().contains(says), "{err}");
    }

    #[test]
    fn defaults_depend_on_the_operation() {
        let write = load(OpKind::Write, &[]).unwrap();
        assert_eq!((write.size, write.depth, write.submit), (4096, 16, Submit::Started));
        assert_eq!((write.area, write.stride(), write.provider), (64 << 20, 4096, ProviderKind::Shm));
        let send = load(OpKind::Send, &[("size", "100")]).unwrap();
        assert_eq!((send.size, send.reply, send.depth, send.submit), (100, Some(100), 1, Submit::Blocking));
        let paging = load(OpKind::Paging, &[("load", "sys"), ("pattern", "bursts")]).unwrap();
        assert_eq!((paging.size, paging.depth, paging.submit), (4096, 1, Submit::Started));
        assert!(paging.burst.is_none() && paging.summary().contains("sys with 25 % local"));
        let cas = load(OpKind::Cas, &[("words", "10")]).unwrap();
        assert_eq!((cas.size, cas.area, cas.stride()), (8, 640, 64));
    }

    /// Catches pollers that park in the paper's way to run, or stand elsewhere.
    #[test]
    fn pollers_stand_on_request() {
        let own = load(OpKind::Paging, &[("submit", "callback"), ("reg", "registered")]).unwrap();
        assert!(!own.session_options().standing_pollers);
        let papers = load(OpKind::Paging, &[("submit", "callback"), ("pollers", "stand")]).unwrap();
        assert!(papers.session_options().standing_pollers);
        assert!(papers.summary().contains("submit callback, standing pollers"));
    }

    #[test]
    fn memory_grows_with_the_outstanding_requests() {
        let load = load(OpKind::Read, &[("size", "1m"), ("threads", "8"), ("depth", "32")]).unwrap();
        assert_eq!((load.area, load.buffers()), (512 << 20, 256 << 20));
    }

    #[test]
    fn requests_go_before_time() {
        let load = load(OpKind::Read, &[("ops", "20k"), ("duration", "7s"), ("warmup", "10")]).unwrap();
        assert_eq!((load.extent, load.warmup), (Extent::Ops(20_000), Extent::Ops(10)));
    }

    #[test]
    fn every_switch_reaches_the_session() {
        let load = load(
            OpKind::Write,
            &[
                ("provider", "tcp"),
                ("qps", "2"),
                ("window", "none"),
                ("mode", "doorbell"),
                ("reg", "dyn"),
                ("polling", "event-batch"),
                ("max-retry", "7"),
                ("admission", "latency"),
                ("signal-interval", "3"),
                ("max-inline", "0"),
                ("max-merge", "64k"),
                ("direct", "off"),
                ("calls", "fetch"),
            ],
        )
        .unwrap();
        let options = load.session_options();
        assert_eq!((options.provider, options.queue_pairs), (Some(ProviderKind::Tcp), 2));
        assert_eq!((options.window_bytes, options.batch), (u64::MAX, BatchMode::Doorbell));
        assert_eq!(
            (options.pre_mr_threshold, options.polling),
            (PreMrThreshold::Bytes(0), PollingMode::EventBatch)
        );
        assert_eq!((options.max_retry, options.signal_interval, options.max_inline), (Some(7), 3, 0));
        assert_eq!(options.max_merge_bytes, 64 << 10);
        assert_eq!(options.calls, CallsBy::Fetch);
        assert!(options.admission.is_some() && !options.direct);
    }

    #[test]
    fn contradictions_are_refused() {
        refused(OpKind::Cas, &[("size", "4k")], "8 bytes");
        refused(OpKind::Cas, &[("depth", "65")], "64 steps");
        refused(OpKind::Send, &[("depth", "2")], "--threads");
        refused(OpKind::Send, &[("size", "7")], "8 to 65536 bytes");
        refused(OpKind::Send, &[("reply", "65537")], "1 to 65536 bytes");
        refused(OpKind::Cas, &[("submit", "started")], "no started cas");
        refused(OpKind::Write, &[("submit", "vectored"), ("reg", "registered")], "only started");
        refused(OpKind::Write, &[("submit", "blocking"), ("depth", "2")], "--depth");
        refused(OpKind::Paging, &[("size", "8k")], "4096 bytes");
        refused(OpKind::Paging, &[("depth", "2")], "--threads");
        refused(OpKind::Paging, &[("submit", "blocking")], "--submit");
        refused(OpKind::Cas, &[("submit", "callback")], "no started cas");
        refused(OpKind::Paging, &[("pollers", "stand")], "--submit callback");
        refused(OpKind::Write, &[("area", "4k"), ("size", "8k")], "holds no request");
        refused(OpKind::Write, &[("area", "8k"), ("threads", "4"), ("cursor", "own")], "fewer blocks");
    }

    #[test]
    fn servers_that_are_given_decide() {
        let addresses: Vec<Address> = ["10.0.0.1:1", "10.0.0.2:1"].map(|a| a.parse().unwrap()).into();
        let resolve = |settings: &[(&str, &str)]| {
            let settings = Settings::from_pairs(settings.iter().copied());
            Load::resolve(OpKind::Read, &settings.parse().unwrap(), &addresses)
        };
        let load = resolve(&[]).unwrap();
        assert_eq!((load.peers, load.provider), (2, ProviderKind::Tcp));
        assert!(resolve(&[("peers", "3")]).unwrap_err().to_string().contains("only 2 times"));
    }
}
