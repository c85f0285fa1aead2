//! The form of events: a batch of vLLM's `KVEventBatch`.

use std::time::{SystemTime, UNIX_EPOCH};

use akunu::CacheEvent;

use super::KvEventsForm;
use super::msgpack::Packer;

/// Where blocks are: what a model reads directly. Routers take other names for slower memory.
const MEDIUM: &str = "GPU";

/// What an event is about, with what follows it directly in a text or in the list.
#[derive(Debug, PartialEq, Eq)]
enum Event {
    Stored { hashes: Vec<u64>, parent: Option<u64>, tokens: Vec<u32> },
    Removed { hashes: Vec<u64> },
    Cleared,
}

/// The bytes of a batch: `[time, events, rank]`. `None`: all blocks are gone.
pub(super) fn batch(events: Option<Vec<CacheEvent>>, block: usize, form: KvEventsForm) -> Vec<u8> {
    let events = events.map_or_else(|| vec![Event::Cleared], joined);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut packer = Packer::default();
    packer.list(3);
    packer.float(time.as_secs_f64());
    packer.list(events.len());
    for event in &events {
        pack(event, block, Fields { form, packer: &mut packer });
    }
    packer.integer(0);
    packer.0
}

/// Joins blocks of one text, and blocks that are removed together.
fn joined(events: Vec<CacheEvent>) -> Vec<Event> {
    let mut all = Vec::new();
    for event in events {
        match (all.last_mut(), event) {
            (
                Some(Event::Stored { hashes, tokens, .. }),
                CacheEvent::Stored { hash, parent, tokens: more, .. },
            ) if parent.is_some() && parent == hashes.last().copied() => {
                hashes.push(hash);
                tokens.extend(more);
            }
            (Some(Event::Removed { hashes }), CacheEvent::Removed { hash, .. }) => hashes.push(hash),
            (_, CacheEvent::Stored { hash, parent, tokens, .. }) => {
                all.push(Event::Stored { hashes: vec![hash], parent, tokens });
            }
            (_, CacheEvent::Removed { hash, .. }) => all.push(Event::Removed { hashes: vec![hash] }),
        }
    }
    all
}

/// Writes an event's fields after their names, or in their order.
struct Fields<'a> {
    form: KvEventsForm,
    packer: &'a mut Packer,
}

impl Fields<'_> {
    fn begin(&mut self, kind: &str, fields: u8) {
        match self.form {
            KvEventsForm::List => self.packer.list(usize::from(fields) + 1),
            KvEventsForm::Map => self.packer.map(fields + 1),
        }
        self.next("type").text(kind);
    }

    fn next(&mut self, name: &str) -> &mut Packer {
        if self.form == KvEventsForm::Map {
            self.packer.text(name);
        }
        self.packer
    }
}

fn pack(event: &Event, block: usize, mut fields: Fields<'_>) {
    match event {
        Event::Stored { hashes, parent, tokens } => {
            fields.begin("BlockStored", 7);
            fields.next("block_hashes").integers(hashes.iter().copied());
            let packer = fields.next("parent_block_hash");
            match parent {
                Some(parent) => packer.integer(*parent),
                None => packer.nil(),
            }
            fields.next("token_ids").integers(tokens.iter().map(|token| u64::from(*token)));
            fields.next("block_size").integer(block as u64);
            fields.next("lora_id").nil();
            fields.next("medium").text(MEDIUM);
            fields.next("lora_name").nil();
        }
        Event::Removed { hashes } => {
            fields.begin("BlockRemoved", 2);
            fields.next("block_hashes").integers(hashes.iter().copied());
            fields.next("medium").text(MEDIUM);
        }
        Event::Cleared => fields.begin("AllBlocksCleared", 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_a_text_are_one_event() {
        let stored =
            |hash, parent, token| CacheEvent::Stored { hash, parent, tokens: vec![token; 2], salted: false };
        let removed = |hash| CacheEvent::Removed { hash, salted: false };
        let events = vec![
            stored(1, None, 10),
            stored(2, Some(1), 11),
            stored(3, Some(1), 12),
            stored(4, None, 13),
            removed(3),
            removed(2),
            stored(2, Some(1), 11),
        ];
        let of = |hashes: &[u64], parent, tokens: &[u32]| Event::Stored {
            hashes: hashes.to_vec(),
            parent,
            tokens: tokens.to_vec(),
        };
        assert_eq!(
            joined(events),
            [
                of(&[1, 2], None, &[10, 10, 11, 11]),
                of(&[3], Some(1), &[12, 12]),
                of(&[4], None, &[13, 13]),
                Event::Removed { hashes: vec![3, 2] },
                of(&[2], Some(1), &[11, 11]),
            ]
        );
    }
}
