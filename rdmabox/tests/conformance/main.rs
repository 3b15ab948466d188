//! Conformance of the providers with the verbs model.
//!
//! Every subject runs on the software device: over mapped memory, TCP, and TLS, each progressed by
//! the engine and by the callers. Subjects that any device has to pass also run on the modelled
//! card and on the machine's RDMA device. The card runs over mapped memory and over TCP, with a
//! dilation of 50. The tests of the RDMA device are ignored by default (`--include-ignored`), so
//! that a run without a device does not report them as passed. `ci/rdma-vm` runs them.
//!
//! A subject is a function of a [`Config`](fixture::Config) and states the duty of any provider.
//! Where the traits leave a choice, the InfiniBand specification decides. Only `raw` depends on a
//! provider's wire format.
//!
//! Own program: it uses traits only, so a new provider or device runs it before the runtime.

/// Makes a test of every subject for every configuration.
macro_rules! conformance {
    ($($name:ident),+ $(,)?) => {
        software_conformance! { $($name),+ }
        mod model_shm {
            $(#[test] fn $name() { super::$name(crate::fixture::Config::MODEL_SHM) })+
        }
        mod model_tcp {
            $(#[test] fn $name() { super::$name(crate::fixture::Config::MODEL_TCP) })+
        }
        mod rdma {
            $(#[test] #[ignore = "needs an RDMA device"] fn $name() { super::$name(crate::fixture::Config::rdma()) })+
        }
    };
}

/// The same for subjects that apply to the software device only.
macro_rules! software_conformance {
    ($($name:ident),+ $(,)?) => {
        mod shm_engine {
            $(#[test] fn $name() { super::$name(crate::fixture::Config::SHM_ENGINE) })+
        }
        mod shm_caller {
            $(#[test] fn $name() { super::$name(crate::fixture::Config::SHM_CALLER) })+
        }
        mod tcp_engine {
            $(#[test] fn $name() { super::$name(crate::fixture::Config::TCP_ENGINE) })+
        }
        mod tcp_caller {
            $(#[test] fn $name() { super::$name(crate::fixture::Config::TCP_CALLER) })+
        }
        mod tls_engine {
            $(#[test] fn $name() { super::$name(crate::fixture::Config::TLS_ENGINE) })+
        }
        mod tls_caller {
            $(#[test] fn $name() { super::$name(crate::fixture::Config::TLS_CALLER) })+
        }
    };
}

mod fixture;
mod raw;
#[path = "../support/tls.rs"]
#[allow(dead_code, missing_docs, unreachable_pub)] // The others that have it use the rest.
mod tls;

/// Queue pairs: connecting, their queues and events, and their end.
mod queue_pairs {
    mod events;
    mod failure;
    mod handles;
    mod process;
    mod queues;
    mod rendezvous;
}

/// Requests: their effects, order and refusals.
mod requests {
    mod atomic_ops;
    mod atomics;
    mod direct;
    mod messages;
    mod ordering;
    mod posting;
    mod refusals;
    mod transfer;
}

/// Bytes of peers: in excess, in pieces, changed, or false.
mod traffic {
    mod false_answers;
    mod floods;
    mod fragmentation;
    mod tampering;
}
