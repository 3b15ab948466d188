//! Converts a device's completions to the model.
//!
//! No I/O, no locks, no clock.

use ibverbs_sys::{ibv_wc_flags, ibv_wc_opcode as opcode, ibv_wc_status as status};

use crate::{
    provider::ibverbs::raw::RawWc,
    verbs::{WcOpcode, WcStatus, WorkCompletion},
};

/// Returns the status of a completed receive or send.
///
/// Soft-RoCE (Linux 6.1, `rxe_req.c` and `rxe_resp.c`) reports some local errors with other codes
/// than the specification (11.6.2). An unknown local key is `IBV_WC_LOC_QP_OP_ERR`. A message
/// longer than its receive is `IBV_WC_REM_INV_REQ_ERR` at the receiver in some versions, and
/// cannot be distinguished from a wrong local key in others.
///
/// If a WRITE with immediate data is refused, some devices consume its receive
/// (`IBV_WC_LOC_ACCESS_ERR` in the specification) and others flush it. Here it always counts as
/// flushed.
pub(crate) fn status_of(raw: u32, is_recv: bool) -> WcStatus {
    match raw {
        status::IBV_WC_LOC_QP_OP_ERR => WcStatus::LocProtErr,
        status::IBV_WC_REM_INV_REQ_ERR if is_recv => WcStatus::LocLenErr,
        status::IBV_WC_LOC_ACCESS_ERR | status::IBV_WC_REM_ACCESS_ERR if is_recv => WcStatus::WrFlushErr,
        status::IBV_WC_LOC_ACCESS_ERR => WcStatus::LocProtErr,
        status::IBV_WC_RESP_TIMEOUT_ERR => WcStatus::RetryExcErr,
        other => WcStatus::from_code(other),
    }
}

/// Returns the kind of a completed work request. Devices do not report it on an error; then only
/// the direction is right.
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

/// Returns the completion of a request of queue pair `qp_num` with the caller's `wr_id`.
pub(crate) fn completion(raw: &RawWc, wr_id: u64, is_recv: bool, qp_num: u32) -> WorkCompletion {
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

/// Returns the completion of a flushed request.
pub(crate) fn flushed(wr_id: u64, is_recv: bool, qp_num: u32) -> WorkCompletion {
    let opcode = if is_recv { WcOpcode::Recv } else { WcOpcode::Send };
    WorkCompletion { wr_id, status: WcStatus::WrFlushErr, opcode, byte_len: 0, imm: None, qp_num }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_codes_of_the_specification_are_kept() {
        for code in [0, 1, 4, 5, 21] {
            assert_eq!(status_of(code, true).code(), code);
        }
        for code in [0, 1, 4, 5, 9, 10, 11, 12, 13, 21] {
            assert_eq!(status_of(code, false).code(), code);
        }
        assert_eq!(status_of(77, false), WcStatus::GeneralErr);
    }

    #[test]
    fn local_errors_are_mapped_to_the_specification() {
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
    fn only_receives_have_immediate_data() {
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
