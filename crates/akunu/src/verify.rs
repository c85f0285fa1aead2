//! Any device against the reference, command by command.

use akunu_plan::verify::Report;

use crate::{EngineOptions, Error, Model, engine};

/// Runs `tokens` (one prefill pass of all but the last, then one decode step) on the device that `options` name and on
/// the reference, and compares what each command of the tables wrote. `progress` is told (done, all) commands.
pub fn verify(
    model: &Model,
    options: &EngineOptions,
    tokens: &[u32],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Report, Error> {
    let mut device = crate::open_device(options.device, options.threads, &options.backends)?;
    let plan = engine::plan(model, device.capabilities(), options)?;
    crate::check_prompt(tokens, plan.config.vocab_size, plan.options.context)?;
    engine::check_fits(&plan, engine::available(device.capabilities()))?;
    Ok(akunu_plan::verify::verify(&plan, model.weights(), &mut *device, tokens, progress)?)
}
