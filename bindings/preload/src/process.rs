//! The state of the process: its descriptors, its mounts, and the effects of `fork` on them.
//!
//! A child of `fork` begins with a new state: it never uses the sessions of its parent, whose
//! threads it lacks. A child of `vfork` shares the memory of its parent, and has descriptors of its
//! own. So calls that change the table check the process first.
//!
//! # Concurrency
//! Any thread. The fork lock is held for reading while an offset is taken over, and for writing
//! while another process begins. A thread takes it before the lock of a position, or tries only.

use std::{
    ffi::c_int,
    mem::MaybeUninit,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::Guard;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::{
    counts::{COUNTS, Reason},
    descriptor::description::Description,
    descriptor::position::Place,
    descriptor::table::Table,
    guard,
    mounts::{id::FileId, known_mounts::KnownMounts, site::Site},
    next,
    session::session_fds,
};

/// Calls that the kernel does for a description before the library opens its file.
const DEFAULT_AFTER: u32 = 3;
/// Longest wait for the end of a session whose descriptors the program closes.
const END_LIMIT: u32 = 2000;

/// The state of one process.
pub(crate) struct State {
    pub(crate) table: Table<Description>,
    pub(crate) mounts: KnownMounts,
    fork_lock: RwLock<()>,
}

/// The state, once a file of a mount was opened. It is never freed.
static STATE: AtomicPtr<State> = AtomicPtr::new(ptr::null_mut());
/// The process to which the state belongs.
static OWNER: AtomicI32 = AtomicI32::new(0);
/// Calls that the kernel does first.
static AFTER: AtomicU32 = AtomicU32::new(DEFAULT_AFTER);
/// True once all offsets stay in the kernel.
static OFFSETS_STAY: AtomicBool = AtomicBool::new(false);
/// True once nothing is carried any more.
static IS_OFF: AtomicBool = AtomicBool::new(false);
/// Maximum length of files that this process writes (RLIMIT_FSIZE).
static FILE_LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);
/// Sets the number of calls that the kernel does first.
pub(crate) fn set_after(calls: u32) {
    AFTER.store(calls, Ordering::Relaxed);
}

pub(crate) fn after() -> u32 {
    AFTER.load(Ordering::Relaxed)
}

/// Notes the process, and its limits.
pub(crate) fn begin() {
    OWNER.store(own_number(), Ordering::Relaxed);
    read_limit();
}

fn own_number() -> i32 {
    // SAFETY: the call has no conditions.
    unsafe { libc::getpid() }
}

/// Reads the limit of file sizes.
pub(crate) fn read_limit() {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the result has room.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    FILE_LIMIT.store(limit.rlim_cur, Ordering::Relaxed);
}

/// Returns true if the process may write up to `end`. The kernel sends the signal otherwise.
#[inline]
pub(crate) fn may_write_to(end: u64) -> bool {
    end <= FILE_LIMIT.load(Ordering::Relaxed)
}

/// Returns the state, if there is one.
#[inline]
pub(crate) fn state() -> Option<&'static State> {
    // SAFETY: the pointer is null, or came from a box that is never freed.
    unsafe { STATE.load(Ordering::Acquire).as_ref() }
}

/// Returns the state if this process owns it, and makes it if there is none.
pub(crate) fn own_state() -> Option<&'static State> {
    if !is_owner() || IS_OFF.load(Ordering::Relaxed) {
        return None;
    }
    if let Some(state) = state() {
        return Some(state);
    }
    let (table, mounts, fork_lock) = (Table::new(), KnownMounts::default(), RwLock::new(()));
    let new = Box::into_raw(Box::new(State { table, mounts, fork_lock }));
    if STATE.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: no other thread has seen the box.
        drop(unsafe { Box::from_raw(new) });
    }
    state()
}

/// Returns false in a child that shares or has copied the memory of the owner.
pub(crate) fn is_owner() -> bool {
    OWNER.load(Ordering::Relaxed) == own_number()
}

/// Returns the description of a descriptor.
#[inline]
pub(crate) fn find(fd: c_int) -> Option<Guard<Option<Arc<Description>>>> {
    state()?.table.find(fd)
}

/// Returns the description of a descriptor, to keep it, if this process owns the table.
pub(crate) fn get(fd: c_int) -> Option<Arc<Description>> {
    let description = state()?.table.get(fd)?;
    is_owner().then_some(description)
}

/// Returns true if offsets may be taken over, while the guard lives.
pub(crate) fn try_fork_lock() -> Option<RwLockReadGuard<'static, ()>> {
    if OFFSETS_STAY.load(Ordering::Relaxed) || !is_owner() {
        return None;
    }
    state()?.fork_lock.try_read()
}

/// Returns the site and the inode of a descriptor, if it is of a mount of rfs-fuse.
pub(crate) fn site_of(fd: c_int) -> Option<(Arc<Site>, u64)> {
    let FileId { mount, ino } = FileId::of(fd)?;
    Some((own_state()?.mounts.site(mount)?, ino))
}

/// Has the kernel ask the mount for the size of a file, which the library may have changed. Some
/// calls rely on the size that the kernel knows.
pub(crate) fn refresh_size(fd: c_int) {
    let (mut stat, _errno) = (MaybeUninit::uninit(), next::KeptErrno::new());
    // SAFETY: the result has room.
    unsafe { next::fstat64(fd, stat.as_mut_ptr()) };
}

/// Gives the offset of a description to the kernel for good.
pub(crate) fn give_offset_back(fd: c_int, description: &Description) {
    let held = description.position.hold();
    if held.place() != Place::Kernel {
        COUNTS.handed_back(Reason::Shared);
    }
    if let Some(offset) = held.give_back() {
        // SAFETY: the descriptor is open, or the call fails.
        unsafe { next::lseek64(fd, offset as i64, libc::SEEK_SET) };
        refresh_size(fd);
    }
}

/// Leaves a description to the kernel for good.
pub(crate) fn hand_back(fd: c_int, description: &Arc<Description>, reason: Reason) {
    let _errno = next::KeptErrno::new();
    let Some(state) = state() else { return };
    COUNTS.handed_back(reason);
    let held = description.position.hold();
    if let Some(offset) = held.give_back() {
        // SAFETY: the descriptor is open, or the call fails.
        unsafe { next::lseek64(fd, offset as i64, libc::SEEK_SET) };
    }
    drop(held);
    refresh_size(fd);
    for (other, entry) in state.table.all() {
        if Arc::ptr_eq(&entry, description) {
            state.table.remove_entry(other, description);
        }
    }
}

/// Leaves all descriptions of a file to the kernel for good, because it is mapped.
pub(crate) fn hand_back_mapped(site: &Arc<Site>, ino: u64) {
    let Some(state) = state() else { return };
    site.map(ino);
    for (fd, description) in state.table.all() {
        if description.ino == ino && Arc::ptr_eq(&description.site, site) {
            hand_back(fd, &description, Reason::Mapped);
        }
    }
}

/// Gives all offsets to the kernel, before another process may share the descriptions.
pub(crate) fn give_offsets_back() {
    let Some(state) = state().filter(|_| is_owner()) else { return };
    for (fd, description) in state.table.all() {
        give_offset_back(fd, &description);
    }
}

/// Leaves all offsets to the kernel from now on.
pub(crate) fn keep_offsets_out() {
    if is_owner() && !OFFSETS_STAY.swap(true, Ordering::AcqRel) {
        COUNTS.handed_back(Reason::Uring);
        give_offsets_back();
    }
}

/// Carries nothing any more, before a copy of this process begins without a notice.
pub(crate) fn turn_off() {
    IS_OFF.store(true, Ordering::Relaxed);
    let Some(state) = state().filter(|_| is_owner()) else { return };
    for (fd, description) in state.table.all() {
        hand_back(fd, &description, Reason::Shared);
    }
}

/// Holds the fork lock and gives all offsets back, while another process begins.
pub(crate) fn begin_process() -> Option<RwLockWriteGuard<'static, ()>> {
    let state = state().filter(|_| is_owner())?;
    let fork_lock = state.fork_lock.write();
    give_offsets_back();
    Some(fork_lock)
}

/// Makes a child of `fork` the owner of a new state. Closes its copies of session descriptors.
pub(crate) fn begin_child() {
    let old = STATE.swap(ptr::null_mut(), Ordering::AcqRel);
    OWNER.store(own_number(), Ordering::Relaxed);
    COUNTS.reset();
    if old.is_null() {
        return;
    }
    for fd in session_fds::take_all() {
        // The server waits for processes that keep a descriptor of a session.
        // SAFETY: the parent's library has opened it, and this process never uses its copy.
        unsafe { next::close(fd) };
    }
}

/// Forgets a descriptor that a session closes.
pub(crate) fn forget_session_descriptor(fd: c_int) {
    session_fds::remove(&[fd]);
    let sites = state().map(|state| state.mounts.sites()).unwrap_or_default();
    sites.iter().for_each(|site| site.forget(fd));
}

/// Ends all sessions, because the program closes descriptors that it has not opened. Waits until
/// the sessions have closed theirs.
pub(crate) fn end_sessions() {
    let Some(state) = state().filter(|_| is_owner()) else { return };
    // The sessions close their own descriptors.
    let _inside = guard::enter();
    let closing: Vec<c_int> = state.mounts.sites().iter().flat_map(|site| site.end()).collect();
    for (fd, description) in state.table.all() {
        hand_back(fd, &description, Reason::Closed);
    }
    for _ in 0..END_LIMIT {
        if !closing.iter().any(|fd| next::is_open(*fd)) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
