//! The options of a load.

use std::time::Duration;

use clap::{Args, ValueEnum};
use rdmabox::{BatchMode, CallsBy, PollingMode, ProviderKind};
use serde::Serialize;

use super::{
    paging::KeyValues,
    pattern::{Cursor, Pattern},
    value::{self, Extent, Reg, Window},
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
    /// READs and WRITEs of a pager.
    Paging,
}

impl OpKind {
    /// Returns the name of the operation.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Cas => "cas",
            Self::Send => "send",
            Self::Paging => "paging",
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
    /// Each request is started separately, with up to `depth` outstanding. A thread that waits for
    /// one polls.
    Started,
    /// As `started`, with a callback for each request. A poller for each completion queue polls and
    /// runs the callbacks, which wake the threads.
    Callback,
}

/// The action of a poller of callbacks while no request is outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pollers {
    /// It parks until a request wakes it.
    Park,
    /// It goes on as the polling mode says: a busy poller never stops.
    Stand,
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

/// Options of a load. Each option has a value and can be swept.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Load (each of these can be swept)")]
pub struct LoadArgs {
    /// Provider of the requests: shm or tcp, both software, or rdma [default: shm; with --connect
    /// that of the address]
    #[arg(long, value_name = "P")]
    pub provider: Option<ProviderKind>,

    /// Bytes of a request [default: 4k; for send 64]
    #[arg(long, value_name = "S", value_parser = byte_size::parse_nonzero)]
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

    /// Queries of a paged program: etc (5 % store a record, the others read one) or sys (25 %). A
    /// Zipf distribution chooses the records. For paging only
    #[arg(long, value_enum, default_value_t = KeyValues::Etc)]
    pub load: KeyValues,

    /// Percentage of its pages that a paged program has in local memory; the others are on the
    /// servers. For paging only
    #[arg(long, value_name = "PERCENT", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=90))]
    pub local: u32,

    /// Work of the program for each request, and with paging for each query, in model time of a
    /// modelled card [default: the card's host.request_ns]
    #[arg(long, value_name = "TIME", value_parser = value::duration)]
    pub think: Option<Duration>,

    /// How waiting requests are combined: single, merge, doorbell or hybrid
    #[arg(long, value_name = "MODE", default_value_t = BatchMode::Hybrid)]
    pub mode: BatchMode,

    /// Memory of work requests. pre: copied through registered memory. dyn: registered on the fly.
    /// auto: the runtime decides. A number of bytes: pre up to it, dyn above. registered: the
    /// load's buffers are registered memory
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

    /// Limit in bytes for a merged work request, and for a list of them for one of several queue
    /// pairs [default: the runtime's]
    #[arg(long, value_name = "BYTES", value_parser = byte_size::parse_nonzero)]
    pub max_merge: Option<u64>,

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
    #[arg(long, value_name = "BYTES", value_parser = byte_size::parse_nonzero)]
    pub area: Option<u64>,

    /// Number of words for compare-and-swaps, one per cache line
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub words: u32,

    /// Bytes of the reply to a send [default: length of the request]
    #[arg(long, value_name = "BYTES", value_parser = byte_size::parse_nonzero)]
    pub reply: Option<u64>,

    /// Way of replies to sends: as messages (reply), by remote fetching (fetch), or by WRITEs of
    /// the server (write). auto: fetch over mapped memory, else reply
    #[arg(long, value_name = "WAY", default_value_t = CallsBy::Auto)]
    pub calls: CallsBy,

    /// Whether pollers park while no request is outstanding, or stand: they go on as the polling
    /// mode says
    #[arg(long, value_enum, default_value_t = Pollers::Park)]
    pub pollers: Pollers,

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
