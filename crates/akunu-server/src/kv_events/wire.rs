//! Frames of ZMTP 3, the protocol of ZeroMQ's sockets, without encryption (RFC 23).

use std::io::{Error, ErrorKind, Result};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// More bytes of a frame are not read: what peers send here are subscriptions and numbers.
const MOST: u64 = 4096;

/// More frames of a message are not read.
const MOST_FRAMES: usize = 8;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// The frames of a message.
    Message(Vec<Vec<u8>>),
    /// A command's name and the rest of it.
    Command(Vec<u8>, Vec<u8>),
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}

/// Greets a peer, and learns the type of its socket.
pub(super) async fn shake_hands(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    own: &str,
) -> Result<Vec<u8>> {
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting).await?;
    let mut theirs = [0; 64];
    stream.read_exact(&mut theirs).await?;
    if (theirs[0], theirs[9]) != (0xff, 0x7f) || theirs[10] < 3 {
        return Err(invalid("not ZMTP 3"));
    }
    if theirs[12..32] != greeting[12..32] {
        return Err(invalid("another mechanism than NULL"));
    }
    let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
    ready.extend((own.len() as u32).to_be_bytes());
    ready.extend(own.as_bytes());
    stream.write_all(&frame(COMMAND, &ready)).await?;
    match receive(stream).await? {
        Received::Command(name, properties) if name == b"READY" => {
            property(&properties, b"socket-type").ok_or_else(|| invalid("no type of socket"))
        }
        _ => Err(invalid("no READY")),
    }
}

/// A property of a READY command.
fn property(mut rest: &[u8], wanted: &[u8]) -> Option<Vec<u8>> {
    loop {
        let (len, after) = rest.split_first()?;
        let (name, after) = after.split_at_checked(usize::from(*len))?;
        let (len, after) = after.split_at_checked(4)?;
        let len = u32::from_be_bytes(len.try_into().ok()?) as usize;
        let (value, after) = after.split_at_checked(len)?;
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value.to_vec());
        }
        rest = after;
    }
}

fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(body.len() + 9);
    push_frame(&mut frame, flags, body);
    frame
}

fn push_frame(to: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(len) => to.extend([flags, len]),
        Err(_) => {
            to.push(flags | LONG);
            to.extend((body.len() as u64).to_be_bytes());
        }
    }
    to.extend(body);
}

/// The bytes of a message.
pub(super) fn message(frames: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (index, body) in frames.iter().enumerate() {
        push_frame(&mut bytes, if index + 1 < frames.len() { MORE } else { 0 }, body);
    }
    bytes
}

/// The bytes of a command.
pub(super) fn command(name: &str, rest: &[u8]) -> Vec<u8> {
    frame(COMMAND, &[&[name.len() as u8], name.as_bytes(), rest].concat())
}

/// Receives a message or a command. A future that is dropped loses bytes.
pub(super) async fn receive(stream: &mut (impl AsyncRead + Unpin)) -> Result<Received> {
    let mut frames = Vec::new();
    loop {
        let flags = stream.read_u8().await?;
        let len = match flags & LONG {
            0 => stream.read_u8().await?.into(),
            _ => stream.read_u64().await?,
        };
        if len > MOST || frames.len() == MOST_FRAMES {
            return Err(invalid("a long message"));
        }
        let mut body = vec![0; len as usize];
        stream.read_exact(&mut body).await?;
        if flags & COMMAND != 0 {
            let (len, rest) = body.split_first().ok_or_else(|| invalid("a command without a name"))?;
            let parts = rest.split_at_checked(usize::from(*len));
            let (name, rest) = parts.ok_or_else(|| invalid("a command without a name"))?;
            return Ok(Received::Command(name.to_vec(), rest.to_vec()));
        }
        frames.push(body);
        if flags & MORE == 0 {
            return Ok(Received::Message(frames));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Received> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(receive(&mut &*bytes))
    }

    #[test]
    fn what_is_written_is_read() {
        let long = [7; 300];
        let frames: [&[u8]; 3] = [b"", b"topic", &long];
        let expected = Received::Message(frames.iter().map(|frame| frame.to_vec()).collect());
        assert_eq!(read(&message(&frames)).unwrap(), expected);
        let expected = Received::Command(b"PONG".to_vec(), b"x".to_vec());
        assert_eq!(read(&command("PONG", b"x")).unwrap(), expected);
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        for bytes in [
            &b""[..],
            b"\0",
            b"\0\x05abc",
            b"\x04\0",
            b"\x04\x02\x05a",
            &[2, 0xff, 0, 0, 0, 0, 0, 0, 0],
            &[MORE, 0].repeat(9),
        ] {
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
        for properties in [&b""[..], b"\x0bsocket-type", b"\x0bsocket-type\0\0\0\x09SUB", b"\x01a\0\0\0\0"] {
            assert_eq!(property(properties, b"socket-type"), None);
        }
        assert_eq!(
            property(b"\x01a\0\0\0\x01b\x0bSocket-Type\0\0\0\x03SUB", b"socket-type").unwrap(),
            b"SUB"
        );
    }
}
