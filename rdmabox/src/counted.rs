//! Internal parts of the request path for `benches/iai.rs`, which counts their instructions.

use std::hint::black_box;

use zerocopy::{FromBytes, IntoBytes};

use crate::{
    provider::soft::{Header, Opcode},
    runtime::MergeQueue,
};

/// Pushes sixteen requests one by one; each is taken at once because no other thread uses the
/// queue. Returns their sum.
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

/// Pushes sixteen requests together and takes them in one batch. Returns their sum.
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

/// Encodes and decodes sixteen WRITE headers. Returns the sum of their addresses and lengths.
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
    fn the_counted_functions_process_all_requests() {
        assert_eq!(super::merge_queue_16_alone(), (0..16).sum());
        assert_eq!(super::merge_queue_16_at_once(), (0..16).sum());
        assert_eq!(super::wire_16_headers(), (0..16).map(|msn| (msn << 12) + 4096).sum());
    }
}
