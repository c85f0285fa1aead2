//! Events of the cache over ZeroMQ, for routers that send a request to the server that has its prefix: llm-d, Dynamo and
//! vLLM's router. Decision 41 explains the form.

mod batch;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod msgpack;
mod sockets;
mod wire;

use std::collections::VecDeque;
use std::fmt::{self, Display};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use akunu::CacheEvent;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::error::ServeError;
use batch::batch;

/// Where and how events are published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEventsOptions {
    /// The PUB socket.
    pub publish: Endpoint,
    /// The ROUTER socket that repeats batches that a subscriber has missed.
    pub replay: Option<Endpoint>,
    /// The topic, in which `{model}` stands for a model's name. `None`: that of the form.
    pub topic: Option<String>,
    pub form: KvEventsForm,
}

/// How an event is written in MessagePack. Versions of vLLM differ, and so do routers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvEventsForm {
    /// A list that begins with the kind of event, for llm-d. Its topics are `kv@ADDRESS@MODEL`.
    #[default]
    List,
    /// A map, with the kind of event as its `type`, for vLLM's router. It takes only the empty topic.
    Map,
}

/// What stands for a model's name in topics.
const MODEL: &str = "{model}";

/// An address to listen on: `tcp://HOST:PORT`, where `*` is every address of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    host: String,
    port: u16,
}

impl FromStr for Endpoint {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Endpoint, &'static str> {
        let parts = text.strip_prefix("tcp://").and_then(|address| address.rsplit_once(':'));
        let expected = "it must be tcp://HOST:PORT";
        let (host, port) = parts.filter(|(host, _)| !host.is_empty()).ok_or(expected)?;
        let host = if host == "*" { "0.0.0.0" } else { host };
        Ok(Endpoint { host: host.trim_matches(['[', ']']).into(), port: port.parse().map_err(|_| expected)? })
    }
}

impl Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tcp://{}:{}", self.host, self.port)
    }
}

/// Batches that are kept for subscribers that have missed some, and the bytes of them.
const KEPT: usize = 10_000;
const KEPT_BYTES: usize = 64 << 20;

/// Batches that wait for a subscriber; one that is slower misses some.
const WAITING: usize = 1000;

/// Subscribers, and clients of the ROUTER socket.
const MOST_PEERS: usize = 64;

/// The most topics of a subscriber.
const MOST_TOPICS: usize = 64;

/// Publishes events. Clones publish to the same sockets.
#[derive(Clone, Debug)]
pub struct KvEvents(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    topic: String,
    form: KvEventsForm,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the next batch.
    next: u64,
    /// The last batches with their numbers.
    kept: VecDeque<(u64, Arc<Vec<u8>>)>,
    kept_bytes: usize,
    subscribers: Vec<Subscriber>,
    /// The number of the next subscriber.
    id: u64,
    /// Batches that subscribers were too slow for.
    missed: u64,
}

#[derive(Debug)]
struct Subscriber {
    id: u64,
    /// Beginnings of topics.
    topics: Vec<Vec<u8>>,
    /// Bytes to send.
    queue: Sender<Arc<Vec<u8>>>,
}

/// What is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KvEventCounts {
    pub(crate) batches: u64,
    pub(crate) subscribers: usize,
    pub(crate) missed: u64,
}

impl KvEvents {
    /// Listens on the sockets. `address` is the server's own.
    pub(crate) fn listen(
        runtime: &Handle,
        options: &KvEventsOptions,
        address: &str,
    ) -> Result<KvEvents, ServeError> {
        let topic = options.topic.clone().unwrap_or_else(|| match options.form {
            KvEventsForm::List => format!("kv@{address}@{MODEL}"),
            KvEventsForm::Map => String::new(),
        });
        let events = KvEvents(Arc::new(Shared { topic, form: options.form, state: Mutex::default() }));
        let listening = runtime.block_on(sockets::listen(options, &events));
        listening.map_err(|(address, error)| ServeError::Listen { address, error })?;
        Ok(events)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn counts(&self) -> KvEventCounts {
        let state = self.state();
        KvEventCounts { batches: state.next, subscribers: state.subscribers.len(), missed: state.missed }
    }

    /// Publishes what happened in the cache of a model. `None`: nothing is in it.
    pub(crate) fn publish(&self, model: &str, events: Option<Vec<CacheEvent>>, block: usize) {
        let payload = Arc::new(batch(events, block, self.0.form));
        let topic = self.0.topic.replace(MODEL, model);
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.keep(number, payload.clone());
        let message = Arc::new(wire::message(&[topic.as_bytes(), &number.to_be_bytes(), payload.as_slice()]));
        let is_wanted = |subscriber: &&Subscriber| {
            subscriber.topics.iter().any(|prefix| topic.as_bytes().starts_with(prefix))
        };
        // A subscriber that does not keep up sees a gap in the numbers.
        let failed = |subscriber: &&Subscriber| subscriber.queue.try_send(message.clone()).is_err();
        let missed = state.subscribers.iter().filter(is_wanted).filter(failed).count();
        state.missed += missed as u64;
    }

    /// A new subscriber: its number, and what is to be sent to it. `None`: there are too many.
    fn subscribe(&self) -> Option<(u64, Receiver<Arc<Vec<u8>>>)> {
        let (queue, receiver) = channel(WAITING);
        let mut state = self.state();
        if state.subscribers.len() >= MOST_PEERS {
            return None;
        }
        let id = state.id;
        state.id += 1;
        state.subscribers.push(Subscriber { id, topics: Vec::new(), queue });
        Some((id, receiver))
    }

    fn unsubscribe(&self, id: u64) {
        self.state().subscribers.retain(|subscriber| subscriber.id != id);
    }

    /// Adds or removes the beginning of a topic of a subscriber.
    fn change_topic(&self, id: u64, topic: &[u8], add: bool) {
        let mut state = self.state();
        let Some(subscriber) = state.subscribers.iter_mut().find(|subscriber| subscriber.id == id) else {
            return;
        };
        let topics = &mut subscriber.topics;
        match topics.iter().position(|other| other == topic) {
            _ if add && topics.len() < MOST_TOPICS => topics.push(topic.to_vec()),
            Some(index) if !add => drop(topics.swap_remove(index)),
            _ => {}
        }
    }

    /// Sends bytes to a subscriber, if it keeps up.
    fn send(&self, id: u64, bytes: Vec<u8>) {
        let state = self.state();
        if let Some(subscriber) = state.subscribers.iter().find(|subscriber| subscriber.id == id) {
            let _ = subscriber.queue.try_send(Arc::new(bytes));
        }
    }

    /// The kept batches from a number on.
    fn since(&self, first: u64) -> Vec<(u64, Arc<Vec<u8>>)> {
        self.state().kept.iter().filter(|(number, _)| *number >= first).cloned().collect()
    }
}

impl State {
    fn keep(&mut self, number: u64, payload: Arc<Vec<u8>>) {
        self.kept_bytes += payload.len();
        self.kept.push_back((number, payload));
        while self.kept.len() > KEPT || self.kept_bytes > KEPT_BYTES {
            let Some((_, gone)) = self.kept.pop_front() else { return };
            self.kept_bytes -= gone.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_name_a_host_and_a_port() {
        let of = |text: &str| Endpoint::from_str(text).map(|endpoint| endpoint.to_string());
        assert_eq!(of("tcp://*:5557").unwrap(), "tcp://0.0.0.0:5557");
        assert_eq!(of("tcp://[::1]:80").unwrap(), "tcp://::1:80");
        for text in ["", "tcp://", "tcp://:1", "127.0.0.1:5557", "ipc:///x", "tcp://a:b", "tcp://a:70000"] {
            assert!(of(text).is_err(), "{text}");
        }
    }

    #[test]
    fn slow_subscribers_miss_batches_and_others_do_not() {
        let events = KvEvents(Arc::new(Shared {
            topic: "kv@pod@{model}".into(),
            form: KvEventsForm::List,
            state: Mutex::default(),
        }));
        let (slow, mut of_slow) = events.subscribe().unwrap();
        let (other, mut of_other) = events.subscribe().unwrap();
        events.change_topic(slow, b"kv@pod@a", true);
        events.change_topic(other, b"kv@pod@b", true);
        let more = 5;
        for _ in 0..WAITING + more {
            events.publish("a", None, 64);
        }
        events.publish("b", None, 64);
        let mut got = 0;
        while of_slow.try_recv().is_ok() {
            got += 1;
        }
        assert_eq!(got, WAITING);
        assert!(of_other.try_recv().is_ok() && of_other.try_recv().is_err());
        let batches = (WAITING + more + 1) as u64;
        assert_eq!(events.counts(), KvEventCounts { batches, subscribers: 2, missed: more as u64 });
        assert_eq!(
            events.since(batches - 2).iter().map(|(number, _)| *number).collect::<Vec<_>>(),
            [batches - 2, batches - 1]
        );
        events.change_topic(slow, b"kv@pod@a", false);
        events.publish("a", None, 64);
        assert!(of_slow.try_recv().is_err());
        events.unsubscribe(slow);
        events.unsubscribe(other);
        assert_eq!(events.counts().subscribers, 0);
        let peers: Vec<_> = std::iter::from_fn(|| events.subscribe()).collect();
        assert_eq!(peers.len(), MOST_PEERS);
    }
}
