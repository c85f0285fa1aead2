//! Towers: what a forward pass is made of, as people draw a model. A card makes a tower from a file's facts; the plan
//! lowers it to ops. A layer is a plain function that connects blocks, so `fn` pointers are all that a card holds.

use crate::{Card, ModelConfig, WeightProvider};

/// The states that a block leaves behind: one row for each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State(pub usize);

/// Blocks in the order in which they run. Block `i` produces [`State`] `i`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tower {
    pub blocks: Vec<Block>,
}

/// One part of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    pub kind: BlockKind,
    /// The layer that it belongs to; `None` before the first one and after the last.
    pub layer: Option<usize>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum BlockKind {
    /// Rows of the token embedding, times a number.
    Embed { scale: f32 },
    /// Learned positions and token types, as far as the file has them, added.
    Positions { x: State },
    Norm {
        x: State,
        /// Canonical name of its weights, without the layer and `.weight`. A bias is added where the file has one and
        /// the kind of norm takes one.
        tensor: &'static str,
    },
    /// Attention and its output projection.
    Attend { x: State, attention: Attention },
    /// The feed-forward part.
    Feed { x: State, kind: FeedKind },
    /// `residual + scale · x`.
    Add { residual: State, x: State, scale: f32 },
}

/// What a norm divides by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// The root of the mean of squares.
    Rms,
    /// The standard deviation, after the mean is subtracted.
    Layer,
}

/// What is normed of Q and K before they rotate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QkNorm {
    /// Each head, all heads with the same weights.
    Head,
    /// Each head, with weights of its own.
    EachHead,
    /// All heads together.
    Row,
}

/// How a layer attends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attention {
    pub qk_norm: Option<QkNorm>,
    /// Which frequencies Q and K rotate by; `None` where they do not.
    pub rotation: Option<Rotation>,
    /// Which positions a row sees; `None` means all of its text, as far as the row is not causal.
    pub window: Option<Span>,
}

/// Positions around a row's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Up to its own, which is included.
    pub behind: usize,
    /// After its own.
    pub ahead: usize,
}

/// A model has up to two sets of rotation frequencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rotation {
    Global,
    /// Those of sliding layers, where they differ.
    Local,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FeedKind {
    /// `down(activation(gate(x)) · up(x))`.
    Gated,
    /// `down(activation(up(x)))`.
    Plain,
}

/// Connects the blocks of one layer: takes the states that it begins with and returns those that it ends with.
pub type LayerFn = fn(&mut Layer<'_>, State) -> State;

/// A layer that is being put together.
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
        self.weights.tensor(&format!("blk.{}.{tensor}", self.index)).is_some()
    }

    pub fn norm(&mut self, tensor: &'static str, x: State) -> State {
        self.push(BlockKind::Norm { x, tensor })
    }

    pub fn attend(&mut self, x: State) -> State {
        let window = self.card.layer_window(self.config, self.index);
        let rotation = match (self.config.rotates(self.index), window) {
            (false, _) => None,
            (true, None) if self.card.rotates_in_windows => None,
            (true, Some(_)) if self.config.rope.local_base.is_some() => Some(Rotation::Local),
            (true, _) => Some(Rotation::Global),
        };
        // Some families have models with these norms and models without.
        let qk_norm =
            self.card.qk_norm.filter(|_| !self.card.optional_qk_norm || self.has("attn_q_norm.weight"));
        // A window of a model that looks both ways has its row in the middle.
        let window = window.map(|size| match self.config.bidirectional {
            true => Span { behind: size / 2 + 1, ahead: size / 2 },
            false => Span { behind: size, ahead: 0 },
        });
        self.push(BlockKind::Attend { x, attention: Attention { qk_norm, rotation, window } })
    }

    pub fn feed(&mut self, x: State) -> State {
        self.push(BlockKind::Feed { x, kind: self.card.feed })
    }

    /// Adds what a part of the layer computed to what it began with.
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

    /// The states that its last block leaves behind.
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
}

/// A norm before each part: LLaMA's layer, and that of most families.
pub fn pre_norm(layer: &mut Layer<'_>, x: State) -> State {
    let normed = layer.norm("attn_norm", x);
    let attended = layer.attend(normed);
    let x = layer.add(x, attended);
    let normed = layer.norm("ffn_norm", x);
    let fed = layer.feed(normed);
    layer.add(x, fed)
}

/// A norm before each part and one after it, before the residual is added.
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

/// A norm after each part only, before the residual is added.
pub fn post_norm(layer: &mut Layer<'_>, x: State) -> State {
    let attended = layer.attend(x);
    let attended = layer.norm("post_attention_norm", attended);
    let x = layer.add(x, attended);
    let fed = layer.feed(x);
    let fed = layer.norm("post_ffw_norm", fed);
    layer.add(x, fed)
}

/// A norm after each part and its residual, as in the first transformers.
pub fn add_then_norm(layer: &mut Layer<'_>, x: State) -> State {
    let attended = layer.attend(x);
    let x = layer.add(x, attended);
    let x = layer.norm("attn_output_norm", x);
    let fed = layer.feed(x);
    let x = layer.add(x, fed);
    layer.norm("layer_output_norm", x)
}

/// Attention and the feed-forward part side by side: both read the layer's input through one norm, or through a norm
/// each where the file has two.
pub fn parallel(layer: &mut Layer<'_>, x: State) -> State {
    let normed = layer.norm("attn_norm", x);
    let for_feed = if layer.has("ffn_norm.weight") { layer.norm("ffn_norm", x) } else { normed };
    let attended = layer.attend(normed);
    let x = layer.add(x, attended);
    let fed = layer.feed(for_feed);
    layer.add(x, fed)
}
