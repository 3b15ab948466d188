//! Classifies asynchronous events of a device.
//!
//! No I/O, no locks, no clock.

use ibverbs_sys as c;

use crate::provider::ibverbs::raw::Subject;

/// Consequence of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// A completion queue has lost completions.
    CqOverrun { cq: usize },
    /// A queue pair has failed.
    QpFailed { qp: usize },
    /// The state of a port may have changed. `active` is the new state, if the event reports it.
    PortChanged { port: u8, active: Option<bool> },
    /// The device no longer works.
    DeviceFailed,
    /// Informational only.
    Nothing,
}

/// Returns the event's name in the C interface and its meaning.
pub(crate) fn meaning(kind: u32, subject: Subject) -> (&'static str, Meaning) {
    let port = |active| match subject {
        Subject::Port(port) => Meaning::PortChanged { port, active },
        _ => Meaning::Nothing,
    };
    let failed = match subject {
        Subject::Qp(qp) => Meaning::QpFailed { qp },
        _ => Meaning::Nothing,
    };
    match kind {
        c::IBV_EVENT_CQ_ERR => {
            let overrun = match subject {
                Subject::Cq(cq) => Meaning::CqOverrun { cq },
                _ => Meaning::Nothing,
            };
            ("CQ_ERR", overrun)
        }
        c::IBV_EVENT_QP_FATAL => ("QP_FATAL", failed),
        c::IBV_EVENT_QP_REQ_ERR => ("QP_REQ_ERR", failed),
        c::IBV_EVENT_QP_ACCESS_ERR => ("QP_ACCESS_ERR", failed),
        c::IBV_EVENT_PATH_MIG_ERR => ("PATH_MIG_ERR", failed),
        c::IBV_EVENT_COMM_EST => ("COMM_EST", Meaning::Nothing),
        c::IBV_EVENT_SQ_DRAINED => ("SQ_DRAINED", Meaning::Nothing),
        c::IBV_EVENT_PATH_MIG => ("PATH_MIG", Meaning::Nothing),
        c::IBV_EVENT_QP_LAST_WQE_REACHED => ("QP_LAST_WQE_REACHED", Meaning::Nothing),
        c::IBV_EVENT_PORT_ACTIVE => ("PORT_ACTIVE", port(Some(true))),
        c::IBV_EVENT_PORT_ERR => ("PORT_ERR", port(Some(false))),
        c::IBV_EVENT_LID_CHANGE => ("LID_CHANGE", port(None)),
        c::IBV_EVENT_PKEY_CHANGE => ("PKEY_CHANGE", port(None)),
        c::IBV_EVENT_SM_CHANGE => ("SM_CHANGE", port(None)),
        c::IBV_EVENT_CLIENT_REREGISTER => ("CLIENT_REREGISTER", port(None)),
        c::IBV_EVENT_GID_CHANGE => ("GID_CHANGE", port(None)),
        c::IBV_EVENT_DEVICE_FATAL => ("DEVICE_FATAL", Meaning::DeviceFailed),
        _ => ("another event", Meaning::Nothing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_events_fail_a_queue_pair_and_other_events_do_not() {
        for kind in [
            c::IBV_EVENT_QP_FATAL,
            c::IBV_EVENT_QP_REQ_ERR,
            c::IBV_EVENT_QP_ACCESS_ERR,
            c::IBV_EVENT_PATH_MIG_ERR,
        ] {
            assert_eq!(meaning(kind, Subject::Qp(7)).1, Meaning::QpFailed { qp: 7 });
        }
        for kind in [c::IBV_EVENT_COMM_EST, c::IBV_EVENT_SQ_DRAINED, c::IBV_EVENT_PATH_MIG] {
            assert_eq!(meaning(kind, Subject::Qp(7)).1, Meaning::Nothing);
        }
    }

    #[test]
    fn events_of_ports_completion_queues_and_the_device_are_classified() {
        let port = Subject::Port(2);
        let changed = |active| Meaning::PortChanged { port: 2, active };
        assert_eq!(meaning(c::IBV_EVENT_PORT_ACTIVE, port), ("PORT_ACTIVE", changed(Some(true))));
        assert_eq!(meaning(c::IBV_EVENT_PORT_ERR, port).1, changed(Some(false)));
        assert_eq!(meaning(c::IBV_EVENT_GID_CHANGE, port).1, changed(None));
        assert_eq!(meaning(c::IBV_EVENT_CQ_ERR, Subject::Cq(5)).1, Meaning::CqOverrun { cq: 5 });
        assert_eq!(meaning(c::IBV_EVENT_DEVICE_FATAL, Subject::Device).1, Meaning::DeviceFailed);
        assert_eq!(meaning(12345, Subject::Device).1, Meaning::Nothing);
    }
}
