//! A persistent pool of worker threads that go through a list of work together.
//!
//! ```text
//! Pool::run(work) ─▶ stage 0 ─▶ stage 1 ─▶ … ─▶ end     a stage has one part for each worker
//!                      │
//!                      └─ part: the worker takes ranges from a WorkQueue, first its own, then those of other parts
//! ```
//!
//! [`Pool`] starts its threads once. For each submission it leads them through the stages of a [`Work`]; the barrier
//! between stages is in `stages`. [`WorkQueue`] balances the load inside a stage. The pool knows nothing about what
//! the work is. The barrier and the queue are model-checked with loom (`cargo xtask loom`), for which the pool itself
//! is left out: loom has no threads that outlive a model.
#![allow(
    unsafe_code,
    reason = "threads that outlive a submission hold a pointer to its work, which only lives as long as the submission"
)]

mod cache_padded;
#[cfg(not(loom))]
mod pool;
#[cfg(not(loom))]
mod priority;
mod stages;
mod work_queue;

#[cfg(not(loom))]
pub use pool::{Panicked, Pool, Work};
#[cfg(not(loom))]
pub use priority::give_way;
pub use work_queue::{WorkQueue, partition};
