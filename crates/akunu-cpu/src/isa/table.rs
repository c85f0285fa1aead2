//! Which kernels an instruction set has: one for each op, and one for each type of weights.

use std::marker::PhantomData;

use akunu_plan::{DType, Kernel, ops};

#[cfg(target_arch = "aarch64")]
use super::neon::{
    bytes::{DotProd, I8mm, Plain},
    lanes::Neon,
};
use super::scalar::lanes::Scalar;
use super::target::Target;
#[cfg(target_arch = "x86_64")]
use super::target::{packed, packed_bf16, packed_vnni};
use super::{Decoded, Isa};
#[cfg(target_arch = "x86_64")]
use super::{
    amx::{bf16::Bf16Tiles, packed::Tiles},
    avx2::lanes::Avx2,
    avx512::{
        bf16::{Float, Pairs, Products, Quantised},
        floats::Floats,
        lanes::Avx512,
        packed::{InRegisters, Integers, Sums},
    },
};
use crate::command::Run;
use crate::formats::affine::Affine;
use crate::formats::floats::{BF16W, F16W, F32W, FloatWeight, Fp8W};
use crate::formats::iq::{Iq4Nl, Iq4Xs};
use crate::formats::k_quants::{Q2K, Q3K, Q4K, Q5K, Q6K};
use crate::formats::lattices::Lattice;
use crate::formats::legacy::{Q40, Q41, Q50, Q51, Q80};
use crate::formats::mxfp4::Mxfp4;
use crate::tile::{PackedKernel, TileKernel};

/// All kernels of one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Kernels {
    run: fn(Kernel) -> Option<Run>,
    tile: fn(DType) -> TileKernel,
    packed: fn(DType) -> Option<PackedKernel>,
}

impl Kernels {
    /// What fuzz targets look for is around the kernels, and all of them take ten times as long to compile with coverage
    /// as the scalar ones.
    #[cfg(fuzzing)]
    pub(crate) fn of(_: Isa) -> Kernels {
        Kernels::new::<Scalar, Scalar>()
    }

    /// The caller must have checked that this processor has the instruction set.
    #[cfg(not(fuzzing))]
    pub(crate) fn of(isa: Isa) -> Kernels {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Kernels::new::<Avx2, Avx2>(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bw => Kernels {
                packed: of_weight::<InIntegers<InRegisters<false>>>,
                ..Kernels::new::<Avx512, Avx2>()
            },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Kernels { packed: of_weight::<InIntegers<Vnni>>, ..Kernels::new::<Avx512, Avx512>() }
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Kernels { packed: in_tiles, ..Kernels::new::<Avx512, Avx512>() },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => Kernels { packed: of_weight::<InPairs>, ..Kernels::new::<Avx512, Avx512>() },
            #[cfg(target_arch = "x86_64")]
            Isa::AmxBf16 => Kernels { packed: of_weight::<InBf16Tiles>, ..Kernels::new::<Avx512, Avx512>() },
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => Kernels::new::<Neon<Plain>, Neon<Plain>>(),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDotProd => Kernels::new::<Neon<Plain>, Neon<DotProd>>(),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => Kernels::new::<Neon<Plain>, Neon<I8mm>>(),
            _ => Kernels::new::<Scalar, Scalar>(),
        }
    }

    /// Products with quantised weights by `Q`, everything else by `V`, which instruction sets share that differ only
    /// in the former. Rows are not packed.
    fn new<V: Target, Q: Target>() -> Kernels {
        Kernels { run: of_op::<V>, tile: of_weight::<InTile<V, Q>>, packed: |_| None }
    }

    /// Kernels of a test's own, which multiply nothing.
    #[cfg(test)]
    pub(crate) fn of_test(run: fn(Kernel) -> Option<Run>) -> Kernels {
        Kernels { run, tile: |_| TileKernel { rows: |_| (), streams: |_| () }, packed: |_| None }
    }

    /// `None`: the CPU does not have this kernel.
    pub(crate) fn run(&self, kernel: Kernel) -> Option<Run> {
        (self.run)(kernel)
    }

    pub(crate) fn tile(&self, weight: DType) -> TileKernel {
        (self.tile)(weight)
    }

    /// `None`: products with such weights do not pack rows.
    pub(crate) fn packed(&self, weight: DType) -> Option<PackedKernel> {
        (self.packed)(weight)
    }
}

fn of_op<V: Target>(kernel: Kernel) -> Option<Run> {
    Some(match kernel {
        Kernel::Embed(_) => V::run::<ops::Embed>,
        Kernel::AddPositions(_) => V::run::<ops::AddPositions>,
        Kernel::Pool(_) => V::run::<ops::Pool>,
        Kernel::Unfold(_) => V::run::<ops::Unfold>,
        Kernel::Reorder(_) => V::run::<ops::Reorder>,
        Kernel::AcrossRows(_) => V::run::<ops::AcrossRows>,
        Kernel::RopeAngles(_) => V::run::<ops::RopeAngles>,
        Kernel::Norm(_) => V::run::<ops::Norm>,
        Kernel::NormAdd(_) => V::run::<ops::NormAdd>,
        Kernel::HeadNorm(_) => V::run::<ops::HeadNorm>,
        Kernel::SumSquares(_) => V::run::<ops::SumSquares>,
        Kernel::NormPart(_) => V::run::<ops::NormPart>,
        Kernel::Add(_) => V::run::<ops::Add>,
        Kernel::Matmul(_) => V::run::<ops::Matmul>,
        Kernel::Qkv(_) => V::run::<ops::Qkv>,
        Kernel::GluMatmul(_) => V::run::<ops::GluMatmul>,
        Kernel::Glu(_) => V::run::<ops::Glu>,
        Kernel::Route(_) => V::run::<ops::Route>,
        Kernel::WeighInputs(_) => V::run::<ops::WeighInputs>,
        Kernel::Gather(_) => V::run::<ops::Gather>,
        Kernel::ExpertGlu(_) => V::run::<ops::ExpertGlu>,
        Kernel::ExpertMatmul(_) => V::run::<ops::ExpertMatmul>,
        Kernel::ExpertSum(_) => V::run::<ops::ExpertSum>,
        Kernel::Combine(_) => V::run::<ops::Combine>,
        Kernel::Activate(_) => V::run::<ops::Activate>,
        Kernel::Round(ops::Round { out, .. }) if out.q8() => V::run::<ops::Round>,
        Kernel::Round(_)
        | Kernel::Unpack(_)
        | Kernel::HalfMatmul(_)
        | Kernel::HalfQkv(_)
        | Kernel::HalfExpertMatmul(_)
        | Kernel::HalfExpertGlu(_)
        | Kernel::EightMatmul(_) => return None,
        Kernel::RopeKv(_) => V::run::<ops::RopeKv>,
        Kernel::Attention(_) => V::run::<ops::Attention>,
        Kernel::HeadScores(_) => V::run::<ops::HeadScores>,
        Kernel::StateConv(_) => V::run::<ops::StateConv>,
        Kernel::StateScan(_) => V::run::<ops::StateScan>,
        Kernel::LatentKv(_) => V::run::<ops::LatentKv>,
        Kernel::HeadsApart(_) => V::run::<ops::HeadsApart>,
        Kernel::LatentQueries(_) => V::run::<ops::LatentQueries>,
        Kernel::LatentAttention(_) => V::run::<ops::LatentAttention>,
        Kernel::HeadsTogether(_) => V::run::<ops::HeadsTogether>,
        Kernel::Argmax(_) => V::run::<ops::Argmax>,
        Kernel::Sample(_) => return None,
        Kernel::AllReduce(_) => V::run::<ops::AllReduce>,
        Kernel::AllGather(_) => V::run::<ops::AllGather>,
        Kernel::KvShift(_) => V::run::<ops::KvShift>,
        Kernel::KvCopy(_) => V::run::<ops::KvCopy>,
    })
}

/// A kernel for each type of weights; `N` is the number of a quantised one.
trait ByWeight {
    type Kernel;
    fn quantised<Q: Decoded>() -> Self::Kernel;
    fn float<W: FloatWeight>() -> Self::Kernel;
}

fn of_weight<K: ByWeight>(weight: DType) -> K::Kernel {
    match weight {
        DType::F32 => K::float::<F32W>(),
        DType::F16 => K::float::<F16W>(),
        DType::BF16 => K::float::<BF16W>(),
        DType::Fp8(_) => K::float::<Fp8W>(),
        DType::Q4_0 => K::quantised::<Q40>(),
        DType::Q4_1 => K::quantised::<Q41>(),
        DType::Q5_0 => K::quantised::<Q50>(),
        DType::Q5_1 => K::quantised::<Q51>(),
        DType::Q8_0 => K::quantised::<Q80>(),
        DType::Q2K => K::quantised::<Q2K>(),
        DType::Q3K => K::quantised::<Q3K>(),
        DType::Q4K => K::quantised::<Q4K>(),
        DType::Q5K => K::quantised::<Q5K>(),
        DType::Q6K => K::quantised::<Q6K>(),
        DType::IQ1S => K::quantised::<Lattice<19>>(),
        DType::IQ1M => K::quantised::<Lattice<29>>(),
        DType::IQ2XXS => K::quantised::<Lattice<16>>(),
        DType::IQ2XS => K::quantised::<Lattice<17>>(),
        DType::IQ2S => K::quantised::<Lattice<22>>(),
        DType::IQ3XXS => K::quantised::<Lattice<18>>(),
        DType::IQ3S => K::quantised::<Lattice<21>>(),
        DType::IQ4NL => K::quantised::<Iq4Nl>(),
        DType::IQ4XS => K::quantised::<Iq4Xs>(),
        DType::MXFP4 => K::quantised::<Mxfp4>(),
        DType::Affine(affine) => match affine.bits() {
            2 => K::quantised::<Affine<2>>(),
            3 => K::quantised::<Affine<3>>(),
            4 => K::quantised::<Affine<4>>(),
            5 => K::quantised::<Affine<5>>(),
            6 => K::quantised::<Affine<6>>(),
            _ => K::quantised::<Affine<8>>(),
        },
    }
}

/// Rows that are not packed.
struct InTile<V, Q>(PhantomData<(V, Q)>);

impl<V: Target, Q: Target> ByWeight for InTile<V, Q> {
    type Kernel = TileKernel;

    fn quantised<W: Decoded>() -> TileKernel {
        TileKernel { rows: Q::quantised_rows::<W>, streams: Q::quantised_streams::<W> }
    }

    fn float<W: FloatWeight>() -> TileKernel {
        TileKernel { rows: V::float_rows::<W>, streams: V::float_streams::<W> }
    }
}

#[cfg(target_arch = "x86_64")]
type Vnni = InRegisters<true>;

/// Packed rows, those of quantised weights with integer sums by `S`.
#[cfg(target_arch = "x86_64")]
struct InIntegers<S>(PhantomData<S>);

#[cfg(target_arch = "x86_64")]
impl<S: Sums> ByWeight for InIntegers<S> {
    type Kernel = Option<PackedKernel>;

    fn quantised<Q: Decoded>() -> Option<PackedKernel> {
        Some(if const { S::VNNI } { packed_vnni::<Integers<Q, S>>() } else { packed::<Integers<Q, S>>() })
    }

    fn float<W: FloatWeight>() -> Option<PackedKernel> {
        Some(packed::<Floats<W>>())
    }
}

#[cfg(target_arch = "x86_64")]
fn in_tiles(weight: DType) -> Option<PackedKernel> {
    match weight {
        // It has two scales per block, so its sums would have to be read from the tiles twice; VNNI is faster
        // (docs/cpu.md).
        DType::Q6K => of_weight::<InIntegers<Vnni>>(weight),
        _ => of_weight::<InIntegers<Tiles>>(weight),
    }
}

/// Packed rows, those of float weights in bfloat16: VNNI multiplies quants at twice the rate of bfloat16 pairs.
#[cfg(target_arch = "x86_64")]
struct InPairs;

#[cfg(target_arch = "x86_64")]
impl ByWeight for InPairs {
    type Kernel = Option<PackedKernel>;

    fn quantised<Q: Decoded>() -> Option<PackedKernel> {
        InIntegers::<Vnni>::quantised::<Q>()
    }

    fn float<W: FloatWeight>() -> Option<PackedKernel> {
        Some(packed_bf16::<Products<Float<W>, Pairs>>())
    }
}

/// Packed rows in bfloat16, with AMX.
#[cfg(target_arch = "x86_64")]
struct InBf16Tiles;

#[cfg(target_arch = "x86_64")]
impl ByWeight for InBf16Tiles {
    type Kernel = Option<PackedKernel>;

    fn quantised<Q: Decoded>() -> Option<PackedKernel> {
        Some(packed_bf16::<Products<Quantised<Q>, Bf16Tiles>>())
    }

    fn float<W: FloatWeight>() -> Option<PackedKernel> {
        Some(packed_bf16::<Products<Float<W>, Bf16Tiles>>())
    }
}
