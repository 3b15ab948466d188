//! Linked lists of work requests for a driver, in arrays that are allocated once and reused.
//!
//! The arrays do not move while a list is built and posted, because links and elements point into
//! them.

use std::{fmt, mem, ptr};

use ibverbs_sys::{
    ibv_recv_wr, ibv_send_flags as bits, ibv_send_wr, ibv_send_wr__bindgen_ty_1, ibv_send_wr__bindgen_ty_2,
    ibv_send_wr__bindgen_ty_2__bindgen_ty_1, ibv_send_wr__bindgen_ty_2__bindgen_ty_2, ibv_sge,
    ibv_wr_opcode as opcode,
};

use crate::{
    provider::ibverbs::raw::{RawQp, Refused},
    verbs::{RecvWr, SendFlags, SendOp, SendWr, Sge},
};

/// Result of posting a list.
#[derive(Debug)]
pub(crate) struct Taken {
    /// Number of posted requests.
    pub(crate) count: usize,
    /// Reason why the remaining requests were not posted.
    pub(crate) error: Option<std::io::Error>,
}

/// A work request that can be linked to the next one.
trait Linked {
    fn link(&mut self, next: *mut Self);
    fn set_elements(&mut self, first: *mut ibv_sge);
    fn elements(&self) -> usize;
}

impl Linked for ibv_send_wr {
    fn link(&mut self, next: *mut Self) {
        self.next = next;
    }

    fn set_elements(&mut self, first: *mut ibv_sge) {
        self.sg_list = first;
    }

    fn elements(&self) -> usize {
        self.num_sge as usize
    }
}

impl Linked for ibv_recv_wr {
    fn link(&mut self, next: *mut Self) {
        self.next = next;
    }

    fn set_elements(&mut self, first: *mut ibv_sge) {
        self.sg_list = first;
    }

    fn elements(&self) -> usize {
        self.num_sge as usize
    }
}

/// Work requests and their elements, in order.
struct List<W> {
    wrs: Vec<W>,
    sges: Vec<ibv_sge>,
}

impl<W> fmt::Debug for List<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("List").field("wrs", &self.wrs.len()).finish_non_exhaustive()
    }
}

// SAFETY: the pointers in a list are null, or were set for one post by the exclusive owner of the
// list. They are set again before the next post.
unsafe impl<W> Send for List<W> {}

impl<W: Linked> List<W> {
    fn new(wrs: usize, sges: usize) -> List<W> {
        List { wrs: Vec::with_capacity(wrs), sges: Vec::with_capacity(sges) }
    }

    fn clear(&mut self) {
        self.wrs.clear();
        self.sges.clear();
    }

    /// Adds elements and returns their number. Empty elements are left out, because some devices
    /// treat their length as 2 GiB.
    fn add_elements(&mut self, sges: &[Sge]) -> i32 {
        let before = self.sges.len();
        let some = sges.iter().filter(|sge| sge.length != 0);
        self.sges.extend(some.map(|sge| ibv_sge { addr: sge.addr, length: sge.length, lkey: sge.lkey }));
        (self.sges.len() - before) as i32
    }

    /// Sets all pointers after the last change of the arrays. Returns the first request, or null
    /// for an empty list.
    fn link(&mut self) -> *mut W {
        let sges = self.sges.as_mut_ptr();
        let mut at = 0;
        let mut next = ptr::null_mut();
        for wr in &mut self.wrs {
            wr.set_elements(sges.wrapping_add(at));
            at += wr.elements();
        }
        let wrs = self.wrs.as_mut_ptr();
        for index in (0..self.wrs.len()).rev() {
            self.wrs[index].link(next);
            next = wrs.wrapping_add(index);
        }
        next
    }

    fn taken(&self, result: Result<(), Refused>) -> Taken {
        match result {
            Ok(()) => Taken { count: self.wrs.len(), error: None },
            Err(Refused { at, error }) => {
                // A driver that does not report the refused request has posted none.
                let offset = at.wrapping_sub(self.wrs.as_ptr().addr());
                let count = if at == 0 { 0 } else { (offset / mem::size_of::<W>()).min(self.wrs.len()) };
                Taken { count, error: Some(error) }
            }
        }
    }
}

/// A list of send work requests.
#[derive(Debug)]
pub(crate) struct SendList(List<ibv_send_wr>);

impl SendList {
    /// Creates a list for up to `wrs` requests with two elements each. A larger list grows the
    /// arrays.
    pub(crate) fn new(wrs: usize) -> SendList {
        SendList(List::new(wrs, 2 * wrs))
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Appends a request with the device's `wr_id` `name`.
    pub(crate) fn add(&mut self, name: u64, wr: &SendWr<'_>) {
        let mut send_flags = 0;
        if wr.flags.contains(SendFlags::SIGNALED) {
            send_flags |= bits::IBV_SEND_SIGNALED.0;
        }
        if wr.flags.contains(SendFlags::FENCE) {
            send_flags |= bits::IBV_SEND_FENCE.0;
        }
        let rdma = |remote: crate::verbs::RemoteAddr| ibv_send_wr__bindgen_ty_2 {
            rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: remote.addr, rkey: remote.rkey },
        };
        let atomic = |remote: crate::verbs::RemoteAddr, compare_add, swap| ibv_send_wr__bindgen_ty_2 {
            atomic: ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
                remote_addr: remote.addr,
                compare_add,
                swap,
                rkey: remote.rkey,
            },
        };
        let mut raw = empty(name);
        let (opcode, imm) = match wr.op {
            SendOp::Send { imm: None } => (opcode::IBV_WR_SEND, None),
            SendOp::Send { imm } => (opcode::IBV_WR_SEND_WITH_IMM, imm),
            SendOp::Write { remote, imm } => {
                raw.wr = rdma(remote);
                match imm {
                    None => (opcode::IBV_WR_RDMA_WRITE, None),
                    Some(_) => (opcode::IBV_WR_RDMA_WRITE_WITH_IMM, imm),
                }
            }
            SendOp::Read { remote } => {
                raw.wr = rdma(remote);
                (opcode::IBV_WR_RDMA_READ, None)
            }
            SendOp::CompareSwap { remote, compare, swap } => {
                raw.wr = atomic(remote, compare, swap);
                (opcode::IBV_WR_ATOMIC_CMP_AND_SWP, None)
            }
            SendOp::FetchAdd { remote, add } => {
                raw.wr = atomic(remote, add, 0);
                (opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, None)
            }
            // The queue pair refuses the operation before.
            SendOp::FetchOp { .. } => return self.add_invalid(name),
        };
        let num_sge = match wr.inline {
            None => self.0.add_elements(wr.sges),
            Some([]) => 0,
            Some(bytes) => {
                send_flags |= bits::IBV_SEND_INLINE.0;
                // The driver reads the bytes during the post, so they need no key.
                let addr = bytes.as_ptr().expose_provenance() as u64;
                self.0.add_elements(&[Sge { addr, length: bytes.len() as u32, lkey: 0 }])
            }
        };
        (raw.opcode, raw.send_flags, raw.num_sge) = (opcode, send_flags, num_sge);
        if let Some(imm) = imm {
            raw.__bindgen_anon_1 = ibv_send_wr__bindgen_ty_1 { imm_data: imm.to_be() };
        }
        self.0.wrs.push(raw);
    }

    /// Appends a request that the device refuses without contacting the peer: a WRITE from address
    /// 0 under key 0, which no region contains.
    pub(crate) fn add_invalid(&mut self, name: u64) {
        let nowhere = crate::verbs::RemoteAddr { addr: 0, rkey: 0 };
        let sges = [Sge { addr: 0, length: 8, lkey: 0 }];
        let op = SendOp::Write { remote: nowhere, imm: None };
        self.add(name, &SendWr { wr_id: 0, op, sges: &sges, inline: None, flags: SendFlags::SIGNALED });
    }

    /// Appends an empty WRITE for a queue pair in Err. It is flushed after every earlier request.
    pub(crate) fn add_marker(&mut self, name: u64) {
        let mut raw = empty(name);
        (raw.opcode, raw.send_flags) = (opcode::IBV_WR_RDMA_WRITE, bits::IBV_SEND_SIGNALED.0);
        self.0.wrs.push(raw);
    }

    /// Posts the list with one doorbell.
    pub(crate) fn post(&mut self, qp: &RawQp) -> Taken {
        let first = self.0.link();
        if first.is_null() {
            return Taken { count: 0, error: None };
        }
        // SAFETY: the list is linked inside arrays that do not change during the call and are
        // borrowed exclusively. The caller's requests still borrow the inline data.
        let result = unsafe { qp.post_send(first) };
        self.0.taken(result)
    }
}

fn empty(name: u64) -> ibv_send_wr {
    // SAFETY: the structure consists of integers, pointers and unions of these, for which zero is
    // valid.
    let mut raw: ibv_send_wr = unsafe { mem::zeroed() };
    raw.wr_id = name;
    raw
}

/// A list of receives.
#[derive(Debug)]
pub(crate) struct RecvList(List<ibv_recv_wr>);

impl RecvList {
    /// Creates a list for up to `wrs` receives with one element each. A larger list grows the
    /// arrays.
    pub(crate) fn new(wrs: usize) -> RecvList {
        RecvList(List::new(wrs, wrs))
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Appends a receive with the device's `wr_id` `name`.
    pub(crate) fn add(&mut self, name: u64, wr: &RecvWr<'_>) {
        let num_sge = self.0.add_elements(wr.sges);
        let (next, sg_list) = (ptr::null_mut(), ptr::null_mut());
        self.0.wrs.push(ibv_recv_wr { wr_id: name, next, sg_list, num_sge });
    }

    /// Posts the list.
    pub(crate) fn post(&mut self, qp: &RawQp) -> Taken {
        let first = self.0.link();
        if first.is_null() {
            return Taken { count: 0, error: None };
        }
        // SAFETY: the list is linked inside arrays that do not change during the call and are
        // borrowed exclusively.
        let result = unsafe { qp.post_recv(first) };
        self.0.taken(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::RemoteAddr;

    const REMOTE: RemoteAddr = RemoteAddr { addr: 0x1000, rkey: 7 };

    fn sge(length: u32) -> Sge {
        Sge { addr: 0x2000 + u64::from(length), length, lkey: 3 }
    }

    fn wr<'a>(op: SendOp, sges: &'a [Sge], inline: Option<&'a [u8]>, flags: SendFlags) -> SendWr<'a> {
        SendWr { wr_id: 0, op, sges, inline, flags }
    }

    /// Follows the links like a driver.
    fn follow(list: &mut List<ibv_send_wr>) -> Vec<(u64, Vec<u32>)> {
        let mut at = list.link();
        let mut found = Vec::new();
        while !at.is_null() {
            // SAFETY: the list is linked and unchanged.
            let wr = unsafe { &*at };
            // SAFETY: the list is linked and unchanged, and `num_sge` is the number of elements.
            let sges = unsafe { std::slice::from_raw_parts(wr.sg_list, wr.num_sge as usize) };
            found.push((wr.wr_id, sges.iter().map(|sge| sge.length).collect()));
            at = wr.next;
        }
        found
    }

    #[test]
    fn a_list_is_linked_in_order_with_its_own_elements() {
        let mut list = SendList::new(1);
        let write = SendOp::Write { remote: REMOTE, imm: None };
        // A list longer than its capacity, built twice.
        for _ in 0..2 {
            list.clear();
            list.add(10, &wr(write, &[sge(1), sge(0), sge(2)], None, SendFlags::empty()));
            list.add(11, &wr(write, &[], None, SendFlags::empty()));
            list.add(12, &wr(write, &[sge(0)], None, SendFlags::empty()));
            list.add(13, &wr(write, &[], Some(&[1; 5]), SendFlags::empty()));
            list.add(14, &wr(write, &[sge(9)], None, SendFlags::empty()));
            let expected = [(10, vec![1, 2]), (11, vec![]), (12, vec![]), (13, vec![5]), (14, vec![9])];
            assert_eq!(follow(&mut list.0), expected);
        }
    }

    #[test]
    fn operations_and_flags_are_translated() {
        let mut list = SendList::new(8);
        let both = SendFlags::SIGNALED | SendFlags::FENCE;
        list.add(0, &wr(SendOp::Send { imm: Some(0x0102_0304) }, &[], None, both));
        list.add(0, &wr(SendOp::CompareSwap { remote: REMOTE, compare: 5, swap: 6 }, &[sge(8)], None, both));
        list.add(0, &wr(SendOp::FetchAdd { remote: REMOTE, add: 9 }, &[sge(8)], None, SendFlags::empty()));
        list.add(0, &wr(SendOp::Read { remote: REMOTE }, &[sge(8)], None, SendFlags::SIGNALED));
        list.add(0, &wr(SendOp::Write { remote: REMOTE, imm: None }, &[], Some(&[1]), SendFlags::empty()));
        list.add(0, &wr(SendOp::Write { remote: REMOTE, imm: None }, &[], Some(&[]), SendFlags::empty()));
        let wrs = &list.0.wrs;
        let codes: Vec<u32> = wrs.iter().map(|wr| wr.opcode).collect();
        assert_eq!(
            codes,
            [
                opcode::IBV_WR_SEND_WITH_IMM,
                opcode::IBV_WR_ATOMIC_CMP_AND_SWP,
                opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
                opcode::IBV_WR_RDMA_READ,
                opcode::IBV_WR_RDMA_WRITE,
                opcode::IBV_WR_RDMA_WRITE,
            ]
        );
        let (signaled, fence) = (bits::IBV_SEND_SIGNALED.0, bits::IBV_SEND_FENCE.0);
        let given: Vec<u32> = wrs.iter().map(|wr| wr.send_flags).collect();
        assert_eq!(
            given,
            [signaled | fence, signaled | fence, 0, signaled, bits::IBV_SEND_INLINE.0, 0],
            "empty inline data is not inline"
        );
        // SAFETY: the members that these operations set.
        unsafe {
            assert_eq!(wrs[0].__bindgen_anon_1.imm_data, 0x0102_0304u32.to_be());
            let cas = wrs[1].wr.atomic;
            assert_eq!((cas.remote_addr, cas.rkey, cas.compare_add, cas.swap), (0x1000, 7, 5, 6));
            assert_eq!(wrs[2].wr.atomic.compare_add, 9);
            assert_eq!((wrs[3].wr.rdma.remote_addr, wrs[3].wr.rdma.rkey), (0x1000, 7));
        }
    }

    #[test]
    fn the_refused_request_is_found_by_its_address() {
        let mut list = SendList::new(4);
        for name in 0..4 {
            list.add(name, &wr(SendOp::Send { imm: None }, &[], None, SendFlags::empty()));
        }
        let at = |index: usize| list.0.wrs.as_ptr().wrapping_add(index).addr();
        let taken = |at| {
            let error = std::io::Error::from_raw_os_error(libc::ENOMEM);
            list.0.taken(Err(Refused { at, error })).count
        };
        assert_eq!((taken(at(0)), taken(at(2)), taken(0), taken(at(99))), (0, 2, 0, 4));
        assert_eq!(list.0.taken(Ok(())).count, 4);
    }
}
