//! Parts of the request path that are not public, made to be run by `benches/iai.rs`, which counts their instructions.

use std::hint::black_box;

use zerocopy::{FromBytes, IntoBytes};

use crate::{
    provider::soft::{Header, Opcode},
    runtime::MergeQueue,
};

/// Sixteen times a request is left at the merge queue and, as nobody else is there, taken at once. Gives their sum.
pub fn merge_queue_16_alone() -> u64 {
    let queue: MergeQueue<u64, Vec<u64>> = MergeQueue::default();
    let mut sum = 0;
    for request in 0..16 {
        queue.push(std::iter::once(black_box(request)));
        queue.flush(|guard| {
            guard.collect(|taken| taken);
            sum += guard.state().drain(..).sum::<u64>();
        });
    }
    sum
}

/// Sixteen requests that came together are taken. Gives their sum.
pub fn merge_queue_16_at_once() -> u64 {
    let queue: MergeQueue<u64, Vec<u64>> = MergeQueue::default();
    let mut sum = 0;
    queue.push((0..16).map(black_box));
    queue.flush(|guard| {
        guard.collect(|taken| taken);
        sum += guard.state().drain(..).sum::<u64>();
    });
    sum
}

/// Sixteen headers of WRITEs are made, and understood from their bytes. Gives the sum of their addresses.
pub fn wire_16_headers() -> u64 {
    let mut sum = 0;
    for msn in 0..16_u32 {
        let mut header = Header::new(Opcode::Write, black_box(msn));
        header.addr = u64::from(msn << 12).into();
        header.payload_len = 4096.into();
        let bytes = black_box(header.as_bytes());
        if let Ok(read) = Header::read_from_bytes(bytes)
            && Opcode::from_code(read.opcode) == Some(Opcode::Write)
        {
            sum += read.addr.get() + u64::from(read.payload_len.get());
        }
    }
    sum
}

#[cfg(all(test, not(loom)))]
mod tests {
    #[test]
    fn they_do_what_is_counted() {
        assert_eq!(super::merge_queue_16_alone(), (0..16).sum());
        assert_eq!(super::merge_queue_16_at_once(), (0..16).sum());
        assert_eq!(super::wire_16_headers(), (0..16).map(|msn| (msn << 12) + 4096).sum());
    }
}
