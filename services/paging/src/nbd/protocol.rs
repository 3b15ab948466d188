//! Messages of the NBD protocol, as its public specification (`proto.md` of the NBD project) has
//! them: the fixed newstyle handshake and simple replies. All numbers are big-endian.
//!
//! # Concurrency
//! Pure functions.

/// `NBDMAGIC`.
const GREETING: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`, before each option.
const OPTION: u64 = 0x4948_4156_454f_5054;
/// Before each reply to an option.
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;

/// Flags of the handshake, of the server and of the client: fixed newstyle, and no zeros behind the
/// reply to `EXPORT_NAME`.
const FIXED_NEWSTYLE: u16 = 1;
pub(super) const NO_ZEROES: u16 = 2;

/// Flags of the export: flags are there, FLUSH, FUA, TRIM, WRITE_ZEROES, several connections.
const TRANSMISSION_FLAGS: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 8;

/// Flag of all requests: the reply waits for stable storage. It changes nothing here.
const FUA: u16 = 1;
/// Flag of WRITE_ZEROES: the bytes keep their space. Here they do not, as with TRIM.
const NO_HOLE: u16 = 1 << 1;

/// Longest data of an option, in bytes. The longest name has 4096.
pub(super) const MAX_OPTION: u32 = 64 << 10;
/// Longest READ or WRITE, in bytes: that many every client may use.
pub(super) const MAX_TRANSFER: u32 = 32 << 20;
/// Best length of requests.
const PREFERRED: u32 = 4096;

pub(super) const OPTION_HEADER: usize = 16;
pub(super) const REQUEST_HEADER: usize = 28;

/// Options that the server carries out.
pub(super) mod options {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
}

/// Types of replies to options.
pub(super) mod replies {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const UNSUPPORTED: u32 = 1 << 31 | 1;
    pub(crate) const INVALID: u32 = 1 << 31 | 3;
    pub(crate) const UNKNOWN: u32 = 1 << 31 | 6;
}

/// Errors of simple replies.
pub(super) mod errors {
    pub(crate) const IO: u32 = 5;
    pub(crate) const INVALID: u32 = 22;
    pub(crate) const NO_SPACE: u32 = 28;
}

/// Why a connection cannot go on. The server closes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NbdError {
    /// The client does not use the fixed newstyle handshake.
    #[error("the client has handshake flags {0:#x}: the server needs the fixed newstyle handshake")]
    ClientFlags(u32),
    /// A message does not begin with its magic number.
    #[error("a message begins with {0:#x}, which is no magic number of NBD here")]
    Magic(u64),
    /// An option has more data than any option.
    #[error("an option has {0} bytes: at most 65536 are allowed")]
    OptionLength(u32),
    /// The client asks for an export that does not exist, in a way that has no error reply.
    #[error("the client asks for an export of another name")]
    UnknownExport,
    /// A WRITE has more bytes than a server takes.
    #[error("a request writes {0} bytes: at most 33554432 are allowed")]
    WriteLength(u32),
}

/// The header of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OptionHeader {
    pub(super) option: u32,
    /// Bytes of its data.
    pub(super) len: u32,
}

/// The operation that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Read,
    Write,
    Disconnect,
    Flush,
    Trim,
    WriteZeroes,
    Unknown,
}

/// The header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) command: Command,
    /// False if the request has flags that the server does not know.
    pub(super) has_known_flags: bool,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) len: u32,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|part| part.try_into().ok()).map_or(0, u16::from_be_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|part| part.try_into().ok()).map_or(0, u32::from_be_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|part| part.try_into().ok()).map_or(0, u64::from_be_bytes)
}

/// Returns the first message of the server.
pub(super) fn greeting() -> Vec<u8> {
    let mut out = GREETING.to_be_bytes().to_vec();
    out.extend(OPTION.to_be_bytes());
    out.extend((FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
    out
}

/// Decodes the first message of the client. Returns true if it wants no zeros.
pub(super) fn client_flags(bytes: &[u8]) -> Result<bool, NbdError> {
    let flags = u32_at(bytes, 0);
    let known = u32::from(FIXED_NEWSTYLE | NO_ZEROES);
    if flags & !known != 0 || flags & u32::from(FIXED_NEWSTYLE) == 0 {
        return Err(NbdError::ClientFlags(flags));
    }
    Ok(flags & u32::from(NO_ZEROES) != 0)
}

/// Decodes the header of an option, of [`OPTION_HEADER`] bytes.
pub(super) fn option_header(bytes: &[u8]) -> Result<OptionHeader, NbdError> {
    let (magic, option, len) = (u64_at(bytes, 0), u32_at(bytes, 8), u32_at(bytes, 12));
    if magic != OPTION {
        return Err(NbdError::Magic(magic));
    }
    if len > MAX_OPTION {
        return Err(NbdError::OptionLength(len));
    }
    Ok(OptionHeader { option, len })
}

/// Returns the name of the export in the data of INFO or GO. `None` if the data is malformed.
pub(super) fn info_name(data: &[u8]) -> Option<&[u8]> {
    if data.len() < 6 {
        return None;
    }
    let len = u32_at(data, 0) as usize;
    let name = data.get(4..4_usize.checked_add(len)?)?;
    let rest = &data[4 + len..];
    let requests = usize::from(u16_at(rest, 0));
    (rest.len() == 2 + 2 * requests).then_some(name)
}

/// Decodes the header of a request, of [`REQUEST_HEADER`] bytes.
pub(super) fn request(bytes: &[u8]) -> Result<Request, NbdError> {
    let magic = u32_at(bytes, 0);
    if magic != REQUEST {
        return Err(NbdError::Magic(magic.into()));
    }
    let command = match u16_at(bytes, 6) {
        0 => Command::Read,
        1 => Command::Write,
        2 => Command::Disconnect,
        3 => Command::Flush,
        4 => Command::Trim,
        6 => Command::WriteZeroes,
        _ => Command::Unknown,
    };
    let known = if command == Command::WriteZeroes { FUA | NO_HOLE } else { FUA };
    let has_known_flags = u16_at(bytes, 4) & !known == 0;
    let (cookie, offset, len) = (u64_at(bytes, 8), u64_at(bytes, 16), u32_at(bytes, 24));
    if command == Command::Write && len > MAX_TRANSFER {
        return Err(NbdError::WriteLength(len));
    }
    Ok(Request { command, has_known_flags, cookie, offset, len })
}

/// Appends a reply to an option.
pub(super) fn option_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend(OPTION_REPLY.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
}

/// Returns the size and the flags of an export, as EXPORT_NAME and INFO have them.
pub(super) fn export(size: u64) -> Vec<u8> {
    let mut out = size.to_be_bytes().to_vec();
    out.extend(TRANSMISSION_FLAGS.to_be_bytes());
    out
}

/// Appends the replies of INFO and GO that describe an export.
pub(super) fn describe(out: &mut Vec<u8>, option: u32, size: u64) {
    let of_export = [&0_u16.to_be_bytes()[..], &export(size)].concat();
    option_reply(out, option, replies::INFO, &of_export);
    let mut block_sizes = 3_u16.to_be_bytes().to_vec();
    for size in [1, PREFERRED, MAX_TRANSFER] {
        block_sizes.extend(size.to_be_bytes());
    }
    option_reply(out, option, replies::INFO, &block_sizes);
}

/// Returns the header of the reply to a request. The data of a READ without error follows it.
pub(super) fn reply(cookie: u64, error: u32) -> [u8; 16] {
    let mut out = [0; 16];
    out[..4].copy_from_slice(&REPLY.to_be_bytes());
    out[4..8].copy_from_slice(&error.to_be_bytes());
    out[8..].copy_from_slice(&cookie.to_be_bytes());
    out
}
