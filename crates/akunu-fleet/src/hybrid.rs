//! A device and the device of the host beside it, as one device to the engine.
//!
//! The plan says on which side each command runs ([`Side`]) and which side has each buffer ([`Home`]). A table is prepared
//! in runs of commands on one side. Between two runs, what the next one reads and the other side has written is copied.
//!
//! A pass that streams lends weights of the host to slots of the device. While a run computes, the bytes for the next one are
//! copied from the file.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use akunu_format::Region;
use akunu_plan::device::{buffer_in, check_range, check_submission};
use akunu_plan::ops::Counts;
use akunu_plan::{
    Access, BufferId, Capabilities, Device, DeviceBuffer, DeviceError, DispatchTable, DriverMemory,
    ExpertReads, Home, Outcome, Paging, ReplayId, Side, Streams, Strips, Submission,
};

const SIDES: [Side; 2] = [Side::Device, Side::Host];

#[derive(Debug)]
pub struct Hybrid {
    capabilities: Capabilities,
    device: Box<dyn Device>,
    host: Box<dyn Device>,
    /// Of the buffers that are made next.
    home: Home,
    buffers: Vec<Copies>,
    /// By buffer, the part of a file that only the host has imported.
    imports: Vec<Option<Import>>,
    prepared: Vec<Prepared>,
    outcome: Outcome,
    /// The device has work that was not waited for.
    is_running: bool,
    /// What is on its way from one side to the other.
    bytes: Vec<u8>,
    /// How many layers the device has routed by itself, if it does not count what they read.
    uncounted: u64,
}

/// A part of a file.
#[derive(Clone, Debug)]
struct Import {
    region: Region,
    offset: usize,
    bytes: usize,
}

/// A buffer on the sides that have it.
#[derive(Clone, Copy, Debug)]
struct Copies {
    of: [Option<DeviceBuffer>; 2],
    /// The side that has written it last.
    latest: Side,
}

#[derive(Debug)]
struct Prepared {
    table: Arc<DispatchTable>,
    runs: Vec<Run>,
    /// Rows and logit rows for which the bytes of the transfers were counted last.
    counted: Option<(usize, usize)>,
}

/// Commands of a table that run on one side, one after the other.
#[derive(Debug)]
struct Run {
    side: Side,
    first: usize,
    count: usize,
    replay: ReplayId,
    /// Layers that it routes.
    routed: u64,
    transfers: Vec<Transfer>,
    /// What is in the slots that it reads.
    loans: Vec<Loaned>,
    /// The buffers on both sides that it writes, and by which command.
    writes: Vec<(usize, DeviceBuffer)>,
}

/// What a command reads that the other side has written.
#[derive(Debug)]
struct Transfer {
    command: usize,
    /// The binding of the command.
    binding: usize,
    buffer: DeviceBuffer,
    bytes: u64,
}

/// A weight for a slot, which are the device's own buffers.
#[derive(Debug)]
struct Loaned {
    command: usize,
    weight: Import,
    arrival: DeviceBuffer,
    slot: DeviceBuffer,
}

impl Run {
    fn loans_of(&self, commands: std::ops::Range<usize>) -> impl Iterator<Item = &Loaned> {
        self.loans.iter().filter(move |loan| commands.contains(&loan.command))
    }
}

fn other(side: Side) -> Side {
    if side == Side::Device { Side::Host } else { Side::Device }
}

impl Hybrid {
    pub fn new(device: Box<dyn Device>, host: Box<dyn Device>) -> Hybrid {
        let (of_device, of_host) = (device.capabilities().clone(), host.capabilities().clone());
        Hybrid {
            capabilities: Hybrid::capabilities(of_device, of_host),
            device,
            host,
            home: Home::Device,
            buffers: Vec::new(),
            imports: Vec::new(),
            prepared: Vec::new(),
            outcome: Outcome { steps: 0 },
            is_running: false,
            bytes: Vec::new(),
            uncounted: 0,
        }
    }

    /// The capabilities for planning on a device and a host.
    pub fn capabilities(device: Capabilities, host: Capabilities) -> Capabilities {
        Capabilities {
            detail: format!("{}; {} ({})", device.detail, host.name, host.detail),
            // Both sides have the blocks of a sequence, and both sizes are powers of two.
            block: device.block.max(host.block),
            // The host has to begin the commands of each run.
            samples: false,
            chain: 1,
            host: Some(Box::new(host)),
            ..device
        }
    }

    /// Bytes that the host's device has allocated, without imports in place: `host_work` of a plan.
    pub fn host_bytes(&self) -> u64 {
        self.host.allocated_bytes()
    }

    fn failed(&self, message: impl Into<String>) -> DeviceError {
        DeviceError::Failed { device: self.capabilities.name, message: message.into() }
    }

    fn side(&mut self, side: Side) -> &mut dyn Device {
        match side {
            Side::Device => &mut *self.device,
            Side::Host => &mut *self.host,
        }
    }

    /// Makes a buffer on each side that is to have it.
    fn make(
        &mut self,
        make: impl Fn(&mut dyn Device) -> Result<DeviceBuffer, DeviceError>,
    ) -> Result<DeviceBuffer, DeviceError> {
        let home = self.home;
        let mut of = [None; 2];
        for (side, of) in SIDES.into_iter().zip(&mut of) {
            if home.has(side) {
                *of = Some(make(self.side(side))?);
            }
        }
        let latest = if home == Home::Host { Side::Host } else { Side::Device };
        self.buffers.push(Copies { of, latest });
        self.imports.push(None);
        Ok(DeviceBuffer(self.buffers.len() as u32 - 1))
    }

    fn copies(&self, buffer: DeviceBuffer) -> Result<Copies, DeviceError> {
        buffer_in(self.capabilities.name, &self.buffers, buffer).copied()
    }

    /// The side that has a buffer as it is now, and its handle there.
    fn latest(&mut self, buffer: DeviceBuffer) -> Result<(&mut dyn Device, DeviceBuffer), DeviceError> {
        let Copies { of, latest } = self.copies(buffer)?;
        let there = of[latest as usize].ok_or_else(|| self.failed("a buffer is on the other side"))?;
        Ok((self.side(latest), there))
    }

    /// Calls `write` on each side that has a buffer.
    fn write(
        &mut self,
        buffer: DeviceBuffer,
        write: impl Fn(&mut dyn Device, DeviceBuffer) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let Copies { of, .. } = self.copies(buffer)?;
        for (side, there) in SIDES.into_iter().zip(of) {
            if let Some(there) = there {
                write(self.side(side), there)?;
            }
        }
        Ok(())
    }

    /// Waits for the device, whose work ends with every run.
    fn finish(&mut self) -> Result<(), DeviceError> {
        if self.is_running {
            self.is_running = false;
            self.outcome = self.device.wait()?;
        }
        Ok(())
    }

    fn prepared(&self, replay: ReplayId) -> Result<&Prepared, DeviceError> {
        self.prepared.get(replay.0 as usize).ok_or_else(|| self.failed("that table was not prepared here"))
    }

    /// Copies what some commands of a run read that the other side has written.
    fn copy_for(
        &mut self,
        replay: ReplayId,
        run: usize,
        commands: std::ops::Range<usize>,
    ) -> Result<(), DeviceError> {
        let Run { side, ref transfers, .. } = self.prepared[replay.0 as usize].runs[run];
        for index in 0..transfers.len() {
            let Transfer { command, buffer, bytes, .. } =
                self.prepared[replay.0 as usize].runs[run].transfers[index];
            if !commands.contains(&command) {
                continue;
            }
            let Copies { of: [Some(on_device), Some(on_host)], .. } = self.copies(buffer)? else { continue };
            if self.bytes.len() < bytes as usize {
                self.bytes.resize(bytes as usize, 0);
            }
            let (from, to) = match side {
                Side::Device => (on_host, on_device),
                Side::Host => (on_device, on_host),
            };
            let mut moved = std::mem::take(&mut self.bytes);
            let part = &mut moved[..bytes as usize];
            let done = self
                .side(other(side))
                .download(from, 0, part)
                .and_then(|()| self.side(side).upload(to, 0, part));
            self.bytes = moved;
            done?;
        }
        Ok(())
    }

    /// Begins to copy what the first run from `run` on that reads slots finds there.
    fn read_ahead(&mut self, replay: ReplayId, run: usize) -> Result<(), DeviceError> {
        let runs = &self.prepared[replay.0 as usize].runs;
        match (run..runs.len()).find(|&run| !runs[run].loans.is_empty()) {
            Some(run) => self.read(replay, run, 0..usize::MAX),
            None => Ok(()),
        }
    }

    /// Begins to copy what some commands of a run read from slots.
    fn read(
        &mut self,
        replay: ReplayId,
        run: usize,
        commands: std::ops::Range<usize>,
    ) -> Result<(), DeviceError> {
        let run = &self.prepared[replay.0 as usize].runs[run];
        for Loaned { weight, arrival, .. } in run.loans_of(commands) {
            self.device.read_ahead(*arrival, &weight.region, weight.offset, weight.bytes)?;
        }
        Ok(())
    }

    /// Fills the slots that some commands of a run read.
    fn refill(
        &mut self,
        replay: ReplayId,
        run: usize,
        commands: std::ops::Range<usize>,
    ) -> Result<(), DeviceError> {
        let run = &self.prepared[replay.0 as usize].runs[run];
        for Loaned { weight, arrival, slot, .. } in run.loans_of(commands) {
            self.device.refill(*slot, *arrival, weight.bytes)?;
        }
        Ok(())
    }

    fn note_writes(&mut self, replay: ReplayId, run: usize, commands: std::ops::Range<usize>) {
        let Run { side, ref writes, .. } = self.prepared[replay.0 as usize].runs[run];
        for (command, buffer) in writes {
            if commands.contains(command) {
                self.buffers[buffer.0 as usize].latest = side;
            }
        }
    }

    /// Counts the bytes of the transfers, for the rows of a submission.
    fn count_bytes(&mut self, replay: ReplayId, submission: &Submission<'_>) -> Result<(), DeviceError> {
        let counts = (submission.entries.len(), submission.logit_rows.len());
        let name = self.capabilities.name;
        let prepared = &mut self.prepared[replay.0 as usize];
        if prepared.counted == Some(counts) {
            return Ok(());
        }
        let table = &prepared.table;
        for copy in prepared.runs.iter_mut().flat_map(|run| &mut run.transfers) {
            let command = &table.commands[copy.command];
            let extents = command
                .extents(&Counts { rows: counts.0, logit_rows: counts.1, ..table.counts() })
                .map_err(|message| DeviceError::Failed { device: name, message })?;
            copy.bytes = command.bindings()[copy.binding].offset + extents[copy.binding].bytes;
        }
        prepared.counted = Some(counts);
        Ok(())
    }

    fn check_replay(&self, replay: ReplayId, submission: &Submission<'_>) -> Result<(), DeviceError> {
        check_submission(self.capabilities.name, &self.prepared(replay)?.table, submission)
    }
}

/// The runs of a table: where they begin, and how many commands they have. A slot has one weight during a run.
fn runs_of(table: &DispatchTable) -> Vec<(Side, usize, usize)> {
    let mut runs: Vec<(Side, usize, usize)> = Vec::new();
    let mut filled: Vec<BufferId> = Vec::new();
    for (index, command) in table.commands.iter().enumerate() {
        let is_filled = table.loans(index).any(|loan| filled.contains(&loan.slot));
        match runs.last_mut() {
            Some((side, _, count)) if *side == command.side && !is_filled => *count += 1,
            _ => {
                runs.push((command.side, index, 1));
                filled.clear();
            }
        }
        filled.extend(table.loans(index).map(|loan| loan.slot));
    }
    // A table of no commands is prepared, too.
    if runs.is_empty() {
        runs.push((Side::Device, 0, 0));
    }
    runs
}

impl Device for Hybrid {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn make_on(&mut self, home: Home) {
        self.home = home;
    }

    fn allocate(&mut self, what: &str, bytes: u64) -> Result<DeviceBuffer, DeviceError> {
        self.make(|device| device.allocate(what, bytes))
    }

    fn import(&mut self, region: &Region, offset: usize, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        let buffer = self.make(|device| device.import(region, offset, bytes))?;
        if self.home == Home::Host {
            self.imports[buffer.0 as usize] = Some(Import { region: region.clone(), offset, bytes });
        }
        Ok(buffer)
    }

    fn import_owned(&mut self, bytes: Vec<u8>) -> Result<DeviceBuffer, DeviceError> {
        self.make(|device| device.import_owned(bytes.clone()))
    }

    fn upload(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.write(buffer, |device, there| device.upload(there, offset, bytes))
    }

    fn upload_beside(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.write(buffer, |device, there| device.upload_beside(there, offset, bytes))
    }

    fn download(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let (device, there) = self.latest(buffer)?;
        device.download(there, offset, bytes)
    }

    fn upload_strips(
        &mut self,
        buffer: DeviceBuffer,
        strips: Strips,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        self.write(buffer, |device, there| device.upload_strips(there, strips, bytes))
    }

    fn download_strips(
        &mut self,
        buffer: DeviceBuffer,
        strips: Strips,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        let (device, there) = self.latest(buffer)?;
        device.download_strips(there, strips, bytes)
    }

    fn page_experts(&mut self, paging: &Paging, buffers: &[DeviceBuffer]) -> Result<(), DeviceError> {
        let on_host = |buffer: &DeviceBuffer| {
            let there = self.copies(*buffer)?.of[Side::Host as usize];
            Ok(there.unwrap_or(DeviceBuffer(u32::MAX)))
        };
        let buffers: Vec<DeviceBuffer> = buffers.iter().map(on_host).collect::<Result<_, DeviceError>>()?;
        self.host.page_experts(paging, &buffers)
    }

    fn expert_reads(&self) -> Option<ExpertReads> {
        let host = self.host.expert_reads()?;
        let device = self.device.expert_reads().unwrap_or_default();
        Some(ExpertReads {
            bytes: host.bytes + device.bytes,
            uncounted: host.uncounted + device.uncounted + self.uncounted,
            ..host
        })
    }

    fn prepare(
        &mut self,
        table: &Arc<DispatchTable>,
        buffers: &[DeviceBuffer],
    ) -> Result<ReplayId, DeviceError> {
        let name = self.capabilities.name;
        let of: Vec<Copies> =
            buffers.iter().map(|buffer| self.copies(*buffer)).collect::<Result<_, DeviceError>>()?;
        // A buffer that a side does not have, which its commands do not bind.
        let none = DeviceBuffer(u32::MAX);
        let ids = SIDES.map(|side| -> Vec<DeviceBuffer> {
            of.iter().map(|copies| copies.of[side as usize].unwrap_or(none)).collect()
        });
        // Each side is given the entries of a pass.
        let given = [table.io.rows, table.io.logit_rows];
        let mut latest: Vec<Option<Side>> = vec![None; buffers.len()];
        let mut runs = Vec::new();
        for (side, first, count) in runs_of(table) {
            let (mut transfers, mut writes) = (Vec::new(), Vec::new());
            for index in first..first + count {
                let command = &table.commands[index];
                let bound = command.kernel.bindings().into_iter().zip(command.bindings()).enumerate();
                for (binding, (slot, bound)) in bound {
                    let id = bound.buffer;
                    let is_shared =
                        of.get(id.index()).is_some_and(|copies| copies.of.iter().all(Option::is_some));
                    if !is_shared || given.contains(&id) {
                        continue;
                    }
                    let buffer = buffers[id.index()];
                    if slot.access != Access::Write && latest[id.index()] == Some(other(side)) {
                        transfers.push(Transfer { command: index, binding, buffer, bytes: 0 });
                        latest[id.index()] = None;
                    }
                    if slot.access != Access::Read {
                        writes.push((index, buffer));
                        latest[id.index()] = Some(side);
                    }
                }
            }
            let on_device = |id: BufferId| ids[Side::Device as usize][id.index()];
            let mut loans = Vec::new();
            for loan in (first..first + count).flat_map(|command| table.loans(command)) {
                let weight = self.imports[buffers[loan.weight.index()].0 as usize].clone();
                let weight = weight.ok_or_else(|| self.failed("a weight that is lent is not in a file"))?;
                let [arrival, slot] = [loan.arrival, loan.slot].map(on_device);
                loans.push(Loaned { command: loan.command, weight, arrival, slot });
            }
            let part = Arc::new(DispatchTable {
                streams: Streams::default(),
                commands: table.commands[first..first + count].to_vec(),
                labels: table.labels[first..first + count].to_vec(),
                ..(**table).clone()
            });
            let replay = self.side(side).prepare(&part, &ids[side as usize])?;
            let routed = part.routed().len() as u64;
            runs.push(Run { side, first, count, replay, routed, transfers, loans, writes });
        }
        if table.steps > 1 && runs.len() > 1 {
            let message = format!("table {} has {} steps, and runs on two sides", table.name, table.steps);
            return Err(DeviceError::Failed { device: name, message });
        }
        self.prepared.push(Prepared { table: Arc::clone(table), runs, counted: None });
        Ok(ReplayId(self.prepared.len() as u32 - 1))
    }

    fn replay(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError> {
        self.check_replay(replay, &submission)?;
        self.finish()?;
        self.outcome = Outcome { steps: 0 };
        if submission.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
            return Ok(());
        }
        self.count_bytes(replay, &submission)?;
        let submission = Submission { cancel: None, ..submission };
        self.read_ahead(replay, 0)?;
        for index in 0..self.prepared[replay.0 as usize].runs.len() {
            let Run { side, first, count, replay: part, routed, .. } =
                self.prepared[replay.0 as usize].runs[index];
            if side == Side::Device && self.device.expert_reads().is_none() {
                self.uncounted += routed;
            }
            // Reading from the device waits for it, too, so that this is done first.
            self.copy_for(replay, index, first..first + count)?;
            self.finish()?;
            self.refill(replay, index, first..first + count)?;
            self.side(side).replay(part, submission)?;
            match side {
                Side::Device => self.is_running = true,
                Side::Host => self.outcome = self.host.wait()?,
            }
            if !self.prepared[replay.0 as usize].runs[index].loans.is_empty() {
                self.read_ahead(replay, index + 1)?;
            }
            self.note_writes(replay, index, first..first + count);
        }
        Ok(())
    }

    fn on_threads(
        &mut self,
        buffer: DeviceBuffer,
        parts: usize,
        work: &(dyn Fn(usize, &[u8]) + Sync),
    ) -> Result<bool, DeviceError> {
        self.finish()?;
        let (device, there) = self.latest(buffer)?;
        device.on_threads(there, parts, work)
    }

    fn wait(&mut self) -> Result<Outcome, DeviceError> {
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
        check_range(self.capabilities.name, &self.prepared(replay)?.table, first, count)?;
        self.finish()?;
        if submission.entries.is_empty() {
            return Err(self.failed("each range of commands needs its rows"));
        }
        self.check_replay(replay, &submission)?;
        self.count_bytes(replay, &submission)?;
        for index in 0..self.prepared[replay.0 as usize].runs.len() {
            let Run { side, first: begin, count: length, replay: part, .. } =
                self.prepared[replay.0 as usize].runs[index];
            let (from, to) = (first.max(begin), (first + count).min(begin + length));
            if from < to {
                self.copy_for(replay, index, from..to)?;
                self.read(replay, index, from..to)?;
                self.refill(replay, index, from..to)?;
                self.side(side).run_range(part, submission, from - begin, to - from)?;
                self.note_writes(replay, index, from..to);
            }
        }
        self.outcome = Outcome { steps: 1 };
        Ok(())
    }

    /// Those of the device; the host's are [`Hybrid::host_bytes`].
    fn allocated_bytes(&self) -> u64 {
        self.device.allocated_bytes()
    }

    fn driver_memory(&self) -> Result<Option<DriverMemory>, DeviceError> {
        self.device.driver_memory()
    }
}
