//! The inline parameters of each kernel: at most 64 bytes, the same layout in Rust, CUDA and Metal.
//! Sizes are in elements unless they say bytes.

use bytemuck::{Pod, Zeroable};

macro_rules! params {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type),* }

        impl Describe for $name {
            fn fields(&self) -> Vec<(&'static str, String)> {
                vec![$((stringify!($field), format!("{:?}", self.$field))),*]
            }
        }
    )*};
}

/// Field names and values, for printing a table.
pub trait Describe {
    fn fields(&self) -> Vec<(&'static str, String)>;
}

params! {
    EmbedParams { cols: u32, vocab: u32, scale: f32 }

    /// `magnitude` multiplies cos and sin (YaRN).
    AnglesParams { pairs: u32, magnitude: f32 }

    NormParams { cols: u32, epsilon: f32 }

    MatmulParams {
        inputs: u32,
        outputs: u32,
        /// Distance between output rows, in f32.
        out_stride: u32,
        /// `cap · tanh(y / cap)`; 0 means none.
        soft_cap: f32,
        /// Of the norm that it begins; else 0.
        epsilon: f32,
    }

    /// Outputs of one row stand side by side: `[q, k, v]`.
    QkvParams { inputs: u32, q: u32, k: u32, v: u32 }

    GluMatmulParams { inputs: u32, outputs: u32 }

    /// Elements of one row of an elementwise kernel.
    ElementParams { cols: u32 }

    /// A matrix's columns and rows.
    UnpackParams { inputs: u32, outputs: u32 }

    /// Cache rows are `[slot][kv head][position < capacity]`.
    RopeKvParams {
        heads: u32,
        kv_heads: u32,
        head_dim: u32,
        /// The first `rope_dims` of a head rotate.
        rope_dims: u32,
        capacity: u32,
        /// For the QK norm.
        epsilon: f32,
    }

    AttentionParams {
        heads: u32,
        kv_heads: u32,
        head_dim: u32,
        capacity: u32,
        scale: f32,
        /// `cap · tanh(score / cap)` after scaling; 0 means none.
        soft_cap: f32,
        /// A row at position p sees p − window + 1 ..= p; 0 means all.
        window: u32,
        /// Where it rotates: the first `rope_dims` of a head, `epsilon` for the QK norm; else 0.
        rope_dims: u32,
        epsilon: f32,
    }

    ArgmaxParams {
        vocab: u32,
        /// 1: rows move on to the token found, so that the next step decodes it.
        advance: u32,
    }

    SampleParams {
        vocab: u32,
        /// 1: rows move on to the token found, so that the next step decodes it.
        advance: u32,
        /// Words of one row's record.
        stride: u32,
    }

    /// Cache maintenance; what to move stands in the row (see the kernels).
    KvMoveParams { kv_heads: u32, head_dim: u32, rope_dims: u32, capacity: u32 }
}
