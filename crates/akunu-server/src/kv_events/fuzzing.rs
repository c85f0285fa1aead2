//! What a peer sends, for the fuzz target `zmtp`.

use tokio::io::{join, sink};
use tokio::runtime::Builder;

use super::wire::{Received, command, message, receive, shake_hands};

/// The messages and commands of a peer that sends these bytes, written as the server writes them; each has been read
/// again. `None`: the peer is turned away.
pub fn messages(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let runtime = Builder::new_current_thread().build().ok()?;
    runtime.block_on(async {
        let mut stream = join(bytes, sink());
        shake_hands(&mut stream, "PUB").await.ok()?;
        let mut all = Vec::new();
        while let Ok(received) = receive(&mut stream).await {
            let written = match &received {
                Received::Message(frames) => message(&frames.iter().map(Vec::as_slice).collect::<Vec<_>>()),
                Received::Command(name, rest) => command(std::str::from_utf8(name).ok()?, rest),
            };
            assert_eq!(receive(&mut written.as_slice()).await.ok()?, received);
            all.push(written);
        }
        Some(all)
    })
}
