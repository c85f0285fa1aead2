//! Events of the cache, as a subscriber of ZeroMQ receives them.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use akunu_server::{KvEventsForm, KvEventsOptions};
use serde_json::json;

use crate::serve::{Served, TALES, serve_with};

/// A free port: the system gives it to nobody else for a while.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A peer of the server's sockets that sends and reads exact bytes.
struct Peer(TcpStream);

impl Peer {
    fn connect(port: u16, kind: &str) -> Peer {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut greeting = [0; 64];
        (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xff, 0x7f, 3, 1);
        greeting[12..16].copy_from_slice(b"NULL");
        stream.write_all(&greeting).unwrap();
        let ready = [b"\x05READY\x0bSocket-Type\0\0\0", &[kind.len() as u8][..], kind.as_bytes()].concat();
        stream.write_all(&[&[4, ready.len() as u8], &ready[..]].concat()).unwrap();
        let mut theirs = [0; 64];
        stream.read_exact(&mut theirs).unwrap();
        assert_eq!((theirs[0], theirs[9], theirs[10], &theirs[12..16]), (0xff, 0x7f, 3, &b"NULL"[..]));
        let mut peer = Peer(stream);
        assert!(peer.frame().1.starts_with(b"\x05READY"));
        peer
    }

    fn send(&mut self, flags: u8, body: &[u8]) {
        self.0.write_all(&[&[flags, body.len() as u8], body].concat()).unwrap();
    }

    fn frame(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 1];
        self.0.read_exact(&mut head).unwrap();
        let mut len = [0; 8];
        match head[0] & 2 {
            0 => self.0.read_exact(&mut len[7..]).unwrap(),
            _ => self.0.read_exact(&mut len).unwrap(),
        }
        let mut body = vec![0; u64::from_be_bytes(len) as usize];
        self.0.read_exact(&mut body).unwrap();
        (head[0], body)
    }

    fn message(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            let (flags, body) = self.frame();
            frames.push(body);
            if flags & 1 == 0 {
                return frames;
            }
        }
    }
}

fn number(frame: &[u8]) -> u64 {
    u64::from_be_bytes(frame.try_into().unwrap())
}

/// A value of MessagePack, as JSON.
fn unpack(bytes: &mut &[u8]) -> serde_json::Value {
    let take = |bytes: &mut &[u8], count: usize| -> u64 {
        let (number, rest) = bytes.split_at(count);
        *bytes = rest;
        number.iter().fold(0, |all, byte| all << 8 | u64::from(*byte))
    };
    let list = |bytes: &mut &[u8], len: u64| (0..len).map(|_| unpack(bytes)).collect();
    match take(bytes, 1) {
        head @ 0..0x80 => head.into(),
        head @ 0x90..0xa0 => list(bytes, head & 15),
        0xc0 => serde_json::Value::Null,
        head @ 0xcc..0xd0 => take(bytes, 1 << (head - 0xcc)).into(),
        0xcb => f64::from_bits(take(bytes, 8)).into(),
        0xd9 => {
            let len = take(bytes, 1) as usize;
            let (text, rest) = bytes.split_at(len);
            *bytes = rest;
            std::str::from_utf8(text).unwrap().into()
        }
        0xdc => {
            let len = take(bytes, 2);
            list(bytes, len)
        }
        head => panic!("{head:x}"),
    }
}

/// Blocks by their hashes: the hash before it, and its tokens.
type Index = HashMap<u64, (Option<u64>, Vec<u64>)>;

/// Applies a batch as a router does.
fn apply(index: &mut Index, payload: &[u8]) {
    let mut rest = payload;
    let batch = unpack(&mut rest);
    assert!(rest.is_empty() && batch[0].as_f64().unwrap() > 1e9 && batch[2] == 0, "{batch}");
    for event in batch[1].as_array().unwrap() {
        let hashes = || event[1].as_array().unwrap().iter().map(|hash| hash.as_u64().unwrap());
        match event[0].as_str().unwrap() {
            "BlockStored" => {
                let size = event[4].as_u64().unwrap() as usize;
                let tokens: Vec<u64> =
                    event[3].as_array().unwrap().iter().map(|token| token.as_u64().unwrap()).collect();
                assert_eq!(tokens.len(), size * hashes().count());
                assert_eq!((&event[5], &event[6], &event[7]), (&json!(null), &json!("GPU"), &json!(null)));
                let mut parent = event[2].as_u64();
                for (hash, tokens) in hashes().zip(tokens.chunks(size)) {
                    assert!(parent.is_none_or(|parent| index.contains_key(&parent)));
                    assert!(index.insert(hash, (parent, tokens.to_vec())).is_none());
                    parent = Some(hash);
                }
            }
            "BlockRemoved" => hashes().for_each(|hash| assert!(index.remove(&hash).is_some())),
            "AllBlocksCleared" => index.clear(),
            other => panic!("{other}"),
        }
    }
}

fn ask(server: &Served, prompt: &str) {
    server.ok("/v1/completions", &json!({ "prompt": prompt, "max_tokens": 1 }));
}

#[test]
fn a_subscriber_knows_what_is_in_the_cache() {
    let (events, replay) = (free_port(), free_port());
    let endpoint = |port: u16| format!("tcp://127.0.0.1:{port}").parse().unwrap();
    let server = serve_with(|options| {
        // A cache that is too small for all prompts.
        options.models.engine = options.models.engine.clone().batching(2);
        options.models.engine.context = Some(512);
        options.kv_events = Some(KvEventsOptions {
            publish: endpoint(events),
            replay: Some(endpoint(replay)),
            topic: Some("kv@pod@{model}".into()),
            form: KvEventsForm::List,
        });
    });
    let mut all = Peer::connect(events, "SUB");
    let mut other = Peer::connect(events, "SUB");
    let mut none = Peer::connect(events, "XSUB");
    // The forms of ZMTP 3.0 and 3.1.
    all.send(0, b"\x01kv@");
    other.send(4, b"\x09SUBSCRIBEkv@pod@other");
    none.send(0, b"\x01kv@");
    none.send(0, b"\x00kv@");
    all.send(4, b"\x04PING\0\x0ahello");
    none.send(4, b"\x04PING\0\x0ahello");
    for peer in [&mut all, &mut none] {
        assert_eq!(peer.frame(), (4, b"\x04PONGhello".to_vec()));
    }
    server.until(&["akunu_kv_event_subscribers"], 3.0);
    for index in 0..12 {
        ask(&server, &format!("The story number {index}. ").repeat(20));
        ask(&server, &format!("The story number {index}. ").repeat(25));
    }
    server.until_idle();
    let batches = server.metric("akunu_kv_event_batches_total") as u64;
    let mut index = Index::new();
    let mut payloads = Vec::new();
    for expected in 0..batches {
        let [topic, sequence, payload] = all.message().try_into().unwrap();
        assert_eq!((topic, number(&sequence)), (format!("kv@pod@{TALES}").into_bytes(), expected));
        apply(&mut index, &payload);
        payloads.push(payload);
    }
    assert!(index.len() > 2);
    assert_eq!(index.len() as f64, server.metric("akunu_kv_known_blocks"));
    // The prompt's tokens are those of a path in the index.
    let prompt = "The story number 11. ".repeat(20);
    let rendered = server.ok("/v1/completions/render", &json!({ "prompt": prompt }));
    let ids: Vec<u64> =
        rendered[0]["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    let mut parent = None;
    for tokens in ids.chunks_exact(64) {
        let is_next = |(_, block): &(&u64, &(Option<u64>, Vec<u64>))| block.0 == parent && block.1 == tokens;
        parent = Some(*index.iter().find(is_next).unwrap().0);
    }
    assert!(parent.is_some());
    server.post("/flush_cache", &json!({}));
    let flushed = all.message();
    apply(&mut index, &flushed[2]);
    assert_eq!(index.len(), 0);

    // What was missed is repeated, from a number on.
    let mut client = Peer::connect(replay, "DEALER");
    client.send(1, b"");
    client.send(0, &2_u64.to_be_bytes());
    for expected in 2..=batches {
        let [empty, sequence, payload] = client.message().try_into().unwrap();
        assert_eq!((empty.len(), number(&sequence)), (0, expected));
        assert_eq!(payload, *payloads.get(expected as usize).unwrap_or(&flushed[2]));
    }
    let [_, end, last] = client.message().try_into().unwrap();
    assert_eq!((number(&end), last.len()), (u64::MAX, 0));

    // The others have subscribed to nothing of this.
    for peer in [&mut other, &mut none] {
        peer.0.set_nonblocking(true).unwrap();
        assert!(peer.0.read(&mut [0]).is_err());
    }
    drop((all, other, none));
    server.until(&["akunu_kv_event_subscribers"], 0.0);
}

#[test]
fn peers_that_speak_something_else_are_turned_away() {
    let port = free_port();
    let publish = format!("tcp://127.0.0.1:{port}").parse().unwrap();
    let server = serve_with(|options| {
        options.kv_events =
            Some(KvEventsOptions { publish, replay: None, topic: None, form: KvEventsForm::Map });
    });
    for bytes in [
        b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(3),
        vec![0xff; 200],
        // Another mechanism, and an older version.
        [&[0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0][..], b"CURVE", &[0; 100]].concat(),
        [&[0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 1, 0][..], &[0; 100]].concat(),
    ] {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(&bytes).unwrap();
        // The server's greeting, and the end.
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() <= 64, "{}", answer.len());
    }
    let mut peer = Peer::connect(port, "PULL");
    assert_eq!(peer.0.read(&mut [0]).unwrap_or(0), 0);
    ask(&server, "Once upon a time");
    assert_eq!(server.metric("akunu_kv_event_subscribers"), 0.0);
}
