//! Compares a device with the reference, command by command.

use akunu_plan::verify::Report;
use akunu_plan::{Device, TextPass};

use crate::{EmbedOptions, EngineOptions, Error, Model, TextIds, embed, engine, split};

/// Runs `tokens` (one prefill pass of all but the last, then one decode step) on the device that `options` name and on
/// the reference, and compares the output of each command. Passes that are optional are included. `progress` gets (done, all) commands.
pub fn verify(
    model: &Model,
    options: &EngineOptions,
    tokens: &[u32],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Report, Error> {
    let mut device = crate::open_device(options.device, options.threads, &options.backends)?;
    let options = EngineOptions { word_times: true, ..options.clone() };
    let plan = engine::plan(model, device.capabilities(), &options)?;
    device = split::device_for_plan(&plan, device, &options)?;
    crate::check_prompt(tokens, plan.config.vocab_size, plan.options.context)?;
    engine::check_fits(&plan, device.capabilities())?;
    Ok(akunu_plan::verify::verify(&plan, model.weights(), &mut *device, tokens, progress)?)
}

/// As [`verify`], for a pass over whole texts, on an open device.
pub fn verify_texts(
    model: &Model,
    device: &mut dyn Device,
    options: &EmbedOptions,
    texts: &[TextIds],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Report, Error> {
    let (plan, _) = embed::plan_texts(model, device.capabilities(), options)?;
    engine::check_memory(&plan.memory, plan.options.longest, engine::available(device.capabilities()))?;
    let mut pass = TextPass::default();
    embed::fill(&mut pass, texts, &plan)?;
    Ok(akunu_plan::verify::verify_encoder(&plan, model.weights(), device, &pass, progress)?)
}
