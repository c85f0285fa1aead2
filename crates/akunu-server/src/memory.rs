//! Memory that requests take while they are read and tokenized: a limit for each, and one for all in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use akunu_format::hf::most_values;
use serde_json::Value as Json;

use crate::refusal::{Reason, Refusal};

/// Bytes that a value of a JSON text takes at most besides its text: parsed, copied to a job, and as a value of a template
/// or a grammar. 160 were measured for lists of small objects, 580 for messages of one character, and 690 for these in
/// Anthropic's and Ollama's form, of which there is one more copy.
const VALUE_BYTES: usize = 704;

/// Bytes for the log probability of a token, found and written as JSON, and for each alternative to it.
const SCORE_BYTES: usize = 2048;
const ALTERNATIVE_BYTES: usize = 1024;

/// Bytes for the log probabilities of a token and of alternatives to it.
pub fn score_bytes(alternatives: usize) -> usize {
    SCORE_BYTES.saturating_add(alternatives.saturating_mul(ALTERNATIVE_BYTES))
}

/// The memory of all requests in flight.
#[derive(Debug)]
pub struct RequestMemory {
    limit: usize,
    used: AtomicUsize,
}

impl RequestMemory {
    pub fn new(limit: usize) -> RequestMemory {
        RequestMemory { limit, used: AtomicUsize::new(0) }
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// What one request may take, so that a large one does not keep out all others.
    pub fn of_one(&self) -> usize {
        self.limit / 2
    }
}

/// The memory of one request. Clones share it; it is released with the last of them.
#[derive(Clone, Debug)]
pub struct Charge(Arc<Taken>);

#[derive(Debug)]
struct Taken {
    memory: Arc<RequestMemory>,
    bytes: AtomicUsize,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}

impl Charge {
    pub fn new(memory: &Arc<RequestMemory>) -> Charge {
        Charge(Arc::new(Taken { memory: memory.clone(), bytes: AtomicUsize::new(0) }))
    }

    /// Takes `bytes` more, or refuses the request.
    pub fn take(&self, bytes: usize) -> Result<(), Refusal> {
        let Taken { memory, bytes: own } = &*self.0;
        let mine = own.load(Ordering::Relaxed).saturating_add(bytes);
        if mine > memory.of_one() {
            let message = format!(
                "the request needs {mine} bytes of memory to be read, and one request may take {}: send less in one request, \
                 or raise --max-request-memory",
                memory.of_one()
            );
            return Err(Refusal::new(Reason::TooLarge, message).code("request_too_large"));
        }
        let take = |used: usize| used.checked_add(bytes).filter(|used| *used <= memory.limit);
        if memory.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            let message =
                "the requests in flight take all memory that is set aside for them; try again later";
            return Err(Refusal::new(Reason::Unavailable, message).code("server_busy").retry_after(1));
        }
        own.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// An upper bound of the memory that a JSON text takes when it is parsed and its request is handled.
pub fn json_bytes(text: &[u8]) -> usize {
    let values = most_values(text);
    text.len().saturating_add(VALUE_BYTES.saturating_mul(values))
}

/// The same of the texts called `arguments` in a parsed text: calls have their arguments as JSON in a string, which templates
/// get as values.
pub fn arguments_bytes(value: &Json) -> usize {
    match value {
        Json::Array(list) => list.iter().map(arguments_bytes).fold(0, usize::saturating_add),
        Json::Object(map) => map.iter().fold(0, |sum, (name, value)| {
            sum.saturating_add(match value {
                Json::String(text) if name == "arguments" => json_bytes(text.as_bytes()),
                other => arguments_bytes(other),
            })
        }),
        _ => 0,
    }
}

/// Bytes that a copy of a value takes, about: a node of a map has room for 11 entries.
pub fn copy_bytes(value: &Json) -> usize {
    const NODE: usize = 11 * (size_of::<String>() + size_of::<Json>()) + 16;
    let inner = match value {
        Json::String(text) => text.len(),
        Json::Array(list) => list.iter().map(copy_bytes).sum(),
        Json::Object(map) => {
            let entries = map.iter().map(|(name, value)| name.len() + copy_bytes(value));
            map.len().div_ceil(5) * NODE + entries.sum::<usize>()
        }
        _ => 0,
    };
    size_of::<Json>() + inner
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_in_arguments_are_charged() {
        let call =
            |arguments: &str| serde_json::json!([{ "function": { "name": "a", "arguments": arguments } }]);
        let [few, many] =
            ["[0]".to_string(), format!("[{}0]", "0,".repeat(1000))].map(|a| arguments_bytes(&call(&a)));
        assert!(many > few + 1000 * VALUE_BYTES / 2, "{few} {many}");
        assert_eq!(arguments_bytes(&serde_json::json!({ "content": "[0,0,0]" })), 0);
    }

    #[test]
    fn charges_add_up_and_are_released() {
        let memory = Arc::new(RequestMemory::new(200));
        let charges: Vec<Charge> = (0..2).map(|_| Charge::new(&memory)).collect();
        for charge in &charges {
            charge.take(60).unwrap();
            charge.take(40).unwrap();
        }
        assert_eq!(charges[0].take(1).unwrap_err().reason, Reason::TooLarge);
        let more = Charge::new(&memory);
        assert_eq!((more.take(1).unwrap_err().reason, memory.used()), (Reason::Unavailable, 200));
        let other = charges[0].clone();
        drop(charges);
        assert_eq!(memory.used(), 100);
        drop(other);
        assert_eq!(memory.used(), 0);
        more.take(100).unwrap();
        assert_eq!(more.take(usize::MAX).unwrap_err().reason, Reason::TooLarge);
    }

    #[test]
    fn copies_are_counted_with_their_nodes() {
        let of = |json: serde_json::Value| copy_bytes(&json);
        let value = size_of::<Json>();
        assert_eq!(of(serde_json::json!(["abc", 1])), 3 * value + 3);
        assert!(of(serde_json::json!({ "a": 1 })) > 11 * value);
        assert_eq!(of(serde_json::json!({})), value);
    }

    #[test]
    fn values_of_json_are_counted_outside_of_strings() {
        let values = |text: &str| (json_bytes(text.as_bytes()) - text.len()) / VALUE_BYTES;
        assert_eq!(values("1"), 1);
        assert_eq!(values("[0,0,0]"), 4);
        assert_eq!(values(r#"{"a,b:[": "\"{\\", "c": []}"#), 6);
        assert_eq!(values(r#""\\\"[[[[""#), 1);
    }
}
