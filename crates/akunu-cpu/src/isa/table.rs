//! The only place where generic kernels are instantiated for instruction sets: each behind a wrapper that enables the
//! target features, so that everything below it, being `inline(always)`, is compiled with them. Instruction sets that
//! differ only in some products share the other instantiations.

use akunu_format::Affine;
use akunu_plan::ops;
use akunu_plan::{DType, Kernel};

use super::{Isa, scalar::Scalar};
#[cfg(target_arch = "x86_64")]
use super::{amx, amx_bf16, x86_bf16, x86_packed};
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};
#[cfg(target_arch = "aarch64")]
use super::{
    neon::Neon,
    neon_dots::{DotProd, I8mm, Plain},
};
use crate::command::{Command, Context, Run};
use crate::kernels::attention::product::{self, Operands, Products};
use crate::tile::{self, Dot, PackedKernel, Tile, TileKernel};
use crate::{floats, kernels, quants};
#[cfg(target_arch = "x86_64")]
use crate::{groups::Group, tile::Packed};

/// All kernels of one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Kernels {
    lanes: &'static LaneKernels,
    quantised: &'static Quantised<TileKernel>,
    pub(crate) packed: Option<&'static Quantised<PackedKernel>>,
    /// The kernels of packed rows with float weights, if there are any.
    packed_floats: Option<&'static [PackedKernel; FLOATS]>,
}

/// Kernels that only need [`Lanes`].
struct LaneKernels {
    embed: Run,
    add_positions: Run,
    pool: Run,
    rope_angles: Run,
    norm: Run,
    norm_add: Run,
    head_norm: Run,
    add: Run,
    matmul: Run,
    qkv: Run,
    glu_matmul: Run,
    glu: Run,
    activate: Run,
    quantise: Run,
    rope_kv: Run,
    attention: Run,
    argmax: Run,
    kv_shift: Run,
    kv_copy: Run,
    floats: [TileKernel; FLOATS],
}

/// Float types come first in `DType::ALL`.
const FLOATS: usize = 3;

/// One per quantised type.
pub(crate) struct Quantised<K> {
    /// In the order of `DType::ALL`.
    blocks: [K; 13],
    /// In the order of `Affine::BITS`.
    affine: [K; 6],
}

/// A function with target features.
macro_rules! wrapped {
    (($($feature:literal)?) $name:ident($($argument:ident: $type:ty),+) $body:expr) => {{
        $(#[target_feature(enable = $feature)])?
        unsafe fn $name($($argument: $type),+) {
            // SAFETY: this function has the contract of `Run` or of the product kernels, which its body shares. The
            // target features are present, because `Kernels::of` is called only for available instruction sets.
            unsafe { $body }
        }
        $name
    }};
}

macro_rules! floats {
    ($entry:ident) => {
        [$entry!(floats::F32W), $entry!(floats::F16W), $entry!(floats::BF16W)]
    };
}

macro_rules! quantised {
    ($entry:ident) => {
        Quantised {
            blocks: [
                $entry!(quants::Q40),
                $entry!(quants::Q41),
                $entry!(quants::Q50),
                $entry!(quants::Q51),
                $entry!(quants::Q80),
                $entry!(quants::Q2K),
                $entry!(quants::Q3K),
                $entry!(quants::Q4K),
                $entry!(quants::Q5K),
                $entry!(quants::Q6K),
                $entry!(quants::Iq4Nl),
                $entry!(quants::Iq4Xs),
                $entry!(quants::Mxfp4),
            ],
            affine: [
                $entry!(quants::Affine<2>),
                $entry!(quants::Affine<3>),
                $entry!(quants::Affine<4>),
                $entry!(quants::Affine<5>),
                $entry!(quants::Affine<6>),
                $entry!(quants::Affine<8>),
            ],
        }
    };
}

macro_rules! lanes {
    ($name:ident, $lanes:ty, $features:tt) => {
        pub(super) static $name: LaneKernels = {
            macro_rules! run {
                ($path:path) => {
                    wrapped!($features run(command: &Command, context: &Context) $path(command, context))
                };
            }
            macro_rules! multiply {
                ($path:path) => {
                    wrapped!(
                        $features multiply(operands: Operands, rows: usize, sixteens: usize)
                        $path(operands, rows, sixteens)
                    )
                };
            }
            macro_rules! float {
                ($weight:ty) => {
                    TileKernel {
                        rows: wrapped!($features rows(t: &Tile) floats::rows::<$lanes, $weight>(t)),
                        streams: wrapped!(
                            $features streams(t: &[Tile]) floats::streams::<$lanes, $weight>(t)
                        ),
                    }
                };
            }
            LaneKernels {
                embed: run!(kernels::rows::embed::<$lanes>),
                add_positions: run!(kernels::texts::add_positions::<$lanes>),
                pool: run!(kernels::texts::pool::<$lanes>),
                rope_angles: run!(kernels::rope::rope_angles),
                norm: run!(kernels::norm::norm::<$lanes>),
                norm_add: run!(kernels::norm::norm_add::<$lanes>),
                head_norm: run!(kernels::norm::head_norm::<$lanes>),
                add: run!(kernels::rows::add::<$lanes>),
                matmul: run!(kernels::matrix::matmul::<$lanes>),
                qkv: run!(kernels::matrix::qkv::<$lanes>),
                glu_matmul: run!(kernels::matrix::glu_matmul::<$lanes>),
                glu: run!(kernels::rows::glu::<$lanes>),
                activate: run!(kernels::rows::activate::<$lanes>),
                quantise: run!(kernels::rows::quantise::<$lanes>),
                rope_kv: run!(kernels::rope::rope_kv::<$lanes>),
                attention: wrapped!(
                    $features run(command: &Command, context: &Context)
                    kernels::attention::attention::<$lanes>(
                        command,
                        context,
                        Products {
                            lean_scores: multiply!(product::scores::<$lanes, floats::F16W>),
                            scores: multiply!(product::scores::<$lanes, floats::F32W>),
                            values: multiply!(product::values::<$lanes, floats::F32W>),
                            lean_values: multiply!(product::values::<$lanes, floats::F16W>),
                        },
                    )
                ),
                argmax: run!(kernels::rows::argmax::<$lanes>),
                kv_shift: run!(kernels::cache::kv_shift::<$lanes>),
                kv_copy: run!(kernels::cache::kv_copy),
                floats: floats!(float),
            }
        };
    };
}

macro_rules! products {
    ($name:ident, $lanes:ty, $features:tt) => {
        pub(super) static $name: Quantised<TileKernel> = {
            macro_rules! entry {
                ($weight:ty) => {
                    TileKernel {
                        rows: wrapped!($features rows(t: &Tile) <$lanes as Dot<$weight>>::rows(t)),
                        streams: wrapped!($features streams(t: &[Tile]) tile::streams::<$lanes, $weight>(t)),
                    }
                };
            }
            quantised!(entry)
        };
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! packed_kernel {
    ($products:ty, $features:tt) => {
        PackedKernel {
            pack: wrapped!($features pack(group: &Group) <$products as Packed>::pack(group)),
            run: wrapped!($features run(t: &Tile) <$products as Packed>::products(t)),
            outputs: <$products as Packed>::OUTPUTS,
            block_bytes: <$products as Packed>::BLOCK_BYTES,
        }
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! packed {
    ($name:ident, $quantised:ident $(but $module:ident::$type:ident by $other:ident)?; $features:tt) => {
        pub(super) static $name: Quantised<PackedKernel> = {
            macro_rules! entry {
                $(($module::$type) => {
                    packed_kernel!($other<$module::$type>, $features)
                };)?
                ($weight:ty) => {
                    packed_kernel!($quantised<$weight>, $features)
                };
            }
            quantised!(entry)
        };
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! packed_floats {
    ($name:ident, $float:ident; $features:tt) => {
        pub(super) static $name: [PackedKernel; FLOATS] = {
            macro_rules! entry {
                ($weight:ty) => {
                    packed_kernel!($float<$weight>, $features)
                };
            }
            floats!(entry)
        };
    };
}

mod plain {
    use super::*;

    lanes!(SCALAR, Scalar, ());
    products!(SCALAR_PRODUCTS, Scalar, ());
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::*;

    type Vnni<Q> = x86_packed::Integers<Q, x86_packed::Vnni>;
    type Tiles<Q> = x86_packed::Integers<Q, amx::Tiles>;
    type TileBf16<Q> = x86_bf16::Products<x86_bf16::Quantised<Q>, amx_bf16::Bf16Tiles>;
    type TileBf16Floats<W> = x86_bf16::Products<x86_bf16::Float<W>, amx_bf16::Bf16Tiles>;
    type PairFloats<W> = x86_bf16::Products<x86_bf16::Float<W>, x86_bf16::Pairs>;

    lanes!(AVX2, Avx2, ("avx2,fma,f16c"));
    products!(AVX2_PRODUCTS, Avx2, ("avx2,fma,f16c"));
    lanes!(AVX512, Avx512, ("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"));
    products!(AVX512_PRODUCTS, Avx512, ("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"));
    packed!(VNNI, Vnni; ("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"));
    // Q6_K has two scales per block, so its sums would have to be read from the tiles twice; VNNI is faster
    // (docs/cpu.md).
    packed!(TILES, Tiles but quants::Q6K by Vnni; ("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"));
    packed!(TILE_BF16, TileBf16; ("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16"));
    packed_floats!(TILE_BF16_FLOATS, TileBf16Floats; ("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16"));
    packed_floats!(PAIR_FLOATS, PairFloats; ("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16"));
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::*;

    lanes!(NEON, Neon<Plain>, ("neon"));
    products!(PLAIN, Neon<Plain>, ("neon"));
    products!(DOTPROD, Neon<DotProd>, ("neon,dotprod"));
    products!(I8MM, Neon<I8mm>, ("neon,dotprod,i8mm"));
}

impl Kernels {
    /// The caller must have checked that this processor has the instruction set.
    pub(crate) fn of(isa: Isa) -> Kernels {
        let (lanes, quantised, packed, packed_floats) = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => (&x86::AVX2, &x86::AVX2_PRODUCTS, None, None),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => (&x86::AVX512, &x86::AVX512_PRODUCTS, Some(&x86::VNNI), None),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => (&x86::AVX512, &x86::AVX512_PRODUCTS, Some(&x86::TILES), None),
            // VNNI multiplies quants at twice the rate of bfloat16 pairs.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => {
                (&x86::AVX512, &x86::AVX512_PRODUCTS, Some(&x86::VNNI), Some(&x86::PAIR_FLOATS))
            }
            #[cfg(target_arch = "x86_64")]
            Isa::AmxBf16 => {
                (&x86::AVX512, &x86::AVX512_PRODUCTS, Some(&x86::TILE_BF16), Some(&x86::TILE_BF16_FLOATS))
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => (&arm::NEON, &arm::PLAIN, None, None),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDotProd => (&arm::NEON, &arm::DOTPROD, None, None),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => (&arm::NEON, &arm::I8MM, None, None),
            _ => (&plain::SCALAR, &plain::SCALAR_PRODUCTS, None, None),
        };
        Kernels { lanes, quantised, packed, packed_floats }
    }

    /// `None`: the CPU does not have this kernel.
    pub(crate) fn run(&self, kernel: Kernel) -> Option<Run> {
        let lanes = self.lanes;
        Some(match kernel {
            Kernel::Embed(_) => lanes.embed,
            Kernel::AddPositions(_) => lanes.add_positions,
            Kernel::Pool(_) => lanes.pool,
            Kernel::RopeAngles(ops::RopeAngles) => lanes.rope_angles,
            Kernel::Norm(_) => lanes.norm,
            Kernel::NormAdd(ops::NormAdd) => lanes.norm_add,
            Kernel::HeadNorm(_) => lanes.head_norm,
            Kernel::Add(ops::Add) => lanes.add,
            Kernel::Matmul(_) => lanes.matmul,
            Kernel::Qkv(_) => lanes.qkv,
            Kernel::GluMatmul(_) => lanes.glu_matmul,
            Kernel::Glu(_) => lanes.glu,
            Kernel::Activate(_) => lanes.activate,
            Kernel::Round(ops::Round { out }) if out.q8() => lanes.quantise,
            // Refused by `limits`.
            Kernel::Round(_) | Kernel::Unpack(_) | Kernel::HalfMatmul(_) => nothing,
            Kernel::RopeKv(_) => lanes.rope_kv,
            Kernel::Attention(_) => lanes.attention,
            Kernel::Argmax(ops::Argmax) => lanes.argmax,
            Kernel::Sample(ops::Sample) => return None,
            Kernel::KvShift(_) => lanes.kv_shift,
            Kernel::KvCopy(_) => lanes.kv_copy,
        })
    }

    pub(crate) fn tile(&self, weight: DType) -> TileKernel {
        match self.quantised.of(weight) {
            Ok(kernel) => kernel,
            Err(float) => self.lanes.floats[float],
        }
    }

    /// `None`: products with such weights do not pack rows.
    pub(crate) fn packed(&self, weight: DType) -> Option<PackedKernel> {
        match self.packed?.of(weight) {
            Ok(kernel) => Some(kernel),
            Err(float) => self.packed_floats.map(|floats| floats[float]),
        }
    }
}

impl<K: Copy> Quantised<K> {
    /// The entry of a quantised type, or the index of a float type.
    fn of(&self, weight: DType) -> Result<K, usize> {
        let place = match weight {
            DType::Affine(affine) => return Ok(self.affine[place(&Affine::BITS, &affine.bits())]),
            weight => place(&DType::ALL, &weight),
        };
        place.checked_sub(FLOATS).map_or(Err(place), |place| Ok(self.blocks[place]))
    }
}

fn place<T: PartialEq>(all: &[T], one: &T) -> usize {
    all.iter().position(|other| other == one).unwrap_or(0)
}

unsafe fn nothing(_: &Command, _: &Context) {}
