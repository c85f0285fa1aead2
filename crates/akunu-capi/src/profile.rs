//! Profiling of decode steps.

use std::ffi::c_char;

use akunu::{PassRows, ProfileOptions};

use crate::arguments::{OutBuffer, write};
use crate::boundary::{Failure, Status, guard};
use crate::model::MODELS;
use crate::structs::ModelHandle;

/// Times each command of a decode step: the median over `passes` (0: 10), with `depth` tokens in the KV cache. The number of
/// results is `commands` of akunu_config. Needs a free session during the call.
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
        let output = OutBuffer { buffer: nanoseconds, capacity, length: count };
        if output.check()? {
            // SAFETY: checked above; the rest is guaranteed by the caller.
            return unsafe { write(count, model.info.labels.len(), "the count") };
        }
        let passes = if passes == 0 { ProfileOptions::default().passes } else { passes as usize };
        let options = ProfileOptions { passes, depth: depth as usize, rows: PassRows::Step(1) };
        let times = model.queue()?.run(move |worker| {
            worker.fresh = None;
            Ok(worker.engine.profile(options)?.iter().map(|command| command.ns).collect::<Vec<u64>>())
        })?;
        // SAFETY: guaranteed by the caller.
        unsafe { output.fill(&times) }
    })
}

/// The label and the kernel of command number `index` of a decode step, such as `layer.3.attention attention_f16`.
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
        let labels = &model.info.labels;
        let label = labels.get(index).ok_or_else(|| {
            Failure::argument(format!(
                "there is no command number {index}: a decode step has {}",
                labels.len()
            ))
        })?;
        // SAFETY: guaranteed by the caller.
        unsafe { OutBuffer { buffer, capacity, length }.fill_text(label.as_bytes()) }
    })
}
