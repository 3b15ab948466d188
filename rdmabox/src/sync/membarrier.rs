//! Memory barriers on every processor that runs a thread of this process (`membarrier(2)`).

use std::{io, sync::OnceLock};

/// Returns true if the kernel supports expedited barriers for this process. The result never
/// changes.
#[inline]
pub(crate) fn works() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| match command(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) {
        Ok(()) => true,
        Err(e) => {
            log::debug!("no membarrier(2), reader locks use atomic read-modify-writes: {e}");
            false
        }
    })
}

/// Issues a barrier on every processor. Accesses before it in any thread's program order are
/// visible after it, and the reverse.
///
/// # Panics
/// If the kernel refuses after a successful registration, because no other barrier could replace
/// it.
pub(crate) fn on_every_processor() {
    if let Err(e) = command(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        panic!("membarrier(2) stopped working: {e}");
    }
}

fn command(command: libc::c_int) -> io::Result<()> {
    // SAFETY: the call takes three integers and accesses no memory of the caller.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, command, 0 as libc::c_uint, 0 as libc::c_int) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
