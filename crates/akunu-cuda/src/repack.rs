//! Weights laid out in planes on the card, once, before the first table that binds them is prepared.

use akunu_kernels::{Held, unlaid};
use akunu_plan::DispatchTable;
use akunu_plan::{DeviceBuffer, DeviceError};

use crate::NAME;
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
    let wanted = {
        let all = Buffers { all: buffers, ids };
        unlaid(NAME, table, |id| {
            let index = all.index(id)?;
            Ok(Held { index, bytes: all.all[index].memory.bytes, planes: all.all[index].planes })
        })?
    };
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
