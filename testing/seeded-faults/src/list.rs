//! The list of the faults.

/// The crate that a fault is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// rfs-server.
    Server,
    /// rdmabox.
    Runtime,
}

/// Generates the enum `Fault`, and the name, the description and the crate of each fault.
macro_rules! faults {
    ($($home:ident { $($fault:ident $name:literal $what:literal)* })*) => {
        /// A fault. The variant names the mistake of the server.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Fault {
            $($(#[doc = $what] $fault,)*)*
        }

        impl Fault {
            /// All faults, in the order of the list.
            pub const ALL: &[Fault] = &[$($(Fault::$fault,)*)*];

            /// Returns the name for the environment variable and for tables.
            pub const fn name(self) -> &'static str {
                match self {
                    $($(Fault::$fault => $name,)*)*
                }
            }

            /// Returns a description of the wrong behaviour.
            pub const fn what(self) -> &'static str {
                match self {
                    $($(Fault::$fault => $what,)*)*
                }
            }

            /// Returns the crate that contains the fault.
            pub const fn home(self) -> Home {
                match self {
                    $($(Fault::$fault => Home::$home,)*)*
                }
            }

            /// Returns the fault with the given name.
            pub fn named(name: &str) -> Option<Fault> {
                Fault::ALL.iter().copied().find(|fault| fault.name() == name)
            }
        }
    };
}

faults! {
    Server {
        // Names.
        ExclusiveIgnored "exclusive-ignored" "O_EXCL opens an existing file"
        NoReplaceIgnored "noreplace-ignored" "rename with RENAME_NOREPLACE replaces the target"
        WhiteoutForgotten "whiteout-forgotten"
            "rename with RENAME_WHITEOUT leaves no whiteout at the old name"
        WhiteoutMisplaced "whiteout-misplaced"
            "a whiteout moves to the end of the directory listing"
        LinkUncounted "link-uncounted" "a new hard link does not increase the link count"
        EntrySkipped "entry-skipped" "each page of a listing after the first omits its first entry"
        EntryDoubled "entry-doubled"
            "a page of a listing repeats the last entry of the previous page"
        FullDirectoryRemoved "full-directory-removed" "rmdir removes a directory that is not empty"
        DotDotKept "dotdot-kept" "a moved directory keeps its old .. entry"

        // Attributes.
        TruncateKeepsMtime "truncate-keeps-mtime" "truncate does not set mtime"
        ChmodKeepsCtime "chmod-keeps-ctime" "chmod does not set ctime"
        SetgidKept "setgid-kept" "a write by another user does not clear the set-group-ID bit"
        SizeKept "size-kept" "truncate does not shorten a file"
        RecordTorn "record-torn" "an attribute record has no mark while it changes"

        // Space.
        FreedNotZeroed "freed-not-zeroed" "freed space is allocated again with the old bytes"
        TailNotZeroed "tail-not-zeroed" "truncate does not zero the rest of the last block"
        HoleKeepsEdges "hole-keeps-edges"
            "punching a hole does not zero its partial first and last blocks"
        BlockShared "block-shared"
            "the last block of an allocation is also allocated to another file"
        SpaceLeaked "space-leaked" "removing a file never frees its last extent"
        QuarantineSkipped "quarantine-skipped"
            "space is allocated again while sessions can still write to it"
        CopyMisplaced "copy-misplaced" "a copy within the server reads from the preceding block"
        WordNotZeroed "word-not-zeroed" "zeroed space keeps its old checksums"
        MismatchIgnored "mismatch-ignored" "the server ignores checksum mismatches of blocks"
        SlotLeaked "slot-leaked" "the attribute record of a removed inode is never freed"

        // Opens, and the caches of clients.
        LayoutNotRecalled "layout-not-recalled"
            "clients that can reach freed space of a file get no recall"
        NameNotRecalled "name-not-recalled"
            "clients that cache a name get no recall when it changes"
        AttrNotRecalled "attr-not-recalled"
            "clients that cache attributes get no recall when they change"
        WriteNotRecalled "write-not-recalled"
            "a write is not recalled from sessions that keep pages of the file"
        OwnerIgnored "owner-ignored"
            "an operation only for the owner is done though the owner has changed"
        OwnerNotRecalled "owner-not-recalled"
            "clients that cache the owner of a file get no recall when it changes"
        RecallNotAwaited "recall-not-awaited"
            "a change is answered before its recalls are acknowledged"
        OthersRecallNotAwaited "others-recall-not-awaited"
            "a change does not wait for recalls of earlier changes"
        SilentNotGivenUp "silent-not-given-up"
            "a session that acknowledges no recall blocks others forever"
        OrphanFreed "orphan-freed"
            "an unlinked file is freed though a session has just looked it up"
        UnlinkedFreed "unlinked-freed" "an unlinked file is freed though it is open"
        AppenderKept "appender-kept"
            "a dead session remains the appender of a file and blocks other appends"

        // Locks.
        ReadersIgnored "readers-ignored" "an exclusive lock is granted despite a shared lock"
        LocksOutlive "locks-outlive" "the locks of a session outlive it"
        OutOfTurn "out-of-turn" "the last waiter of a lock gets it first"
        UpgradeLost "upgrade-lost" "an upgrade of a shared lock to exclusive leaves it shared"
        WaiterForgotten "waiter-forgotten" "a waiter is not told that it has been granted the lock"

        // Limits and extended attributes.
        XattrSpaceUnlimited "xattr-space-unlimited" "extended attributes take memory without limit"
        XattrCreateIgnored "xattr-create-ignored" "XATTR_CREATE replaces an existing attribute"
        XattrShortened "xattr-shortened" "a long extended attribute loses its last byte"

        // Memory that outlives its server, and snapshots.
        RenameNotLogged "rename-not-logged"
            "a rename is not logged, so the next server does not know it"
        ReplyMisnumbered "reply-misnumbered"
            "a reply is logged under the sequence number of the previous request"
        GivenUpForgotten "given-up-forgotten"
            "the next server allocates space that sessions can still write to"
        PreviousForgotten "previous-forgotten"
            "a starting server ignores clients that still map the previous server's memory"
        LogRoomUnlimited "log-room-unlimited"
            "a session may open files until its state fills the log"
        DescriptionCrowdedOut "description-crowded-out"
            "requests use log space that is reserved for rewriting the log"
        FrameUnchecked "frame-unchecked" "a snapshot frame with a wrong checksum is accepted"
        LossUntold "loss-untold"
            "a snapshot in progress is not told of the old length of a truncated file"
        StandstillCounts "standstill-counts"
            "sessions expire for time in which the server itself was stopped"

        // Keys.
        ReaderChanges "reader-changes" "a read-only key can change names"
        RevokedKept "revoked-kept" "a session outlives its revoked key"
    }
    Runtime {
        // Sessions.
        LeaseNotExpired "lease-not-expired" "a session with an expired lease does not end"

        // One-sided operations.
        RightsUnchecked "rights-unchecked" "a region without write access can be written"
        RangeUnchecked "range-unchecked" "an operation can reach one byte beyond its region"
        KeyUnchecked "key-unchecked" "the key of a removed region opens the region that replaced it"
        WriteMisplaced "write-misplaced" "a write lands 64 bytes after its address"
        CompletedEarly "completed-early" "a write is acknowledged before its data is in memory"
        OldValueLost "old-value-lost"
            "an atomic operation returns the new value instead of the old value"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_found_by_its_name() {
        for &fault in Fault::ALL {
            assert_eq!(Fault::named(fault.name()), Some(fault));
            assert!(!fault.what().is_empty());
        }
        assert_eq!(Fault::named(""), None);
        assert!(Fault::ALL.len() >= 20);
    }

    /// rdmabox marks places by names, because it depends on no crate of this tree. A name that the
    /// list lacks fails, and so does a name of the list without a place.
    #[test]
    fn the_runtime_marks_the_places_of_its_faults_and_no_others() {
        use std::{collections::BTreeSet, fs, path::PathBuf};

        let (mut folders, mut places) =
            (vec![PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../rdmabox/src")], BTreeSet::new());
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = fs::read_to_string(path).unwrap();
                let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
                let code = code.collect::<Vec<_>>().join("\n");
                let marks = code.split("seeded!(").skip(1);
                places.extend(marks.map(|mark| {
                    let name = mark.trim_start().strip_prefix('"').and_then(|mark| mark.split_once('"'));
                    name.expect("a mark begins with a name").0.to_owned()
                }));
            }
        }
        let listed = Fault::ALL.iter().filter(|fault| fault.home() == Home::Runtime);
        assert_eq!(places, listed.map(|fault| fault.name().to_owned()).collect());
    }
}
