//! The blocks of the KV cache, as plain data without tensors or a device: who uses them, and what they contain.

mod events;
mod list;
mod names;
mod pool;
mod siblings;
#[cfg(test)]
mod tests;
mod windows;

pub use events::CacheEvent;
pub(crate) use list::{BlockCopy, BlockList, MIN_COPY, PoolFull};
pub(crate) use names::{Name, Named};
pub(crate) use pool::{BlockId, BlockPool, Parent};
pub(crate) use siblings::common;
