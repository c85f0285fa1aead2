//! `kernels/shared.h`: the structs that Rust writes and kernels read, as Rust has them.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fmt::Write;
use std::mem::offset_of;
use std::path::Path;

use akunu_kernels::Pass;
use akunu_plan::ops::*;
use akunu_plan::sample::Settings;
use akunu_plan::{Move, Row};
use bytemuck::Zeroable;

const HEAD: &str = "\
// Structs that Rust writes and kernels read, as Rust has them: a test of akunu-kernels says how this file has to be.

#if defined(OFFSET_OF)
#define LAYOUT(type, bytes) static_assert(sizeof(type) == bytes && alignof(type) == 4, #type)
#define PLACE(type, field, at) static_assert(OFFSET_OF(type, field) == at, #type \".\" #field)
#else
#define LAYOUT(type, bytes) static_assert(sizeof(type) == bytes, #type)
#define PLACE(type, field, at)
#endif
";

struct Layout {
    name: &'static str,
    bytes: usize,
    align: usize,
    /// Name, type in Rust, and offset.
    fields: Vec<(&'static str, &'static str, usize)>,
}

/// The layouts of structs. The list must name all fields with their types, or this does not compile.
macro_rules! layouts {
    ($($name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        vec![$({
            let $name { $($field),* } = $name::zeroed();
            $(let _: $type = $field;)*
            Layout {
                name: stringify!($name),
                bytes: size_of::<$name>(),
                align: align_of::<$name>(),
                fields: vec![$((stringify!($field), stringify!($type), offset_of!($name, $field))),*],
            }
        }),*]
    };
}

fn records() -> Vec<Layout> {
    layouts! {
        Pass { rows: u32, logit_rows: u32, step: u32, stopped: u32, stop_count: u32, rank: u32, stop: [u32; 26] }
        Row { token: u32, position: u32, kv_len: u32, start: u32 }
        Move { from: u32, to: u32, len: u32 }
        Settings {
            inverse_temperature: f32, top_k: u32, top_p: u32, min_p: f32, repeat_penalty: f32, frequency_penalty: f32,
            presence_penalty: f32, window: u32, biases: u32, recent: u32, seed: [u32; 2], draw: [u32; 2], masked: u32, place: u32,
            coolest: f32, span: f32, exponent: f32, top_n_sigma: f32, typical_p: u32, xtc_threshold: u32,
            xtc_probability: u32,
        }
    }
}

fn params() -> Vec<Layout> {
    layouts! {
        EmbedParams { cols: u32, vocab: u32, scale: f32 }
        AnglesParams { pairs: u32, magnitude: f32 }
        NormParams { cols: u32, epsilon: f32 }
        HeadNormParams { heads: u32, head_dim: u32, epsilon: f32, in_stride: u32, out_stride: u32 }
        SumSquaresParams { cols: u32, out_stride: u32 }
        NormPartParams { cols: u32, summed: u32, epsilon: f32, sum_stride: u32, out_stride: u32 }
        MatmulParams { inputs: u32, outputs: u32, out_stride: u32, soft_cap: f32, epsilon: f32 }
        QkvParams { inputs: u32, q: u32, k: u32, v: u32 }
        GluMatmulParams { inputs: u32, outputs: u32 }
        ElementParams { cols: u32 }
        AddPositionsParams { cols: u32, count: u32, kinds: u32 }
        UnfoldParams { cols: u32, frames: u32, middle: u32 }
        AcrossRowsParams { own: u32, slot: u32, count: u32, positions: u32 }
        AddParams { cols: u32, scale: f32 }
        UnpackParams { inputs: u32, outputs: u32 }
        RouteParams { experts: u32, top: u32, groups: u32, groups_used: u32, scale: f32, epsilon: f32, tolerance: f32 }
        RopeKvParams { heads: u32, kv_heads: u32, head_dim: u32, rope_dims: u32, positions: u32, block: u32, epsilon: f32 }
        AttentionParams {
            heads: u32, kv_heads: u32, head_dim: u32, positions: u32, block: u32, scale: f32, soft_cap: f32, window: u32,
            ahead: u32, rope_dims: u32, epsilon: f32, reach: u32, factor_step: u32, factors: u32, across: u32,
        }
        HeadScoresParams {
            heads: u32, kv_heads: u32, head_dim: u32, positions: u32, scale: f32, head: u32, count: u32, out_stride: u32,
        }
        ArgmaxParams { vocab: u32, advance: u32 }
        SampleParams { vocab: u32, advance: u32 }
        LatentKvParams { latent: u32, rope_dims: u32, positions: u32, block: u32, epsilon: f32 }
        HeadsApartParams { heads: u32, stride: u32, dim: u32 }
        LatentQueriesParams { heads: u32, latent: u32, plain: u32, rope_dims: u32 }
        LatentAttentionParams { heads: u32, latent: u32, rope_dims: u32, positions: u32, block: u32, scale: f32 }
        HeadsTogetherParams { heads: u32, dim: u32 }
        StateConvParams { channels: u32, taps: u32, stride: u32, first: u32, slots: u32, block: u32 }
        StateScanParams {
            heads: u32, head_dim: u32, state_size: u32, groups: u32, stride: u32, gate: u32, dt: u32, slots: u32, block: u32,
        }
        KvMoveParams { kv_heads: u32, head_dim: u32, rope_dims: u32, positions: u32, block: u32 }
        AllGatherParams { cols: u32, total: u32 }
    }
}

/// `seed: [u32; 2]` becomes `u32 seed[2]`.
fn declared(field: &str, of: &str) -> String {
    match of.strip_prefix('[').and_then(|of| of.strip_suffix(']')).and_then(|of| of.split_once("; ")) {
        Some((of, count)) => format!("{of} {field}[{count}]"),
        None => format!("{of} {field}"),
    }
}

fn write_struct(text: &mut String, layout: &Layout) {
    assert_eq!(layout.align, 4, "{}", layout.name);
    writeln!(text, "\nstruct {} {{", layout.name).unwrap();
    for (field, of, _) in &layout.fields {
        writeln!(text, "    {};", declared(field, of)).unwrap();
    }
    writeln!(text, "}};\nLAYOUT({}, {});", layout.name, layout.bytes).unwrap();
    for (field, _, at) in &layout.fields {
        writeln!(text, "PLACE({}, {field}, {at});", layout.name).unwrap();
    }
}

/// `GluMatmulParams` is `glu_matmul`.
fn member(name: &str) -> String {
    let mut member = String::new();
    for c in name.strip_suffix("Params").unwrap().chars() {
        if c.is_uppercase() && !member.is_empty() {
            member.push('_');
        }
        member.push(c.to_ascii_lowercase());
    }
    member
}

fn shared() -> String {
    let mut text = HEAD.to_owned();
    records().iter().for_each(|layout| write_struct(&mut text, layout));
    params().iter().for_each(|layout| write_struct(&mut text, layout));
    text.push_str(
        "\n// A command's parameters; which of them, its kernel says.\nunion Params {\n    u32 words[16];\n",
    );
    for layout in params() {
        assert!(layout.bytes <= 64, "{}", layout.name);
        writeln!(text, "    {} {};", layout.name, member(layout.name)).unwrap();
    }
    text.push_str("};\nLAYOUT(Params, 64);\n");
    text
}

#[test]
fn kernels_know_the_structs_as_rust_has_them() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/shared.h");
    let text = shared();
    if std::fs::read_to_string(&file).unwrap_or_default() != text {
        let right = Path::new(env!("CARGO_TARGET_TMPDIR")).join("shared.h");
        std::fs::write(&right, text).unwrap();
        panic!("{} is not as Rust has it; as it should be: {}", file.display(), right.display());
    }
}
