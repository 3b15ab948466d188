//! The options of a load, and the checked load that they describe.

use std::{sync::Arc, time::Duration};

use clap::{Args, ValueEnum};
use rdmabox::{
    Address, BatchMode, MAX_CALL, PollingMode, PreMrThreshold, ProviderKind, SessionOptions,
    admission::{LatencyWindow, LatencyWindowOptions},
    size,
};
use serde::Serialize;

use crate::{
    Error, Result,
    pattern::{Cursor, Pattern},
    value::{self, Extent, Reg, Window, as_text},
};

/// The operation of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OpKind {
    /// One-sided READ.
    Read,
    /// One-sided WRITE.
    Write,
    /// Compare-and-swap.
    Cas,
    /// A call: SEND of a request, SEND of a reply, with the server's code in between.
    Send,
}

impl OpKind {
    /// Returns the name of the operation.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Cas => "cas",
            Self::Send => "send",
        }
    }
}

/// How requests are submitted to the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Submit {
    /// One blocking call per request.
    Blocking,
    /// One blocking call for `depth` requests. The next call starts when all are done. Each request
    /// is recorded with the latency of the call.
    Vectored,
    /// Each request is started separately, with up to `depth` outstanding.
    Started,
}

/// Whether the caller executes a single request on mapped memory itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direct {
    /// The caller executes it.
    On,
    /// The caller posts it, as over a network.
    Off,
}

/// Control of the amount of data in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Admission {
    /// A window of fixed size.
    Static,
    /// A window that starts at --window and follows the measured latency.
    Latency,
}

/// Distance in bytes between the words of compare-and-swaps: one cache line.
pub const WORD_STRIDE: u64 = 64;
/// Default minimum memory of a server, in bytes.
const LEAST_AREA: u64 = 64 << 20;
/// Minimum length of a call, which holds its kind and the length of the reply.
pub const LEAST_CALL: u64 = 8;
/// Maximum number of operations in an ordered list of the runtime.
const MAX_LIST: u32 = 64;

/// Options of a load. Each option has a value and can be swept.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Load (each of these can be swept)")]
pub struct LoadArgs {
    /// Provider of the requests: shm or tcp, both software, or rdma [default: shm; with --connect
    /// that of the address]
    #[arg(long, value_name = "P")]
    pub provider: Option<ProviderKind>,

    /// Bytes of a request [default: 4k; for send 64]
    #[arg(long, value_name = "S", value_parser = size::parse_nonzero)]
    pub size: Option<u64>,

    /// Threads that make requests
    #[arg(long, value_name = "T", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,

    /// Requests that each thread keeps outstanding [default: 16; for cas and send 1]
    #[arg(long, value_name = "D", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub depth: Option<u32>,

    /// Queue pairs per peer
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub qps: u32,

    /// Order of addresses; bursts are sequential: --burst requests, then an idle time of --gap
    #[arg(long, value_enum, default_value_t = Pattern::Seq)]
    pub pattern: Pattern,

    /// Whether threads take sequential blocks from a shared cursor, so that adjacent requests come
    /// from different threads, or each thread walks through its own part
    #[arg(long, value_enum, default_value_t = Cursor::Shared)]
    pub cursor: Cursor,

    /// Requests of a burst
    #[arg(long, value_name = "B", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub burst: u32,

    /// Idle time after a burst
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = value::duration)]
    pub gap: Duration,

    /// How waiting requests are combined: single, merge, doorbell or hybrid
    #[arg(long, value_name = "MODE", default_value_t = BatchMode::Hybrid)]
    pub mode: BatchMode,

    /// Memory of work requests: pre (copied through registered memory), dyn (registered on the
    /// fly), auto, a threshold in bytes between the two, or registered (the load's buffers are
    /// registered memory)
    #[arg(long, value_name = "REG", default_value_t = Reg::Auto)]
    pub reg: Reg,

    /// How threads wait for completions: busy, event, event-batch, hybrid, adaptive, or
    /// shared-cq:M, M queues that all queue pairs share, with a polling thread each
    #[arg(long, value_name = "MODE", default_value_t = PollingMode::Adaptive)]
    pub polling: PollingMode,

    /// Empty polls before adaptive polling sleeps [default: the runtime's]
    #[arg(long, value_name = "N")]
    pub max_retry: Option<u32>,

    /// Limit of admission control for bytes in flight, or none
    #[arg(long, value_name = "BYTES", default_value = "7m")]
    pub window: Window,

    /// Control of the window of admission control
    #[arg(long, value_enum, default_value_t = Admission::Static)]
    pub admission: Admission,

    /// Distance of signaled work requests in a chain; the last is always signaled; 0: only the last
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub signal_interval: u32,

    /// Limit in bytes for inline data of a single WRITE; 0: never inline [default: the runtime's]
    #[arg(long, value_name = "BYTES")]
    pub max_inline: Option<u32>,

    /// Whether the caller executes single requests itself if the memory is mapped, or posts them as
    /// over a network
    #[arg(long, value_enum, default_value_t = Direct::On)]
    pub direct: Direct,

    /// Number of servers; each thread submits to them in turn [default: 1; with --connect the
    /// number given]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub peers: Option<u32>,

    /// Memory used on each peer [default: 64m, or room for twice the outstanding requests]
    #[arg(long, value_name = "BYTES", value_parser = size::parse_nonzero)]
    pub area: Option<u64>,

    /// Number of words for compare-and-swaps, one per cache line
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub words: u32,

    /// Bytes of the reply to a send [default: length of the request]
    #[arg(long, value_name = "BYTES", value_parser = size::parse_nonzero)]
    pub reply: Option<u64>,

    /// How requests are submitted [default: started; for cas vectored; blocking with a depth of 1]
    #[arg(long, value_enum)]
    pub submit: Option<Submit>,

    /// Duration of the measurement, such as 2s
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = value::duration)]
    pub duration: Duration,

    /// Number of requests of all threads together; overrides --duration
    #[arg(long, value_name = "N", value_parser = value::count)]
    pub ops: Option<u64>,

    /// Duration or number of requests of the warm-up
    #[arg(long, value_name = "TIME|N", default_value = "200ms")]
    pub warmup: Extent,

    /// The operation, if it is swept.
    #[arg(long, value_enum, hide = true)]
    pub op: Option<OpKind>,
}

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
        let usage = |text: String| Err(Error::usage(text));
        let op = args.op.unwrap_or(op);
        let alone = matches!(op, OpKind::Cas | OpKind::Send);
        let depth = args.depth.unwrap_or(if alone || args.submit == Some(Submit::Blocking) { 1 } else { 16 });
        let size = match op {
            OpKind::Read | OpKind::Write => args.size.unwrap_or(4096),
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
            for (what, bytes, least) in [("--size", size, LEAST_CALL), ("--reply", reply.unwrap_or(0), 1)] {
                if !(least..=MAX_CALL as u64).contains(&bytes) {
                    return usage(format!("{what}: a call has {least} to {MAX_CALL} bytes"));
                }
            }
        }
        if op == OpKind::Cas && depth > MAX_LIST {
            return usage(format!("--depth: a list of compare-and-swaps has {MAX_LIST} steps at most"));
        }
        let submit = args.submit.unwrap_or(match (depth, op) {
            (1, _) if args.reg != Reg::Registered => Submit::Blocking,
            (_, OpKind::Cas) => Submit::Vectored,
            _ => Submit::Started,
        });
        if submit == Submit::Started && alone {
            return usage(format!("--submit started: there is no started {}", op.name()));
        }
        if args.reg == Reg::Registered && submit != Submit::Started {
            return usage("--reg registered: only started requests use the memory of their buffers".into());
        }
        if submit == Submit::Blocking && depth > 1 {
            return usage("--submit blocking has one request outstanding: leave --depth out".into());
        }

        let stride = if op == OpKind::Cas { WORD_STRIDE } else { size };
        let outstanding = stride.saturating_mul(u64::from(args.threads)).saturating_mul(u64::from(depth));
        let area = match op {
            OpKind::Cas => WORD_STRIDE * u64::from(args.words),
            OpKind::Send => LEAST_AREA,
            _ => args.area.unwrap_or(LEAST_AREA.max(outstanding.saturating_mul(2))),
        };
        let blocks = area / stride;
        if blocks == 0 {
            return usage(format!("--area {} holds no request of {}", size::show(area), size::show(size)));
        }
        if args.cursor == Cursor::Own && blocks < u64::from(args.threads) {
            return usage("--cursor own: there are fewer blocks than threads".into());
        }

        let peers = args.peers.unwrap_or(connect.len().max(1) as u32);
        if !connect.is_empty() && peers as usize > connect.len() {
            return usage(format!("--peers {peers}, but --connect is there only {} times", connect.len()));
        }
        let provider = match (args.provider, connect.first()) {
            (Some(given), _) => given,
            (None, Some(address)) => address.provider(),
            (None, None) => ProviderKind::Shm,
        };
        let burst = (args.pattern == Pattern::Bursts).then(|| Burst {
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
            mode: args.mode,
            reg: args.reg,
            polling: args.polling,
            max_retry: args.max_retry,
            window: args.window,
            admission: args.admission,
            signal_interval: args.signal_interval,
            max_inline: args.max_inline,
            direct: args.direct,
            peers,
            area,
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
        self.size.saturating_mul(u64::from(self.threads)).saturating_mul(u64::from(self.depth))
    }

    /// Returns the options of the load's sessions.
    pub fn session_options(&self) -> SessionOptions {
        let defaults = SessionOptions::default();
        SessionOptions {
            provider: Some(self.provider),
            queue_pairs: self.qps as usize,
            window_bytes: self.window.bytes(),
            batch: self.mode,
            pre_mr_threshold: match self.reg {
                Reg::Pre => PreMrThreshold::Bytes(u64::MAX),
                Reg::Dyn => PreMrThreshold::Bytes(0),
                Reg::Auto | Reg::Registered => PreMrThreshold::Auto,
                Reg::Threshold(bytes) => PreMrThreshold::Bytes(bytes),
            },
            polling: self.polling,
            max_retry: self.max_retry,
            admission: (self.admission == Admission::Latency).then(|| self.latency_window() as _),
            signal_interval: self.signal_interval,
            max_inline: self.max_inline.unwrap_or(defaults.max_inline),
            direct: self.direct == Direct::On,
            ..defaults
        }
    }

    fn latency_window(&self) -> Arc<LatencyWindow> {
        let defaults = LatencyWindowOptions::default();
        let start = match self.window {
            Window::Bytes(bytes) => bytes,
            Window::None => defaults.max,
        };
        Arc::new(LatencyWindow::new(LatencyWindowOptions { start, max: defaults.max.max(start), ..defaults }))
    }

    /// Returns a one-line description.
    pub fn summary(&self) -> String {
        let plural = |n: u32, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let mut parts = vec![match self.op {
            OpKind::Cas => format!("{} words", self.area / WORD_STRIDE),
            OpKind::Send => {
                format!("{} out, {} back", size::show(self.size), size::show(self.reply.unwrap_or(0)))
            }
            _ => size::show(self.size),
        }];
        parts.push(plural(self.threads, "thread"));
        parts.push(format!("depth {}", self.depth));
        parts.push(plural(self.peers, "peer"));
        if self.op != OpKind::Send {
            parts.push(plural(self.qps, "queue pair"));
            let pattern = format!("{:?}", self.pattern).to_lowercase();
            parts.push(match self.burst {
                Some(burst) => format!("bursts of {} and {} us gaps", burst.requests, burst.gap_us),
                None if self.pattern != Pattern::Rand && self.threads > 1 => {
                    format!("{pattern} ({} cursor)", format!("{:?}", self.cursor).to_lowercase())
                }
                None => pattern,
            });
            parts.push(format!("mode {}", self.mode));
            parts.push(format!("reg {}", self.reg));
            parts.push(match self.admission {
                Admission::Static => format!("window {}", self.window),
                Admission::Latency => format!("window by latency from {}", self.window),
            });
        }
        parts.push(format!("polling {}", self.polling));
        parts.push(format!("submit {}", format!("{:?}", self.submit).to_lowercase()));
        parts.push(self.extent.to_string());
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

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
        let cas = load(OpKind::Cas, &[("words", "10")]).unwrap();
        assert_eq!((cas.size, cas.area, cas.stride()), (8, 640, 64));
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
                ("direct", "off"),
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
