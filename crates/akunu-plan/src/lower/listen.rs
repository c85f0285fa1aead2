//! The tables of a model that transcribes: one for its encoder, which also computes the keys and values that the decoder
//! attends to. Those of the decoder are the usual ones.

use std::collections::HashMap;

use akunu_arch::{ModelConfig, WeightProvider};

use super::blocks::Blocks;
use super::cache::layers_in;
use super::graph::{Action, Columns, Graph, HeadRotation, Heads, Product, Value};
use super::pass::{Spec, build_with};
use super::stages::Sides;
use super::weights::Tensors;
use super::{Buffers, Context, KvLayout, size, too_large};
use crate::ops::{PoolKind, RowSet};
use crate::plan::{PlanError, PlanOptions};
use crate::{BufferKind, Capabilities, Card, DispatchTable, KeyOrder, PassKind};

/// The encoder of a model, before any table is built from it.
#[derive(Debug)]
pub(super) struct Encoder {
    pub config: ModelConfig,
    graph: Graph,
    frames: Value,
    /// Its last hidden states, of all rows.
    states: Value,
}

impl Encoder {
    /// None for models that do not hear.
    pub fn new(
        provider: &dyn WeightProvider,
        card: &'static Card,
        tensors: &mut Tensors<'_>,
    ) -> Result<Option<Encoder>, PlanError> {
        let of_decoder = provider.config();
        let (Some(config), Some(facts)) = (of_decoder.of_encoder(), of_decoder.encoder) else {
            return Ok(None);
        };
        if facts.head_count != of_decoder.head_count || of_decoder.kv_head_count != of_decoder.head_count {
            let reason = format!(
                "{} heads in the encoder, and {} for {} of keys in the decoder",
                facts.head_count, of_decoder.head_count, of_decoder.kv_head_count
            );
            return Err(PlanError::Unsupported(reason));
        }
        let tower = card.encoder_tower(provider, &config, facts.bands);
        let blocks = Blocks::new(&config, card, (tensors, facts.positions, Sides::ONE), None, &[])?;
        let (mut graph, states) = blocks.lower(&tower)?;
        // The first block of its tower.
        let frames = Value(0);
        for layer in 0..of_decoder.layer_count {
            keys_and_values(of_decoder, tensors, &mut graph, states, layer)?;
        }
        Ok(Some(Encoder { config, graph, frames, states }))
    }

    pub fn table(
        &self,
        (card, options, capabilities): (&'static Card, &PlanOptions, &Capabilities),
        across: KvLayout,
        buffers: &mut Buffers,
    ) -> Result<DispatchTable, PlanError> {
        let mut graph = self.graph.clone();
        let output = graph.value("asked", self.config.hidden_size, RowSet::Logits);
        graph.push("states", Action::Pool { kind: PoolKind::Row, x: self.states, out: output });
        let positions = self.config.context_length;
        let rows = positions.checked_mul(options.windows).ok_or_else(too_large)?;
        let options = PlanOptions { context: positions, ..options.clone() };
        let context = Context {
            config: &self.config,
            arch: card,
            options: &options,
            folds: false,
            half_products: capabilities.half_products,
            packed_products: None,
            eight_products: None,
            kv: across,
            windows: None,
            states: None,
            across: None,
            ranks: 1,
        };
        let name = PassKind::Encode.name();
        let bytes = size(&[rows, graph.cols(self.frames), 4])?;
        let frames = buffers.add(format!("{name}.frames"), bytes, BufferKind::Io);
        let spec = Spec { name, rows, logit_rows: rows, steps: 1, io: None, products: None };
        let mut table = build_with(
            &context,
            (graph, output),
            HashMap::from([(self.frames, frames)]),
            &[],
            &spec,
            buffers,
        )?;
        table.io.frames = Some(frames);
        Ok(table)
    }
}

/// What a layer of the decoder attends to.
fn keys_and_values(
    config: &ModelConfig,
    tensors: &mut Tensors<'_>,
    graph: &mut Graph,
    states: Value,
    layer: usize,
) -> Result<(), PlanError> {
    let heads = Heads::of(config);
    let kv = graph.value("across", 2 * heads.kv_size(), RowSet::All);
    for (part, first) in [("k", 0), ("v", heads.kv_size())] {
        let of = |part: &str| format!("blk.{layer}.cross_attn_{part}");
        let label = format!("layer.{layer}.across.{part}");
        let shape = [heads.kv_size(), config.hidden_size];
        let part = tensors.part_beside(&of("v"), &of(part), label.clone(), shape)?.in_order()?;
        let product = Product { out: Columns { of: kv, first }, ..Product::plain(states, part, kv) };
        graph.push(label, Action::Product(product));
    }
    let rotation = HeadRotation { rope: None, norms: None, norm_last: false };
    let write = Action::RopeKv { layer, heads, rotation, qkv: kv, unfinished: None, q: None };
    graph.push(format!("layer.{layer}.across.kv"), write);
    Ok(())
}

/// The keys and values of the encoder's states for each layer of the decoder. The encoder's own layers, one after the
/// other, use the space of the first of them.
pub(super) fn across_layout(
    config: &ModelConfig,
    options: &PlanOptions,
    keys: KeyOrder,
    buffers: &mut Buffers,
) -> Result<Option<KvLayout>, PlanError> {
    let Some(encoder) = config.encoder else { return Ok(None) };
    let row = options.kv.row_bytes(config.head_dim).unwrap_or(0);
    let slot_positions = keys.positions(encoder.positions);
    let positions =
        slot_positions.checked_mul(options.slots.div_ceil(options.beams)).ok_or_else(too_large)?;
    let layer_bytes = size(&[config.kv_head_count, positions, row])?;
    let bytes = layer_bytes.checked_mul(config.layer_count as u64).ok_or_else(too_large)?;
    let positions = u32::try_from(positions).map_err(|_| too_large())?;
    let both = ["across.k", "across.v"].map(|name| buffers.add(name, bytes, BufferKind::Kv));
    Ok(Some(KvLayout {
        layers: layers_in(both, layer_bytes, config.layer_count).collect(),
        positions,
        logical: positions,
        slot_positions: slot_positions as u32,
        alignment: keys.alignment() as u32,
        blocks: None,
        block: 0,
    }))
}
