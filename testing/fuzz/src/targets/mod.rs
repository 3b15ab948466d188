//! The list of fuzz targets.

mod client;
mod dispatcher;
mod frames;
mod host;
mod memory_object;
mod proto;
mod services;
mod snapshot;
mod tamper;
mod text;

use rdmabox::fuzzing;

/// A fuzz target: a function that takes any bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name for the command line.
    pub name: &'static str,
    /// A short description of the input.
    pub about: &'static str,
    /// Runs an input. Panics if the code under test breaks a promise.
    pub run: fn(&[u8]),
    /// Returns valid inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets, the fastest first.
pub const ALL: &[Target] = &[
    Target {
        name: "message",
        about: "requests, replies and attribute records",
        run: proto::message,
        seeds: proto::message_seeds,
    },
    Target {
        name: "record",
        about: "attribute records with valid checksums",
        run: proto::record,
        seeds: proto::record_seeds,
    },
    Target {
        name: "preamble",
        about: "the first message of a client",
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
        about: "queue pairs on RDMA devices that connect",
        run: fuzzing::endpoint,
        seeds: fuzzing::endpoint_seeds,
    },
    Target {
        name: "call-header",
        about: "call headers",
        run: fuzzing::call_header,
        seeds: fuzzing::call_header_seeds,
    },
    Target {
        name: "call-slots",
        about: "calls that are written to memory",
        run: fuzzing::call_slots,
        seeds: fuzzing::call_slots_seeds,
    },
    Target {
        name: "address",
        about: "addresses, sizes and other option values",
        run: text::values,
        seeds: text::values_seeds,
    },
    Target { name: "keys", about: "key files", run: text::keys, seeds: text::keys_seeds },
    Target {
        name: "options",
        about: "command lines, also of mount(8)",
        run: text::command_lines,
        seeds: text::command_lines_seeds,
    },
    Target {
        name: "nbd",
        about: "requests to a block device of rfs-paging nbd",
        run: services::nbd::conversation,
        seeds: services::nbd::conversation_seeds,
    },
    Target {
        name: "jakiro-replies",
        about: "replies to a client of the key-value store",
        run: services::jakiro::replies,
        seeds: services::jakiro::replies_seeds,
    },
    Target {
        name: "jakiro-requests",
        about: "requests of four sessions to the key-value store",
        run: services::jakiro::requests,
        seeds: services::jakiro::requests_seeds,
    },
    Target {
        name: "memcached",
        about: "commands of the memcached text protocol",
        run: services::jakiro::memcached::commands,
        seeds: services::jakiro::memcached::commands_seeds,
    },
    Target {
        name: "nessie-decoders",
        about: "words, entries, lists of nodes and commands of Nessie",
        run: nessie::fuzzing::decoders,
        seeds: nessie::fuzzing::decoders_seeds,
    },
    Target {
        name: "nessie-operations",
        about: "operations of Nessie on any answers",
        run: nessie::fuzzing::operations,
        seeds: nessie::fuzzing::operations_seeds,
    },
    Target {
        name: "rstore-calls",
        about: "calls to stores and to the master of RStore",
        run: services::rstore::calls,
        seeds: services::rstore::calls_seeds,
    },
    Target {
        name: "rstore-log",
        about: "the log of the master of RStore",
        run: services::rstore::log,
        seeds: services::rstore::log_seeds,
    },
    Target {
        name: "frames",
        about: "the stream of a software queue pair",
        run: frames::stream,
        seeds: frames::stream_seeds,
    },
    Target {
        name: "dispatcher",
        about: "requests of three sessions to the file system",
        run: dispatcher::requests,
        seeds: dispatcher::requests_seeds,
    },
    Target {
        name: "memory-header",
        about: "the first page of memory objects",
        run: memory_object::header,
        seeds: memory_object::header_seeds,
    },
    Target {
        name: "memory-log",
        about: "logs of memory objects",
        run: memory_object::log,
        seeds: memory_object::log_seeds,
    },
    Target {
        name: "memory-transactions",
        about: "logs with valid checksums",
        run: memory_object::transactions,
        seeds: memory_object::transactions_seeds,
    },
    Target { name: "snapshot", about: "snapshot files", run: snapshot::file, seeds: snapshot::file_seeds },
    Target {
        name: "snapshot-frames",
        about: "snapshots with valid checksums",
        run: snapshot::frames,
        seeds: snapshot::frames_seeds,
    },
    Target {
        name: "client",
        about: "a client whose server sends anything",
        run: client::lies,
        seeds: client::lies_seeds,
    },
    Target {
        name: "host",
        about: "streams to a listening host",
        run: host::streams,
        seeds: host::streams_seeds,
    },
    Target {
        name: "between-keys",
        about: "the TCP streams of a client with a key and its host, changed on the way",
        run: tamper::keys,
        seeds: tamper::seeds,
    },
    Target {
        name: "between-tls",
        about: "the TCP streams of a TLS client and its host, changed on the way",
        run: tamper::tls,
        seeds: tamper::seeds,
    },
];

/// Returns the target of a name.
pub fn find(name: &str) -> Option<&'static Target> {
    ALL.iter().find(|target| target.name == name)
}
