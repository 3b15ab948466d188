//! Known state of an open file at the server: opens, extents and size. No I/O, no locks, no clock.

use crate::{
    inode::{
        layout::LayoutCache,
        size::{KnownSize, LayoutId, LookStart},
    },
    remote::address::Epoch,
};

/// Opens of an inode at the server, for this session.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AtServer {
    pub(crate) opens: u32,
    pub(crate) to_write: bool,
}

/// The known state of a file at the server.
#[derive(Debug, Default)]
pub(crate) struct KnownFile {
    pub(crate) at_server: AtServer,
    pub(crate) layout: LayoutCache,
    pub(crate) size: KnownSize,
}

impl KnownFile {
    /// Voids layouts of this epoch before this generation, and the sizes seen with them.
    pub(crate) fn recalled(&mut self, epoch: Epoch, generation: u64) {
        self.layout.recalled(epoch, generation);
        self.size.recalled(LayoutId { epoch, generation });
    }

    /// Forgets the layout, because it may have changed in any way.
    pub(crate) fn forget(&mut self) {
        self.layout.clear(0);
        self.size.distrust();
    }

    /// Takes in the layout of a new epoch, unless it was recalled meanwhile.
    pub(crate) fn reopened(&mut self, layout: LayoutCache) {
        self.layout.renew(layout);
        self.size.distrust();
    }

    /// Takes in attributes that the server has set by a request from `start`. Voids older layouts,
    /// including those in flight.
    pub(crate) fn changed(&mut self, start: LookStart, generation: u64, size: u64) {
        self.size.saw(start, generation, size);
        self.layout.recalled(start.epoch, generation);
    }
}
