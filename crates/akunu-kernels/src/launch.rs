//! The launches of each command.

use akunu_plan::ops;
use akunu_plan::{DispatchCommand, DispatchTable};

use crate::{Function, Source};

mod cache;
mod experts;
mod halves;
mod latent;
mod matrix;
mod ranks;
mod rows;
mod sample;
mod state;
mod texts;

/// The properties of a GPU that launches depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chip {
    /// Streaming multiprocessors, or GPU cores.
    pub units: u32,
    /// Threadgroup memory that a threadgroup may request.
    pub shared_bytes: u32,
    /// Whether kernels for tensor cores run: CUDA from compute capability 8.0 on.
    pub tensor_cores: bool,
    /// Whether kernels for the tensor instructions of warpgroups (wgmma) run: CUDA of compute capability 9.0.
    pub warpgroups: bool,
    /// Whether asynchronous copies to threadgroup memory (cp.async) are available: CUDA from compute capability 8.0
    /// on.
    pub copies: bool,
    /// Whether simdgroup matrices of 8 × 8 are available: Metal from family Apple7 on.
    pub tiles: bool,
    /// Whether simdgroup matrices may be bf16: Metal 3.1 with native bf16.
    pub bf16_tiles: bool,
    /// The most outputs that a SIMD group of a matrix-vector product computes, 1 or 2. Two outputs share the loads of
    /// the input.
    pub gemv_outputs: u32,
    /// Ranks whose numbers a library gathers; 0: kernels exchange them, or there is one rank.
    pub gathered_ranks: u32,
}

impl Chip {
    /// A chip without optional features.
    pub const fn plain(units: u32, shared_bytes: u32) -> Chip {
        Chip {
            units,
            shared_bytes,
            tensor_cores: false,
            warpgroups: false,
            copies: false,
            tiles: false,
            bf16_tiles: false,
            gemv_outputs: 1,
            gathered_ranks: 0,
        }
    }
}

/// Bytes of scratch memory that every function may use. A device allocates and zeroes it once: it begins with
/// counters, which kernels leave at zero.
/// `SCRATCH_BYTES` in common.h.
pub const SCRATCH_BYTES: u64 = 16 << 20;

/// Bytes that follow the scratch memory on a device that is one of several ranks: where the others write, as exchange.h says.
pub use ranks::{Exchange, GATHERED_BYTES, Gathering, exchange_bytes};

pub use matrix::FEWEST_PACKED_ROWS;

/// `COUNTER_BYTES` in common.h.
const COUNTER_BYTES: u64 = 64 << 10;

/// One launch of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    pub function: Function,
    /// For the table's maximum number of rows; threadgroups past the live rows exit at once.
    pub groups: [u32; 3],
    /// Threads per threadgroup, a multiple of 32.
    pub threads: u32,
    /// Bytes of dynamic threadgroup memory.
    pub shared_bytes: u32,
}

/// `out = x · Wᵀ (+ bias) (+ residual)` over f16 rows of `inputs` numbers, always for the table's maximum number of `rows`;
/// sums are f32, and so is `out`, or f16. With `scales`, rows and weights are E4M3, and their sums are multiplied by the
/// scales of both. Done by the device's library (cuBLAS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LibraryProduct {
    /// Indices of the command's bindings.
    pub x: usize,
    pub weight: usize,
    /// The scale of each row of `x`, and of each row of the weights.
    pub scales: Option<[usize; 2]>,
    pub out: usize,
    pub bias: Option<usize>,
    pub residual: Option<usize>,
    pub rows: u32,
    pub inputs: u32,
    pub outputs: u32,
    /// The row stride of `out` and `residual`, in numbers.
    pub out_stride: u32,
    pub out_f16: bool,
}

/// A part of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    Launch(Launch),
    /// Only if the device asked for products of f16 or FP8.
    Product(LibraryProduct),
    /// Only if a library exchanges the numbers of ranks ([`Chip::gathered_ranks`]).
    Gather(Gathering),
}

impl Work {
    pub fn launch(&self) -> Option<&Launch> {
        match self {
            Work::Launch(launch) => Some(launch),
            Work::Product(_) | Work::Gather(_) => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kernel} is not written for GPUs: {why}")]
pub struct MissingKernel {
    pub kernel: String,
    pub why: String,
}

/// The work of command `index` of a table: one launch, or several parts in order.
pub fn launches(table: &DispatchTable, index: usize, chip: &Chip) -> Result<Vec<Work>, MissingKernel> {
    let (rows, logit_rows) = (table.rows as u32, table.logit_rows as u32);
    let context = table.bounds.context();
    let command = &table.commands[index];
    let before = index.checked_sub(1).map(|before| &table.commands[before]);
    let after = table.commands.get(index + 1);
    Shape { command, before, after, rows, logit_rows, context, chip }.launches()
}

/// A command and what its launches depend on.
#[derive(Clone, Copy)]
struct Shape<'a> {
    command: &'a DispatchCommand,
    /// The commands before and after it.
    before: Option<&'a DispatchCommand>,
    after: Option<&'a DispatchCommand>,
    /// The table's maximum numbers of rows.
    rows: u32,
    logit_rows: u32,
    /// Positions of the longest sequence.
    context: u32,
    chip: &'a Chip,
}

impl Shape<'_> {
    fn launches(&self) -> Result<Vec<Work>, MissingKernel> {
        use akunu_plan::Kernel;
        let launch = match self.command.kernel {
            Kernel::Embed(ops::Embed { weight, .. }) => self.embed(weight),
            Kernel::AddPositions(op) => self.add_positions(op),
            Kernel::Pool(op) => self.pool(op),
            Kernel::Unfold(ops::Unfold) => self.unfold(),
            Kernel::AcrossRows(ops::AcrossRows) => self.across_rows(),
            Kernel::Matmul(op) => self.matmul(op)?,
            Kernel::Qkv(ops::Qkv { weight, form, q8, bias, scaled }) => {
                self.qkv((weight, form, q8), bias, scaled)?
            }
            Kernel::GluMatmul(ops::GluMatmul { weight, form, q8, activation, out, scaled }) => {
                self.glu_matmul((weight, form, q8), activation, out, scaled)?
            }
            Kernel::RopeAngles(ops::RopeAngles) => self.rope_angles(),
            Kernel::Norm(op) if op.out.f16() => self.norm_halves(op)?,
            Kernel::Norm(op) => self.norm(op)?,
            Kernel::NormAdd(ops::NormAdd) => self.norm_add()?,
            Kernel::HeadNorm(op) => self.head_norm(op)?,
            Kernel::SumSquares(ops::SumSquares) => self.sum_squares()?,
            Kernel::NormPart(ops::NormPart) => self.norm_part(),
            Kernel::Add(ops::Add) => self.add(),
            Kernel::Reorder(ops::Reorder) => self.reorder(),
            Kernel::Glu(op) if op.out.f16() => self.glu_halves(op)?,
            Kernel::Glu(op) => self.glu(op),
            Kernel::Activate(op) if op.out.f16() => self.activate_halves(op)?,
            Kernel::Activate(op) if op.input.f16() => {
                return Err(self.missing("it reads f16 only where it writes f16".into()));
            }
            Kernel::Activate(op) => self.activate(op),
            Kernel::Route(op) => self.route(op),
            Kernel::Gather(ops::Gather { form: out, .. })
            | Kernel::HeadsApart(ops::HeadsApart { out, .. })
            | Kernel::Attention(ops::Attention { out, .. })
                if out.eights() =>
            {
                return Err(self.missing("it does not round to FP8".into()));
            }
            Kernel::Gather(op) => return Ok(self.gather(op).into_iter().map(Work::Launch).collect()),
            Kernel::ExpertGlu(op) => self.expert_glu(op)?,
            Kernel::ExpertMatmul(op) => self.expert_matmul(op)?,
            Kernel::ExpertSum(op) => self.expert_sum(op)?,
            Kernel::WeighInputs(_) => self.weigh_inputs(),
            Kernel::Combine(op) => self.combine(op),
            Kernel::Round(op) if op.out.f16() => self.halve(op)?,
            Kernel::Round(_) => self.quantise(),
            Kernel::Unpack(ops::Unpack { weight }) => self.unpack(weight)?,
            Kernel::HalfMatmul(op) if op.by_library() => return Ok(self.half_matmul(op)),
            Kernel::HalfMatmul(op) => self.packed_matmul(op)?,
            Kernel::HalfQkv(op) => self.packed_qkv(op)?,
            Kernel::HalfExpertMatmul(op) => self.packed_experts(op)?,
            Kernel::HalfExpertGlu(op) => self.packed_expert_glu(op)?,
            Kernel::EightMatmul(op) => return Ok(self.eight_matmul(op)),
            Kernel::RopeKv(op) => self.rope_kv(op)?,
            Kernel::Attention(op) => return Ok(self.attention(op)?.into_iter().map(Work::Launch).collect()),
            Kernel::HeadScores(ops::HeadScores { kv }) => self.head_scores(kv),
            Kernel::LatentKv(op) => self.latent_kv(op),
            Kernel::HeadsApart(op) => self.heads_apart(op)?,
            Kernel::LatentQueries(op) => self.latent_queries(op),
            Kernel::LatentAttention(op) => self.latent_attention(op)?,
            Kernel::HeadsTogether(op) => self.heads_together(op)?,
            Kernel::StateConv(op) => self.state_conv(op),
            Kernel::StateScan(op) => self.state_scan(op)?,
            Kernel::Argmax(ops::Argmax) => self.argmax(),
            Kernel::Sample(ops::Sample) => return Ok(self.sample()?.into_iter().map(Work::Launch).collect()),
            Kernel::KvShift(op) => self.kv_shift(op),
            Kernel::KvCopy(op) => self.kv_copy(op),
            Kernel::AllReduce(op) => match self.chip.gathered_ranks {
                0 => self.all_reduce(op),
                ranks => return Ok(self.reduce_gathered(op, ranks)),
            },
            Kernel::AllGather(ops::AllGather) => match self.chip.gathered_ranks {
                0 => self.all_gather(),
                ranks => return Ok(self.place_gathered(ranks)),
            },
        };
        Ok(vec![Work::Launch(launch)])
    }

    /// Refuses f16 output of kernels that do not see whole rows, and so cannot compute a row's scale.
    fn not_f16(&self, out: akunu_plan::OutputForms) -> Result<(), MissingKernel> {
        if out.f16() { Err(self.missing("it does not round to f16".into())) } else { Ok(()) }
    }

    fn missing(&self, why: String) -> MissingKernel {
        MissingKernel { kernel: self.command.kernel.name(), why }
    }

    /// A launch of `entry` whose arguments are the command's bindings. `THREADS` is added to the constants.
    fn launch(&self, entry: &'static str, sources: Vec<&'static Source>, suffix: &str) -> LaunchBuilder {
        let kernel = self.command.kernel;
        LaunchBuilder {
            launch: Launch {
                function: Function {
                    name: format!("{}{suffix}", kernel.name()),
                    entry,
                    sources,
                    variant: Vec::new(),
                    constants: Vec::new(),
                    arguments: kernel.bindings().iter().map(|slot| slot.name).collect(),
                },
                groups: [1; 3],
                threads: 32,
                shared_bytes: 0,
            },
        }
    }
}

struct LaunchBuilder {
    launch: Launch,
}

impl LaunchBuilder {
    fn variant<const N: usize>(mut self, variant: [(&'static str, u32); N]) -> LaunchBuilder {
        self.launch.function.variant.extend(variant);
        self
    }

    fn constants<const N: usize>(mut self, constants: [(&'static str, u32); N]) -> LaunchBuilder {
        self.launch.function.constants.extend(constants);
        self
    }

    fn shared(mut self, bytes: u32) -> LaunchBuilder {
        self.launch.shared_bytes = bytes;
        self
    }

    fn over(mut self, groups: [u32; 3], threads: u32) -> Launch {
        self.launch.groups = groups;
        self.launch.threads = threads;
        self.launch.function.constants.push(("THREADS", threads));
        self.launch
    }
}
