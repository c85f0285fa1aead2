//! Prepares a table: kernels are resolved, bindings become pointers, and all extents are checked.

use std::ops::Range;
use std::sync::Arc;

use akunu_plan::device::{check_bytes, index_of};
use akunu_plan::ops::ExpertParams;
use akunu_plan::table::MAX_BINDINGS;
use akunu_plan::{
    Access, Binding, BufferId, Content, DeviceBuffer, DeviceError, DispatchCommand, DispatchTable,
    ExpertPart, Kernel, RowSet,
};

use crate::command::{Command, Experts};
use crate::device::NAME;
use crate::groups::{self, MOST_ROWS};
use crate::isa::table::Kernels;
use crate::kernels::experts::most_groups;
use crate::kernels::matrix::group_bytes;
use crate::limits;
use crate::memory::Buffer;
use crate::paging::Pager;
use crate::tile::PackedKernel;

/// A prepared table.
pub(crate) struct Prepared {
    pub(crate) table: Arc<DispatchTable>,
    pub(crate) commands: Vec<Command>,
    /// Indices of the device's buffers.
    pub(crate) entries: usize,
    pub(crate) logit_rows: usize,
    pub(crate) tokens: usize,
}

/// A device's buffers, as a table refers to them.
pub(crate) struct Buffers<'a> {
    pub(crate) all: &'a [Buffer],
    /// By `BufferId`.
    pub(crate) ids: &'a [DeviceBuffer],
    pub(crate) pager: Option<&'a Pager>,
}

fn failed(message: String) -> DeviceError {
    DeviceError::Failed { device: NAME, message }
}

impl Buffers<'_> {
    fn index(&self, id: BufferId) -> Result<usize, DeviceError> {
        index_of(NAME, self.ids, self.all.len(), id)
    }

    /// The buffer, if the device owns it and it has at least `bytes`.
    fn io(&self, id: BufferId, bytes: usize) -> Result<usize, DeviceError> {
        let index = self.index(id)?;
        match &self.all[index] {
            Buffer::Owned(owned) => {
                check_bytes(NAME, 0, bytes as u64, owned.bytes as u64)?;
                Ok(index)
            }
            Buffer::Imported { .. } => Err(failed("rows and tokens cannot be read-only".into())),
        }
    }

    /// The paged layer that has the weights of a command.
    fn paged_layer(&self, command: &DispatchCommand) -> Option<usize> {
        let mut bound = command.kernel.bindings().into_iter().zip(command.bindings());
        let (_, weight) = bound.find(|(slot, _)| slot.content.is_weight())?;
        self.pager?.layer_of((self.index(weight.buffer).ok()?, weight.offset))
    }

    /// What each command of a table has to do with experts.
    fn experts(&self, table: &DispatchTable) -> Result<Vec<Experts>, DeviceError> {
        let mut experts = vec![Experts::Nothing; table.commands.len()];
        for routed in table.routed() {
            let layer = self.paged_layer(&table.commands[routed.glu]);
            experts[routed.route] = Experts::Chosen { bytes: routed.expert_bytes(table), layer };
            let Some(layer) = layer else { continue };
            let shape = self.pager.map(|pager| (pager.layer(layer).experts, pager.layer(layer).top));
            let picks = routed.picks(table).map(|(_, experts, top)| (experts, top));
            for (index, part) in [(routed.glu, ExpertPart::Glu), (routed.down, ExpertPart::Down)] {
                let command = &table.commands[index];
                let p: ExpertParams = command.params();
                let same = self.paged_layer(command) == Some(layer)
                    && [picks, Some((p.experts as usize, p.top as usize))] == [shape; 2];
                if !same {
                    return Err(failed("the experts of a layer are paged in another shape".into()));
                }
                // Only a row's own experts are there at once.
                if matches!(command.kernel, Kernel::ExpertSum(_)) && table.rows > 1 {
                    return Err(failed("experts of several rows that are added up cannot be paged".into()));
                }
                experts[index] = Experts::Read { layer, part };
            }
        }
        Ok(experts)
    }
}

pub(crate) fn prepare(
    table: &Arc<DispatchTable>,
    buffers: &Buffers<'_>,
    kernels: &Kernels,
) -> Result<Prepared, DeviceError> {
    let io = table.io;
    let asked = table.logit_rows * size_of::<u32>();
    let experts = buffers.experts(table)?;
    let prepared = Prepared {
        entries: buffers.io(io.rows, table.entry_bytes())?,
        logit_rows: buffers.io(io.logit_rows, asked)?,
        tokens: buffers.io(io.tokens, asked * (table.steps + 1))?,
        commands: table
            .commands
            .iter()
            .zip(experts)
            .map(|(c, experts)| command(table, (c, experts), buffers, kernels))
            .collect::<Result<_, _>>()?,
        table: Arc::clone(table),
    };
    Ok(prepared)
}

fn command(
    table: &DispatchTable,
    (command, experts): (&DispatchCommand, Experts),
    buffers: &Buffers<'_>,
    kernels: &Kernels,
) -> Result<Command, DeviceError> {
    let slots = command.kernel.bindings();
    let missing = || DeviceError::MissingKernel { device: NAME, kernel: command.kernel.name() };
    let run = kernels.run(command.kernel).filter(|_| !limits::is_folded(command.kernel));
    let run = run.ok_or_else(missing)?;
    // Extents first: they refuse the zeros that the limits divide by.
    let extents = akunu_plan::extents(table, command)
        .and_then(|extents| limits::check(table, command).map(|()| extents))
        .map_err(|reason| failed(format!("{}: {reason}", command.kernel.name())))?;
    if command.bindings().len() != slots.len() || slots.len() != extents.len() {
        return Err(failed(format!("{} does not bind {} buffers", command.kernel.name(), slots.len())));
    }
    let mut bindings = [std::ptr::null_mut(); MAX_BINDINGS];
    let mut ranges: Vec<(bool, Range<usize>)> = Vec::with_capacity(slots.len());
    let mut paged = buffers.pager.into_iter().flat_map(|pager| pager.slots_for(experts));
    for (i, (slot, binding)) in slots.iter().zip(command.bindings()).enumerate() {
        let writes = slot.access != Access::Read;
        let mut start = resolve(buffers, binding, extents[i], writes)?;
        let mut bytes = extents[i] as usize;
        if let Some((all, slots)) = slot.content.is_weight().then(|| paged.next()).flatten() {
            if all != extents[i] {
                return Err(failed(format!(
                    "{}: {} is paged in another shape",
                    command.kernel.name(),
                    slot.name
                )));
            }
            (start, bytes) = (slots.start(), slots.bytes);
        }
        check_io(table, command.kernel, slot.content, writes, binding)?;
        let any_place = matches!(
            slot.content,
            Content::Weight(_) | Content::Scales(_) | Content::Keys(_) | Content::Values(_)
        );
        if !any_place && !(start as usize).is_multiple_of(align_of::<f32>()) {
            return Err(failed(format!("{}: {} is not aligned", command.kernel.name(), slot.name)));
        }
        bindings[i] = start;
        ranges.push((writes, start as usize..start as usize + bytes));
    }
    for (i, (writes, a)) in ranges.iter().enumerate() {
        let overlaps =
            |(j, (_, b)): (usize, &(bool, Range<usize>))| i != j && a.start < b.end && b.start < a.end;
        if *writes && ranges.iter().enumerate().any(overlaps) {
            let (kernel, name) = (command.kernel.name(), slots[i].name);
            return Err(failed(format!("{kernel}: {name} overlaps another binding")));
        }
    }
    let weight = slots.iter().find_map(|slot| match slot.content {
        Content::Weight(dtype) => Some(dtype),
        _ => None,
    });
    let weight = weight.unwrap_or(akunu_plan::DType::F32);
    let mut prepared = Command {
        run,
        kernel: command.kernel,
        tile: kernels.tile(weight),
        packed: None,
        bindings,
        params: command.params,
        logit_capacity: table.logit_rows,
        experts,
    };
    if let Some((_, inputs, _, rows)) = prepared.matrix_input() {
        let most = if rows == RowSet::Logits { table.logit_rows } else { table.rows };
        let suits = |kernel: &PackedKernel| most >= kernel.least_rows && inputs <= kernel.max_inputs;
        let whole = inputs.is_multiple_of(akunu_plan::q8::BLOCK);
        prepared.packed = kernels.packed(weight).filter(|kernel| whole && suits(kernel));
    }
    if let Kernel::ExpertMatmul(_) | Kernel::ExpertGlu(_) = prepared.kernel {
        let p: ExpertParams = prepared.params();
        let (inputs, rows) = (p.inputs as usize, table.rows * p.top as usize);
        let whole = inputs.is_multiple_of(akunu_plan::q8::BLOCK);
        // The memory for packed rows is sized by those of dense products; more are multiplied as they are.
        let reserved = groups::bytes(table.rows.max(MOST_ROWS));
        let fits = |kernel: &PackedKernel| {
            let groups = most_groups(rows, p.experts as usize);
            let many = table.rows >= kernel.least_rows && inputs <= kernel.max_inputs;
            many && groups * group_bytes(inputs, kernel) <= reserved
        };
        prepared.packed = kernels.packed(weight).filter(|kernel| whole && fits(kernel));
    }
    Ok(prepared)
}

/// The address of a binding; checks that `bytes` from there on are inside its buffer.
fn resolve(
    buffers: &Buffers<'_>,
    binding: &Binding,
    bytes: u64,
    writes: bool,
) -> Result<*mut u8, DeviceError> {
    let buffer = &buffers.all[buffers.index(binding.buffer)?];
    if writes && matches!(buffer, Buffer::Imported { .. }) {
        return Err(failed(format!("buffer {} is read-only", binding.buffer.0)));
    }
    check_bytes(NAME, binding.offset, bytes, buffer.bytes())?;
    Ok(buffer.start().wrapping_add(binding.offset as usize))
}

/// Rows and logit rows are checked when they are submitted, so kernels must read them only from the table's own
/// buffers, and attention to an encoder's states from rows that are made of these.
fn check_io(
    table: &DispatchTable,
    kernel: Kernel,
    content: Content,
    writes: bool,
    binding: &Binding,
) -> Result<(), DeviceError> {
    let expected = match content {
        // `across_rows` writes rows that are as correct as those that it reads, and nothing else writes there.
        Content::Rows(_) if matches!(kernel, Kernel::AcrossRows(_)) && writes => [table.io.across, None],
        Content::Rows(_) if matches!(kernel, Kernel::Attention(_) | Kernel::HeadScores(_)) => {
            [Some(table.io.rows), table.io.across]
        }
        Content::Rows(_) | Content::Moves(_) => [Some(table.io.rows), None],
        Content::U32 if writes => [Some(table.io.tokens), None],
        Content::U32 => [Some(table.io.logit_rows), table.io.segments],
        _ => return Ok(()),
    };
    if binding.offset == 0 && expected.contains(&Some(binding.buffer)) {
        return Ok(());
    }
    Err(failed(format!("{} takes its rows or tokens from another buffer than the table's", kernel.name())))
}
