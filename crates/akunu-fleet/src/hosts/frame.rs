//! Frames: the length of the body as four bytes, least significant first, its kind as one byte, and the body.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The most bytes of a frame before its sender has proved that it knows the secret.
pub(crate) const HANDSHAKE_BYTES: usize = 1 << 10;
/// The most bytes of any other frame. Longer uploads are sent in parts.
pub(crate) const FRAME_BYTES: usize = 64 << 20;

const HEAD: usize = 5;
/// The fewest bytes of a message that pass in a second, so that a peer that is slow cannot hold a message for ever.
const SLOWEST: u64 = 256 << 10;

/// Reads or writes one message. It may take so long in all, and a second more for each [`SLOWEST`] bytes. The time of a
/// message that is read begins with its first byte; how long that may take is a timeout of the connection.
#[derive(Debug)]
pub(crate) struct Paced<'a> {
    stream: &'a TcpStream,
    patience: Duration,
    begun: Option<Instant>,
    bytes: u64,
}

impl<'a> Paced<'a> {
    pub(crate) fn new(stream: &'a TcpStream, patience: Duration) -> Paced<'a> {
        Paced { stream, patience, begun: None, bytes: 0 }
    }

    /// Whether a byte has passed.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    fn passed(&mut self, bytes: usize) -> std::io::Result<usize> {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        self.bytes += bytes as u64;
        let most = self.patience + Duration::from_millis(self.bytes * 1000 / SLOWEST);
        if begun.elapsed() > most { Err(ErrorKind::TimedOut.into()) } else { Ok(bytes) }
    }
}

impl Read for Paced<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let count = self.stream.read(bytes)?;
        self.passed(count)
    }
}

impl Write for Paced<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.begun.get_or_insert_with(Instant::now);
        let count = self.stream.write(bytes)?;
        self.passed(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("the connection was closed")]
    Closed,
    #[error("it took too long")]
    Late,
    #[error("the connection ended within a message")]
    Truncated,
    #[error("a message of {bytes} bytes is longer than the {most} that are allowed")]
    TooLong { bytes: usize, most: usize },
    #[error("a message is malformed: {0}")]
    Malformed(&'static str),
    #[error("the connection failed: {0}")]
    Io(std::io::Error),
}

impl From<std::io::Error> for FrameError {
    fn from(error: std::io::Error) -> FrameError {
        match error.kind() {
            // What a timeout of a socket is differs between systems.
            ErrorKind::WouldBlock | ErrorKind::TimedOut => FrameError::Late,
            ErrorKind::UnexpectedEof => FrameError::Truncated,
            ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => {
                FrameError::Closed
            }
            _ => FrameError::Io(error),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) body: Vec<u8>,
}

impl Frame {
    /// Reads a frame of at most `most` bytes. Memory grows with what has arrived, whatever length is announced.
    pub(crate) fn read(from: &mut impl Read, most: usize) -> Result<Frame, FrameError> {
        let mut head = [0; HEAD];
        loop {
            match from.read(&mut head[..1]) {
                Ok(0) => return Err(FrameError::Closed),
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        from.read_exact(&mut head[1..])?;
        let [a, b, c, d, kind] = head;
        let bytes = u32::from_le_bytes([a, b, c, d]) as usize;
        if bytes > most {
            return Err(FrameError::TooLong { bytes, most });
        }
        let mut body = Vec::new();
        from.take(bytes as u64).read_to_end(&mut body)?;
        if body.len() < bytes {
            return Err(FrameError::Truncated);
        }
        Ok(Frame { kind, body })
    }

    pub(crate) fn write(&self, to: &mut impl Write) -> Result<(), FrameError> {
        if self.body.len() > FRAME_BYTES {
            return Err(FrameError::TooLong { bytes: self.body.len(), most: FRAME_BYTES });
        }
        // One write, so that small frames are one packet.
        let mut bytes = Vec::with_capacity(HEAD + self.body.len());
        bytes.extend((self.body.len() as u32).to_le_bytes());
        bytes.push(self.kind);
        bytes.extend(&self.body);
        Ok(to.write_all(&bytes)?)
    }
}

/// Writes the fields of a message.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn number(mut self, number: u64) -> Writer {
        self.0.extend(number.to_le_bytes());
        self
    }

    pub(crate) fn flag(self, flag: bool) -> Writer {
        self.number(u64::from(flag))
    }

    /// Whether there is a number, and the number or 0.
    pub(crate) fn optional(self, number: Option<u64>) -> Writer {
        self.flag(number.is_some()).number(number.unwrap_or(0))
    }

    /// The length, and the bytes.
    pub(crate) fn bytes(self, bytes: &[u8]) -> Writer {
        let mut with_length = self.number(bytes.len() as u64);
        with_length.0.extend(bytes);
        with_length
    }
}

/// Reads the fields of a message.
#[derive(Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], FrameError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(FrameError::Malformed("it ends early"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn number(&mut self) -> Result<u64, FrameError> {
        let bytes = self.take(8)?.try_into().map_err(|_| FrameError::Malformed("it ends early"))?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// A number that counts things on this machine.
    pub(crate) fn count(&mut self) -> Result<usize, FrameError> {
        usize::try_from(self.number()?).map_err(|_| FrameError::Malformed("a number is too large"))
    }

    /// A handle of a device.
    pub(crate) fn handle(&mut self) -> Result<u32, FrameError> {
        u32::try_from(self.number()?).map_err(|_| FrameError::Malformed("a handle is too large"))
    }

    pub(crate) fn flag(&mut self) -> Result<bool, FrameError> {
        match self.number()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(FrameError::Malformed("a flag is neither 0 nor 1")),
        }
    }

    pub(crate) fn optional(&mut self) -> Result<Option<u64>, FrameError> {
        let (is_some, number) = (self.flag()?, self.number()?);
        match (is_some, number) {
            (false, 1..) => Err(FrameError::Malformed("a number that is left out has a value")),
            _ => Ok(is_some.then_some(number)),
        }
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], FrameError> {
        let count = self.count()?;
        self.take(count)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, FrameError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| FrameError::Malformed("a text is not UTF-8"))
    }

    /// Whole `u32`s.
    pub(crate) fn words(&mut self) -> Result<Vec<u32>, FrameError> {
        let (words, rest) = self.bytes()?.as_chunks::<4>();
        match rest {
            [] => Ok(words.iter().map(|word| u32::from_le_bytes(*word)).collect()),
            _ => Err(FrameError::Malformed("a list is not whole numbers")),
        }
    }

    /// Nothing follows.
    pub(crate) fn end(&self) -> Result<(), FrameError> {
        if self.0.is_empty() { Ok(()) } else { Err(FrameError::Malformed("it is longer than its fields")) }
    }
}
