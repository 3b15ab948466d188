//! What is fuzzed.

mod between;
mod client;
mod dispatcher;
mod frames;
mod host;
mod kept;
mod proto;
mod snapshot;
mod text;

use rdmabox::fuzzing;

/// Something that takes any bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// Takes an input. It panics if what it promises does not hold.
    pub run: fn(&[u8]),
    /// Good input.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them, the quick ones first.
pub const ALL: &[Target] = &[
    Target {
        name: "message",
        about: "requests, replies and attribute records",
        run: proto::message,
        seeds: proto::message_seeds,
    },
    Target {
        name: "record",
        about: "attribute records with the right check",
        run: proto::record,
        seeds: proto::record_seeds,
    },
    Target {
        name: "preamble",
        about: "a client's first words",
        run: fuzzing::preamble,
        seeds: fuzzing::preamble_seeds,
    },
    Target {
        name: "answer",
        about: "answers, challenges and proofs",
        run: fuzzing::answer,
        seeds: fuzzing::answer_seeds,
    },
    #[cfg(feature = "rdma")]
    Target {
        name: "endpoint",
        about: "queue pairs on RDMA devices that meet",
        run: fuzzing::endpoint,
        seeds: fuzzing::endpoint_seeds,
    },
    Target {
        name: "call-header",
        about: "headers of calls",
        run: fuzzing::call_header,
        seeds: fuzzing::call_header_seeds,
    },
    Target {
        name: "call-slots",
        about: "calls that are written into memory",
        run: fuzzing::call_slots,
        seeds: fuzzing::call_slots_seeds,
    },
    Target {
        name: "address",
        about: "addresses, sizes and other values of options",
        run: text::values,
        seeds: text::values_seeds,
    },
    Target { name: "keys", about: "files with keys", run: text::keys, seeds: text::keys_seeds },
    Target {
        name: "options",
        about: "command lines, and those of mount(8)",
        run: text::command_lines,
        seeds: text::command_lines_seeds,
    },
    Target {
        name: "frames",
        about: "the stream of a queue pair in software",
        run: frames::stream,
        seeds: frames::stream_seeds,
    },
    Target {
        name: "dispatcher",
        about: "requests of three sessions at the file system",
        run: dispatcher::requests,
        seeds: dispatcher::requests_seeds,
    },
    Target {
        name: "memory-header",
        about: "the first page of memory objects",
        run: kept::header,
        seeds: kept::header_seeds,
    },
    Target { name: "memory-log", about: "logs of memory objects", run: kept::log, seeds: kept::log_seeds },
    Target {
        name: "memory-transactions",
        about: "logs with the right checks",
        run: kept::transactions,
        seeds: kept::transactions_seeds,
    },
    Target {
        name: "snapshot",
        about: "files of snapshots",
        run: snapshot::file,
        seeds: snapshot::file_seeds,
    },
    Target {
        name: "snapshot-frames",
        about: "snapshots with the right checks",
        run: snapshot::frames,
        seeds: snapshot::frames_seeds,
    },
    Target {
        name: "client",
        about: "a client whose server lies",
        run: client::lies,
        seeds: client::lies_seeds,
    },
    Target {
        name: "host",
        about: "streams to a host that listens",
        run: host::streams,
        seeds: host::streams_seeds,
    },
    Target {
        name: "between-keys",
        about: "what a client with a key and its host say, changed on the way",
        run: between::keys,
        seeds: between::seeds,
    },
    Target { name: "between-tls", about: "the same with TLS", run: between::tls, seeds: between::seeds },
];

/// The one of that name.
pub fn find(name: &str) -> Option<&'static Target> {
    ALL.iter().find(|target| target.name == name)
}
