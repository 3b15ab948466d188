//! What a device's completions mean in the terms of the model. Pure.

use ibverbs_sys::{ibv_wc_flags, ibv_wc_opcode as opcode, ibv_wc_status as status};

use super::calls::RawWc;
use crate::verbs::{WcOpcode, WcStatus, WorkCompletion};

/// Status of a completed work request, of a receive or of a send.
///
/// Soft-RoCE (Linux 6.1, `rxe_req.c` and `rxe_resp.c`) tells some local errors by names that the specification (11.6.2) has for
/// others: a local key that it does not know is `IBV_WC_LOC_QP_OP_ERR`. A message longer than its receive is
/// `IBV_WC_REM_INV_REQ_ERR` at the receiver, too, in some versions, and in others no different from a wrong local key.
///
/// A receive that was to take the immediate data of a WRITE which was refused is consumed by some devices
/// (`IBV_WC_LOC_ACCESS_ERR` in the specification) and flushed by others: here it always counts as flushed.
pub(super) fn status_of(raw: u32, is_recv: bool) -> WcStatus {
    match raw {
        status::IBV_WC_LOC_QP_OP_ERR => WcStatus::LocProtErr,
        status::IBV_WC_REM_INV_REQ_ERR if is_recv => WcStatus::LocLenErr,
        status::IBV_WC_LOC_ACCESS_ERR | status::IBV_WC_REM_ACCESS_ERR if is_recv => WcStatus::WrFlushErr,
        status::IBV_WC_LOC_ACCESS_ERR => WcStatus::LocProtErr,
        status::IBV_WC_RESP_TIMEOUT_ERR => WcStatus::RetryExcErr,
        other => WcStatus::from_code(other),
    }
}

/// What kind of work request completed. On an error devices do not say: then it only has the right direction.
fn opcode_of(raw: u32, is_recv: bool) -> WcOpcode {
    match (raw, is_recv) {
        (opcode::IBV_WC_RECV_RDMA_WITH_IMM, true) => WcOpcode::RecvRdmaWithImm,
        (_, true) => WcOpcode::Recv,
        (opcode::IBV_WC_RDMA_WRITE, false) => WcOpcode::RdmaWrite,
        (opcode::IBV_WC_RDMA_READ, false) => WcOpcode::RdmaRead,
        (opcode::IBV_WC_COMP_SWAP, false) => WcOpcode::CompSwap,
        (opcode::IBV_WC_FETCH_ADD, false) => WcOpcode::FetchAdd,
        (_, false) => WcOpcode::Send,
    }
}

/// A completion of queue pair `qp_num`, whose poster called the request `wr_id`.
pub(super) fn completion(raw: &RawWc, wr_id: u64, is_recv: bool, qp_num: u32) -> WorkCompletion {
    let with_imm = is_recv && raw.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
    WorkCompletion {
        wr_id,
        status: status_of(raw.status, is_recv),
        opcode: opcode_of(raw.opcode, is_recv),
        byte_len: raw.byte_len,
        imm: with_imm.then(|| u32::from_be(raw.imm_data)),
        qp_num,
    }
}

/// A request that never reached the device, or was flushed there.
pub(super) fn flushed(wr_id: u64, is_recv: bool, qp_num: u32) -> WorkCompletion {
    let opcode = if is_recv { WcOpcode::Recv } else { WcOpcode::Send };
    WorkCompletion { wr_id, status: WcStatus::WrFlushErr, opcode, byte_len: 0, imm: None, qp_num }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_of_the_specification_keep_their_meaning() {
        for code in [0, 1, 4, 5, 21] {
            assert_eq!(status_of(code, true).code(), code);
        }
        for code in [0, 1, 4, 5, 9, 10, 11, 12, 13, 21] {
            assert_eq!(status_of(code, false).code(), code);
        }
        assert_eq!(status_of(77, false), WcStatus::GeneralErr);
    }

    #[test]
    fn local_errors_are_told_by_the_names_of_the_specification() {
        assert_eq!(status_of(status::IBV_WC_LOC_QP_OP_ERR, false), WcStatus::LocProtErr);
        assert_eq!(status_of(status::IBV_WC_LOC_QP_OP_ERR, true), WcStatus::LocProtErr);
        assert_eq!(status_of(status::IBV_WC_REM_INV_REQ_ERR, true), WcStatus::LocLenErr);
    }

    #[test]
    fn a_receive_of_a_refused_write_is_flushed() {
        for code in [status::IBV_WC_LOC_ACCESS_ERR, status::IBV_WC_REM_ACCESS_ERR] {
            assert_eq!(status_of(code, true), WcStatus::WrFlushErr);
        }
    }

    #[test]
    fn only_receives_bring_immediate_data() {
        let raw = RawWc {
            opcode: opcode::IBV_WC_RECV_RDMA_WITH_IMM,
            byte_len: 7,
            imm_data: 0x0102_0304u32.to_be(),
            wc_flags: ibv_wc_flags::IBV_WC_WITH_IMM.0,
            ..RawWc::default()
        };
        let recv = completion(&raw, 5, true, 9);
        assert_eq!((recv.imm, recv.opcode), (Some(0x0102_0304), WcOpcode::RecvRdmaWithImm));
        assert_eq!((recv.wr_id, recv.qp_num, recv.byte_len), (5, 9, 7));
        let send = completion(&RawWc { opcode: opcode::IBV_WC_RDMA_WRITE, ..raw }, 5, false, 9);
        assert_eq!((send.imm, send.opcode), (None, WcOpcode::RdmaWrite));
    }
}
