//! A table of one row as a kernel that stays on the card for a whole chain, and goes through the commands itself.
//!
//! Between two commands stands a barrier over the card's groups instead of a launch: the first weights of a command are on their way
//! while the last one ends.

use std::rc::Rc;

use akunu_kernels::{Chip, Launch, Program, ProgramCommand};
use akunu_plan::table::MAX_BINDINGS;
use akunu_plan::{DeviceError, DispatchTable};

use crate::driver::Address;
use crate::error::failed;
use crate::module::Kernel;
use crate::prepare::{Buffers, Lent, launches_of};

/// Threads of every group.
const GROUP: u32 = 512;

/// Device memory for the commands of all tables that are run so, and how much of it is taken. The first 256 bytes count arrivals.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) address: Address,
    pub(crate) taken: u64,
}

impl Room {
    pub(crate) const BYTES: u64 = 2 << 20;
    pub(crate) const ARRIVALS: u64 = 256;
}

/// A table's kernel, its arguments and the groups that fit on the card at once.
#[derive(Debug)]
pub(crate) struct Resident {
    pub(crate) kernel: Rc<Kernel>,
    pub(crate) groups: u32,
    pub(crate) threads: u32,
    pub(crate) shared_bytes: u32,
    pub(crate) commands: Address,
    pub(crate) count: u32,
    pub(crate) arrivals: Address,
    pub(crate) pass: Address,
    pub(crate) scratch: Address,
}

/// `None` for tables that are better run launch by launch: more rows than one, or no room for the commands.
pub(crate) fn resident(
    lent: &mut Lent<'_>,
    table: &DispatchTable,
    buffers: Buffers<'_>,
) -> Result<Option<Resident>, DeviceError> {
    let bytes = table.commands.len() as u64 * size_of::<ProgramCommand>() as u64;
    if table.rows != 1 || !lent.resident || lent.room.taken + bytes > Room::BYTES {
        return Ok(None);
    }
    let chip = Chip { group: Some(GROUP), ..*lent.chip };
    let launches: Vec<Launch> = launches_of(table, &chip)?.into_iter().flatten().collect();
    if launches.len() != table.commands.len() {
        return Ok(None);
    }
    let Some(program) = Program::new(&launches, lent.groups_a_unit) else { return Ok(None) };
    let kernel = lent.kernels.program(&program)?;
    kernel.allow_shared(program.shared_bytes)?;
    let a_unit = kernel.groups_a_unit(program.threads, program.shared_bytes)?;
    if a_unit == 0 {
        return Err(failed(format!("{} does not fit on the card", program.name)));
    }
    let mut commands = Vec::with_capacity(launches.len());
    for ((command, launch), function) in table.commands.iter().zip(&launches).zip(&program.functions) {
        let mut pointers = [0; MAX_BINDINGS];
        for (pointer, binding) in pointers.iter_mut().zip(command.bindings()) {
            *pointer = buffers.place(binding.buffer, binding.offset, 0)?;
        }
        let (function, groups) = (*function, launch.groups);
        commands.push(ProgramCommand { pointers, params: command.params, function, groups });
    }
    let place = lent.room.address + lent.room.taken;
    lent.staging.upload(lent.stream, place, bytemuck::cast_slice(&commands))?;
    lent.room.taken += bytes;
    Ok(Some(Resident {
        groups: a_unit * chip.units,
        threads: program.threads,
        shared_bytes: program.shared_bytes,
        kernel,
        commands: place,
        count: commands.len() as u32,
        arrivals: lent.room.address,
        pass: lent.own[0],
        scratch: lent.own[1],
    }))
}
