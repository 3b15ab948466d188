//! Counts the instructions of those parts of the request path that need no device.
//!
//! The parts are internal: the feature `internals` makes functions public that use them.
//! `ci/benchmarks/iai-compare` compares the counts with `iai.baseline`.

use rdmabox::internals::{
    admission_latency_1000_requests, admission_static_1000_requests, in_flight_16_writes,
    latency_1000_records, merge_queue_16_alone, merge_queue_16_at_once, plan_1, plan_16_adjacent,
    plan_16_descending, plan_16_disjoint, plan_setup, poller_adaptive_1000_polls, poller_learning_1000_polls,
    wire_16_headers,
};

iai::main!(
    plan_setup,
    plan_1,
    plan_16_adjacent,
    plan_16_disjoint,
    plan_16_descending,
    in_flight_16_writes,
    poller_adaptive_1000_polls,
    poller_learning_1000_polls,
    admission_static_1000_requests,
    admission_latency_1000_requests,
    latency_1000_records,
    merge_queue_16_alone,
    merge_queue_16_at_once,
    wire_16_headers
);
