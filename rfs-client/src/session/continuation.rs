//! The client of a process that continues the mount of a dead one.
//!
//! # Concurrency
//! The thread that connects, before any request.

use std::sync::{Arc, atomic::Ordering};

use rfs_proto::ROOT_INO;

use crate::{
    client::Client,
    inode::{Inode, known_file::AtServer, locks::held_locks::LockKey},
    remote::kept_state::{Counter, KeptState, Row},
};

impl Client {
    /// Takes over the state of the previous process, if there was one: references, opens and locks.
    /// Its caches are lost.
    pub(crate) fn continue_from(&self, kept: &Arc<KeptState>) {
        if !kept.is_taken_over() {
            return;
        }
        let inodes = &self.caching.inodes;
        // Inodes may have lost their last name without this process's knowledge.
        inodes.orphans().doubt();
        for previous in kept.take_inodes() {
            let ino = previous.ino;
            if ino == ROOT_INO {
                continue;
            }
            let count = |counter: Counter| previous.count(counter);
            let inode = Inode::new(ino);
            inode.references.store(count(Counter::References), Ordering::Relaxed);
            if let Some(slot) = previous.slot {
                inode.set_slot(slot);
            }
            inode.row.get_or_init(|| Row::of(kept, &previous));
            // An inode is open fewer times than there are descriptors.
            let opens = |counter| u32::try_from(count(counter)).unwrap_or(u32::MAX);
            inode.opens.lock().local = opens(Counter::Opens);
            let to_write = count(Counter::ToWrite) > 0;
            inode.file.write().at_server = AtServer { opens: opens(Counter::AtServer), to_write };
            inode.open.store(opens(Counter::Opens) > 0, Ordering::Release);
            if to_write {
                // Other mounts may have the file open.
                inode.shared.begin(inodes.sharing());
            }
            inode.forget_layout();
            inodes.restore(inode);
        }
        for lock in kept.take_locks() {
            if let Some(ticket) = lock.ticket {
                // The kernel sends the request again, which then waits anew. If the lock was
                // granted meanwhile, its owner has it already.
                self.locks.stop_waiting(ticket).ok();
                kept.remove_lock(&lock);
                continue;
            }
            if let Some(inode) = inodes.get(lock.ino) {
                inode.caller.lock().locks.has(LockKey {
                    handle: lock.handle,
                    owner: lock.owner,
                    class: lock.class,
                });
            }
        }
    }

    /// Notes that a file was opened, or closed, through the pages of the caller; `direct` for an
    /// open around them. Only a mount whose state is kept does something.
    pub fn note_handle(&self, ino: u64, direct: bool, amount: i64) {
        if self.caching.inodes.kept().is_some()
            && let Some(inode) = self.caching.inodes.get(ino)
        {
            inode.note(Counter::Cached, amount);
            if direct {
                inode.note(Counter::Direct, amount);
            }
        }
    }

    /// Returns the files that the previous process had open through the pages of the caller. An
    /// entry has the inode, the number of opens, and how many of these opens were around the pages.
    pub fn kept_handles(&self) -> Vec<(u64, u64, u64)> {
        let inodes = &self.caching.inodes;
        let of = |ino| {
            let inode = inodes.get(ino)?;
            let row = inode.row.get()?;
            let [cached, direct] = [Counter::Cached, Counter::Direct].map(|counter| row.get(counter));
            (cached > 0).then_some((ino, cached, direct))
        };
        inodes.numbers().into_iter().filter_map(of).collect()
    }
}
