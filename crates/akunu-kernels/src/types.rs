//! How the kernels decode each weight type: the data that specialises `quants.h`, `floats.h` and `repack.h`.

use std::fmt::Write;
use std::sync::LazyLock;

use akunu_format::blocks::lattices::lattice_codes;
use akunu_plan::DType;

use crate::Source;
use crate::function::source;

type Define = (&'static str, u32);

/// The scale formats, as numbered in `quants.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Scales {
    F16,
    F16Pair,
    Exponent,
    Q2K,
    Q3K,
    K,
    Q6K,
    Iq4Xs,
    Affine,
    Lattice,
    LatticeHalves,
}

/// The int8 value that a code stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// The code minus this.
    Less(u32),
    /// An entry of a table, as numbered in `quants.h`.
    Table(u32),
}

#[derive(Clone, Copy, Debug)]
struct Quants {
    bits: u32,
    meaning: Meaning,
    scales: Scales,
}

/// The part of a function that depends on the weight type: sources and variants.
#[derive(Clone, Debug)]
pub(crate) struct TypeSources {
    pub sources: Vec<&'static Source>,
    pub variant: Vec<Define>,
    pub constants: Vec<Define>,
    /// Elements of a block.
    pub block: u32,
    /// 4-byte words of a block's codes where `gemm_few.h` stages them.
    pub code_words: u32,
    /// 4-byte words of the structs `Raw`, `Block` and `Input`.
    pub raw_words: u32,
    pub block_words: u32,
    pub input_words: u32,
    /// Bytes of eight blocks in each plane, in order; empty for unquantised types.
    pub planes: Vec<u32>,
}

/// Their names in `codes.h`.
const PLANE_NAMES: [&str; 5] = ["PLANE_0", "PLANE_1", "PLANE_2", "PLANE_3", "PLANE_4"];

fn plane_defines(planes: &[u32]) -> impl Iterator<Item = Define> + '_ {
    let bytes = planes.iter().copied().chain(std::iter::repeat(0));
    std::iter::once(("PLANES", planes.len() as u32)).chain(PLANE_NAMES.into_iter().zip(bytes))
}

static CODES: Source = source!("codes.h");
static QUANTS: Source = source!("quants.h");
static FLOATS: Source = source!("floats.h");
static LATTICES: Source = source!("lattices.h");

/// The table of points of each lattice, in the order of GGUF's type numbers from 16 on.
static POINTS: LazyLock<[Source; 14]> = LazyLock::new(|| {
    std::array::from_fn(|i| {
        let codes = DType::from_gguf_id(16 + i as u32).map(lattice_codes).unwrap_or_default();
        let mut text = format!("TABLE_SPACE u16 POINTS[{}] = {{", codes.len());
        for (i, code) in codes.iter().enumerate() {
            let end = if i % 16 == 15 { ",\n" } else { "," };
            let _ = write!(text, "{code}{end}");
        }
        text.push_str("};\n");
        Source { name: "points", text: text.leak() }
    })
});

fn quants(dtype: DType) -> Option<Quants> {
    use Meaning::{Less, Table};
    let (bits, meaning, scales) = match dtype {
        DType::F32 | DType::F16 | DType::BF16 | DType::Fp8(_) => return None,
        DType::Q4_0 => (4, Less(8), Scales::F16),
        DType::Q4_1 => (4, Less(0), Scales::F16Pair),
        DType::Q5_0 => (5, Less(16), Scales::F16),
        DType::Q5_1 => (5, Less(0), Scales::F16Pair),
        DType::Q8_0 => (8, Less(0), Scales::F16),
        DType::Q2K => (2, Less(0), Scales::Q2K),
        DType::Q3K => (3, Less(4), Scales::Q3K),
        DType::Q4K => (4, Less(0), Scales::K),
        DType::Q5K => (5, Less(0), Scales::K),
        DType::Q6K => (6, Less(32), Scales::Q6K),
        DType::IQ2XS | DType::IQ2S | DType::IQ1M => (8, Less(0), Scales::LatticeHalves),
        DType::IQ1S | DType::IQ2XXS | DType::IQ3XXS | DType::IQ3S => (8, Less(0), Scales::Lattice),
        DType::IQ4NL => (4, Table(1), Scales::F16),
        DType::IQ4XS => (4, Table(1), Scales::Iq4Xs),
        DType::MXFP4 => (4, Table(2), Scales::Exponent),
        DType::Affine(affine) => (affine.bits() as u32, Less(0), Scales::Affine),
    };
    Some(Quants { bits, meaning, scales })
}

/// `cols`: elements per row. `wide`: a thread may take more than one number at a time if the type is not quantised.
pub(crate) fn type_sources(dtype: DType, cols: u32, wide: bool) -> TypeSources {
    match quants(dtype) {
        Some(quants) => quantised(dtype, quants),
        None => floats(dtype, cols, wide),
    }
}

fn floats(dtype: DType, cols: u32, wide: bool) -> TypeSources {
    let (number, blocks): (u32, &[u32]) = match dtype {
        DType::F32 => (0, &[4]),
        DType::F16 => (1, &[8]),
        DType::Fp8(_) => (3, &[16, 8]),
        _ => (2, &[8]),
    };
    let constants = match dtype {
        DType::Fp8(fp8) => vec![("GROUP", fp8.group(cols as usize) as u32)],
        _ => Vec::new(),
    };
    let whole = blocks.iter().find(|block| wide && cols.is_multiple_of(**block));
    let block = whole.copied().unwrap_or(1);
    let raw_words = match (dtype, block) {
        (DType::Fp8(_), _) => block.div_ceil(4) + 1,
        (_, 1) => 1,
        _ => 4,
    };
    TypeSources {
        sources: vec![&FLOATS],
        variant: vec![("WEIGHT_TYPE", number), ("BLOCK", block)],
        constants,
        block,
        code_words: 0,
        raw_words,
        block_words: block,
        input_words: block,
        planes: Vec::new(),
    }
}

fn quantised(dtype: DType, quants: Quants) -> TypeSources {
    let (zero, table) = match quants.meaning {
        Meaning::Less(zero) => (zero, 0),
        Meaning::Table(table) => (0, table),
    };
    let constants = match dtype {
        DType::Affine(affine) => {
            vec![("GROUP", affine.group() as u32), ("SCALE_TYPE", affine.scales() as u32)]
        }
        _ => Vec::new(),
    };
    let in_halves = [Scales::Q2K, Scales::Q3K, Scales::Q6K, Scales::LatticeHalves];
    let halves = if in_halves.contains(&quants.scales) { 2 } else { 1 };
    let planes = planes(dtype, quants);
    let mut variant =
        vec![("BITS", quants.bits), ("ZERO", zero), ("TABLE_OF", table), ("SCALES", quants.scales as u32)];
    variant.extend(plane_defines(&planes));
    let mut sources = vec![&CODES, &QUANTS];
    if let Some(id) = dtype.gguf_id().filter(|_| dtype.is_lattice()) {
        variant.push(("LATTICE", id));
        sources.extend([&POINTS[id as usize - 16], &LATTICES]);
    }
    TypeSources {
        sources,
        variant,
        constants,
        block: 32,
        code_words: quants.bits,
        raw_words: if dtype.is_lattice() { 6 } else { quants.bits + 2 },
        block_words: 8 + 2 * halves,
        input_words: 9 + halves,
        planes,
    }
}

/// The fields of a lattice type's block: where they begin, and their bytes.
fn fields(dtype: DType) -> &'static [(u32, u32)] {
    match dtype {
        DType::IQ2XXS => &[(2, 64), (0, 2)],
        DType::IQ2XS => &[(2, 64), (66, 8), (0, 2)],
        DType::IQ2S => &[(2, 32), (34, 32), (66, 8), (74, 8), (0, 2)],
        DType::IQ3XXS => &[(2, 64), (66, 32), (0, 2)],
        DType::IQ3S => &[(2, 64), (74, 32), (66, 8), (106, 4), (0, 2)],
        DType::IQ1S => &[(2, 32), (34, 16), (0, 2)],
        DType::IQ1M => &[(0, 32), (32, 16), (48, 8)],
        _ => &[],
    }
}

/// Bytes of eight blocks in each plane, as `codes.h`, `quants.h` and `lattices.h` lay them out.
fn planes(dtype: DType, quants: Quants) -> Vec<u32> {
    if dtype.is_lattice() {
        return fields(dtype).iter().map(|field| field.1).collect();
    }
    let codes: &[u32] = match quants.bits {
        2 => &[64],
        3 => &[64, 32],
        4 => &[128],
        5 => &[128, 32],
        6 => &[128, 64],
        _ => &[256],
    };
    let affine = match dtype {
        DType::Affine(affine) => 256 / affine.group() as u32 * affine.scales().bytes() as u32,
        _ => 0,
    };
    let scales: &[u32] = match quants.scales {
        Scales::F16 => &[16],
        Scales::F16Pair => &[32],
        Scales::Exponent => &[8],
        Scales::Q2K => &[4, 16],
        Scales::Q3K => &[2, 8, 4],
        Scales::K => &[4, 8, 4],
        Scales::Q6K => &[16, 2],
        Scales::Iq4Xs => &[2, 4, 2],
        Scales::Affine => &[affine; 2],
        Scales::Lattice | Scales::LatticeHalves => &[],
    };
    [codes, scales].concat()
}

/// What `repack.h` needs to know of a type beyond its quants; `None`: the type is not repacked.
pub(crate) fn repack_variant(dtype: DType) -> Option<Vec<Define>> {
    let quants = quants(dtype)?;
    if dtype.is_lattice() {
        let mut variant = quantised(dtype, quants).variant;
        variant.push(("FILE_BYTES", dtype.block_bytes() as u32));
        let starts = fields(dtype).iter().map(|field| field.0).chain(std::iter::repeat(0));
        variant.extend(["FIELD_0", "FIELD_1", "FIELD_2", "FIELD_3", "FIELD_4"].into_iter().zip(starts));
        return Some(variant);
    }
    if matches!(dtype, DType::Affine(affine) if affine.bits() == 8) {
        return None;
    }
    // (order of codes in the file, bytes of a file block, offsets in it: low codes, high codes, scales, first f16)
    let [order, bytes, low, high, scales, d] = match dtype {
        DType::F32
        | DType::F16
        | DType::BF16
        | DType::Fp8(_)
        | DType::IQ1S
        | DType::IQ1M
        | DType::IQ2XXS
        | DType::IQ2XS
        | DType::IQ2S
        | DType::IQ3XXS
        | DType::IQ3S => return None,
        DType::Q4_0 | DType::IQ4NL => [0, 18, 2, 0, 0, 0],
        DType::Q4_1 => [0, 20, 4, 0, 0, 0],
        DType::Q5_0 => [0, 22, 6, 2, 0, 0],
        DType::Q5_1 => [0, 24, 8, 4, 0, 0],
        DType::Q8_0 => [1, 34, 2, 0, 0, 0],
        DType::Q2K => [2, 84, 16, 0, 0, 80],
        DType::Q3K => [2, 110, 32, 0, 96, 108],
        DType::Q4K => [3, 144, 16, 0, 4, 0],
        DType::Q5K => [3, 176, 48, 16, 4, 0],
        DType::Q6K => [4, 210, 0, 128, 192, 208],
        DType::IQ4XS => [5, 136, 8, 0, 2, 0],
        DType::MXFP4 => [0, 17, 1, 0, 0, 0],
        DType::Affine(_) => [6, 0, 0, 0, 0, 0],
    };
    let mut variant = quantised(dtype, quants).variant;
    variant.extend([("ORDER", order), ("FILE_BYTES", bytes), ("LOW_AT", low), ("HIGH_AT", high)]);
    variant.extend([("SCALES_AT", scales), ("D_AT", d)]);
    Some(variant)
}
