//! Assigns buffers to the values of a graph: one for each form in which a value is read. A buffer is reused as soon as
//! its value is no longer live.

use std::collections::{BTreeMap, HashMap};

use super::forms::{Shape, ValueForms};
use super::graph::{Graph, Value};
use super::{Buffers, size, too_large};
use crate::plan::PlanError;
use crate::{BufferId, OutputForms, q8};

/// The buffers of one value.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Placed {
    pub f32: Option<BufferId>,
    pub q8: Option<BufferId>,
    pub f16: Option<BufferId>,
    /// The scales of its f16 rows.
    pub scales: Option<BufferId>,
    pub f8: Option<BufferId>,
    /// The scales of its rows of FP8.
    pub f8_scales: Option<BufferId>,
}

/// Buffers that are shared by the values of one role and form.
#[derive(Default)]
struct Pool {
    bytes: Vec<u64>,
    /// Those that hold no live value.
    free: Vec<usize>,
}

/// Buffers by value.
pub(super) type Places = HashMap<Value, Placed>;

pub(super) fn place(
    graph: &Graph,
    shape: &Shape<'_>,
    forms: &ValueForms,
    outputs: &HashMap<Value, BufferId>,
    buffers: &mut Buffers,
) -> Result<Places, PlanError> {
    let last_read = last_reads(graph);
    let mut pools: BTreeMap<(String, &'static str), Pool> = BTreeMap::new();
    let mut order: Vec<(String, &'static str)> = Vec::new();
    // (value, suffix, index in its pool), in order of values.
    let mut taken: Vec<(Value, &'static str, usize)> = Vec::new();
    for (at, step) in graph.steps.iter().enumerate() {
        for value in step.action.writes() {
            if outputs.contains_key(&value) || taken.iter().any(|(of, ..)| *of == value) {
                continue;
            }
            for (suffix, bytes) in kinds(graph, shape, forms, value)? {
                let key = (graph.values[value.0].role.clone(), suffix);
                if !pools.contains_key(&key) {
                    order.push(key.clone());
                }
                let pool = pools.entry(key).or_default();
                let index = pool.free.pop().unwrap_or_else(|| {
                    pool.bytes.push(0);
                    pool.bytes.len() - 1
                });
                pool.bytes[index] = pool.bytes[index].max(bytes);
                taken.push((value, suffix, index));
            }
        }
        for (value, suffix, index) in &taken {
            if last_read.get(value) == Some(&at) {
                let key = (graph.values[value.0].role.clone(), *suffix);
                if let Some(pool) = pools.get_mut(&key) {
                    pool.free.push(*index);
                }
            }
        }
    }
    let ids = allocate(&pools, &order, shape.name, buffers);
    let mut places: Places = outputs.iter().map(|(value, id)| (*value, f32_place(*id))).collect();
    for (value, suffix, index) in taken {
        let place = places.entry(value).or_default();
        let id = ids[&(graph.values[value.0].role.clone(), suffix)][index];
        match suffix {
            "" => place.f32 = Some(id),
            "_q8" => place.q8 = Some(id),
            "_f16" => place.f16 = Some(id),
            "_f8" => place.f8 = Some(id),
            "_f8_scales" => place.f8_scales = Some(id),
            _ => place.scales = Some(id),
        }
    }
    Ok(places)
}

fn f32_place(id: BufferId) -> Placed {
    Placed { f32: Some(id), ..Placed::default() }
}

/// The last step that reads each value. A value that is never read stays live until the end.
fn last_reads(graph: &Graph) -> HashMap<Value, usize> {
    let reads = graph.steps.iter().enumerate();
    reads.flat_map(|(at, step)| step.action.reads().into_iter().map(move |(value, _)| (value, at))).collect()
}

/// The buffers that a value needs, as name suffixes and sizes.
fn kinds(
    graph: &Graph,
    shape: &Shape<'_>,
    forms: &ValueForms,
    value: Value,
) -> Result<Vec<(&'static str, u64)>, PlanError> {
    let of = [forms.wanted(value), forms.written(value)];
    let has = |form: fn(OutputForms) -> bool| of.into_iter().any(form);
    let info = &graph.values[value.0];
    let rows = info.rows.of(shape.rows, shape.logit_rows).ok_or_else(too_large)?;
    let mut kinds = Vec::new();
    if has(OutputForms::f32) {
        kinds.push(("", size(&[rows, info.cols, 4])?));
    }
    if has(OutputForms::q8) {
        kinds.push(("_q8", size(&[rows, q8::row_bytes(info.cols)])?));
    }
    if has(OutputForms::eights) {
        kinds.extend([("_f8", size(&[rows, info.cols])?), ("_f8_scales", size(&[rows, 4])?)]);
    }
    if has(|form| form.f16() && !form.eights()) {
        kinds.push(("_f16", size(&[rows, info.cols, 2])?));
        if !graph.is_left_in_f16(value) {
            kinds.push(("_scales", size(&[rows, 4])?));
        }
    }
    Ok(kinds)
}

/// The buffers of a pool with several ones are named a, b, …
fn allocate(
    pools: &BTreeMap<(String, &'static str), Pool>,
    order: &[(String, &'static str)],
    table: &str,
    buffers: &mut Buffers,
) -> HashMap<(String, &'static str), Vec<BufferId>> {
    let mut ids = HashMap::new();
    for key in order {
        let (role, suffix) = key;
        let bytes = &pools[key].bytes;
        let names = (0..bytes.len()).map(|index| match bytes.len() {
            1 => format!("{role}{suffix}"),
            _ => format!("{role}_{}{suffix}", letters(index)),
        });
        let all = names.zip(bytes).map(|(name, bytes)| buffers.scratch(table, &name, *bytes));
        ids.insert(key.clone(), all.collect());
    }
    ids
}

fn letters(index: usize) -> String {
    let letter = char::from(b'a' + (index % 26) as u8);
    if index < 26 { letter.to_string() } else { format!("{}{letter}", letters(index / 26 - 1)) }
}
