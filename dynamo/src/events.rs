//! What Dynamo's router is told of the cache: which blocks it has, and how full it is.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use akunu::CacheEvent;
use akunu::schedule::{Handle, Stats};
use dynamo_backend_common::{ComponentSnapshot, KvEventPublisher, SnapshotPublisher};
use dynamo_kv_router::protocols::{
    BlockHashOptions, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, compute_block_hash_for_seq,
};

/// How often the state of the cache is looked at.
const INTERVAL: Duration = Duration::from_millis(500);

/// Where events go once the worker has made a publisher. Before that there are no requests, so no events.
pub(crate) type Publisher = Arc<OnceLock<Arc<KvEventPublisher>>>;

/// Passes changes of the cache on. `block`: the tokens of a block.
pub(crate) fn publish(publisher: &Publisher, changes: Vec<CacheEvent>, block: u32) {
    let Some(publisher) = publisher.get() else { return };
    let event = |data| KvCacheEvent { event_id: publisher.next_event_id(), data, dp_rank: 0 };
    let events: Vec<KvCacheEvent> =
        changes.into_iter().filter_map(|change| data(change, block)).map(event).collect();
    // The worker ends if its publisher has ended.
    let _ = publisher.publish_batch(events);
}

/// The router finds blocks by a hash of their tokens alone; ours name them. It is not told of blocks that only texts with the
/// same salt share.
fn data(change: CacheEvent, block: u32) -> Option<KvCacheEventData> {
    match change {
        CacheEvent::Stored { salted: true, .. } | CacheEvent::Removed { salted: true, .. } => None,
        CacheEvent::Stored { hash, parent, tokens, .. } => {
            let hashes = compute_block_hash_for_seq(&tokens, block, BlockHashOptions::default());
            let stored = |tokens_hash| KvCacheStoredBlockData {
                block_hash: hash.into(),
                tokens_hash,
                mm_extra_info: None,
            };
            Some(KvCacheEventData::Stored(KvCacheStoreData {
                parent_hash: parent.map(Into::into),
                start_position: None,
                blocks: hashes.into_iter().map(stored).collect(),
            }))
        }
        CacheEvent::Removed { hash, .. } => {
            Some(KvCacheEventData::Removed(KvCacheRemoveData { block_hashes: vec![hash.into()] }))
        }
    }
}

/// Publishes how full the cache is whenever that has changed, until the task is aborted.
pub(crate) async fn watch(handle: Handle, publisher: Arc<SnapshotPublisher>) {
    let mut last = None;
    loop {
        let now = snapshot(&handle.stats());
        if last != Some(now) {
            publisher.publish(0, now);
            last = Some(now);
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

fn snapshot(stats: &Stats) -> ComponentSnapshot {
    let block = stats.kv_block.max(1);
    let prompts = stats.prompt_tokens + stats.reused_tokens;
    ComponentSnapshot {
        kv_used_blocks: (stats.kv_tokens / block) as u64,
        kv_total_blocks: (stats.kv_capacity / block) as u64,
        gpu_cache_usage: stats.kv_tokens as f32 / stats.kv_capacity.max(1) as f32,
        kv_cache_hit_rate: (prompts > 0).then(|| stats.reused_tokens as f32 / prompts as f32),
        dp_rank: 0,
    }
}
