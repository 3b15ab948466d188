//! Directories, with and without attributes.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, time::Duration};

use fuser::{FileType, INodeNo, ReplyDirectory, ReplyDirectoryPlus, Request};
use rfs_proto::Attr;

use super::{Adapter, convert};
use crate::fuse::lifetimes::{Asked, GENERATION};

/// Entries asked for at once; about what fits into one reply to the kernel.
const PLUS_ENTRIES: u32 = 180;
const PLAIN_ENTRIES: u32 = 400;

/// Cookies of `.` and `..`; the server's come after them.
const DOTS: u64 = 2;

impl Adapter {
    pub(super) fn list(&self, ino: INodeNo, offset: u64, mut reply: ReplyDirectory) {
        let page = match self.client.readdir(ino.0, offset.saturating_sub(DOTS), PLAIN_ENTRIES) {
            Ok(page) => page,
            Err(e) => return reply.error(self.errno("readdir", &e)),
        };
        for (at, dot, name) in [(1, ino, "."), (DOTS, INodeNo(page.parent), "..")] {
            if offset < at && reply.add(dot, at, FileType::Directory, name) {
                return reply.ok();
            }
        }
        for entry in &page.entries {
            let next = entry.cookie.saturating_add(DOTS);
            let kind = convert::file_type(entry.attr.kind);
            if reply.add(INodeNo(entry.attr.ino), next, kind, OsStr::from_bytes(&entry.name)) {
                break;
            }
        }
        reply.ok();
    }

    pub(super) fn list_plus(
        &self,
        request: &Request,
        ino: INodeNo,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let since = self.client.since();
        let listed = self.client.readdir(ino.0, offset.saturating_sub(DOTS), PLUS_ENTRIES);
        let (page, own) = match listed.and_then(|page| Ok((page, self.client.getattr(ino.0)?))) {
            Ok(found) => found,
            Err(e) => return reply.error(self.errno("readdirplus", &e)),
        };
        if offset == 0
            && let Err(e) = self.client.reads_directory(&own)
        {
            return reply.error(self.errno("readdirplus", &e));
        }
        let telling = self.client.telling();
        let ttl = Duration::ZERO;
        for (at, dot, name) in [(1, ino.0, "."), (DOTS, page.parent, "..")] {
            // The kernel takes no attributes and no reference from these two.
            let attr = convert::attr(&Attr { ino: dot, ..own });
            if offset < at && reply.add(INodeNo(dot), at, name, &ttl, &attr, GENERATION) {
                return reply.ok();
            }
        }
        for entry in &page.entries {
            let next = entry.cookie.saturating_add(DOTS);
            let name = OsStr::from_bytes(&entry.name);
            let attr = convert::attr(&entry.attr);
            telling.reference(since, &entry.attr);
            let asked = Asked { since, parent: ino.0, name: &entry.name, thread: request.pid() };
            let ttl = self.lifetimes.of_both(&telling, &asked, &entry.attr);
            if reply.add(INodeNo(entry.attr.ino), next, name, &ttl, &attr, GENERATION) {
                self.client.forget(entry.attr.ino, 1);
                break;
            }
            self.client.told(&entry.attr, request.pid());
        }
        reply.ok();
    }
}
