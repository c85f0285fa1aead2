//! The commands of a table in runs of one side, some of which run while the host computes.

use std::collections::HashSet;
use std::ops::Range;

use akunu_plan::{Access, BufferId, DispatchTable, Side};

/// Commands that run on one side, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) side: Side,
    pub(crate) first: usize,
    pub(crate) count: usize,
    /// A device computes them while the host computes those after them, which read nothing of what they write.
    pub(crate) beside: bool,
}

impl Span {
    fn commands(&self) -> Range<usize> {
        self.first..self.first + self.count
    }
}

/// The runs of a table. A slot has one weight during a run.
pub(crate) fn spans(table: &DispatchTable) -> Vec<Span> {
    let mut spans = Vec::new();
    for span in by_side(table) {
        match spans.pop() {
            Some(before) => spans.extend(apart(table, before, span)),
            None => spans.push(span),
        }
    }
    spans
}

fn by_side(table: &DispatchTable) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let mut filled: Vec<BufferId> = Vec::new();
    for (first, command) in table.commands.iter().enumerate() {
        let is_filled = table.loans(first).any(|loan| filled.contains(&loan.slot));
        match spans.last_mut() {
            Some(span) if span.side == command.side && !is_filled => span.count += 1,
            _ => {
                spans.push(Span { side: command.side, first, count: 1, beside: false });
                filled.clear();
            }
        }
        filled.extend(table.loans(first).map(|loan| loan.slot));
    }
    // A table of no commands is prepared, too.
    if spans.is_empty() {
        spans.push(Span { side: Side::Device, first: 0, count: 0, beside: false });
    }
    spans
}

/// Two runs that follow one another. If the host's first command needs only a part of what the device computes before it, the
/// device computes the rest beside those commands of the host that do not need it either.
fn apart(table: &DispatchTable, device: Span, host: Span) -> Vec<Span> {
    let together = vec![device, host];
    if device.side.is_host() || !host.side.is_host() || !table.streams.loans.is_empty() {
        return together;
    }
    let needs = needs(table, &device, &host);
    let Some(end) = needs.first().copied().flatten().map(|last| last + 1) else { return together };
    let rest = end..device.first + device.count;
    // So many commands of the host begin before the rest is over.
    let early = needs.iter().take_while(|need| need.is_none_or(|last| last < end)).count();
    let early = host.first..host.first + before_mixture(table, &host, early);
    if rest.is_empty() || early.is_empty() || overwrites(table, rest.clone(), early.clone()) {
        return together;
    }
    let of =
        |span: Span, commands: Range<usize>| Span { first: commands.start, count: commands.len(), ..span };
    let spans = [
        of(device, device.first..end),
        Span { beside: true, ..of(device, rest) },
        of(host, early.clone()),
        of(host, early.end..host.first + host.count),
    ];
    spans.into_iter().filter(|span| span.count > 0).collect()
}

/// As many of the first `early` commands as leave the commands of each mixture of experts together, from its router on: a
/// device that pages experts, or counts them, needs to see all.
fn before_mixture(table: &DispatchTable, host: &Span, early: usize) -> usize {
    let end = host.first + early;
    let mut mixtures = table.routed().into_iter().filter(|mixture| host.commands().contains(&mixture.route));
    let cut = mixtures.find(|mixture| mixture.route < end && end <= mixture.down);
    cut.map_or(early, |mixture| mixture.route - host.first)
}

/// For each command of the host, the last one of the device whose result it reads.
fn needs(table: &DispatchTable, device: &Span, host: &Span) -> Vec<Option<usize>> {
    let mut own: HashSet<BufferId> = HashSet::new();
    let mut needs = Vec::with_capacity(host.count);
    for command in host.commands() {
        let read = buffers(table, command, |access| access != Access::Write);
        let from_device = read.filter(|buffer| !own.contains(buffer)).filter_map(|buffer| {
            let mut writers = device.commands().rev();
            writers.find(|writer| written(table, *writer).any(|other| other == buffer))
        });
        needs.push(from_device.max());
        own.extend(written(table, command));
    }
    needs
}

/// Whether some commands write what others read.
fn overwrites(table: &DispatchTable, writers: Range<usize>, readers: Range<usize>) -> bool {
    let all: HashSet<BufferId> = writers.flat_map(|command| written(table, command)).collect();
    let mut read = readers.flat_map(|command| buffers(table, command, |access| access != Access::Write));
    read.any(|buffer| all.contains(&buffer))
}

fn written(table: &DispatchTable, command: usize) -> impl Iterator<Item = BufferId> {
    buffers(table, command, |access| access != Access::Read)
}

/// The buffers that a command accesses so.
fn buffers(
    table: &DispatchTable,
    command: usize,
    how: impl Fn(Access) -> bool,
) -> impl Iterator<Item = BufferId> {
    let command = &table.commands[command];
    let bound = command.kernel.bindings().into_iter().zip(command.bindings());
    bound.filter(move |(slot, _)| how(slot.access)).map(|(_, binding)| binding.buffer)
}
