//! The list of the faults.

/// The crate that a fault is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// rfs-server.
    Server,
    /// rdmabox.
    Runtime,
}

/// Makes the enum, and the texts that go with it.
macro_rules! faults {
    ($($home:ident { $($fault:ident $name:literal $what:literal)* })*) => {
        /// A fault. Names say what is wrong with the server that has it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Fault {
            $($(#[doc = $what] $fault,)*)*
        }

        impl Fault {
            /// All of them, in the order of the list.
            pub const ALL: &[Fault] = &[$($(Fault::$fault,)*)*];

            /// What it is called in the environment and in tables.
            pub const fn name(self) -> &'static str {
                match self {
                    $($(Fault::$fault => $name,)*)*
                }
            }

            /// What the server does wrong.
            pub const fn what(self) -> &'static str {
                match self {
                    $($(Fault::$fault => $what,)*)*
                }
            }

            /// Where it is.
            pub const fn home(self) -> Home {
                match self {
                    $($(Fault::$fault => Home::$home,)*)*
                }
            }

            /// The fault of a name.
            pub fn named(name: &str) -> Option<Fault> {
                Fault::ALL.iter().copied().find(|fault| fault.name() == name)
            }
        }
    };
}

faults! {
    Server {
        // Names.
        ExclusiveIgnored "exclusive-ignored" "O_EXCL opens what is there"
        NoReplaceIgnored "noreplace-ignored" "a rename with RENAME_NOREPLACE replaces"
        WhiteoutForgotten "whiteout-forgotten" "a rename with RENAME_WHITEOUT leaves nothing in the old place"
        WhiteoutMisplaced "whiteout-misplaced" "the old name of a whiteout comes at the end of a listing"
        LinkUncounted "link-uncounted" "a new hard link does not raise the number of links"
        EntrySkipped "entry-skipped" "a page of a listing leaves its first entry out, but for the first page"
        EntryDoubled "entry-doubled" "a page of a listing begins with the last entry of the one before"
        FullDirectoryRemoved "full-directory-removed" "a directory is removed that is not empty"
        DotDotKept "dotdot-kept" "a directory that moves keeps its old .."

        // Attributes.
        TruncateKeepsMtime "truncate-keeps-mtime" "truncation does not set mtime"
        ChmodKeepsCtime "chmod-keeps-ctime" "chmod does not set ctime"
        SetgidKept "setgid-kept" "a write by another user leaves the set-group-ID bit"
        SizeKept "size-kept" "truncation does not make a file shorter"
        RecordTorn "record-torn" "an attribute record is not marked while it changes"

        // Space.
        FreedNotZeroed "freed-not-zeroed" "freed space is handed out with the old bytes"
        TailNotZeroed "tail-not-zeroed" "truncation leaves the bytes of the last block"
        HoleKeepsEdges "hole-keeps-edges" "a punched hole keeps the bytes of the blocks that it begins and ends in"
        BlockShared "block-shared" "the last block that a file gets is given to another one, too"
        SpaceLeaked "space-leaked" "the last extent of a file that is removed is never free again"
        QuarantineSkipped "quarantine-skipped" "space goes to another file while sessions can still write to it"
        CopyMisplaced "copy-misplaced" "a copy within the server takes bytes of the block before"
        WordNotZeroed "word-not-zeroed" "space that is zeroed keeps its old checksums"
        MismatchIgnored "mismatch-ignored" "the server does not look whether a block fits its checksum"
        SlotLeaked "slot-leaked" "the record of an inode that is gone is never free again"

        // Leases, and what clients keep.
        LayoutNotRecalled "layout-not-recalled" "who can reach what a file has given up is not asked to let go of it"
        NameNotRecalled "name-not-recalled" "who keeps a name is not told that it changed"
        AttrNotRecalled "attr-not-recalled" "who keeps attributes is not told that they changed"
        OwnerIgnored "owner-ignored" "what only the owner of a file may do is done for whoever was its owner"
        OwnerNotRecalled "owner-not-recalled" "who goes by the owner that he saw is not told of another one"
        RecallNotAwaited "recall-not-awaited" "a change is answered before others have given up what they keep of it"
        OthersRecallNotAwaited "others-recall-not-awaited" "a change does not wait for recalls that an earlier one caused"
        SilentNotGivenUp "silent-not-given-up" "a session that acknowledges no recall holds others up for ever"
        OrphanFreed "orphan-freed" "a file that is unlinked is freed though a session has just looked it up"
        UnlinkedFreed "unlinked-freed" "a file that is unlinked is freed though it is open"
        AppenderKept "appender-kept" "a session that is gone goes on appending: nobody else can"

        // Locks.
        ReadersIgnored "readers-ignored" "an exclusive lock is given where somebody has a shared one"
        LocksOutlive "locks-outlive" "the locks of a session outlive it"
        OutOfTurn "out-of-turn" "the last who waits for a lock gets it first"
        UpgradeLost "upgrade-lost" "a shared lock that becomes exclusive stays shared"
        WaiterForgotten "waiter-forgotten" "who waits for a lock is not told that he has it"

        // Limits and extended attributes.
        XattrSpaceUnlimited "xattr-space-unlimited" "extended attributes take memory without limit"
        XattrCreateIgnored "xattr-create-ignored" "XATTR_CREATE replaces"
        XattrShortened "xattr-shortened" "a long extended attribute loses its last byte"

        // Memory that outlives its server, and snapshots.
        RenameNotLogged "rename-not-logged" "the next server knows nothing of a rename"
        ReplyMisnumbered "reply-misnumbered" "the next server takes a reply for that of the request before"
        GivenUpForgotten "given-up-forgotten" "the next server hands out space that sessions can still write to"
        FormerForgotten "former-forgotten" "a server that starts does not ask who can still write to what the one before had lent"
        LogRoomUnlimited "log-room-unlimited" "a session may have files open until the log is full of that"
        DescriptionCrowdedOut "description-crowded-out" "requests leave no room for what a log that is written anew has to say"
        FrameUnchecked "frame-unchecked" "a frame of a snapshot is believed though its check is wrong"
        LossUntold "loss-untold" "a snapshot does not hear how long a file was that is cut behind it"
        StandstillCounts "standstill-counts" "who could not come back while the server stood still is given up"

        // Keys.
        ReaderChanges "reader-changes" "a key for reading changes names"
        RevokedKept "revoked-kept" "a session outlives its key"
    }
    Runtime {
        // Sessions.
        LeaseNotExpired "lease-not-expired" "a session whose lease is over does not end"

        // One-sided operations.
        RightsUnchecked "rights-unchecked" "a region without the right to be written is written"
        RangeUnchecked "range-unchecked" "an operation reaches one byte beyond its region"
        KeyUnchecked "key-unchecked" "a key of a region that is gone opens its successor"
        WriteMisplaced "write-misplaced" "a write lands 64 bytes behind its place"
        CompletedEarly "completed-early" "a write is acknowledged before it has landed"
        OldValueLost "old-value-lost" "an atomic answers with the new value"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_differ() {
        for &fault in Fault::ALL {
            assert_eq!(Fault::named(fault.name()), Some(fault));
            assert!(!fault.what().is_empty());
        }
        assert_eq!(Fault::named(""), None);
        assert!(Fault::ALL.len() >= 20);
    }
}
