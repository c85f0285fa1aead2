//! How long each command of a decode step takes.

use std::ffi::c_char;

use akunu::ProfileOptions;

use crate::arguments::{Room, write};
use crate::boundary::{Failure, Status, guard};
use crate::model::MODELS;
use crate::structs::ModelHandle;

/// Times each command of a decode step on its own: the median of `passes` (0: 10), with `depth` tokens in the cache. There are as many
/// as akunu_config's `commands`. A free session is needed for the while.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_profile_decode_step(
    model: *mut ModelHandle,
    passes: u32,
    depth: u32,
    nanoseconds: *mut u64,
    capacity: usize,
    count: *mut usize,
) -> Status {
    guard(|| {
        let model = MODELS.get(model)?;
        let room = Room { buffer: nanoseconds, capacity, length: count };
        if room.check()? {
            // SAFETY: checked, and the caller's word.
            return unsafe { write(count, model.facts.labels.len(), "the count") };
        }
        let passes = if passes == 0 { ProfileOptions::default().passes } else { passes as usize };
        let options = ProfileOptions { passes, depth: depth as usize, rows: 1 };
        let found = model.post.ask(move |worker| {
            worker.fresh = None;
            Ok(worker.engine.profile(options)?.iter().map(|command| command.ns).collect::<Vec<u64>>())
        })?;
        // SAFETY: the caller's word.
        unsafe { room.fill(&found) }
    })
}

/// What command number `index` of a decode step is, and the kernel that it runs: `layer.3.attention attention_f16`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn akunu_profile_label(
    model: *const ModelHandle,
    index: usize,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    guard(|| {
        let model = MODELS.get(model)?;
        let labels = &model.facts.labels;
        let label = labels.get(index).ok_or_else(|| {
            Failure::argument(format!("there is no command number {index}: a step has {}", labels.len()))
        })?;
        // SAFETY: the caller's word.
        unsafe { Room { buffer, capacity, length }.fill_text(label.as_bytes()) }
    })
}
