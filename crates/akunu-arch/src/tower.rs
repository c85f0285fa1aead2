//! Towers: a model's forward pass as a sequence of blocks. A card builds a tower from the facts of a file; the plan
//! lowers it to ops. A layer is a plain function that connects blocks, so a card only needs `fn` pointers.

use crate::{Card, ModelConfig, WeightProvider};

/// The hidden states that a block produces: one row per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State(pub usize);

/// Blocks in execution order. Block `i` produces [`State`] `i`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tower {
    /// What the canonical names of its tensors begin with.
    pub prefix: &'static str,
    pub blocks: Vec<Block>,
}

/// A block of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    pub kind: BlockKind,
    /// The layer that it belongs to; `None` before the first layer and after the last.
    pub layer: Option<usize>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum BlockKind {
    /// Rows of the token embedding, multiplied by `scale`.
    Embed { scale: f32 },
    /// Log-mel frames of audio, two in a row.
    Frames { bands: usize },
    /// A convolution over three frames and an activation, for each of the two frames of a row or for the first only.
    Convolve { x: State, tensor: &'static str, both: bool },
    /// Adds learned positions and token types, as far as the file has them.
    Positions { x: State },
    Norm {
        x: State,
        /// Canonical name of its weights, without the layer and `.weight`. A bias is added if the file has one and the
        /// kind of norm uses one.
        tensor: &'static str,
    },
    /// Attention and its output projection.
    Attend { x: State, attention: Attention },
    /// A mixer with a state (Mamba 2), and its output projection.
    Mix { x: State },
    /// Latent attention and its output projection.
    AttendLatent { x: State },
    /// Attention to the states of the encoder of audio, and its output projection.
    AttendAcross { x: State },
    /// The feed-forward part.
    Feed { x: State, kind: FeedForwardKind },
    /// A router and the experts that it chooses for each token, with the expert that all tokens share if the file has one.
    Experts { x: State },
    /// `residual + scale · x`.
    Add { residual: State, x: State, scale: f32 },
}

/// The kind of normalization.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// RMSNorm: divides by the root mean square.
    Rms,
    /// LayerNorm: subtracts the mean and divides by the standard deviation.
    Layer,
}

/// How Q and K are normalized, before RoPE unless stated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QkNorm {
    /// Each head separately, with weights shared by all heads.
    Head,
    /// The same, after RoPE.
    HeadAfterRope,
    /// Each head separately, with separate weights for each head.
    PerHeadWeights,
    /// All heads together.
    Row,
    /// Each head separately, without weights, in layers with RoPE. The order of both does not matter then.
    Plain,
}

/// By what queries are scaled: 1 + rate · ln(1 + ⌊n / step⌋) is their factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaledBy {
    /// n is the position.
    Position,
    /// n is the number of positions up to and including it.
    Length,
}

/// The attention settings of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attention {
    pub qk_norm: Option<QkNorm>,
    /// The RoPE frequencies of Q and K; `None` without RoPE.
    pub rotation: Option<Rotation>,
    /// The positions that a token attends to; `None` means the whole text, or the text up to the token if attention is
    /// causal.
    pub window: Option<Span>,
    /// By what queries are scaled, if the model scales those of this layer.
    pub scaled_by: Option<ScaledBy>,
    /// Whether each head has a sink: a learned score without a position, which takes its share of the softmax.
    pub sinks: bool,
}

/// A range of positions around a token's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Positions up to and including its own.
    pub behind: usize,
    /// Positions after its own.
    pub ahead: usize,
    /// Those of its own chunk only: positions are in chunks of `behind`, from 0 on.
    pub chunked: bool,
}

/// A model has up to two sets of RoPE frequencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rotation {
    Global,
    /// Those of sliding-window layers, if they differ.
    Local,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FeedForwardKind {
    /// `down(activation(gate(x)) · up(x))`.
    Gated,
    /// `down(g · σ(1.702 · g) · (u + 1))`, where g is `gate(x)` but at most 7, and u is `up(x)` limited to −7 ..= 7. Of
    /// experts only.
    Clamped,
    /// `down(activation(up(x)))`.
    Plain,
}

/// Connects the blocks of one layer: takes the layer's input states and returns its output states.
pub type LayerFn = fn(&mut Layer<'_>, State) -> State;

/// A layer under construction.
#[derive(Debug)]
pub struct Layer<'a> {
    pub index: usize,
    pub card: &'static Card,
    pub config: &'a ModelConfig,
    weights: &'a dyn WeightProvider,
    tower: &'a mut Tower,
}

impl Layer<'_> {
    fn push(&mut self, kind: BlockKind) -> State {
        self.tower.push(Some(self.index), kind)
    }

    /// Whether the file has this tensor in this layer.
    pub fn has(&self, tensor: &str) -> bool {
        self.weights.tensor(&format!("{}blk.{}.{tensor}", self.tower.prefix, self.index)).is_some()
    }

    pub fn norm(&mut self, tensor: &'static str, x: State) -> State {
        self.push(BlockKind::Norm { x, tensor })
    }

    pub fn attend(&mut self, x: State) -> State {
        if self.config.is_recurrent(self.index) {
            return self.push(BlockKind::Mix { x });
        }
        if self.config.latent.is_some() {
            return self.push(BlockKind::AttendLatent { x });
        }
        let window = self.card.layer_window(self.config, self.index);
        let rotation = match (self.config.rotates(self.index), window) {
            (false, _) => None,
            (true, None) if self.card.rotates_in_windows => None,
            (true, Some(_)) if self.config.rope.local_base.is_some() => Some(Rotation::Local),
            (true, _) => Some(Rotation::Global),
        };
        // Some families have models with and without these norms.
        let qk_norm = self.card.qk_norm.filter(|norm| match norm {
            QkNorm::Plain => self.config.normed_heads && rotation.is_some(),
            _ => !self.card.optional_qk_norm || self.has("attn_q_norm.weight"),
        });
        let scales =
            self.config.rope.query_scaling.is_some() && (rotation.is_none() || !self.card.scales_unrotated);
        // With bidirectional attention, the window is centred on the token.
        let window = window.map(|size| match self.config.bidirectional {
            true => Span { behind: size / 2 + 1, ahead: size / 2, chunked: false },
            false => Span { behind: size, ahead: 0, chunked: self.card.chunked },
        });
        let scaled_by = scales.then_some(self.card.scaled_by);
        let sinks = self.card.sinks;
        let attention = Attention { qk_norm, rotation, window, scaled_by, sinks };
        self.push(BlockKind::Attend { x, attention })
    }

    pub fn attend_across(&mut self, x: State) -> State {
        self.push(BlockKind::AttendAcross { x })
    }

    /// The feed-forward part: a mixture of experts in layers that have a router.
    pub fn feed(&mut self, x: State) -> State {
        if self.has("ffn_gate_inp.weight") {
            return self.push(BlockKind::Experts { x });
        }
        self.push(BlockKind::Feed { x, kind: self.card.feed })
    }

    /// Adds the output of a part of the layer to the residual.
    pub fn add(&mut self, residual: State, x: State) -> State {
        let scale = self.config.residual_scale.unwrap_or(1.0);
        self.push(BlockKind::Add { residual, x, scale })
    }
}

impl Tower {
    fn push(&mut self, layer: Option<usize>, kind: BlockKind) -> State {
        self.blocks.push(Block { kind, layer });
        State(self.blocks.len() - 1)
    }

    /// The output states of the last block.
    pub fn last(&self) -> State {
        State(self.blocks.len().saturating_sub(1))
    }
}

impl Card {
    /// The tower of a model of this family.
    pub fn tower(&'static self, weights: &dyn WeightProvider) -> Tower {
        let config = weights.config();
        let mut tower = Tower::default();
        let scale = match config.embedding_scale {
            Some(scale) => scale,
            None if self.scaled_embeddings => (config.hidden_size as f32).sqrt(),
            None => 1.0,
        };
        let has = |tensor: &str| weights.tensor(&format!("{tensor}.weight")).is_some();
        let mut x = tower.push(None, BlockKind::Embed { scale });
        if has("position_embd") || has("token_types") {
            x = tower.push(None, BlockKind::Positions { x });
        }
        if has("token_embd_norm") {
            x = tower.push(None, BlockKind::Norm { x, tensor: "token_embd_norm" });
        }
        for index in 0..config.layer_count {
            x = (self.layer)(&mut Layer { index, card: self, config, weights, tower: &mut tower }, x);
        }
        tower
    }

    /// The tower of the encoder of audio, by its own configuration.
    pub fn encoder_tower(
        &'static self,
        weights: &dyn WeightProvider,
        config: &ModelConfig,
        bands: usize,
    ) -> Tower {
        let mut tower = Tower { prefix: "enc.", blocks: vec![] };
        let frames = tower.push(None, BlockKind::Frames { bands });
        let x = tower.push(None, BlockKind::Convolve { x: frames, tensor: "conv1", both: true });
        let x = tower.push(None, BlockKind::Convolve { x, tensor: "conv2", both: false });
        let mut x = tower.push(None, BlockKind::Positions { x });
        for index in 0..config.layer_count {
            x = pre_norm(&mut Layer { index, card: self, config, weights, tower: &mut tower }, x);
        }
        tower.push(None, BlockKind::Norm { x, tensor: "output_norm" });
        tower
    }
}

/// A norm before each part, as in LLaMA and most families.
pub fn pre_norm(layer: &mut Layer<'_>, x: State) -> State {
    norm_before_parts(layer, x, "ffn_norm")
}

/// The same, where the norm before the feed-forward part is [`crate::tensors::SECOND_NORM`].
pub fn pre_norm_second(layer: &mut Layer<'_>, x: State) -> State {
    norm_before_parts(layer, x, "post_attention_norm")
}

fn norm_before_parts(layer: &mut Layer<'_>, x: State, before_feed: &'static str) -> State {
    let normed = layer.norm("attn_norm", x);
    let attended = layer.attend(normed);
    let x = layer.add(x, attended);
    let normed = layer.norm(before_feed, x);
    let fed = layer.feed(normed);
    layer.add(x, fed)
}

/// A norm before each part, with attention to an encoder's states after that to the text.
pub fn pre_norm_across(layer: &mut Layer<'_>, x: State) -> State {
    let normed = layer.norm("attn_norm", x);
    let attended = layer.attend(normed);
    let x = layer.add(x, attended);
    let normed = layer.norm("cross_attn_norm", x);
    let attended = layer.attend_across(normed);
    let x = layer.add(x, attended);
    let normed = layer.norm("ffn_norm", x);
    let fed = layer.feed(normed);
    layer.add(x, fed)
}

/// A norm before and after each part.
pub fn sandwich(layer: &mut Layer<'_>, x: State) -> State {
    let normed = layer.norm("attn_norm", x);
    let attended = layer.attend(normed);
    let attended = layer.norm("post_attention_norm", attended);
    let x = layer.add(x, attended);
    let normed = layer.norm("ffn_norm", x);
    let fed = layer.feed(normed);
    let fed = layer.norm("post_ffw_norm", fed);
    layer.add(x, fed)
}

/// A norm after each part only, before the residual addition.
pub fn post_norm(layer: &mut Layer<'_>, x: State) -> State {
    let attended = layer.attend(x);
    let attended = layer.norm("post_attention_norm", attended);
    let x = layer.add(x, attended);
    let fed = layer.feed(x);
    let fed = layer.norm("post_ffw_norm", fed);
    layer.add(x, fed)
}

/// A norm after each residual addition, as in the original transformer.
pub fn add_then_norm(layer: &mut Layer<'_>, x: State) -> State {
    let attended = layer.attend(x);
    let x = layer.add(x, attended);
    let x = layer.norm("attn_output_norm", x);
    let fed = layer.feed(x);
    let x = layer.add(x, fed);
    layer.norm("layer_output_norm", x)
}

/// Parallel residual: attention and feed-forward part both read the layer's input, through one norm, or through a norm
/// each if the file has two.
pub fn parallel(layer: &mut Layer<'_>, x: State) -> State {
    let normed = layer.norm("attn_norm", x);
    let for_feed = if layer.has("ffn_norm.weight") { layer.norm("ffn_norm", x) } else { normed };
    let attended = layer.attend(normed);
    let x = layer.add(x, attended);
    let fed = layer.feed(for_feed);
    layer.add(x, fed)
}
