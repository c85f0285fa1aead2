//! The reference device: runs a table one command at a time, in scalar loops with f64 accumulators. Slow but simple:
//! all other devices are tested against it.

mod bound;
mod cache;
mod math;
mod memory;
pub(crate) mod sample;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use akunu_format::Region;

use crate::device::broken;
use crate::{
    BufferId, Capabilities, Device, DeviceBuffer, DeviceError, DispatchTable, ExpertReads, ExpertSet,
    InPlace, KeyOrder, Loan, Member, Outcome, ReplayId, RoutedCommands, Submission,
};
pub use bound::Bound;
pub(crate) use cache::{Cache, rotate};
pub(crate) use math::{activate, kv_load, kv_store, normalise, soft_cap};
use memory::Memory;

pub(crate) const NAME: &str = "reference";

#[derive(Debug)]
pub struct ReferenceDevice {
    capabilities: Capabilities,
    memory: Vec<Memory>,
    allocated: u64,
    prepared: Vec<Prepared>,
    outcome: Outcome,
    /// Whether the last submission has ended at a stop token.
    stopped: bool,
    member: Option<Member>,
    /// Bytes of the experts that rows were routed to.
    expert_bytes: u64,
}

#[derive(Debug)]
struct Prepared {
    table: Arc<DispatchTable>,
    routed: Vec<RoutedCommands>,
    /// By `BufferId`.
    buffers: Vec<DeviceBuffer>,
}

/// The state of a submission that commands depend on beyond their bindings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Live {
    pub rows: usize,
    pub logit_rows: usize,
    pub step: usize,
    /// Entries per step in the tokens buffer.
    pub logit_capacity: usize,
}

impl Default for ReferenceDevice {
    fn default() -> ReferenceDevice {
        ReferenceDevice::new()
    }
}

impl ReferenceDevice {
    pub fn new() -> ReferenceDevice {
        ReferenceDevice::like(&Capabilities {
            name: NAME,
            detail: "scalar loops, f64 accumulators".into(),
            folds: false,
            half_products: None,
            packed_products: None,
            eight_products: None,
            keys: KeyOrder::PositionMajor,
            block: 16,
            in_place: InPlace::All,
            samples: true,
            chain: 8,
            prefill_rows: 64,
            workspace_bytes: 0,
            workspace_row_bytes: 0,
            streaming_bytes: 0,
            available_bytes: None,
            ranks: 1,
            host: None,
            stages: Vec::new(),
        })
    }

    /// A reference device that plans tables as another device would, so that both run the same table.
    pub fn like(other: &Capabilities) -> ReferenceDevice {
        ReferenceDevice {
            capabilities: Capabilities {
                name: NAME,
                detail: "scalar loops, f64 accumulators".into(),
                keys: KeyOrder::PositionMajor,
                in_place: InPlace::All,
                workspace_bytes: 0,
                workspace_row_bytes: 0,
                streaming_bytes: 0,
                available_bytes: None,
                ..other.clone()
            },
            memory: Vec::new(),
            allocated: 0,
            prepared: Vec::new(),
            outcome: Outcome { steps: 0 },
            stopped: false,
            member: None,
            expert_bytes: 0,
        }
    }

    /// The device of a rank, which meets the others with one thread.
    pub fn in_group(mut self, member: Member) -> ReferenceDevice {
        self.capabilities.ranks = member.ranks();
        self.member = Some(member);
        self
    }

    fn push(&mut self, memory: Memory) -> DeviceBuffer {
        self.memory.push(memory);
        DeviceBuffer(self.memory.len() as u32 - 1)
    }

    fn region(&mut self, buffer: DeviceBuffer, offset: u64, len: usize) -> Result<&mut Memory, DeviceError> {
        let memory = &mut self.memory[buffer.0 as usize];
        crate::device::check_bytes(NAME, offset, len as u64, memory.bytes().len() as u64)?;
        Ok(memory)
    }

    fn io(&mut self, replay: ReplayId, id: BufferId) -> &mut [u8] {
        let buffer = self.prepared[replay.0 as usize].buffers[id.index()];
        self.memory[buffer.0 as usize].bytes_mut()
    }

    fn begin(&mut self, replay: ReplayId, submission: &Submission<'_>) -> Result<(), DeviceError> {
        let table = Arc::clone(&self.prepared[replay.0 as usize].table);
        crate::device::check_submission(NAME, &table, submission)?;
        let entries = submission.entries.bytes();
        self.io(replay, table.io.rows)[..entries.len()].copy_from_slice(entries);
        let logit_rows: &[u8] = bytemuck::cast_slice(submission.logit_rows);
        self.io(replay, table.io.logit_rows)[..logit_rows.len()].copy_from_slice(logit_rows);
        Ok(())
    }

    fn run(&mut self, replay: ReplayId, live: Live, first: usize, count: usize) -> Result<(), DeviceError> {
        let Prepared { table, routed, buffers } = &self.prepared[replay.0 as usize];
        for (index, command) in table.commands.iter().enumerate().skip(first).take(count) {
            for Loan { weight, slot, .. } in table.loans(index) {
                let [weight, slot] = [weight, slot].map(|id| buffers[id.index()].0 as usize);
                let bytes = self.memory[weight].bytes().to_vec();
                self.memory[slot].bytes_mut().copy_from_slice(&bytes);
            }
            let member = self.member.as_ref();
            command.kernel.reference(Bound::new(command, &mut self.memory, buffers, live, member));
            let chosen = routed.iter().find(|routed| routed.route == index);
            if let Some((picks, experts, top)) = chosen.and_then(|routed| routed.picks(table)) {
                let bytes = &self.memory[buffers[picks.buffer.index()].0 as usize].bytes();
                let picks = &bytes[picks.offset as usize..][..live.rows * top * size_of::<u32>()];
                let needed = ExpertSet::of_picks(bytemuck::cast_slice(picks).iter().copied(), experts);
                let bytes = chosen.map_or(0, |routed| routed.expert_bytes(table));
                self.expert_bytes += bytes * needed.len() as u64;
            }
        }
        match &self.member {
            Some(member) if member.is_broken() => Err(broken(NAME)),
            _ => Ok(()),
        }
    }

    /// The token ids of a step.
    fn step_tokens(&mut self, replay: ReplayId, live: Live) -> &[u32] {
        let tokens = self.prepared[replay.0 as usize].table.io.tokens;
        let start = (live.step + 1) * live.logit_capacity;
        let ids: &[u32] = bytemuck::cast_slice(self.io(replay, tokens));
        &ids[start..start + live.logit_rows]
    }

    fn is_stop(&mut self, replay: ReplayId, live: Live, stop: &[u32]) -> bool {
        self.step_tokens(replay, live).iter().any(|id| *id == u32::MAX || stop.contains(id))
    }

    fn live(&self, replay: ReplayId, submission: &Submission<'_>) -> Live {
        Live {
            rows: submission.entries.len(),
            logit_rows: submission.logit_rows.len(),
            step: 0,
            logit_capacity: self.prepared[replay.0 as usize].table.logit_rows,
        }
    }
}

impl Device for ReferenceDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn rank(&self) -> usize {
        self.member.as_ref().map_or(0, Member::rank)
    }

    fn allocate(&mut self, what: &str, bytes: u64) -> Result<DeviceBuffer, DeviceError> {
        let memory = Memory::zeroed(bytes).ok_or_else(|| DeviceError::OutOfMemory {
            device: NAME,
            what: what.into(),
            bytes,
        })?;
        self.allocated += bytes;
        Ok(self.push(memory))
    }

    fn import(&mut self, region: &Region, offset: usize, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        crate::device::part_of(NAME, region, offset, bytes)?;
        Ok(self.push(Memory::imported(region.clone(), offset, bytes)))
    }

    fn import_owned(&mut self, bytes: Vec<u8>) -> Result<DeviceBuffer, DeviceError> {
        let buffer = self.allocate("a part of a weight", bytes.len() as u64)?;
        self.upload(buffer, 0, &bytes)?;
        Ok(buffer)
    }

    fn upload(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let memory = self.region(buffer, offset, bytes.len())?;
        memory.bytes_mut()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn download(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let memory = self.region(buffer, offset, bytes.len())?;
        bytes.copy_from_slice(&memory.bytes()[offset as usize..][..bytes.len()]);
        Ok(())
    }

    fn prepare(
        &mut self,
        table: &Arc<DispatchTable>,
        buffers: &[DeviceBuffer],
    ) -> Result<ReplayId, DeviceError> {
        let (table, routed) = (Arc::clone(table), table.routed());
        self.prepared.push(Prepared { table, routed, buffers: buffers.to_vec() });
        Ok(ReplayId(self.prepared.len() as u32 - 1))
    }

    fn replay(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError> {
        self.begin(replay, &submission)?;
        let table = &self.prepared[replay.0 as usize].table;
        let (commands, may_stop) = (table.commands.len(), table.may_stop());
        let mut live = self.live(replay, &submission);
        self.outcome = Outcome { steps: 0 };
        self.stopped = false;
        for step in 0..submission.steps {
            if submission.cancel.is_some_and(|c| c.load(Ordering::Relaxed)) {
                break;
            }
            live.step = step;
            self.run(replay, live, 0, commands)?;
            self.outcome.steps += 1;
            self.stopped = may_stop && self.is_stop(replay, live, submission.stop);
            if self.stopped {
                break;
            }
        }
        Ok(())
    }

    fn follow(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError> {
        let table = Arc::clone(&self.prepared[replay.0 as usize].table);
        crate::device::check_submission(NAME, &table, &submission)?;
        if !self.stopped {
            let live = self.live(replay, &submission);
            self.run(replay, live, 0, table.commands.len())?;
            self.stopped = table.may_stop() && self.is_stop(replay, live, submission.stop);
        }
        self.outcome = Outcome { steps: 1 };
        Ok(())
    }

    fn wait(&mut self) -> Result<Outcome, DeviceError> {
        Ok(self.outcome)
    }

    fn run_range(
        &mut self,
        replay: ReplayId,
        submission: Submission<'_>,
        first: usize,
        count: usize,
    ) -> Result<(), DeviceError> {
        self.begin(replay, &submission)?;
        let live = self.live(replay, &submission);
        self.run(replay, live, first, count)
    }

    fn expert_reads(&self) -> Option<ExpertReads> {
        Some(ExpertReads { bytes: self.expert_bytes, ..ExpertReads::default() })
    }

    fn allocated_bytes(&self) -> u64 {
        self.allocated + self.capabilities.workspace_bytes
    }
}
