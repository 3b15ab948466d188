//! Conformance of the software provider with the verbs model: every subject runs over mapped memory and over TCP,
//! each driven by the device's engine and by the callers themselves.
//!
//! A subject is a function of a [`Config`](fixture::Config) and says what any provider has to do; where the traits
//! leave something open, the InfiniBand specification decides. Nothing here knows how a provider works, but for what a
//! hostile peer can say: that is in `raw`.

/// Makes a test of every subject for every configuration.
macro_rules! conformance {
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
    };
}

mod atomics;
mod direct;
mod events;
mod failure;
mod fixture;
mod floods;
mod handles;
mod hostile;
mod lies;
mod messages;
mod ordering;
mod posting;
mod process;
mod queues;
mod raw;
mod refusals;
mod rendezvous;
mod transfer;
