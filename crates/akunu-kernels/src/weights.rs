//! The weight matrices that a command binds, and their repacking.

use std::collections::BTreeMap;

use akunu_plan::ops::{
    self, EmbedParams, ExpertParams, GluMatmulParams, MatmulParams, QkvParams, UnpackParams,
};
use akunu_plan::{BufferId, Content, DType, DeviceError, DispatchCommand, DispatchTable, Kernel};

use crate::function::source;
use crate::types::{repack_variant, type_sources};
use crate::{Function, Launch, Source};

static REPACK: Source = source!("repack.h");

/// A matrix that a command binds: `rows` rows of `cols` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// The binding of the quants if the type has separate planes.
    pub binding: usize,
    pub dtype: DType,
    pub rows: u32,
    pub cols: u32,
}

impl Weight {
    /// Bytes at the binding; the same before and after repacking.
    pub fn bytes(&self) -> Option<u64> {
        let row = self.dtype.plane_bytes(self.cols as usize)?[0];
        (row as u64).checked_mul(u64::from(self.rows))
    }

    /// The same matrix, whatever the binding.
    fn is_same_matrix(&self, other: &Weight) -> bool {
        (self.dtype, self.rows, self.cols) == (other.dtype, other.rows, other.cols)
    }
}

/// A device buffer, as far as repacking is concerned.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// The index among the device's buffers.
    pub index: usize,
    pub bytes: u64,
    /// The matrix whose planes it holds, if it has been repacked.
    pub planes: Option<Weight>,
}

/// The matrices of a table that still have to be repacked, by buffer, and the launches that do it. `held`: the state
/// of each of the table's buffers.
pub fn unlaid(
    device: &'static str,
    table: &DispatchTable,
    held: impl Fn(BufferId) -> Result<Held, DeviceError>,
) -> Result<BTreeMap<usize, (Weight, Launch)>, DeviceError> {
    let mut unlaid: BTreeMap<usize, (Weight, Launch)> = BTreeMap::new();
    for command in &table.commands {
        let failed = |what: &str| DeviceError::Failed {
            device,
            message: format!("{}: {what}", command.kernel.name()),
        };
        for weight in weights(command) {
            let Some(launch) = repack(&weight) else { continue };
            let binding = command.bindings()[weight.binding];
            let Held { index, bytes, planes } = held(binding.buffer)?;
            if binding.offset != 0 || weight.bytes() != Some(bytes) {
                return Err(failed("a weight is not all of its buffer"));
            }
            match planes.or(unlaid.get(&index).map(|(weight, _)| *weight)) {
                // Planes of 4096 columns are not those of 2048.
                Some(before) if !before.is_same_matrix(&weight) => {
                    return Err(failed("a weight has two shapes"));
                }
                Some(_) => {}
                None => drop(unlaid.insert(index, (weight, launch))),
            }
        }
    }
    Ok(unlaid)
}

/// The matrices of a command. Those with a [`repack`] launch have to be repacked once before the command's first run.
pub fn weights(command: &DispatchCommand) -> Vec<Weight> {
    let (dtype, cols, rows) = match command.kernel {
        Kernel::Embed(ops::Embed { weight, .. }) => {
            let p: EmbedParams = command.params();
            (weight, p.cols, vec![p.vocab])
        }
        Kernel::Matmul(ops::Matmul { weight, .. }) | Kernel::HalfMatmul(ops::HalfMatmul { weight, .. }) => {
            let p: MatmulParams = command.params();
            (weight, p.inputs, vec![p.outputs])
        }
        Kernel::EightMatmul(_) => {
            let p: MatmulParams = command.params();
            (ops::EIGHTS, p.inputs, vec![p.outputs])
        }
        Kernel::Qkv(ops::Qkv { weight, .. }) | Kernel::HalfQkv(ops::HalfQkv { weight, .. }) => {
            let p: QkvParams = command.params();
            (weight, p.inputs, vec![p.q, p.k, p.v])
        }
        Kernel::GluMatmul(ops::GluMatmul { weight, .. }) => {
            let p: GluMatmulParams = command.params();
            (weight, p.inputs, vec![p.outputs; 2])
        }
        Kernel::ExpertGlu(ops::ExpertGlu { weight, .. })
        | Kernel::HalfExpertGlu(ops::HalfExpertGlu { weight, .. }) => {
            let p: ExpertParams = command.params();
            (weight, p.inputs, vec![p.experts * p.outputs; 2])
        }
        Kernel::ExpertMatmul(ops::ExpertMatmul { weight, .. })
        | Kernel::HalfExpertMatmul(ops::HalfExpertMatmul { weight })
        | Kernel::ExpertSum(ops::ExpertSum { weight, .. }) => {
            let p: ExpertParams = command.params();
            (weight, p.inputs, vec![p.experts * p.outputs])
        }
        Kernel::Unpack(ops::Unpack { weight }) => {
            let p: UnpackParams = command.params();
            (weight, p.inputs, vec![p.outputs])
        }
        _ => return Vec::new(),
    };
    let slots = command.kernel.bindings().into_iter().enumerate();
    let places = slots.filter(|(_, slot)| matches!(slot.content, Content::Weight(_))).map(|(i, _)| i);
    places.zip(rows).map(|(binding, rows)| Weight { binding, dtype, rows, cols }).collect()
}

/// The launch that repacks a matrix to planes: from argument 0, the file's bytes, to argument 1, of the same size.
/// `None`: the type is used as stored.
pub fn repack(weight: &Weight) -> Option<Launch> {
    const THREADS: u32 = 128;
    let variant = repack_variant(weight.dtype)?;
    let of = type_sources(weight.dtype, weight.cols, true);
    let constants = [("INPUTS", weight.cols), ("MATRIX_ROWS", weight.rows), ("THREADS", THREADS)];
    let blocks = u64::from(weight.rows) * u64::from(weight.cols / 32);
    let function = Function {
        name: format!("repack_{}_{}x{}", weight.dtype.name().to_ascii_lowercase(), weight.cols, weight.rows),
        entry: "repack",
        sources: of.sources.into_iter().chain([&REPACK]).collect(),
        variant,
        constants: of.constants.into_iter().chain(constants).collect(),
        arguments: vec!["file", "planes"],
    };
    let groups = [u32::try_from(blocks.div_ceil(u64::from(THREADS))).ok()?, 1, 1];
    Some(Launch { function, groups, threads: THREADS, shared_bytes: 0 })
}
