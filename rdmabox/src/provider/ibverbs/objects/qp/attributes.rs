//! Attributes with which the device creates a queue pair and moves it to another state.
//!
//! # Concurrency
//! Pure functions.

use ibverbs_sys::{
    ibv_access_flags as access, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr,
    ibv_qp_attr_mask as mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
};

use crate::{provider::ibverbs::connection::Path, verbs::QpCaps};

/// Retransmission timeout exponent: 4.096 us times 2 to the power of this value, 268 ms.
const ACK_TIMEOUT: u8 = 16;
/// Number of retransmissions; the device gives up after two seconds. A peer that ends is noticed
/// earlier by its stream. The maximum is 7, with which Soft-RoCE may retry forever.
const RETRY_COUNT: u8 = 6;
/// Code of the delay that a peer waits if it finds no receive here: 655 ms.
const RNR_TIMER: u8 = 0;
/// Number of retries if the peer has no receive: four seconds in total. 7 means forever.
const RNR_RETRY_COUNT: u8 = 6;
/// Maximum number of routers on the path.
const HOP_LIMIT: u8 = 64;

fn no_attr() -> ibv_qp_attr {
    // SAFETY: the structure consists of integers and unions of integers, for which zero is valid.
    unsafe { std::mem::zeroed() }
}

/// Returns the attributes of a new queue pair.
pub(super) fn create(caps: QpCaps) -> ibv_qp_init_attr {
    let cap = ibv_qp_cap {
        // One more slot each, for the marker.
        max_send_wr: caps.max_send_wr + 1,
        max_recv_wr: caps.max_recv_wr + 1,
        max_send_sge: caps.max_send_sge.max(1),
        max_recv_sge: caps.max_recv_sge.max(1),
        max_inline_data: caps.max_inline_data,
    };
    ibv_qp_init_attr { cap, qp_type: ibv_qp_type::IBV_QPT_RC, ..ibv_qp_init_attr::default() }
}

/// Returns the attributes of the state Init. The regions define the peer's access.
pub(super) fn init(port: u8) -> (ibv_qp_attr, mask) {
    let remote = access::IBV_ACCESS_REMOTE_WRITE.0
        | access::IBV_ACCESS_REMOTE_READ.0
        | access::IBV_ACCESS_REMOTE_ATOMIC.0;
    let attr = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_INIT,
        port_num: port,
        qp_access_flags: access::IBV_ACCESS_LOCAL_WRITE.0 | remote,
        ..no_attr()
    };
    let which = mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
    (attr, which)
}

/// Returns the attributes for a change of the state alone.
pub(super) fn state(to: ibv_qp_state::Type) -> (ibv_qp_attr, mask) {
    (ibv_qp_attr { qp_state: to, ..no_attr() }, mask::IBV_QP_STATE)
}

/// Returns the attributes for receiving over `path`.
pub(super) fn receive(path: &Path, port: u8) -> (ibv_qp_attr, mask) {
    let mut ah_attr = ibv_ah_attr { dlid: path.dlid, port_num: port, ..no_attr().ah_attr };
    if let Some((gid, index)) = path.global {
        ah_attr.is_global = 1;
        ah_attr.grh = ibv_global_route {
            dgid: ibv_gid { raw: gid },
            sgid_index: index,
            hop_limit: HOP_LIMIT,
            ..no_attr().ah_attr.grh
        };
    }
    let attr = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_RTR,
        path_mtu: path.mtu,
        dest_qp_num: path.remote_qp_num,
        rq_psn: path.remote_psn,
        max_dest_rd_atomic: path.max_dest_rd_atomic,
        min_rnr_timer: RNR_TIMER,
        ah_attr,
        ..no_attr()
    };
    let which = mask::IBV_QP_STATE
        | mask::IBV_QP_AV
        | mask::IBV_QP_PATH_MTU
        | mask::IBV_QP_DEST_QPN
        | mask::IBV_QP_RQ_PSN
        | mask::IBV_QP_MAX_DEST_RD_ATOMIC
        | mask::IBV_QP_MIN_RNR_TIMER;
    (attr, which)
}

/// Returns the additional attributes for sending over `path`.
pub(super) fn send(path: &Path) -> (ibv_qp_attr, mask) {
    let attr = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_RTS,
        sq_psn: path.local_psn,
        timeout: ACK_TIMEOUT,
        retry_cnt: RETRY_COUNT,
        rnr_retry: RNR_RETRY_COUNT,
        max_rd_atomic: path.max_rd_atomic,
        ..no_attr()
    };
    let which = mask::IBV_QP_STATE
        | mask::IBV_QP_SQ_PSN
        | mask::IBV_QP_TIMEOUT
        | mask::IBV_QP_RETRY_CNT
        | mask::IBV_QP_RNR_RETRY
        | mask::IBV_QP_MAX_QP_RD_ATOMIC;
    (attr, which)
}
