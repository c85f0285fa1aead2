//! The pass that streams: the device multiplies the weights that the host has, which are lent to it one after the other. What
//! reads or writes the host's part of the KV cache stays on the host, and the embedding, of which a pass reads some rows.

use std::collections::HashMap;

use akunu_arch::WeightProvider;

use super::Buffers;
use super::graph::{Action, Graph};
use crate::{BufferId, BufferKind, DType, DispatchCommand, DispatchTable, Home, Loan, Side, Streams};

/// The same graph with all products on the device.
pub(super) fn on_device(graph: &Graph) -> Graph {
    let mut graph = graph.clone();
    for step in graph.steps.iter_mut().filter(|step| step.side.is_host() && !stays(&step.action)) {
        step.side = Side::Device;
        if let Action::Product(product) = &mut step.action {
            product.unhalved = false;
        }
    }
    graph
}

fn stays(action: &Action) -> bool {
    matches!(
        action,
        Action::Embed { .. }
            | Action::AddPositions { .. }
            | Action::Angles { .. }
            | Action::RopeKv { .. }
            | Action::Attend(_)
            | Action::LatentKv { .. }
            | Action::LatentAttend { .. }
            | Action::StateConv { .. }
            | Action::StateScan { .. }
    )
}

/// Weights that can be in the same slot: those of one role in layers, of the same type and shape.
type Role = (String, usize, DType, Vec<usize>);

/// `ffn_up.weight` of `blk.3.ffn_up.weight`.
fn role(name: &str) -> &str {
    let of_layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    of_layer.map_or(name, |(_, role)| role)
}

/// Binds slots in the place of the weights that only the host has, and lists what is lent to them. `buffers` know where the
/// weights are by the tables that do not stream.
pub(super) fn lend(
    table: &mut DispatchTable,
    least_rows: usize,
    provider: &dyn WeightProvider,
    buffers: &mut Buffers,
) {
    let mut slots: HashMap<Role, [BufferId; 2]> = HashMap::new();
    let mut lent: HashMap<BufferId, BufferId> = HashMap::new();
    let mut loans = Vec::new();
    let on_device = |(_, command): &(usize, &mut DispatchCommand)| command.side == Side::Device;
    for (index, command) in table.commands.iter_mut().enumerate().filter(on_device) {
        for binding in &mut command.bindings[..usize::from(command.binding_count)] {
            let weight = binding.buffer;
            let spec = &buffers.0[weight.index()];
            let BufferKind::Weight { tensor, plane, .. } = spec.kind else { continue };
            if spec.home != Home::HOST {
                continue;
            }
            let (info, bytes) = (&provider.tensors()[tensor], spec.bytes);
            let role = (role(&spec.name).to_string(), plane, info.dtype, info.shape.clone());
            let [slot, arrival] = *slots.entry(role).or_insert_with_key(|(role, ..)| {
                let [slot, arrival] = ["", ".arrival"].map(|part| format!("streamed.{role}{part}"));
                [slot, arrival].map(|name| buffers.add(name, bytes, BufferKind::Slot))
            });
            binding.buffer = slot;
            if lent.insert(slot, weight) != Some(weight) {
                loans.push(Loan { command: index, weight, arrival, slot });
            }
        }
    }
    table.streams = Streams { least_rows, loans };
}
