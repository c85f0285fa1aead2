//! The one place where generic kernels meet instruction sets: each is instantiated behind a wrapper that enables the
//! set's features, so that everything below it, being `inline(always)`, is compiled for them.

use akunu_format::Affine;
use akunu_plan::{DType, Kernel};

use super::Isa;
#[cfg(target_arch = "x86_64")]
use super::amx::Tiles;
#[cfg(target_arch = "x86_64")]
use super::amx_bf16::Bf16;
use super::scalar::Scalar;
#[cfg(target_arch = "x86_64")]
use super::x86_packed::{Packed, Vnni};
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};
#[cfg(target_arch = "aarch64")]
use super::{
    neon::Neon,
    neon_dots::{DotProd, I8mm, Plain},
};
use crate::command::{Command, Context, Run};
use crate::floats::FloatProducts;
use crate::groups::Group;
use crate::tile::{Products, STREAMS, Tile, TileKernel};
use crate::{floats, kernels, quants};

/// Every kernel of one instruction set.
pub(crate) struct Kernels {
    embed: Run,
    rope_angles: Run,
    rms_norm: Run,
    norm_add: Run,
    matmul: Run,
    qkv: Run,
    glu_matmul: Run,
    glu: Run,
    quantise: Run,
    rope_kv: Run,
    attention: Run,
    argmax: Run,
    kv_shift: Run,
    kv_copy: Run,
    /// In the order of `DType::ALL`.
    tiles: [TileKernel; 16],
    /// In the order of `Affine::BITS`.
    affine: [TileKernel; 6],
}

macro_rules! kernels {
    ($module:ident, $lanes:ty, $floats:ty, $products:ty $(, $feature:literal)?) => {
        mod $module {
            use super::*;

            macro_rules! run {
                ($path:path) => {{
                    $(#[target_feature(enable = $feature)])?
                    unsafe fn run(command: &Command, context: &Context) {
                        // SAFETY: the command was checked when it was prepared, its rows when they were submitted.
                        unsafe { $path(command, context) }
                    }
                    run
                }};
            }

            macro_rules! products {
                ($on:ty, $trait:path, $method:ident) => {{
                    $(#[target_feature(enable = $feature)])?
                    unsafe fn run(t: &Tile) {
                        // SAFETY: the kernel that made the tile stays within its command's buffers.
                        unsafe { <$on as $trait>::$method(t) }
                    }
                    $(#[target_feature(enable = $feature)])?
                    unsafe fn streams(t: &[Tile; STREAMS]) {
                        // SAFETY: as above.
                        unsafe { <$on as $trait>::streams(t) }
                    }
                    $(#[target_feature(enable = $feature)])?
                    unsafe fn pack(group: &Group) {
                        // SAFETY: as above.
                        unsafe { <$on as $trait>::pack(group) }
                    }
                    TileKernel {
                        run,
                        streams,
                        rows: <$on as $trait>::ROWS,
                        outputs: <$on as $trait>::OUTPUTS,
                        block_bytes: <$on as $trait>::BLOCK_BYTES,
                        pack: if <$on as $trait>::BLOCK_BYTES > 0 { Some(pack) } else { None },
                    }
                }};
            }

            macro_rules! float {
                ($weight:ty) => {
                    products!($floats, FloatProducts<$weight>, float)
                };
            }

            macro_rules! quantised {
                ($weight:ty) => {
                    products!($products, Products<$weight>, quantised)
                };
            }

            pub(super) static KERNELS: Kernels = Kernels {
                embed: run!(kernels::rows::embed::<$lanes>),
                rope_angles: run!(kernels::rope::rope_angles),
                rms_norm: run!(kernels::rows::rms_norm::<$lanes>),
                norm_add: run!(kernels::rows::norm_add::<$lanes>),
                matmul: run!(kernels::matrix::matmul::<$lanes>),
                qkv: run!(kernels::matrix::qkv::<$lanes>),
                glu_matmul: run!(kernels::matrix::glu_matmul::<$lanes>),
                glu: run!(kernels::rows::glu::<$lanes>),
                quantise: run!(kernels::rows::quantise::<$lanes>),
                rope_kv: run!(kernels::rope::rope_kv::<$lanes>),
                attention: run!(kernels::attention::attention::<$lanes>),
                argmax: run!(kernels::rows::argmax::<$lanes>),
                kv_shift: run!(kernels::cache::kv_shift::<$lanes>),
                kv_copy: run!(kernels::cache::kv_copy),
                tiles: [
                    float!(floats::F32W),
                    float!(floats::F16W),
                    float!(floats::BF16W),
                    quantised!(quants::Q40),
                    quantised!(quants::Q41),
                    quantised!(quants::Q50),
                    quantised!(quants::Q51),
                    quantised!(quants::Q80),
                    quantised!(quants::Q2K),
                    quantised!(quants::Q3K),
                    quantised!(quants::Q4K),
                    quantised!(quants::Q5K),
                    quantised!(quants::Q6K),
                    quantised!(quants::Iq4Nl),
                    quantised!(quants::Iq4Xs),
                    quantised!(quants::Mxfp4),
                ],
                affine: [
                    quantised!(quants::Affine<2>),
                    quantised!(quants::Affine<3>),
                    quantised!(quants::Affine<4>),
                    quantised!(quants::Affine<5>),
                    quantised!(quants::Affine<6>),
                    quantised!(quants::Affine<8>),
                ],
            };
        }
    };
}

kernels!(scalar_kernels, Scalar, Scalar, Scalar);
#[cfg(target_arch = "x86_64")]
kernels!(avx2_kernels, Avx2, Avx2, Avx2, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
kernels!(
    avx512_kernels,
    Avx512,
    Avx512,
    Packed<Vnni>,
    "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"
);
#[cfg(target_arch = "x86_64")]
kernels!(
    amx_kernels,
    Avx512,
    Avx512,
    Packed<Tiles>,
    "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"
);
#[cfg(target_arch = "x86_64")]
kernels!(
    amx_bf16_kernels,
    Avx512,
    Bf16,
    Bf16,
    "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16"
);
#[cfg(target_arch = "aarch64")]
kernels!(neon_kernels, Neon<Plain>, Neon<Plain>, Neon<Plain>, "neon");
#[cfg(target_arch = "aarch64")]
kernels!(neon_dotprod_kernels, Neon<DotProd>, Neon<DotProd>, Neon<DotProd>, "neon,dotprod");
#[cfg(target_arch = "aarch64")]
kernels!(neon_i8mm_kernels, Neon<I8mm>, Neon<I8mm>, Neon<I8mm>, "neon,dotprod,i8mm");

impl Kernels {
    /// The caller has seen that this processor has it.
    pub(crate) fn of(isa: Isa) -> &'static Kernels {
        match isa {
            Isa::Scalar => &scalar_kernels::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &avx2_kernels::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &avx512_kernels::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => &amx_kernels::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::AmxBf16 => &amx_bf16_kernels::KERNELS,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => &neon_kernels::KERNELS,
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDotProd => &neon_dotprod_kernels::KERNELS,
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => &neon_i8mm_kernels::KERNELS,
            _ => &scalar_kernels::KERNELS,
        }
    }

    /// `None`: the CPU has no such kernel.
    pub(crate) fn run(&self, kernel: Kernel) -> Option<Run> {
        Some(match kernel {
            Kernel::Embed { .. } => self.embed,
            Kernel::RopeAngles => self.rope_angles,
            Kernel::RmsNorm { .. } => self.rms_norm,
            Kernel::NormAdd => self.norm_add,
            Kernel::Matmul { .. } => self.matmul,
            Kernel::Qkv { .. } => self.qkv,
            Kernel::GluMatmul { .. } => self.glu_matmul,
            Kernel::Glu { .. } => self.glu,
            Kernel::Quantise => self.quantise,
            // `limits` refuses them.
            Kernel::Halve | Kernel::Unpack { .. } | Kernel::HalfMatmul { .. } => nothing,
            Kernel::RopeKv { .. } => self.rope_kv,
            Kernel::Attention { .. } => self.attention,
            Kernel::Argmax => self.argmax,
            Kernel::Sample => return None,
            Kernel::KvShift { .. } => self.kv_shift,
            Kernel::KvCopy { .. } => self.kv_copy,
        })
    }

    /// Whether rows of quantised products are packed.
    pub(crate) fn pack(&self) -> bool {
        self.affine.iter().any(|tile| tile.pack.is_some())
    }

    pub(crate) fn tile(&self, weight: DType) -> TileKernel {
        if let DType::Affine(affine) = weight {
            let place = Affine::BITS.iter().position(|bits| *bits == affine.bits());
            return self.affine[place.unwrap_or(0)];
        }
        DType::ALL.iter().position(|t| *t == weight).map_or(self.tiles[0], |i| self.tiles[i])
    }
}

unsafe fn nothing(_: &Command, _: &Context) {}
