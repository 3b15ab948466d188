//! Properties of each kind of request, for the server. No I/O, no locks, no clock.
//!
//! One table has a row for each request, so the compiler asks for all properties of a new request.
//!
//! # Concurrency
//! Constants.

use rfs_proto::Request;

/// The load that a request puts on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// About names, attributes and space.
    Names,
    /// Carries or checks data: the number of these requests grows with the data.
    Data,
}

/// The recalls that the reply to a request may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    /// The reply waits for the recalls of the request, if there are any.
    Waits,
    /// Recalls nothing, unless it opens for writing.
    IfWriting,
    /// Recalls nothing.
    Never,
    /// Changes nothing that other sessions cache: the reply leaves at once.
    AtOnce,
    /// Recalls only from its own session: the reply leaves at once.
    OwnOnly,
}

macro_rules! requests {
    ($($variant:ident: $name:literal, $load:ident, $waiting:ident;)*) => {
        /// Position of each kind of request in the table.
        enum Kind { $($variant),* }

        /// Names of the requests, in the order of the protocol.
        pub(super) const NAMES: [&str; [$($name),*].len()] = [$($name),*];
        const LOADS: [Load; NAMES.len()] = [$(Load::$load),*];
        const WAITINGS: [Waiting; NAMES.len()] = [$(Waiting::$waiting),*];

        /// Returns the position of a request in the table.
        pub(super) fn index(request: &Request<'_>) -> usize {
            match request {
                $(Request::$variant { .. } => Kind::$variant as usize,)*
            }
        }
    };
}

// Variant, name in the statistics, load, recalls that its reply waits for.
requests! {
    Attach:        "attach",       Names, Waits;
    Lookup:        "lookup",       Names, Waits;
    GetAttr:       "getattr",      Names, Waits;
    SetAttr:       "setattr",      Names, Waits;
    Mknod:         "mknod",        Names, Waits;
    Create:        "create",       Names, Waits;
    Mkdir:         "mkdir",        Names, Waits;
    Symlink:       "symlink",      Names, Waits;
    Readlink:      "readlink",     Names, Waits;
    Link:          "link",         Names, Waits;
    Unlink:        "unlink",       Names, Waits;
    Rmdir:         "rmdir",        Names, Waits;
    Rename:        "rename",       Names, Waits;
    Open:          "open",         Names, IfWriting;
    Close:         "close",        Names, AtOnce;
    Layout:        "layout",       Names, Waits;
    Allocate:      "allocate",     Names, Waits;
    ReadDir:       "readdir",      Names, Waits;
    StatFs:        "statfs",       Names, Waits;
    Stats:         "stats",        Names, Waits;
    GetXattr:      "getxattr",     Names, Waits;
    SetXattr:      "setxattr",     Names, Waits;
    XattrPart:     "xattrpart",    Names, Waits;
    ListXattr:     "listxattr",    Names, Waits;
    RemoveXattr:   "removexattr",  Names, Waits;
    Fallocate:     "fallocate",    Names, Waits;
    Copy:          "copy",         Names, Waits;
    Lock:          "lock",         Names, Never;
    StopWaiting:   "stopwaiting",  Names, Never;
    TestLock:      "testlock",     Names, Waits;
    LookupAhead:   "lookupahead",  Names, Waits;
    Recalls:       "recalls",      Names, Waits;
    Accessed:      "accessed",     Names, Waits;
    Grants:        "grants",       Names, Waits;
    Insist:        "insist",       Names, Waits;
    Once:          "once",         Names, Waits;
    Detach:        "detach",       Names, Waits;
    Write:         "write",        Data,  Waits;
    Verify:        "verify",       Data,  Waits;
    ReturnNames:   "returnnames",  Names, OwnOnly;
    ConfirmLocks:  "confirmlocks", Names, Waits;
    Forget:        "forget",       Names, AtOnce;
    HoldPages:     "holdpages",    Names, Waits;
    DropPages:     "droppages",    Names, Waits;
    ReachStore:    "reachstore",   Names, Waits;
    Tmpfile:       "tmpfile",      Names, Waits;
    Birth:         "birth",        Names, Never;
    FenceStore:    "fencestore",   Names, Never;
}

/// Returns true if the requests at this position carry or check data.
pub(super) fn carries_data(index: usize) -> bool {
    LOADS[index] == Load::Data
}

/// Returns true if the reply to a request may wait for other sessions. It is false for Close,
/// Forget, Open for reading, Lock and StopWaiting: a mount repeats them before it acknowledges
/// recalls.
pub(super) fn may_wait(request: &Request<'_>) -> bool {
    match WAITINGS[index(request)] {
        Waiting::Waits | Waiting::OwnOnly => true,
        Waiting::IfWriting => !matches!(request, Request::Open { write: false, .. }),
        Waiting::Never | Waiting::AtOnce => false,
    }
}

/// Returns true if the reply to a request does not wait for the recalls of the request.
pub(super) fn is_answered_at_once(request: &Request<'_>) -> bool {
    matches!(WAITINGS[index(request)], Waiting::AtOnce | Waiting::OwnOnly)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_are_repeated_before_recalls_do_not_wait() {
        let open = |write| Request::Open { ino: 1, write };
        assert_eq!([open(false), open(true)].map(|request| may_wait(&request)), [false, true]);
        let [close, forget] = [Request::Close { ino: 1 }, Request::Forget { inos: &[] }];
        let [names, unlink] = [Request::ReturnNames { ino: 1 }, Request::Unlink { parent: 1, name: b"a" }];
        let stop = Request::StopWaiting { ticket: 1 };
        let properties = |request| (may_wait(&request), is_answered_at_once(&request));
        assert_eq!([close, forget].map(properties), [(false, true); 2]);
        assert_eq!([names, stop, unlink].map(properties), [(true, true), (false, false), (true, false)]);
    }
}
