//! [`TableDevice`]: buffers and prepared tables on a [`Gpu`], behind the trait that all devices have.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use akunu_format::Region;
use akunu_kernels::{Pass, SCRATCH_BYTES};
use akunu_plan::device::{check_range, check_submission, part_of};
use akunu_plan::table::PARAM_BYTES;
use akunu_plan::{
    Capabilities, Device, DeviceBuffer, DeviceError, DispatchTable, Outcome, ReplayId, Row, Submission,
};
use bytemuck::Zeroable;

use crate::bind::{Buffer, Buffers, Own, failed, prepare};
use crate::planes::lay_out;
use crate::prepared::Prepared;
use crate::{Gpu, Program};

/// Bytes that a device has before any model: the pass, and kernels' scratch memory.
pub const WORKSPACE_BYTES: u64 = Pass::BYTES as u64 + SCRATCH_BYTES;

/// What was submitted and not waited for: the steps that were encoded before, and the rest.
#[derive(Debug)]
struct Pending<T> {
    commands: [Option<T>; 2],
    chain: Chain,
}

/// So many steps of a variant of a table: all that a command buffer's words follow from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chain {
    replay: usize,
    variant: usize,
    steps: usize,
}

type PreparedOn<G> = Prepared<<G as Gpu>::Pipeline, <G as Gpu>::Buffer>;
type ProgramOn<G> = Program<<G as Gpu>::Pipeline, <G as Gpu>::Buffer>;

/// Runs tables on a GPU. A submission is one command buffer, or two where its first steps were encoded while the last one ran.
#[derive(Debug)]
pub struct TableDevice<G: Gpu> {
    prepared: Vec<PreparedOn<G>>,
    buffers: Vec<Buffer<G::Buffer>>,
    own: Own<G::Buffer>,
    pending: Option<Pending<G::Pending>>,
    /// Encoded, for the first steps of what is likely to be submitted next.
    ahead: Option<(Chain, G::Commands)>,
    outcome: Outcome,
    /// Rows and logit rows of the last submission.
    counts: (usize, usize),
    allocated: u64,
    gpu: G,
}

impl<G: Gpu> TableDevice<G> {
    pub fn on(mut gpu: G) -> Result<TableDevice<G>, DeviceError> {
        let own = Own {
            pass: gpu.allocate("pass", Pass::BYTES as u64)?,
            scratch: gpu.allocate("scratch", SCRATCH_BYTES)?,
            no_params: gpu.allocate("no parameters", PARAM_BYTES as u64)?,
        };
        Ok(TableDevice {
            prepared: Vec::new(),
            buffers: Vec::new(),
            own,
            pending: None,
            ahead: None,
            outcome: Outcome { steps: 0 },
            counts: (0, 0),
            allocated: gpu.capabilities().workspace_bytes,
            gpu,
        })
    }

    pub fn gpu(&self) -> &G {
        &self.gpu
    }

    pub fn gpu_mut(&mut self) -> &mut G {
        &mut self.gpu
    }

    /// The programs of a table, by the rows that they are for.
    pub fn programs(&self, replay: ReplayId) -> &[(usize, ProgramOn<G>)] {
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
        let buffer = self.buffers.get(buffer.0 as usize);
        let buffer = buffer.ok_or_else(|| failed(&self.gpu, "that buffer is not this device's"))?;
        let end = offset.saturating_add(len as u64);
        if end > buffer.bytes {
            let device = self.gpu.capabilities().name;
            return Err(DeviceError::OutOfBounds { device, offset, end, bytes: buffer.bytes });
        }
        Ok(buffer)
    }

    fn prepared(&self, replay: ReplayId) -> Result<(usize, &PreparedOn<G>), DeviceError> {
        let index = replay.0 as usize;
        let prepared = self.prepared.get(index);
        prepared.map(|p| (index, p)).ok_or_else(|| failed(&self.gpu, "that table was not prepared here"))
    }

    /// Checks a submission and writes its rows and pass to where the table reads them.
    fn begin(&mut self, replay: ReplayId, submission: &Submission<'_>) -> Result<(), DeviceError> {
        check_submission(self.gpu.capabilities().name, &self.prepared(replay)?.1.table, submission)?;
        let Submission { rows, logit_rows, stop, .. } = submission;
        // Those that the pass has no room for end a chain late: whoever asked looks at every token.
        let stop = &stop[..stop.len().min(Pass::MAX_STOPS)];
        let pass = Pass::new(rows.len(), logit_rows.len(), stop);
        let pass = pass.ok_or_else(|| failed(&self.gpu, "too many tokens to stop at"))?;
        self.finish()?;
        let prepared = &self.prepared[replay.0 as usize];
        for ((buffer, offset), bytes) in [
            (&prepared.rows, bytemuck::cast_slice(rows)),
            (&prepared.logit_rows, bytemuck::cast_slice(logit_rows)),
            (&(self.own.pass.clone(), 0), bytemuck::bytes_of(&pass)),
        ] {
            if !bytes.is_empty() {
                self.gpu.write(buffer, *offset, bytes);
            }
        }
        self.counts = (rows.len(), logit_rows.len());
        Ok(())
    }

    /// Begins with the rows that are already there: they may have moved on.
    fn begin_again(&mut self, replay: ReplayId, submission: &Submission<'_>) -> Result<(), DeviceError> {
        self.finish()?;
        let prepared = self.prepared(replay)?.1;
        let mut rows = vec![Row::default(); self.counts.0.min(prepared.table.rows)];
        let mut asked = vec![0u32; self.counts.1.min(prepared.table.logit_rows)];
        let (of_rows, of_asked) = (&prepared.rows, &prepared.logit_rows);
        self.gpu.read(&of_rows.0, of_rows.1, bytemuck::cast_slice_mut(&mut rows));
        self.gpu.read(&of_asked.0, of_asked.1, bytemuck::cast_slice_mut(&mut asked));
        self.begin(replay, &Submission { rows: &rows, logit_rows: &asked, ..*submission })
    }

    fn encode(&mut self, chain: Chain) -> Result<G::Commands, DeviceError> {
        let mut commands = self.gpu.begin()?;
        let program = &self.prepared[chain.replay].variants[chain.variant].1;
        program.encode_steps(&mut commands, chain.steps);
        Ok(commands)
    }

    /// What the engine's next chain is likely to begin with: it is about as long as this one or longer, and half of it is time enough to encode
    /// the rest.
    fn likely(&self, chain: Chain) -> Option<Chain> {
        let prepared = &self.prepared[chain.replay];
        let chains = prepared.advances && prepared.table.steps > 1;
        (chains && self.gpu.tuning().encodes_ahead)
            .then_some(Chain { steps: chain.steps.div_ceil(2), ..chain })
    }

    /// Submits a chain, its first steps as they were encoded before, if they were.
    fn submit(&mut self, chain: Chain) -> Result<(), DeviceError> {
        let begins = |(encoded, _): &(Chain, G::Commands)| {
            encoded.steps <= chain.steps && Chain { steps: chain.steps, ..*encoded } == chain
        };
        // What is of no use is dropped before another is begun.
        let (steps, first) = match self.ahead.take().filter(begins) {
            Some((encoded, ready)) => (encoded.steps, Some(self.gpu.submit(ready)?)),
            None => (0, None),
        };
        self.pending = Some(Pending { commands: [first, None], chain });
        if steps < chain.steps {
            let rest = self.encode(Chain { steps: chain.steps - steps, ..chain })?;
            let rest = self.gpu.submit(rest)?;
            if let Some(pending) = &mut self.pending {
                pending.commands[1] = Some(rest);
            }
        }
        Ok(())
    }

    /// Waits for what was submitted, and reads how far it came.
    fn finish(&mut self) -> Result<(), DeviceError> {
        let Some(Pending { commands, chain }) = self.pending.take() else { return Ok(()) };
        let Prepared { table, advances, .. } = &self.prepared[chain.replay];
        // Both are waited for, whichever failed.
        let finished = commands.map(|commands| commands.map_or(Ok(0), |commands| self.gpu.finish(commands)));
        for part in finished {
            part.map_err(|error| during(error, table.name))?;
        }
        let advances = *advances;
        self.outcome = Outcome { steps: self.steps_done(chain.steps, advances) };
        Ok(())
    }

    /// Runs a chain command by command.
    fn replay_checked(&mut self, replay: ReplayId, steps: usize) -> Result<(), DeviceError> {
        let (_, Prepared { table, advances, .. }) = self.prepared(replay)?;
        let (count, advances) = (table.commands.len(), *advances);
        for index in (0..steps).flat_map(|_| 0..count) {
            self.run(replay, index, 1)?;
        }
        self.outcome = Outcome { steps: self.steps_done(steps, advances) };
        Ok(())
    }

    /// How many of a submission's steps wrote their tokens.
    fn steps_done(&self, steps: usize, advances: bool) -> usize {
        let mut pass = Pass::zeroed();
        self.gpu.read(&self.own.pass, 0, bytemuck::bytes_of_mut(&mut pass));
        if advances { steps.min(pass.step as usize) } else { steps }
    }

    /// Runs some commands of a table, and waits.
    fn run(&mut self, replay: ReplayId, first: usize, count: usize) -> Result<(), DeviceError> {
        let prepared = &self.prepared[replay.0 as usize];
        let program = &prepared.variants[prepared.variant_for(self.counts.0)].1;
        let mut commands = self.gpu.begin()?;
        program.encode(&mut commands, first, count);
        let pending = self.gpu.submit(commands)?;
        let label = prepared.table.labels.get(first).map_or("no command", String::as_str);
        self.gpu.finish(pending).map_err(|error| during(error, label)).map(drop)
    }
}

impl<G: Gpu> Drop for TableDevice<G> {
    /// The GPU may be using what goes now.
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

/// The same error, and in what it came up.
fn during(error: DeviceError, what: &str) -> DeviceError {
    match error {
        DeviceError::Failed { device, message } => {
            DeviceError::Failed { device, message: format!("running {what}: {message}") }
        }
        other => other,
    }
}

impl<G: Gpu> Device for TableDevice<G> {
    fn capabilities(&self) -> &Capabilities {
        self.gpu.capabilities()
    }

    fn allocate(&mut self, what: &str, bytes: u64) -> Result<DeviceBuffer, DeviceError> {
        let handle = self.gpu.allocate(what, bytes)?;
        self.allocated += bytes;
        Ok(self.push(handle, 0, bytes, [false, false]))
    }

    fn import(&mut self, region: &Region, offset: usize, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        let part = part_of(self.gpu.capabilities().name, region, offset, bytes)?;
        if let Some((handle, at)) = self.gpu.map(region, offset, bytes)? {
            return Ok(self.push(handle, at, bytes as u64, [true, true]));
        }
        let handle = self.gpu.allocate("a weight", bytes as u64)?;
        self.gpu.write(&handle, 0, part);
        self.allocated += bytes as u64;
        Ok(self.push(handle, 0, bytes as u64, [true, false]))
    }

    fn upload(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.finish()?;
        let place = self.place(buffer, offset, bytes.len())?;
        if place.imported {
            return Err(failed(&self.gpu, "an imported buffer is read-only"));
        }
        let (handle, at) = (place.handle.clone(), place.offset + offset as usize);
        self.gpu.write(&handle, at, bytes);
        Ok(())
    }

    fn download(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.finish()?;
        let place = self.place(buffer, offset, bytes.len())?;
        self.gpu.read(&place.handle, place.offset + offset as usize, bytes);
        Ok(())
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
        self.prepared.push(prepared);
        Ok(ReplayId(self.prepared.len() as u32 - 1))
    }

    fn replay(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError> {
        self.begin(replay, &submission)?;
        if submission.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
            self.outcome = Outcome { steps: 0 };
            return Ok(());
        }
        let (index, prepared) = self.prepared(replay)?;
        let variant = prepared.variant_for(submission.rows.len());
        let chain = Chain { replay: index, variant, steps: submission.steps };
        if self.gpu.tuning().checked {
            return self.replay_checked(replay, submission.steps);
        }
        self.submit(chain)
    }

    fn wait(&mut self) -> Result<Outcome, DeviceError> {
        if let Some(Pending { chain, .. }) = self.pending
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
        match submission.rows.is_empty() {
            true => self.begin_again(replay, &submission)?,
            false => self.begin(replay, &submission)?,
        }
        self.ahead = None;
        self.run(replay, first, count)?;
        self.outcome = Outcome { steps: 1 };
        Ok(())
    }

    /// By the GPU's own clock: each command is a command buffer, all submitted before the first is waited for.
    fn time_commands(
        &mut self,
        replay: ReplayId,
        submission: Submission<'_>,
        ns: &mut [u64],
    ) -> Result<(), DeviceError> {
        self.begin(replay, &submission)?;
        self.ahead = None;
        let prepared = &self.prepared[replay.0 as usize];
        let program = &prepared.variants[prepared.variant_for(self.counts.0)].1;
        let count = ns.len().min(prepared.table.commands.len());
        let mut pending = Vec::with_capacity(count);
        for index in 0..count {
            let mut commands = self.gpu.begin()?;
            program.encode(&mut commands, index, 1);
            pending.push(self.gpu.submit(commands)?);
        }
        self.outcome = Outcome { steps: 1 };
        // All are waited for, whichever failed.
        let mut all = Ok(());
        for ((ns, pending), label) in ns.iter_mut().zip(pending).zip(&prepared.table.labels) {
            match self.gpu.finish(pending) {
                Ok(took) => *ns = took,
                Err(error) => all = all.and(Err(during(error, label))),
            }
        }
        all
    }

    fn allocated_bytes(&self) -> u64 {
        self.allocated
    }
}
