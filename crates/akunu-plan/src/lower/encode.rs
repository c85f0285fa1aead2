//! The table of a model that computes embeddings or scores of whole texts: one pass, without a cache that persists.

use std::sync::Arc;

use akunu_arch::{Activation, MAX_MODULES, ModelConfig, Pooling, WeightProvider};

use super::graph::{Action, Graph, Part, Product, Value};
use super::pass::{Logits, Model, Spec, build};
use super::stages::Sides;
use super::weights::{Norm, Tensors};
use super::{Buffers, Context, KvLayout, card_of, check, memory, size, too_large};
use crate::ops::{PoolKind, RowSet};
use crate::plan::{EncodeOptions, EncodeOutput, EncodePlan, PlanError, PlanOptions};
use crate::{BufferKind, Capabilities, Card, OnHost, Side};

pub(crate) fn plan_encoder(
    provider: &dyn WeightProvider,
    capabilities: &Capabilities,
    options: &EncodeOptions,
) -> Result<EncodePlan, PlanError> {
    let config = provider.config();
    let card = card_of(config)?;
    if config.encoder.is_some() {
        let reason = "the model transcribes audio, and has no vectors or scores of texts";
        return Err(PlanError::Unsupported(reason.into()));
    }
    let as_plan = PlanOptions {
        context: options.longest,
        slots: 1,
        kv: options.kv,
        kv_bytes: None,
        prefill_rows: options.rows,
        prefill_logit_rows: options.texts,
        chain: 1,
        windows: 1,
        beams: 1,
        word_times: false,
        fuse: options.fuse,
        keep_inputs: false,
        host: OnHost::default(),
        stages: Vec::new(),
        stream_rows: None,
    };
    check(config, &as_plan)?;
    if capabilities.ranks > 1 || !capabilities.stages.is_empty() {
        let reason = "embeddings and scores are computed by one device, not by several";
        return Err(PlanError::Unsupported(reason.into()));
    }
    let mut buffers = Buffers::default();
    let mut tensors = Tensors::new(provider, card, &mut buffers);
    let model = Model::new(provider, card, (options.longest, Sides::ONE), &mut tensors)?;
    let end = End::new(config, card, &model, options.output, &mut tensors)?;
    for unread in [
        "output.weight",
        "output.bias",
        "cls.weight",
        "cls.bias",
        "cls.norm.weight",
        "cls.output.weight",
        "cls.output.bias",
    ] {
        tensors.ignore(unread);
    }
    tensors.refuse_unused()?;
    let mut graph = model.graph.clone();
    let output = end.add(&mut graph, model.states, config);

    let alignment = capabilities.keys.alignment();
    // Texts begin at multiples of the alignment, so there may be a gap before each further text.
    let positions = options.rows.saturating_add((alignment - 1).saturating_mul(options.texts));
    let kv = shared_cache(config, &as_plan, capabilities.keys.positions(positions), alignment, &mut buffers)?;
    let context = Context {
        config,
        arch: card,
        options: &as_plan,
        folds: false,
        half_products: capabilities.half_products,
        packed_products: None,
        eight_products: None,
        kv,
        windows: None,
        states: None,
        across: None,
        ranks: 1,
    };
    let spec = Spec {
        name: "encode",
        rows: options.rows,
        logit_rows: options.texts,
        steps: 1,
        io: None,
        products: None,
    };
    let width = graph.cols(output);
    let table = build(&context, (graph, output), &model.ropes, &spec, &mut buffers)?;
    let memory = memory(&buffers.0, provider, std::iter::once(&table), (capabilities, Side::Device));
    Ok(EncodePlan {
        config: config.clone(),
        arch: card,
        options: options.clone(),
        buffers: buffers.0,
        table: Arc::new(table),
        width,
        alignment,
        memory,
    })
}

/// Keys and values of one layer, shared by all layers: they are not read after the layer.
fn shared_cache(
    config: &ModelConfig,
    options: &PlanOptions,
    positions: usize,
    alignment: usize,
    buffers: &mut Buffers,
) -> Result<KvLayout, PlanError> {
    let row = options.kv.row_bytes(config.head_dim).unwrap_or(0);
    let bytes = size(&[config.kv_head_count, positions, row])?;
    let positions = u32::try_from(positions).map_err(|_| too_large())?;
    let both = ["encode.k", "encode.v"].map(|name| buffers.add(name, bytes, BufferKind::Scratch).into());
    Ok(KvLayout {
        // The layers share it, one after the other.
        layers: vec![both; config.layer_count],
        positions,
        logical: positions,
        slot_positions: positions,
        alignment: alignment as u32,
        blocks: None,
        block: 0,
    })
}

/// The operations after the last hidden states.
enum End {
    /// One embedding per text, or one per token.
    Vectors { norm: Option<Norm>, pooling: Pooling, matrices: Vec<Part> },
    /// The scores of a classifier, from one vector per text.
    Scores { norm: Option<Norm>, pooling: Pooling, dense: Option<Dense>, output: Part },
    /// The logits of the token after each text.
    Logits(Logits),
}

/// The operations of a classifier before its last matrix.
struct Dense {
    matrix: Part,
    activation: Activation,
    norm: Option<Norm>,
}

impl End {
    fn new(
        config: &ModelConfig,
        card: &'static Card,
        model: &Model,
        output: EncodeOutput,
        tensors: &mut Tensors<'_>,
    ) -> Result<End, PlanError> {
        if output == EncodeOutput::Logits {
            return Ok(End::Logits(Logits::new(config, model.embedding, tensors)?));
        }
        let hidden = config.hidden_size;
        let norm = match card.final_norm {
            true => Some(tensors.norm("output_norm.weight", &[hidden])?),
            false => None,
        };
        let part = |tensors: &mut Tensors<'_>, name: &str, inputs: usize| {
            let weight = format!("{name}.weight");
            let Some(outputs) = tensors.rows(&weight)? else { return Ok::<_, PlanError>(None) };
            tensors.part(name, name.into(), [outputs, inputs])?.in_order().map(Some)
        };
        match output {
            EncodeOutput::Vectors(pooling) => {
                let (mut matrices, mut width): (Vec<Part>, usize) = (vec![], hidden);
                for number in 1..=MAX_MODULES {
                    if let Some(matrix) = part(tensors, &format!("dense_{number}"), width)? {
                        width = matrix.matrix.rows;
                        matrices.push(matrix);
                    }
                }
                Ok(End::Vectors { norm, pooling, matrices })
            }
            EncodeOutput::Scores | EncodeOutput::Logits => {
                let dense = match part(tensors, "cls", hidden)? {
                    None => None,
                    Some(matrix) => {
                        let norm = match tensors.has("cls.norm.weight") {
                            true => Some(tensors.norm("cls.norm.weight", &[matrix.matrix.rows])?),
                            false => None,
                        };
                        Some(Dense { matrix, activation: card.classifier, norm })
                    }
                };
                let width = dense.as_ref().map_or(hidden, |dense| dense.matrix.matrix.rows);
                let output = part(tensors, "cls.output", width)?
                    .ok_or_else(|| PlanError::MissingTensor("cls.output.weight".into()))?;
                let pooling = match config.bidirectional {
                    true => config.embedding.classifier_pooling.unwrap_or(Pooling::First),
                    false => Pooling::Last,
                };
                Ok(End::Scores { norm, pooling, dense, output })
            }
        }
    }

    /// Adds the operations to a graph. The returned value is read by the host.
    fn add(&self, graph: &mut Graph, states: Value, config: &ModelConfig) -> Value {
        let rows = RowSet::Logits;
        match self {
            End::Logits(logits) => logits.add(graph, states, config),
            End::Vectors { norm, pooling, matrices } => {
                let pooled = pool(graph, states, norm.as_ref(), *pooling);
                matrices.iter().fold(pooled, |x, part| product(graph, x, part))
            }
            End::Scores { norm, pooling, dense, output } => {
                let mut x = pool(graph, states, norm.as_ref(), *pooling);
                if let Some(dense) = dense {
                    let dense_out = product(graph, x, &dense.matrix);
                    x = graph.value("cls_act", graph.cols(dense_out), rows);
                    let activation = dense.activation;
                    graph.push(
                        "cls_act",
                        Action::Activate { activation, x: dense_out, unfinished: None, rows, out: x },
                    );
                    if let Some(norm) = dense.norm {
                        let out = graph.value("cls_norm", graph.cols(x), rows);
                        graph.push("cls_norm", Action::Norm { norm, x, rows, out });
                        x = out;
                    }
                }
                product(graph, x, output)
            }
        }
    }
}

/// One row per text, after the final norm.
fn pool(graph: &mut Graph, states: Value, norm: Option<&Norm>, pooling: Pooling) -> Value {
    let cols = graph.cols(states);
    let mean = pooling == Pooling::Mean;
    let out = |graph: &mut Graph| graph.value("pooled", cols, RowSet::Logits);
    let x = match norm {
        // The requested rows are selected and normalized in one operation.
        Some(norm) if !mean => {
            let out = out(graph);
            graph.push("output_norm", Action::Norm { norm: *norm, x: states, rows: RowSet::Logits, out });
            return out;
        }
        Some(norm) => {
            let normed = graph.value("states", cols, RowSet::All);
            graph
                .push("output_norm", Action::Norm { norm: *norm, x: states, rows: RowSet::All, out: normed });
            normed
        }
        None => states,
    };
    let kind = if mean { PoolKind::Mean } else { PoolKind::Row };
    let out = out(graph);
    graph.push("pool", Action::Pool { kind, x, out });
    out
}

fn product(graph: &mut Graph, x: Value, part: &Part) -> Value {
    let out = graph.value(part.label.clone(), part.matrix.rows, RowSet::Logits);
    let product = Product { rows: RowSet::Logits, ..Product::plain(x, part.clone(), out) };
    graph.push(part.label.clone(), Action::Product(product));
    out
}
