//! `--speed`: what each division of a model between the device and the CPU would reach, from a few layers that are run.
//!
//! The time of a pass is linear in the numbers of layers on the device, of layers whose experts are the CPU's, and of
//! layers of the CPU. Two models of different numbers of layers give the time of one layer, and of what is beside them.

use std::sync::Arc;
use std::time::Instant;

use akunu::{Engine, EngineOptions, Model};
use akunu_plan::{Capabilities, ModelPlan, OnHost};
use serde::Serialize;

use super::paging::PagingReport;
use crate::failure::Failure;
use crate::grid::{Grid, grouped};

/// Layers of the smaller model, beside those without experts, and how many more the larger one has: the first that fit into
/// memory. Layers of two kinds take turns in some families.
const LAYERS: [[usize; 2]; 3] = [[2, 4], [1, 2], [1, 1]];
const PROMPT: usize = 512;
const STEPS: usize = 32;
/// A prompt, a step, and the token after it.
const SHORTEST: usize = 3;
/// Of which the median counts.
const ROUNDS: usize = 3;

/// A division, and what it would reach.
#[derive(Debug, Serialize)]
pub struct Speed {
    /// As of the options with these names.
    gpu_layers: usize,
    n_cpu_moe: usize,
    #[serde(skip)]
    described: String,
    /// Bytes on the device.
    needed: u64,
    fits: Option<bool>,
    /// Whether the plan divides the model so.
    planned: bool,
    /// `None`: not even a few such layers fit into memory, so that they were not run.
    decode_tok_s: Option<f64>,
    prompt_tok_s: Option<f64>,
}

impl Speed {
    pub fn is_unknown(&self) -> bool {
        self.decode_tok_s.is_none()
    }
}

/// Seconds of one token, and of one token of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Seconds {
    decode: f64,
    prompt: f64,
}

impl Seconds {
    fn map(self, other: Seconds, f: impl Fn(f64, f64) -> f64) -> Seconds {
        Seconds { decode: f(self.decode, other.decode), prompt: f(self.prompt, other.prompt) }
    }

    fn plus(self, count: usize, each: Seconds) -> Seconds {
        self.map(each, |sum, each| sum + count as f64 * each)
    }
}

/// The time of a layer, and of everything beside the layers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Line {
    base: Seconds,
    layer: Seconds,
}

impl Line {
    /// Through the times of two numbers of layers.
    fn through([few, many]: [(usize, Seconds); 2]) -> Line {
        let layers = (many.0 - few.0) as f64;
        let layer = many.1.map(few.1, |many, few| ((many - few) / layers).max(0.0));
        let base = few.1.map(layer, |few_s, layer| (few_s - few.0 as f64 * layer).max(0.0));
        Line { base, layer }
    }
}

/// Of a model on the device, with its experts on the CPU, and on the CPU.
#[derive(Clone, Copy, Debug, Default)]
struct Lines {
    device: Option<Line>,
    experts: Option<Line>,
    host: Option<Line>,
    /// Layers before the first one with experts.
    dense: usize,
}

impl Lines {
    fn of(&self, host: OnHost, layers: usize) -> Option<Seconds> {
        let experts = host.experts.max(self.dense).saturating_sub(host.layers.max(self.dense));
        let on_device = layers - host.layers - experts;
        let divided = match (host.layers, experts) {
            (0, 0) => self.device?.base,
            (0, _) => self.experts?.base,
            _ => self.host?.base,
        };
        let each = |line: Option<Line>, count: usize| match count {
            0 => Some(Seconds::default()),
            _ => line.map(|line| line.layer),
        };
        let seconds = divided.plus(on_device, each(self.device, on_device)?);
        let seconds = seconds.plus(experts, each(self.experts, experts)?);
        Some(seconds.plus(host.layers, each(self.host, host.layers)?))
    }
}

/// The speeds of some divisions, the smallest part of the CPU first; `planned` is among them.
pub fn speeds(
    model: &Arc<Model>,
    capabilities: &Capabilities,
    options: &EngineOptions,
    (planned, paging): (OnHost, Option<&PagingReport>),
) -> Result<Vec<Speed>, Failure> {
    let layers = model.config().layer_count;
    let experts = if model.config().experts.is_some() { layers } else { 0 };
    let divides = capabilities.name != "cpu" && capabilities.ranks == 1 && capabilities.stages.is_empty();
    // A cache outside of the device has blocks of all layers.
    let divides_layers = divides && options.kv_host.is_none() && options.kv_disk.is_none();
    let mut hosts = vec![OnHost::default(), planned];
    if divides {
        let quarters = [1, 2, 3, 4].map(|quarters| (layers * quarters).div_ceil(4));
        let on_cpu = quarters.map(|layers| OnHost { layers, experts });
        hosts.extend(on_cpu.into_iter().filter(|_| divides_layers));
        hosts.extend(quarters.map(|of| OnHost { layers: 0, experts: of.min(experts) }));
    }
    hosts.sort_by_key(|host| (host.layers, host.experts));
    hosts.dedup();
    let plan = |host: OnHost| -> Result<(OnHost, ModelPlan), Failure> {
        Ok((host, akunu::plan(model, capabilities, &divided(options, host, layers))?))
    };
    let plans: Vec<(OnHost, ModelPlan)> = hosts.into_iter().map(plan).collect::<Result<_, Failure>>()?;
    // A few layers fit into memory; what the others read from the file is added.
    let options = &EngineOptions { expert_memory: Some(0), ..options.clone() };
    let device = line(model, options, |_| OnHost::default())?;
    // Prompts stream where there is memory for slots, which a few layers leave.
    let parts = |streams: bool| -> Result<Lines, Failure> {
        let is_part = |(host, plan): &(OnHost, ModelPlan)| {
            !host.is_nothing() && plan.options.stream_rows.is_some() == streams
        };
        let used = |with: fn(&OnHost) -> bool| plans.iter().any(|part| is_part(part) && with(&part.0));
        let stream_rows = if streams { options.stream_rows } else { Some(0) };
        let options = EngineOptions { stream_rows, ..options.clone() };
        let measured = |used: bool, host: fn(usize) -> OnHost| -> Result<Option<Line>, Failure> {
            if used { line(model, &options, host) } else { Ok(None) }
        };
        Ok(Lines {
            device,
            host: measured(used(|host| host.layers > 0), |layers| OnHost { layers, experts: 0 })?,
            experts: measured(used(|host| host.experts > 0), |layers| OnHost { layers: 0, experts: layers })?,
            dense: model.dense_layers(),
        })
    };
    let [computed, streamed] = [parts(false)?, parts(true)?];
    let speed = |(host, plan): (OnHost, ModelPlan)| {
        let lines = if plan.options.stream_rows.is_some() { &streamed } else { &computed };
        let mut seconds = lines.of(host, layers);
        if let Some(paging) = paging.filter(|_| host == planned) {
            let [token, pass] = paging.seconds();
            let rows = plan.options.prefill_rows as f64;
            let reading = Seconds { decode: token, prompt: pass / rows };
            seconds = seconds.map(|seconds| seconds.map(reading, |a, b| a + b));
        }
        Speed {
            gpu_layers: layers - host.layers,
            n_cpu_moe: host.experts,
            described: match host.is_nothing() {
                true => "nothing".into(),
                false => akunu::describe_split(host, layers),
            },
            needed: super::needed(&plan.memory, capabilities),
            fits: super::available(capabilities).map(|bytes| super::fits(&plan.memory, capabilities, bytes)),
            planned: host == planned,
            decode_tok_s: seconds.map(|seconds| 1.0 / seconds.decode),
            prompt_tok_s: seconds.map(|seconds| 1.0 / seconds.prompt),
        }
    };
    Ok(plans.into_iter().map(speed).collect())
}

fn divided(options: &EngineOptions, host: OnHost, layers: usize) -> EngineOptions {
    EngineOptions {
        gpu_layers: Some(layers - host.layers),
        cpu_experts: Some(host.experts),
        ..options.clone()
    }
}

/// The times of a few layers, of which `host` leaves a part to the CPU; `None`: they do not fit into memory.
fn line(
    model: &Arc<Model>,
    options: &EngineOptions,
    host: impl Fn(usize) -> OnHost,
) -> Result<Option<Line>, Failure> {
    let mut tried = 0;
    for [smaller, more] in LAYERS {
        let many = (model.dense_layers() + smaller + more).min(model.config().layer_count);
        let few = if many > more { many - more } else { many / 2 };
        if many == tried {
            continue;
        }
        tried = many;
        let mut times = [(few, Seconds::default()), (many, Seconds::default())];
        // No model has no layers. The larger one, which may not fit, is first.
        let measured =
            times.iter_mut().rev().filter(|(layers, _)| *layers > 0).try_for_each(|(layers, seconds)| {
                let part = Arc::new(model.first_layers(*layers)?);
                *seconds = measure(&part, &divided(options, host(*layers), *layers))?;
                Ok::<(), akunu::Error>(())
            });
        match measured {
            Ok(()) => return Ok(Some(Line::through(times))),
            Err(error) if error.is_out_of_memory() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

fn measure(model: &Arc<Model>, options: &EngineOptions) -> Result<Seconds, akunu::Error> {
    let context = (PROMPT + STEPS + 1).min(options.context.unwrap_or(usize::MAX));
    let context = context.min(model.config().context_length).max(SHORTEST);
    let options = EngineOptions {
        context: Some(context),
        kv_memory: None,
        kv_host: None,
        kv_disk: None,
        ..options.clone()
    };
    let mut engine = Engine::new(model.clone(), &options)?;
    let ids = super::super::random_ids(context, engine.vocab_size(), 42);
    let steps = STEPS.min(context / 2);
    let prompt = context - steps - 1;
    let mut session = engine.session()?;
    let mut rounds: Vec<Seconds> = Vec::new();
    for _ in 0..=ROUNDS {
        session.clear();
        let started = Instant::now();
        engine.prefill(&mut session, &ids[..prompt])?;
        let read = started.elapsed();
        let started = Instant::now();
        decode(&mut engine, &mut session, &ids[..=prompt], &ids[prompt + 1..], steps)?;
        let decoded = started.elapsed();
        rounds.push(Seconds {
            decode: decoded.as_secs_f64() / steps as f64,
            prompt: read.as_secs_f64() / prompt as f64,
        });
    }
    // The first round reads what the file's cache does not have, and finds how long a step takes.
    let median = |of: fn(&Seconds) -> f64| {
        let mut sorted: Vec<f64> = rounds[1..].iter().map(of).collect();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    Ok(Seconds { decode: median(|s| s.decode), prompt: median(|s| s.prompt) })
}

/// Decodes after `history`. Where chains are of one step, tokens are those of `next`, not what the model chooses: a few
/// layers may choose one token for ever, and with it the same experts.
fn decode(
    engine: &mut Engine,
    session: &mut akunu::Session,
    history: &[u32],
    next: &[u32],
    steps: usize,
) -> Result<(), akunu::Error> {
    let most = engine.plan().tables.decode().steps;
    let end = history.len() + steps;
    let (mut history, mut next) = (history.to_vec(), next.iter());
    while history.len() < end {
        let steps = most.min(end - history.len()).min(engine.chain_limit());
        let found = engine.chain(session, &history, None, steps, &[], None)?;
        match next.next() {
            Some(&next) if most == 1 => history.push(next),
            _ if found.is_empty() => return Err(akunu::Error::NoLogits),
            _ => history.extend_from_slice(found),
        }
    }
    Ok(())
}

pub fn grid(speeds: &[Speed]) -> Grid {
    let mut grid = Grid::new()
        .spare("on the CPU")
        .number("device bytes")
        .text("")
        .number("decoding")
        .number("prompts")
        .text("");
    for speed in speeds {
        let fits = match speed.fits {
            Some(true) => "fits",
            Some(false) => "does not fit",
            None => "",
        };
        let rate = |rate: Option<f64>| match rate {
            None => "–".to_string(),
            Some(rate) if rate < 10.0 => format!("{rate:.2}"),
            Some(rate) => grouped(rate.round() as u64),
        };
        grid.row([
            speed.described.clone(),
            grouped(speed.needed),
            fits.into(),
            rate(speed.decode_tok_s),
            rate(speed.prompt_tok_s),
            if speed.planned { "← planned".into() } else { String::new() },
        ]);
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(seconds: f64) -> Seconds {
        Seconds { decode: seconds, prompt: seconds / 8.0 }
    }

    fn line(base: f64, layer: f64) -> Line {
        Line { base: both(base), layer: both(layer) }
    }

    #[test]
    fn a_line_goes_through_both_times() {
        assert_eq!(Line::through([(2, both(7.0)), (6, both(15.0))]), line(3.0, 2.0));
        // Times that noise has exchanged.
        assert_eq!(Line::through([(2, both(7.0)), (6, both(6.0))]), line(7.0, 0.0));
    }

    #[test]
    fn each_layer_counts_where_it_is() {
        let lines = Lines {
            device: Some(line(1.0, 2.0)),
            experts: Some(line(3.0, 32.0)),
            host: Some(line(5.0, 64.0)),
            dense: 1,
        };
        let of = |layers, experts| lines.of(OnHost { layers, experts }, 8).unwrap();
        assert_eq!(of(0, 0), both(1.0 + 8.0 * 2.0));
        // The first layer has no experts.
        assert_eq!(of(0, 3), both(3.0 + 6.0 * 2.0 + 2.0 * 32.0));
        assert_eq!(of(0, 1), of(0, 0));
        assert_eq!(of(2, 0), both(5.0 + 6.0 * 2.0 + 2.0 * 64.0));
        assert_eq!(of(2, 8), both(5.0 + 2.0 * 64.0 + 6.0 * 32.0));
        assert_eq!(of(8, 8), both(5.0 + 8.0 * 64.0));
        assert_eq!(Lines { host: None, ..lines }.of(OnHost { layers: 1, experts: 0 }, 8), None);
        // What does not fit on the device is unknown; all of it on the CPU is not.
        let without = Lines { device: None, ..lines };
        assert_eq!(without.of(OnHost { layers: 2, experts: 0 }, 8), None);
        assert_eq!(without.of(OnHost::default(), 8), None);
        assert_eq!(
            without.of(OnHost { layers: 8, experts: 8 }, 8),
            lines.of(OnHost { layers: 8, experts: 8 }, 8)
        );
    }
}
