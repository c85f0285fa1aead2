//! Weights laid out in planes on the card, once, before the first table that binds them is prepared.

use std::collections::BTreeMap;

use akunu_kernels::{Launch, Weight, repack, weights};
use akunu_plan::DispatchTable;
use akunu_plan::{DeviceBuffer, DeviceError};

use crate::error::failed;
use crate::memory::Memory;
use crate::prepare::{Buffer, Buffers, Lent};
use crate::stream::Params;

/// Lays out what a table binds and no table before it bound. Each tensor is copied away and written back in place; the memory for
/// that, as much as the largest takes, is freed at the end.
pub(crate) fn lay_out(
    lent: &mut Lent<'_>,
    table: &DispatchTable,
    buffers: &mut [Buffer],
    ids: &[DeviceBuffer],
) -> Result<(), DeviceError> {
    let wanted = wanted(table, Buffers { all: buffers, ids })?;
    let Some(largest) = wanted.keys().map(|&index| buffers[index].memory.bytes).max() else { return Ok(()) };
    lent.kernels.require(wanted.values().map(|(_, launch)| &launch.function))?;
    let copy = Memory::new(lent.context, largest).map_err(|error| {
        error.during(&format!("laying weights out anew takes {largest} bytes for a while"))
    })?;
    for (index, (weight, launch)) in wanted {
        let Memory { address, bytes, .. } = buffers[index].memory;
        lent.stream.copy(copy.address, address, bytes)?;
        let name = launch.function.name.clone();
        let bound = lent.bind(launch, vec![copy.address, address], Params::default())?;
        lent.stream.launch(&bound, false).map_err(|error| error.during(&name))?;
        buffers[index].planes = Some(weight);
    }
    lent.stream.synchronise().map_err(|error| error.during("laying weights out anew"))
}

/// By buffer: the matrices of a table that do not lie in planes yet, and how they come to.
fn wanted(
    table: &DispatchTable,
    buffers: Buffers<'_>,
) -> Result<BTreeMap<usize, (Weight, Launch)>, DeviceError> {
    let mut wanted: BTreeMap<usize, (Weight, Launch)> = BTreeMap::new();
    for command in &table.commands {
        for weight in weights(command) {
            let Some(launch) = repack(&weight) else { continue };
            let binding = command.bindings()[weight.binding];
            let index = buffers.index(binding.buffer)?;
            let buffer = &buffers.all[index];
            if binding.offset != 0 || weight.bytes() != Some(buffer.memory.bytes) {
                return Err(failed(format!("{}: a weight is not all of its buffer", command.kernel.name())));
            }
            let before = buffer.planes.or(wanted.get(&index).map(|(weight, _)| *weight));
            match before {
                // Planes of 4096 columns are not those of 2048.
                Some(before) if !is_same_matrix(&before, &weight) => {
                    return Err(failed(format!("{}: a weight has two shapes", command.kernel.name())));
                }
                Some(_) => {}
                None => drop(wanted.insert(index, (weight, launch))),
            }
        }
    }
    Ok(wanted)
}

/// Wherever it is bound.
fn is_same_matrix(a: &Weight, b: &Weight) -> bool {
    (a.dtype, a.rows, a.cols) == (b.dtype, b.rows, b.cols)
}
