//! [`TableDevice`]: buffers and prepared tables on a [`Gpu`], behind the trait that all devices have.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use akunu_format::Region;
use akunu_kernels::{Exchange, GATHERED_BYTES, Pass, SCRATCH_BYTES, exchange_bytes};
use akunu_plan::device::{broken, buffer_in, check_bytes, check_range, check_submission, part_of};
use akunu_plan::{
    Capabilities, Device, DeviceBuffer, DeviceError, DispatchTable, DriverMemory, Member, Outcome, ReplayId,
    Submission,
};
use bytemuck::Zeroable;

use crate::bind::{functions, prepare};
use crate::buffers::{Buffer, Buffers, Own, during, failed};
use crate::planes::{lay_out, lay_out_again};
use crate::program::Prepared;
use crate::{During, Gpu, Part, Variant};

/// Bytes that a device allocates before any model: the pass, and the kernels' scratch memory.
pub const WORKSPACE_BYTES: u64 = Pass::BYTES as u64 + SCRATCH_BYTES;

/// Pending submissions.
#[derive(Debug)]
struct Pending<T> {
    /// Command buffers, the older one first; `[None, Some(_)]` means that only the newer one is pending.
    parts: [Option<T>; 2],
    /// All that was submitted of the chain.
    chain: Chain,
}

/// A number of steps of a variant of a table, which determines the contents of a command buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chain {
    replay: usize,
    variant: usize,
    steps: usize,
}

/// Executes tables on a GPU. A submission consists of several command buffers, of which at most two are pending while
/// one more is encoded.
#[derive(Debug)]
pub struct TableDevice<G: Gpu> {
    prepared: Vec<Prepared<G>>,
    buffers: Vec<Buffer<G::Buffer>>,
    own: Own<G::Buffer>,
    pending: Option<Pending<G::Pending>>,
    /// A command buffer encoded ahead for the predicted next submission.
    ahead: Option<(Chain, G::Commands)>,
    outcome: Outcome,
    /// Rows and logit rows of the last submission.
    counts: (usize, usize),
    allocated: u64,
    capabilities: Capabilities,
    /// 0 unless it is one of several ranks.
    rank: u32,
    /// Its place, if a library exchanges the numbers of ranks.
    member: Option<Member>,
    gpu: G,
}

impl<G: Gpu> TableDevice<G> {
    pub fn on(gpu: G) -> Result<TableDevice<G>, DeviceError> {
        TableDevice::with(gpu, 0)
    }

    /// The device of a rank, which meets the others with one thread.
    pub fn in_group(gpu: G, member: &Member) -> Result<TableDevice<G>, DeviceError> {
        if gpu.tuning().chip.gathered_ranks > 0 {
            let mut device = TableDevice::with(gpu, GATHERED_BYTES)?;
            device.capabilities.ranks = member.ranks();
            device.rank = member.rank() as u32;
            device.member = Some(member.clone());
            return Ok(device);
        }
        let beside = exchange_bytes(member.ranks()).ok_or_else(|| failed(&gpu, "too many ranks"))?;
        let mut device = TableDevice::with(gpu, beside)?;
        let address = device.gpu.address(&device.own.scratch)? + SCRATCH_BYTES;
        member.publish(std::ptr::without_provenance_mut(address as usize));
        member.meet().map_err(|_| broken(device.capabilities.name))?;
        let peers: Vec<u64> = member.parts().map(|part| part.addr() as u64).collect();
        let head = Exchange::new(&peers, device.gpu.patience());
        device.gpu.write(&device.own.scratch, SCRATCH_BYTES as usize, bytemuck::bytes_of(&head))?;
        // Nobody writes into another rank's memory before that rank has prepared it.
        device.gpu.settle();
        member.meet().map_err(|_| broken(device.capabilities.name))?;
        device.capabilities.ranks = member.ranks();
        device.rank = member.rank() as u32;
        Ok(device)
    }

    fn with(mut gpu: G, beside: u64) -> Result<TableDevice<G>, DeviceError> {
        let own = Own::on(&mut gpu, beside)?;
        let mut capabilities = gpu.capabilities().clone();
        capabilities.workspace_bytes += beside;
        capabilities.available_bytes = capabilities.available_bytes.map(|bytes| bytes.saturating_sub(beside));
        Ok(TableDevice {
            prepared: Vec::new(),
            buffers: Vec::new(),
            own,
            pending: None,
            ahead: None,
            outcome: Outcome { steps: 0 },
            counts: (0, 0),
            allocated: capabilities.workspace_bytes,
            capabilities,
            rank: 0,
            member: None,
            gpu,
        })
    }

    pub fn gpu(&self) -> &G {
        &self.gpu
    }

    pub fn gpu_mut(&mut self) -> &mut G {
        &mut self.gpu
    }

    /// The variants of a prepared table, by number of rows.
    pub fn variants(&self, replay: ReplayId) -> &[Variant<G>] {
        self.prepared.get(replay.0 as usize).map_or(&[], |prepared| &prepared.variants)
    }

    fn push(&mut self, handle: G::Buffer, offset: usize, bytes: u64, from_file: [bool; 2]) -> DeviceBuffer {
        let [imported, mapped] = from_file;
        self.buffers.push(Buffer { handle, offset, bytes, imported, owned: !mapped, planes: None });
        DeviceBuffer(self.buffers.len() as u32 - 1)
    }

    fn place(
        &self,
        buffer: DeviceBuffer,
        offset: u64,
        len: usize,
    ) -> Result<&Buffer<G::Buffer>, DeviceError> {
        let device = self.gpu.capabilities().name;
        let buffer = buffer_in(device, &self.buffers, buffer)?;
        check_bytes(device, offset, len as u64, buffer.bytes)?;
        Ok(buffer)
    }

    fn writable(
        &self,
        buffer: DeviceBuffer,
        offset: u64,
        len: usize,
    ) -> Result<(G::Buffer, usize), DeviceError> {
        let place = self.place(buffer, offset, len)?;
        match place.imported {
            true => Err(failed(&self.gpu, "an imported buffer is read-only")),
            false => Ok((place.handle.clone(), place.offset + offset as usize)),
        }
    }

    fn prepared(&self, replay: ReplayId) -> Result<(usize, &Prepared<G>), DeviceError> {
        let index = replay.0 as usize;
        let prepared = self.prepared.get(index);
        prepared.map(|p| (index, p)).ok_or_else(|| failed(&self.gpu, "that table was not prepared here"))
    }

    /// Checks a submission and writes its rows and pass to the table's buffers.
    fn begin(&mut self, replay: ReplayId, submission: &Submission<'_>) -> Result<(), DeviceError> {
        check_submission(self.gpu.capabilities().name, &self.prepared(replay)?.1.table, submission)?;
        let Submission { entries, logit_rows, .. } = submission;
        let pass = Pass { rank: self.rank, ..Pass::new(submission) };
        self.finish_before_copies()?;
        let prepared = &self.prepared[replay.0 as usize];
        self.gpu.send([
            (&prepared.entries.0, prepared.entries.1, entries.bytes()),
            (&prepared.logit_rows.0, prepared.logit_rows.1, bytemuck::cast_slice(logit_rows)),
            (&self.own.pass, 0, bytemuck::bytes_of(&pass)),
        ])?;
        self.counts = (entries.len(), logit_rows.len());
        Ok(())
    }

    /// Begins with the rows that are already in GPU memory and may have advanced.
    fn begin_again(&mut self, replay: ReplayId, submission: &Submission<'_>) -> Result<(), DeviceError> {
        self.finish()?;
        let prepared = self.prepared(replay)?.1;
        let bounds = prepared.table.bounds;
        let count = self.counts.0.min(prepared.table.rows);
        let mut words = vec![0u32; count * bounds.entry_bytes() / size_of::<u32>()];
        let mut asked = vec![0u32; self.counts.1.min(prepared.table.logit_rows)];
        let (of_entries, of_asked) = (prepared.entries.clone(), prepared.logit_rows.clone());
        self.gpu.read(&of_entries.0, of_entries.1, bytemuck::cast_slice_mut(&mut words))?;
        self.gpu.read(&of_asked.0, of_asked.1, bytemuck::cast_slice_mut(&mut asked))?;
        let entries = bounds.entries(bytemuck::cast_slice(&words));
        self.begin(replay, &Submission { entries, logit_rows: &asked, ..*submission })
    }

    fn encode(&mut self, part: Chain) -> Result<G::Commands, DeviceError> {
        let mut commands = self.gpu.begin()?;
        self.prepared[part.replay].variants[part.variant].encode_steps(&mut commands, part.steps);
        Ok(commands)
    }

    /// A prediction of the engine's next chain: it is about as long as this one, or longer.
    fn likely(&self, chain: Chain) -> Option<Chain> {
        let prepared = &self.prepared[chain.replay];
        let steps = chain.steps.div_ceil(2).min(self.gpu.tuning().part);
        (prepared.advances && prepared.table.steps > 1 && steps > 0).then_some(Chain { steps, ..chain })
    }

    /// The command buffer with the next steps of a chain, encoded now or ahead.
    fn next_part(&mut self, left: Chain) -> Result<(Chain, G::Commands), DeviceError> {
        let begins = |(ready, _): &(Chain, G::Commands)| {
            ready.steps <= left.steps && Chain { steps: left.steps, ..*ready } == left
        };
        // An unusable one is dropped before another is encoded.
        if let Some(ready) = self.ahead.take().filter(begins) {
            return Ok(ready);
        }
        let part = Chain { steps: left.steps.min(self.gpu.tuning().part), ..left };
        Ok((part, self.encode(part)?))
    }

    /// Submits a chain in parts, each encoded while others run, until it has stopped or `cancel` is set. Both are
    /// checked before a part is submitted, when at most one is pending: so fewer than two parts run after the step
    /// that found a stop token.
    fn submit(&mut self, chain: Chain, cancel: Option<&AtomicBool>) -> Result<(), DeviceError> {
        self.pending = Some(Pending { parts: [None, None], chain: Chain { steps: 0, ..chain } });
        let mut left = chain;
        while left.steps > 0 && !is_set(cancel) {
            let (part, commands) = self.next_part(left)?;
            if self.has_stopped()? || is_set(cancel) {
                self.ahead = Some((part, commands));
                break;
            }
            left.steps -= part.steps;
            // The last two parts are waited for together, when the whole chain has been submitted. A single step may be waited for
            // while what follows it runs.
            let followed = left.steps > self.gpu.tuning().part || chain.steps == 1;
            let submitted = self.gpu.submit(commands, followed)?;
            if let Some(Pending { parts, chain }) = &mut self.pending {
                chain.steps += part.steps;
                let place = usize::from(parts[0].is_some());
                parts[place] = Some(submitted);
            }
        }
        if left == chain {
            // Earlier writes must be complete before more are sent.
            self.gpu.settle();
            return Ok(());
        }
        self.gpu.fetch(&self.own.pass, Pass::BYTES)
    }

    /// Whether a completed step found a stop token. Waits for the older of two parts.
    fn has_stopped(&mut self) -> Result<bool, DeviceError> {
        let Some(Pending { parts: parts @ [Some(_), Some(_)], chain }) = &mut self.pending else {
            return Ok(false);
        };
        parts.swap(0, 1);
        let name = self.prepared[chain.replay].table.name;
        if let Some(older) = parts[1].take() {
            let context = During::Table { table: name };
            self.gpu.finish(older).map_err(|error| during(&self.gpu.context(context), error))?;
        }
        let mut pass = Pass::zeroed();
        self.gpu.peek(&self.own.pass, bytemuck::bytes_of_mut(&mut pass))?;
        Ok(pass.stopped != 0)
    }

    /// Waits for all pending work, and reads the number of completed steps.
    fn finish(&mut self) -> Result<(), DeviceError> {
        let Some(Pending { parts, chain }) = self.pending.take() else { return Ok(()) };
        let &Prepared { ref table, advances, .. } = &self.prepared[chain.replay];
        if chain.steps == 0 {
            self.outcome = Outcome { steps: 0 };
            return Ok(());
        }
        // Both are waited for, even if one failed.
        let finished = parts.map(|part| part.map_or(Ok(0), |part| self.gpu.finish(part)));
        for part in finished {
            let context = During::Table { table: table.name };
            part.map_err(|error| during(&self.gpu.context(context), error))?;
        }
        let mut pass = Pass::zeroed();
        let fetched = self.gpu.fetched(&self.own.pass, bytemuck::bytes_of_mut(&mut pass));
        let context = During::Table { table: table.name };
        fetched.map_err(|error| during(&self.gpu.context(context), error))?;
        if pass.stopped == Pass::BROKEN || self.member.as_ref().is_some_and(Member::is_broken) {
            return Err(broken(self.capabilities.name));
        }
        self.outcome = Outcome { steps: pass.steps_done(chain.steps, advances) };
        Ok(())
    }

    /// Called before the host reads or writes memory; waits unless copies are queued.
    fn finish_before_copies(&mut self) -> Result<(), DeviceError> {
        match self.gpu.tuning().queued_copies {
            true => Ok(()),
            false => self.finish(),
        }
    }

    /// Executes a chain command by command.
    fn replay_checked(&mut self, chain: Chain, cancel: Option<&AtomicBool>) -> Result<(), DeviceError> {
        let &Prepared { ref table, advances, .. } = &self.prepared[chain.replay];
        let count = table.commands.len();
        let mut done = 0;
        while done < chain.steps && self.pass()?.stopped == 0 && !is_set(cancel) {
            for index in 0..count {
                self.run(chain.replay, index, 1)?;
            }
            done += 1;
        }
        self.outcome = Outcome { steps: self.pass()?.steps_done(done, advances) };
        Ok(())
    }

    fn pass(&mut self) -> Result<Pass, DeviceError> {
        let mut pass = Pass::zeroed();
        self.gpu.read(&self.own.pass, 0, bytemuck::bytes_of_mut(&mut pass))?;
        Ok(pass)
    }

    /// Executes some commands of a table, and waits.
    fn run(&mut self, replay: usize, first: usize, count: usize) -> Result<(), DeviceError> {
        let prepared = &self.prepared[replay];
        let variant = &prepared.variants[prepared.variant_for(self.counts.0)];
        let mut commands = self.gpu.begin()?;
        variant.encode(&mut commands, first, count);
        let ran = self.gpu.submit(commands, false).and_then(|pending| self.gpu.finish(pending));
        let label = prepared.table.labels.get(first).map_or("no command", String::as_str);
        let context = During::Command { label, table: prepared.table.name };
        ran.map_err(|error| during(&self.gpu.context(context), error)).map(drop)
    }
}

impl<G: Gpu> TableDevice<G> {
    /// Times each command as a command buffer of its own; all are submitted before the first is waited for.
    fn time_apart(&mut self, replay: usize, variant: usize, ns: &mut [u64]) -> Result<(), DeviceError> {
        let prepared = &self.prepared[replay];
        let mut pending = Vec::with_capacity(ns.len());
        for index in 0..ns.len() {
            let mut commands = self.gpu.begin()?;
            prepared.variants[variant].encode(&mut commands, index, 1);
            pending.push(self.gpu.submit(commands, true)?);
        }
        // All are waited for, even if one failed.
        let mut all = Ok(());
        for ((ns, pending), label) in ns.iter_mut().zip(pending).zip(&prepared.table.labels) {
            match self.gpu.finish(pending) {
                Ok(took) => *ns = took,
                Err(error) => {
                    let context = During::Command { label, table: prepared.table.name };
                    all = all.and(Err(during(&self.gpu.context(context), error)));
                }
            }
        }
        all
    }
}

impl<G: Gpu> Drop for TableDevice<G> {
    /// The GPU may still use what is released now.
    fn drop(&mut self) {
        let _ = self.finish();
        self.gpu.settle();
    }
}

fn is_set(cancel: Option<&AtomicBool>) -> bool {
    cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed))
}

impl<G: Gpu> Device for TableDevice<G> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn rank(&self) -> usize {
        self.rank as usize
    }

    fn allocate(&mut self, what: &str, bytes: u64) -> Result<DeviceBuffer, DeviceError> {
        let handle = self.gpu.allocate(what, bytes)?;
        self.allocated += bytes;
        Ok(self.push(handle, 0, bytes, [false, false]))
    }

    fn import(&mut self, region: &Region, offset: usize, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        let name = self.gpu.capabilities().name;
        check_bytes(name, offset as u64, bytes as u64, region.len() as u64)?;
        if let Some((handle, at)) = self.gpu.map(region, offset, bytes)? {
            return Ok(self.push(handle, at, bytes as u64, [true, true]));
        }
        let region = region.for_once();
        let part = part_of(name, &region, offset, bytes)?;
        let handle = self.gpu.allocate_unset("a weight", bytes as u64)?;
        self.gpu.write(&handle, 0, part)?;
        self.allocated += bytes as u64;
        Ok(self.push(handle, 0, bytes as u64, [true, false]))
    }

    fn upload(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.finish_before_copies()?;
        let (handle, at) = self.writable(buffer, offset, bytes.len())?;
        self.gpu.write(&handle, at, bytes)
    }

    fn upload_beside(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let (handle, at) = self.writable(buffer, offset, bytes.len())?;
        self.gpu.write_beside(&handle, at, bytes)
    }

    fn read_ahead(
        &mut self,
        buffer: DeviceBuffer,
        region: &Region,
        offset: usize,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        part_of(self.gpu.capabilities().name, region, offset, bytes)?;
        self.finish_before_copies()?;
        let (handle, _) = self.writable(buffer, 0, bytes)?;
        self.gpu.read_ahead(&handle, Part { region, offset, len: bytes })
    }

    fn refill(&mut self, slot: DeviceBuffer, from: DeviceBuffer, bytes: usize) -> Result<(), DeviceError> {
        self.finish_before_copies()?;
        self.ahead = None;
        self.writable(slot, 0, bytes)?;
        self.place(from, 0, bytes)?;
        let [slot, from] = [slot, from].map(|buffer| &self.buffers[buffer.0 as usize]);
        self.gpu.landed(&from.handle)?;
        let laid = lay_out_again(&mut self.gpu, &self.own, from, slot);
        // Of a failure, too: a part of it may have been submitted.
        self.gpu.consumed().and(laid)
    }

    fn download(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.finish_before_copies()?;
        let place = self.place(buffer, offset, bytes.len())?;
        let (handle, at) = (place.handle.clone(), place.offset + offset as usize);
        self.gpu.read(&handle, at, bytes)
    }

    fn expect(&mut self, tables: &[&Arc<DispatchTable>]) {
        let functions = tables.iter().flat_map(|table| functions(table, self.gpu.tuning())).collect();
        self.gpu.expect(functions);
    }

    fn prepare(
        &mut self,
        table: &Arc<DispatchTable>,
        buffers: &[DeviceBuffer],
    ) -> Result<ReplayId, DeviceError> {
        self.finish()?;
        self.ahead = None;
        self.allocated += lay_out(&mut self.gpu, &self.own, table, &mut self.buffers, buffers)?;
        let all = Buffers { all: &self.buffers, ids: buffers };
        let prepared = prepare(&mut self.gpu, &self.own, table, all)?;
        self.gpu.reserve_sending(prepared.sent_bytes())?;
        self.prepared.push(prepared);
        Ok(ReplayId(self.prepared.len() as u32 - 1))
    }

    fn replay(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError> {
        self.begin(replay, &submission)?;
        let (index, prepared) = self.prepared(replay)?;
        let variant = prepared.variant_for(submission.entries.len());
        let chain = Chain { replay: index, variant, steps: submission.steps };
        if self.gpu.tuning().checked {
            self.ahead = None;
            return self.replay_checked(chain, submission.cancel);
        }
        let submitted = self.submit(chain, submission.cancel);
        if submitted.is_err() {
            // The results of pending work are no longer needed.
            let _ = self.finish();
        }
        submitted
    }

    fn follow(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError> {
        let (index, prepared) = self.prepared(replay)?;
        check_submission(self.gpu.capabilities().name, &prepared.table, &submission)?;
        let variant = prepared.variant_for(submission.entries.len());
        let chain = Chain { replay: index, variant, steps: 1 };
        self.counts = (submission.entries.len(), submission.logit_rows.len());
        self.ahead = None;
        if self.gpu.tuning().checked {
            return self.replay_checked(chain, None);
        }
        let commands = self.encode(chain)?;
        let submitted = self.gpu.submit(commands, true)?;
        let earlier = self.pending.take().and_then(|pending| pending.parts.into_iter().flatten().last());
        self.pending = Some(Pending { parts: [earlier, Some(submitted)], chain });
        Ok(())
    }

    fn peek(&mut self, buffer: DeviceBuffer, bytes: &mut [u8]) -> Result<(), DeviceError> {
        match &mut self.pending {
            // Several buffers may be read so, of which the first waits.
            Some(Pending { parts: [earlier, Some(_)], chain }) => {
                let name = self.prepared[chain.replay].table.name;
                if let Some(earlier) = earlier.take() {
                    let context = During::Table { table: name };
                    self.gpu.finish(earlier).map_err(|error| during(&self.gpu.context(context), error))?;
                }
            }
            _ => self.finish()?,
        }
        let handle = self.place(buffer, 0, bytes.len())?.handle.clone();
        self.gpu.peek(&handle, bytes)
    }

    fn wait(&mut self) -> Result<Outcome, DeviceError> {
        if self.ahead.is_none()
            && self.gpu.tuning().ahead
            && let Some(Pending { chain, .. }) = self.pending
            && let Some(likely) = self.likely(chain)
        {
            self.ahead = Some((likely, self.encode(likely)?));
        }
        self.finish()?;
        Ok(self.outcome)
    }

    fn run_range(
        &mut self,
        replay: ReplayId,
        submission: Submission<'_>,
        first: usize,
        count: usize,
    ) -> Result<(), DeviceError> {
        check_range(self.gpu.capabilities().name, &self.prepared(replay)?.1.table, first, count)?;
        match submission.entries.is_empty() {
            true => self.begin_again(replay, &submission)?,
            false => self.begin(replay, &submission)?,
        }
        self.ahead = None;
        self.run(replay.0 as usize, first, count)?;
        self.outcome = Outcome { steps: 1 };
        Ok(())
    }

    /// Uses the GPU's own clock.
    fn time_commands(
        &mut self,
        replay: ReplayId,
        submission: Submission<'_>,
        ns: &mut [u64],
    ) -> Result<(), DeviceError> {
        self.begin(replay, &submission)?;
        self.ahead = None;
        self.outcome = Outcome { steps: 1 };
        let prepared = &mut self.prepared[replay.0 as usize];
        let index = prepared.variant_for(self.counts.0);
        let count = ns.len().min(prepared.table.commands.len());
        match prepared.variants[index].time(&mut self.gpu, &mut ns[..count]) {
            Ok(true) => Ok(()),
            Ok(false) => self.time_apart(replay.0 as usize, index, &mut ns[..count]),
            Err(error) => {
                let context = During::Timing { table: prepared.table.name };
                Err(during(&self.gpu.context(context), error))
            }
        }
    }

    fn allocated_bytes(&self) -> u64 {
        self.allocated
    }

    fn driver_memory(&self) -> Result<Option<DriverMemory>, DeviceError> {
        self.gpu.driver_memory()
    }
}
