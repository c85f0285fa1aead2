//! The PUB socket and the ROUTER socket.

use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::Receiver;
use tokio::time::{sleep, timeout};

use super::wire::{Received, command, message, receive, shake_hands};
use super::{Endpoint, KvEvents, KvEventsOptions, MOST_PEERS};

/// How long a peer may take to greet, and to take what is sent to it.
const HANDSHAKE: Duration = Duration::from_secs(10);
const WRITE: Duration = Duration::from_secs(60);

/// The number after the last batch of a replay.
const END: [u8; 8] = [0xff; 8];

async fn bind(endpoint: &Endpoint) -> std::result::Result<TcpListener, (String, Error)> {
    let bound = TcpListener::bind((endpoint.host.as_str(), endpoint.port)).await;
    bound.map_err(|error| (endpoint.to_string(), error))
}

/// Binds the sockets, and serves them until the runtime ends.
pub(super) async fn listen(
    options: &KvEventsOptions,
    events: &KvEvents,
) -> std::result::Result<(), (String, Error)> {
    let publish = bind(&options.publish).await?;
    let replay = match &options.replay {
        Some(endpoint) => Some(bind(endpoint).await?),
        None => None,
    };
    tokio::spawn(accept(publish, events.clone(), subscriber));
    if let Some(replay) = replay {
        tokio::spawn(accept(replay, events.clone(), replayed));
    }
    Ok(())
}

async fn accept<F: Future<Output = Result<()>> + Send + 'static>(
    listener: TcpListener,
    events: KvEvents,
    serve: fn(TcpStream, KvEvents) -> F,
) {
    let peers = Arc::new(Semaphore::new(MOST_PEERS));
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Beyond the limit, connections are closed.
                let Ok(place) = peers.clone().try_acquire_owned() else { continue };
                let serving = serve(stream, events.clone());
                tokio::spawn(async move {
                    // An error ends the connection; the peer connects again.
                    let _ = serving.await;
                    drop(place);
                });
            }
            // Most likely out of file descriptors.
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

fn wrong_type() -> Error {
    Error::new(ErrorKind::InvalidData, "another type of socket")
}

/// Removes a subscriber when its connection ends.
struct Subscribed {
    events: KvEvents,
    id: u64,
}

impl Drop for Subscribed {
    fn drop(&mut self) {
        self.events.unsubscribe(self.id);
    }
}

async fn subscriber(mut stream: TcpStream, events: KvEvents) -> Result<()> {
    stream.set_nodelay(true)?;
    let kind = timeout(HANDSHAKE, shake_hands(&mut stream, "PUB")).await??;
    if kind != b"SUB" && kind != b"XSUB" {
        return Err(wrong_type());
    }
    let Some((id, queue)) = events.subscribe() else { return Ok(()) };
    let subscribed = Subscribed { events: events.clone(), id };
    let (reader, writer) = stream.into_split();
    let reading = tokio::spawn(async move {
        let _ = topics(reader, &events, id).await;
        // Then the queue has no sender any more, and the writer ends too.
        drop(subscribed);
    });
    let written = write(writer, queue).await;
    reading.abort();
    written
}

/// Reads what a subscriber subscribes to, in the forms of ZMTP 3.0 and 3.1.
async fn topics(mut reader: OwnedReadHalf, events: &KvEvents, id: u64) -> Result<()> {
    loop {
        match receive(&mut reader).await? {
            Received::Message(frames) => match frames.first().and_then(|frame| frame.split_first()) {
                Some((1, topic)) => events.change_topic(id, topic, true),
                Some((0, topic)) => events.change_topic(id, topic, false),
                _ => {}
            },
            Received::Command(name, rest) => match name.as_slice() {
                b"SUBSCRIBE" => events.change_topic(id, &rest, true),
                b"CANCEL" => events.change_topic(id, &rest, false),
                // After the time to live there is what the answer repeats.
                b"PING" => events.send(id, command("PONG", rest.get(2..).unwrap_or_default())),
                _ => {}
            },
        }
    }
}

async fn write(mut writer: OwnedWriteHalf, mut queue: Receiver<Arc<Vec<u8>>>) -> Result<()> {
    while let Some(bytes) = queue.recv().await {
        timeout(WRITE, writer.write_all(&bytes)).await??;
    }
    Ok(())
}

/// Answers requests with an empty frame and the number of a batch: all batches from there on, then the end.
async fn replayed(mut stream: TcpStream, events: KvEvents) -> Result<()> {
    stream.set_nodelay(true)?;
    let kind = timeout(HANDSHAKE, shake_hands(&mut stream, "ROUTER")).await??;
    if !matches!(kind.as_slice(), b"REQ" | b"DEALER" | b"ROUTER") {
        return Err(wrong_type());
    }
    loop {
        let frames = match receive(&mut stream).await? {
            Received::Message(frames) => frames,
            Received::Command(name, rest) => {
                if name == b"PING" {
                    let pong = command("PONG", rest.get(2..).unwrap_or_default());
                    timeout(WRITE, stream.write_all(&pong)).await??;
                }
                continue;
            }
        };
        let first = match frames.as_slice() {
            [empty, first] if empty.is_empty() => <[u8; 8]>::try_from(first.as_slice()).ok(),
            _ => None,
        };
        let Some(first) = first else {
            return Err(Error::new(ErrorKind::InvalidData, "not the number of a batch"));
        };
        for (number, payload) in events.since(u64::from_be_bytes(first)) {
            let bytes = message(&[b"", &number.to_be_bytes(), payload.as_slice()]);
            timeout(WRITE, stream.write_all(&bytes)).await??;
        }
        timeout(WRITE, stream.write_all(&message(&[b"", &END, b""]))).await??;
    }
}
