//! The server's side of a connection, without I/O.
//!
//! The caller sends [`greeting`](Conversation::greeting), reads [`needed`](Conversation::needed)
//! bytes, and hands them to [`advance`](Conversation::advance), which returns the next step.
//! Invariant: no more than 32 MiB are needed at once.
//!
//! # Concurrency
//! Plain values.

use super::protocol::{
    self, Command, MAX_TRANSFER, NbdError, OPTION_HEADER, OptionHeader, REQUEST_HEADER, Request, errors,
    option_reply, options, replies,
};

/// Zeros behind the reply to EXPORT_NAME, for clients that want them.
const ZEROES: usize = 124;

/// Kind of the next bytes.
#[derive(Clone, Copy, Debug)]
enum Expected {
    ClientFlags,
    OptionHeader,
    OptionData(OptionHeader),
    RequestHeader,
    Payload(Request),
}

/// A connection.
#[derive(Clone, Debug)]
pub struct Conversation {
    name: Vec<u8>,
    size: u64,
    expected: Expected,
    no_zeroes: bool,
}

/// The next step of the caller, before it hands over further bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes to send first.
    pub send: Vec<u8>,
    /// Kind of the bytes that come then.
    pub effect: Effect,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// Sends [`Conversation::reply`] and, without an error, the bytes of the memory.
    Read {
        /// Cookie of the request.
        cookie: u64,
        /// Offset in the memory.
        offset: u64,
        /// Number of bytes.
        len: u32,
    },
    /// Stores the bytes that were handed over last, and sends [`Conversation::reply`].
    Write {
        /// Cookie of the request.
        cookie: u64,
        /// Offset in the memory.
        offset: u64,
    },
    /// Makes bytes zero, and sends [`Conversation::reply`].
    Zero {
        /// Cookie of the request.
        cookie: u64,
        /// Offset in the memory.
        offset: u64,
        /// Number of bytes.
        len: u32,
    },
    /// Closes the connection, as the client wishes.
    Close,
}

impl Step {
    fn send(send: Vec<u8>) -> Step {
        Step { send, effect: Effect::None }
    }

    fn effect(effect: Effect) -> Step {
        Step { send: Vec::new(), effect }
    }
}

impl Conversation {
    /// Begins a conversation about an export with this name and size in bytes. Clients may also
    /// ask for it by the empty name.
    pub fn new(name: &str, size: u64) -> Conversation {
        Conversation {
            name: name.as_bytes().to_vec(),
            size,
            expected: Expected::ClientFlags,
            no_zeroes: false,
        }
    }

    /// Returns the bytes that the server sends first.
    pub fn greeting() -> Vec<u8> {
        protocol::greeting()
    }

    /// Returns the number of bytes that [`advance`](Self::advance) needs next. It may be zero.
    pub fn needed(&self) -> usize {
        match self.expected {
            Expected::ClientFlags => 4,
            Expected::OptionHeader => OPTION_HEADER,
            Expected::OptionData(header) => header.len as usize,
            Expected::RequestHeader => REQUEST_HEADER,
            Expected::Payload(request) => request.len as usize,
        }
    }

    /// Returns true if the negotiation has ended, so that requests come.
    pub fn is_transmitting(&self) -> bool {
        matches!(self.expected, Expected::RequestHeader | Expected::Payload(_))
    }

    /// Takes [`needed`](Self::needed) bytes.
    ///
    /// # Errors
    /// [`NbdError`]; the caller closes the connection.
    pub fn advance(&mut self, bytes: &[u8]) -> Result<Step, NbdError> {
        debug_assert_eq!(bytes.len(), self.needed());
        match self.expected {
            Expected::ClientFlags => {
                self.no_zeroes = protocol::client_flags(bytes)?;
                self.expected = Expected::OptionHeader;
                Ok(Step::send(Vec::new()))
            }
            Expected::OptionHeader => {
                self.expected = Expected::OptionData(protocol::option_header(bytes)?);
                Ok(Step::send(Vec::new()))
            }
            Expected::OptionData(header) => {
                self.expected = Expected::OptionHeader;
                self.option(header.option, bytes)
            }
            Expected::RequestHeader => {
                let request = protocol::request(bytes)?;
                if request.command == Command::Write {
                    self.expected = Expected::Payload(request);
                    return Ok(Step::send(Vec::new()));
                }
                Ok(self.request(request))
            }
            Expected::Payload(request) => {
                self.expected = Expected::RequestHeader;
                Ok(self.request(request))
            }
        }
    }

    /// Returns the header of a reply to a request.
    pub fn reply(cookie: u64, is_done: bool) -> [u8; 16] {
        protocol::reply(cookie, if is_done { 0 } else { errors::IO })
    }

    fn has_name(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name
    }

    fn option(&mut self, option: u32, data: &[u8]) -> Result<Step, NbdError> {
        let mut out = Vec::new();
        match option {
            options::EXPORT_NAME if !self.has_name(data) => return Err(NbdError::UnknownExport),
            options::EXPORT_NAME => {
                out = protocol::export(self.size);
                if !self.no_zeroes {
                    out.resize(out.len() + ZEROES, 0);
                }
                self.expected = Expected::RequestHeader;
            }
            options::ABORT => {
                option_reply(&mut out, option, replies::ACK, &[]);
                return Ok(Step { send: out, effect: Effect::Close });
            }
            options::LIST if data.is_empty() => {
                let name = [&(self.name.len() as u32).to_be_bytes()[..], &self.name].concat();
                option_reply(&mut out, option, replies::SERVER, &name);
                option_reply(&mut out, option, replies::ACK, &[]);
            }
            options::LIST => option_reply(&mut out, option, replies::INVALID, &[]),
            options::INFO | options::GO => match protocol::info_name(data) {
                None => option_reply(&mut out, option, replies::INVALID, &[]),
                Some(name) if !self.has_name(name) => option_reply(&mut out, option, replies::UNKNOWN, &[]),
                Some(_) => {
                    protocol::describe(&mut out, option, self.size);
                    option_reply(&mut out, option, replies::ACK, &[]);
                    if option == options::GO {
                        self.expected = Expected::RequestHeader;
                    }
                }
            },
            _ => option_reply(&mut out, option, replies::UNSUPPORTED, &[]),
        }
        Ok(Step::send(out))
    }

    fn request(&self, request: Request) -> Step {
        let Request { command, has_known_flags, cookie, offset, len } = request;
        let refuse = |error| Step::send(protocol::reply(cookie, error).to_vec());
        let is_inside = offset.checked_add(len.into()).is_some_and(|end| end <= self.size);
        match command {
            Command::Disconnect => Step::effect(Effect::Close),
            Command::Unknown => refuse(errors::INVALID),
            _ if !has_known_flags => refuse(errors::INVALID),
            // All completed writes are where they stay.
            Command::Flush => refuse(0),
            Command::Read if len > MAX_TRANSFER => refuse(errors::INVALID),
            Command::Read | Command::Trim if !is_inside => refuse(errors::INVALID),
            Command::Write | Command::WriteZeroes if !is_inside => refuse(errors::NO_SPACE),
            Command::Read => Step::effect(Effect::Read { cookie, offset, len }),
            Command::Write => Step::effect(Effect::Write { cookie, offset }),
            Command::Trim | Command::WriteZeroes => Step::effect(Effect::Zero { cookie, offset, len }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 1 << 20;

    fn negotiating(flags: u32) -> Conversation {
        let mut conversation = Conversation::new("memory", SIZE);
        assert_eq!(conversation.advance(&flags.to_be_bytes()), Ok(Step::send(Vec::new())));
        conversation
    }

    fn option(conversation: &mut Conversation, option: u32, data: &[u8]) -> Result<Step, NbdError> {
        let header = [b"IHAVEOPT", &option.to_be_bytes()[..], &(data.len() as u32).to_be_bytes()].concat();
        assert_eq!(conversation.advance(&header)?, Step::send(Vec::new()));
        conversation.advance(data)
    }

    fn info(name: &[u8], requests: u16) -> Vec<u8> {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend(name);
        data.extend(requests.to_be_bytes());
        data.extend((0..requests).flat_map(u16::to_be_bytes));
        data
    }

    fn request(flags: u16, command: u16, offset: u64, len: u32) -> Vec<u8> {
        [
            &0x2560_9513_u32.to_be_bytes()[..],
            &flags.to_be_bytes(),
            &command.to_be_bytes(),
            &77_u64.to_be_bytes(),
            &offset.to_be_bytes(),
            &len.to_be_bytes(),
        ]
        .concat()
    }

    fn transmitting() -> Conversation {
        let mut conversation = negotiating(3);
        option(&mut conversation, 7, &info(b"", 0)).expect("an export");
        assert!(conversation.is_transmitting());
        conversation
    }

    /// Returns the type of each reply to options.
    fn kinds(mut bytes: &[u8]) -> Vec<u32> {
        let mut kinds = Vec::new();
        while !bytes.is_empty() {
            assert_eq!(bytes[..8], [0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9]);
            let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
            kinds.push(number(12));
            bytes = &bytes[20 + number(16) as usize..];
        }
        kinds
    }

    #[test]
    fn the_greeting_offers_the_fixed_newstyle_handshake() {
        assert_eq!(Conversation::greeting(), b"NBDMAGICIHAVEOPT\0\x03");
        for flags in [0, 2, 4, u32::MAX] {
            let mut conversation = Conversation::new("", SIZE);
            let outcome = conversation.advance(&flags.to_be_bytes());
            assert_eq!(outcome, Err(NbdError::ClientFlags(flags)));
        }
    }

    #[test]
    fn options_are_answered() {
        let mut conversation = negotiating(3);
        let mut answer = |number, data: &[u8]| {
            let step = option(&mut conversation, number, data).expect("a reply");
            assert_eq!(step.effect, Effect::None);
            (kinds(&step.send), conversation.is_transmitting())
        };
        assert_eq!(answer(3, b""), (vec![2, 1], false));
        assert_eq!(answer(3, b"x"), (vec![replies::INVALID], false));
        assert_eq!(answer(5, b""), (vec![replies::UNSUPPORTED], false), "TLS");
        assert_eq!(answer(8, b""), (vec![replies::UNSUPPORTED], false), "structured replies");
        assert_eq!(answer(6, &info(b"memory", 3)), (vec![3, 3, 1], false));
        assert_eq!(answer(7, &info(b"other", 0)), (vec![replies::UNKNOWN], false));
        for wrong in [&b""[..], &info(b"", 2)[..8], &[0xff; 6], &[info(b"", 0), vec![0]].concat()] {
            assert_eq!(answer(7, wrong), (vec![replies::INVALID], false), "{wrong:?}");
        }
        assert_eq!(answer(7, &info(b"memory", 1)), (vec![3, 3, 1], true));
        let step = option(&mut negotiating(1), 2, b"").expect("a reply");
        assert_eq!((kinds(&step.send), step.effect), (vec![1], Effect::Close));
    }

    #[test]
    fn an_export_can_be_had_by_its_name_alone() {
        for (flags, len) in [(1, 134), (3, 10)] {
            let mut conversation = negotiating(flags);
            let step = option(&mut conversation, 1, b"memory").expect("an export");
            assert_eq!((step.send.len(), &step.send[..8]), (len, &SIZE.to_be_bytes()[..]));
            assert!(conversation.is_transmitting());
        }
        assert_eq!(option(&mut negotiating(1), 1, b"other"), Err(NbdError::UnknownExport));
    }

    #[test]
    fn requests_inside_the_export_are_carried_out_and_others_refused() {
        let mut conversation = transmitting();
        let end = SIZE - 10;
        let effects = [
            (0, 0, end, 10, Effect::Read { cookie: 77, offset: end, len: 10 }),
            (1, 4, 0, 4096, Effect::Zero { cookie: 77, offset: 0, len: 4096 }),
            (2, 6, 5, 0, Effect::Zero { cookie: 77, offset: 5, len: 0 }),
            (0, 2, 0, 0, Effect::Close),
        ];
        for (flags, command, offset, len, effect) in effects {
            let step = conversation.advance(&request(flags, command, offset, len));
            assert_eq!(step, Ok(Step::effect(effect)));
        }
        let refusals = [
            (0, 3, 0, 0, 0),
            (0, 0, end, 11, errors::INVALID),
            (0, 0, u64::MAX, 1, errors::INVALID),
            (0, 0, 0, u32::MAX, errors::INVALID),
            (0, 4, end, 11, errors::INVALID),
            (0, 6, end, 11, errors::NO_SPACE),
            (0, 5, 0, 1, errors::INVALID),
            (4, 0, 0, 1, errors::INVALID),
            (2, 0, 0, 1, errors::INVALID),
            (2, 4, 0, 1, errors::INVALID),
        ];
        for (flags, command, offset, len, error) in refusals {
            let step = conversation.advance(&request(flags, command, offset, len)).expect("a reply");
            assert_eq!(step, Step::send(protocol::reply(77, error).to_vec()), "command {command}");
        }
    }

    #[test]
    fn a_write_takes_its_bytes_also_if_it_is_refused() {
        let mut conversation = transmitting();
        for (offset, is_inside) in [(100, true), (SIZE, false)] {
            assert_eq!(conversation.advance(&request(1, 1, offset, 3)), Ok(Step::send(Vec::new())));
            assert_eq!(conversation.needed(), 3);
            let step = conversation.advance(b"abc").expect("a step");
            assert_eq!(step.effect == Effect::Write { cookie: 77, offset }, is_inside, "{step:?}");
            assert_eq!(step.send.is_empty(), is_inside);
        }
        let outcome = conversation.advance(&request(0, 1, 0, MAX_TRANSFER + 1));
        assert_eq!(outcome, Err(NbdError::WriteLength(MAX_TRANSFER + 1)));
        assert_eq!(conversation.advance(&[0; 28]), Err(NbdError::Magic(0)));
    }

    /// Hands over bytes until they are used up. Returns the effects.
    fn drive(conversation: &mut Conversation, mut bytes: &[u8]) -> Result<Vec<Effect>, NbdError> {
        let mut effects = Vec::new();
        while conversation.needed() <= bytes.len() && effects.last() != Some(&Effect::Close) {
            let (now, rest) = bytes.split_at(conversation.needed());
            effects.push(conversation.advance(now)?.effect);
            bytes = rest;
        }
        Ok(effects)
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_or_refused(
            is_transmitting in any::<bool>(),
            valid in proptest::collection::vec((0..10_u16, 0..8_u16, any::<u64>(), 0..9000_u32), 0..4),
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut conversation = if is_transmitting { transmitting() } else { negotiating(3) };
            let mut input: Vec<u8> = Vec::new();
            for (flags, command, offset, len) in valid {
                input.extend(request(flags, command, offset % (2 * SIZE), len));
                if command == 1 {
                    input.resize(input.len() + len as usize, 7);
                }
            }
            input.extend(bytes);
            for effect in drive(&mut conversation, &input).unwrap_or_default() {
                if let Effect::Read { offset, len, .. } | Effect::Zero { offset, len, .. } = effect {
                    prop_assert!(offset + u64::from(len) <= SIZE);
                }
            }
            prop_assert!(conversation.needed() <= MAX_TRANSFER as usize);
        }
    }
}
