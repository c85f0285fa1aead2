//! Devices that compute parts of a model, as one device to the engine: a GPU and the host beside it, or several devices
//! with some of the layers each.
//!
//! The plan says on which side each command runs ([`Side`]) and which sides have each buffer ([`Home`]). A table is
//! prepared in runs of commands on one side ([`crate::runs`]). Between two runs, what the next one reads and another side
//! has written is copied. A run that the host does not wait for is computed while the host computes.
//!
//! A pass that streams lends weights of the host to slots of the device. While a run computes, the bytes for the next one are
//! copied from the file.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use akunu_format::Region;
use akunu_plan::device::{buffer_in, check_range, check_submission};
use akunu_plan::ops::Counts;
use akunu_plan::{
    Access, BufferId, Capabilities, Device, DeviceBuffer, DeviceError, DispatchTable, DriverMemory,
    ExpertReads, Health, Home, Outcome, Paging, ReplayId, Side, Streams, Strips, Submission,
};

use crate::devices::Devices;
use crate::runs::{Span, spans};

#[derive(Debug)]
pub struct Hybrid {
    capabilities: Capabilities,
    devices: Devices,
    /// The side of each device.
    sides: Vec<Side>,
    /// Of the buffers that are made next.
    home: Home,
    buffers: Vec<Copies>,
    /// By buffer, the part of a file that only the host has imported.
    imports: Vec<Option<Import>>,
    prepared: Vec<Prepared>,
    outcome: Outcome,
    /// The device that has work that was not waited for.
    running: Option<usize>,
    /// What is on its way from one side to another.
    bytes: Vec<u8>,
    /// How many layers the device has routed by itself, if it does not count what they read.
    uncounted: u64,
    /// Of several devices with some of the layers each: what happened, once one of them has panicked.
    health: Health,
}

/// A part of a file.
#[derive(Clone, Debug)]
struct Import {
    region: Region,
    offset: usize,
    bytes: usize,
}

/// A buffer on the devices that have it.
#[derive(Clone, Debug)]
struct Copies {
    of: Vec<Option<DeviceBuffer>>,
    /// The device that has written it last.
    latest: usize,
}

#[derive(Debug)]
struct Prepared {
    table: Arc<DispatchTable>,
    buffers: Vec<DeviceBuffer>,
    runs: Vec<Run>,
    /// Rows and logit rows for which the bytes of the transfers were counted last.
    counted: Option<(usize, usize)>,
}

/// Commands of a table that run on one side, one after the other.
#[derive(Debug)]
struct Run {
    device: usize,
    first: usize,
    count: usize,
    /// It is submitted with the run before it, and the host does not wait for it.
    beside: bool,
    /// As a table of its own.
    part: Arc<DispatchTable>,
    replay: ReplayId,
    /// Layers that it routes.
    routed: u64,
    transfers: Vec<Transfer>,
    /// What is in the slots that it reads.
    loans: Vec<Loaned>,
    /// The buffers on several sides that it writes, and by which command.
    writes: Vec<(usize, DeviceBuffer)>,
}

/// What a command reads that another device has written.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    from: usize,
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

impl Hybrid {
    /// A device and the host's beside it.
    pub fn new(device: Box<dyn Device>, host: Box<dyn Device>) -> Hybrid {
        let (of_device, of_host) = (device.capabilities().clone(), host.capabilities().clone());
        let capabilities = Hybrid::capabilities(of_device, of_host);
        Hybrid::of(capabilities, Devices::here(vec![device, host]), vec![Side::Device, Side::Host])
    }

    /// The capabilities for planning on a device and a host.
    pub fn capabilities(device: Capabilities, host: Capabilities) -> Capabilities {
        Capabilities {
            detail: format!("{}; {} ({})", device.detail, host.name, host.detail),
            // Both sides have the blocks of a sequence, and both sizes are powers of two.
            block: device.block.max(host.block),
            // The host has to begin the commands of each run.
            chain: 1,
            host: Some(Box::new(host)),
            ..device
        }
    }

    pub(crate) fn of(capabilities: Capabilities, devices: Devices, sides: Vec<Side>) -> Hybrid {
        Hybrid {
            capabilities,
            devices,
            sides,
            home: Home::DEVICE,
            buffers: Vec::new(),
            imports: Vec::new(),
            prepared: Vec::new(),
            outcome: Outcome { steps: 0 },
            running: None,
            bytes: Vec::new(),
            uncounted: 0,
            health: Health::default(),
        }
    }

    /// Bytes that the device of a side has allocated, without imports in place.
    pub fn bytes_of(&self, side: Side) -> Result<u64, DeviceError> {
        self.devices.look(self.at(side)?, |device| Ok(device.allocated_bytes()))
    }

    fn failed(&self, message: impl Into<String>) -> DeviceError {
        DeviceError::Failed { device: self.capabilities.name, message: message.into() }
    }

    /// The place of a side's device.
    fn at(&self, side: Side) -> Result<usize, DeviceError> {
        let found = self.sides.iter().position(|other| *other == side);
        found.ok_or_else(|| self.failed("a command is for a device that is not there"))
    }

    /// Calls `work` with a device. Its errors name it, if it is one of several.
    fn on<T: Send>(
        &mut self,
        device: usize,
        work: impl FnOnce(&mut dyn Device) -> Result<T, DeviceError> + Send,
    ) -> Result<T, DeviceError> {
        if self.capabilities.stages.is_empty() {
            return self.devices.on(device, work);
        }
        if let Some(reason) = self.health.reason() {
            return Err(self.failed(reason));
        }
        let named = |message: String| format!("device {device} of {}: {message}", self.sides.len());
        match catch_unwind(AssertUnwindSafe(|| self.devices.on(device, work))) {
            Ok(done) => done.map_err(|error| match error {
                DeviceError::Failed { device: name, message } => {
                    DeviceError::Failed { device: name, message: named(message) }
                }
                error => error,
            }),
            // What it was doing is half done.
            Err(_) => {
                let reason = named("it panicked".into());
                self.health.fail(reason.clone());
                Err(self.failed(reason))
            }
        }
    }

    /// Makes a buffer on each side that is to have it.
    fn make(
        &mut self,
        make: impl Fn(&mut dyn Device) -> Result<DeviceBuffer, DeviceError> + Sync,
    ) -> Result<DeviceBuffer, DeviceError> {
        let mut of = vec![None; self.sides.len()];
        for (device, of) in of.iter_mut().enumerate() {
            if self.home.has(self.sides[device]) {
                *of = Some(self.on(device, |device| make(device))?);
            }
        }
        let latest = of.iter().position(Option::is_some).unwrap_or(0);
        self.buffers.push(Copies { of, latest });
        self.imports.push(None);
        Ok(DeviceBuffer(self.buffers.len() as u32 - 1))
    }

    fn copies(&self, buffer: DeviceBuffer) -> Result<&Copies, DeviceError> {
        buffer_in(self.capabilities.name, &self.buffers, buffer)
    }

    /// The handle of a buffer on a device.
    fn there(&self, device: usize, buffer: DeviceBuffer) -> Result<DeviceBuffer, DeviceError> {
        self.copies(buffer)?.of[device].ok_or_else(|| self.failed("a buffer is on another side"))
    }

    /// The device that has a buffer as it is now, and its handle there.
    fn latest(&self, buffer: DeviceBuffer) -> Result<(usize, DeviceBuffer), DeviceError> {
        let latest = self.copies(buffer)?.latest;
        Ok((latest, self.there(latest, buffer)?))
    }

    /// Calls `write` on each side that has a buffer.
    fn write(
        &mut self,
        buffer: DeviceBuffer,
        write: impl Fn(&mut dyn Device, DeviceBuffer) -> Result<(), DeviceError> + Sync,
    ) -> Result<(), DeviceError> {
        self.copies(buffer)?;
        for device in 0..self.sides.len() {
            if let Some(there) = self.buffers[buffer.0 as usize].of[device] {
                self.on(device, |device| write(device, there))?;
            }
        }
        Ok(())
    }

    /// Waits for the device that was begun last.
    fn finish(&mut self) -> Result<(), DeviceError> {
        if let Some(device) = self.running.take() {
            self.outcome = self.on(device, |device| device.wait())?;
        }
        Ok(())
    }

    fn prepared(&self, replay: ReplayId) -> Result<&Prepared, DeviceError> {
        self.prepared.get(replay.0 as usize).ok_or_else(|| self.failed("that table was not prepared here"))
    }

    /// A run of another table with the same commands, which is prepared already: tables that decode differ in their ends.
    fn same_run(&self, device: usize, part: &DispatchTable, buffers: &[DeviceBuffer]) -> Option<ReplayId> {
        let of = |table: &DispatchTable| {
            (table.rows, table.logit_rows, table.steps, table.io.rows, table.io.logit_rows, table.bounds)
        };
        let others =
            self.prepared.iter().filter(|other| other.buffers == buffers).flat_map(|other| &other.runs);
        let mut others = others.filter(|run| run.device == device && of(&run.part) == of(part));
        others.find(|run| run.part.commands == part.commands).map(|run| run.replay)
    }

    /// Whether a run is the host's, and the device computes the run before it at the same time.
    fn is_after_beside(&self, replay: ReplayId, run: usize) -> bool {
        run > 0 && self.prepared[replay.0 as usize].runs[run - 1].beside
    }

    /// Copies what some commands of a run read that other devices have written.
    fn copy_for(
        &mut self,
        replay: ReplayId,
        run: usize,
        commands: std::ops::Range<usize>,
    ) -> Result<(), DeviceError> {
        let Run { device, ref transfers, .. } = self.prepared[replay.0 as usize].runs[run];
        let count = transfers.len();
        // What runs beside the host writes nothing of what is copied here.
        let is_early = self.is_after_beside(replay, run);
        for index in 0..count {
            let Transfer { from, command, buffer, bytes, .. } =
                self.prepared[replay.0 as usize].runs[run].transfers[index];
            if !commands.contains(&command) {
                continue;
            }
            let (source, target) = (self.there(from, buffer)?, self.there(device, buffer)?);
            if self.bytes.len() < bytes as usize {
                self.bytes.resize(bytes as usize, 0);
            }
            let mut moved = std::mem::take(&mut self.bytes);
            let part = &mut moved[..bytes as usize];
            let read = self.on(from, |device| match is_early {
                true => device.peek(source, part),
                false => device.download(source, 0, part),
            });
            let done = read.and_then(|()| {
                let part = &moved[..bytes as usize];
                self.on(device, |device| device.upload(target, 0, part))
            });
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
        let (at, run) = (self.at(Side::Device)?, &self.prepared[replay.0 as usize].runs[run]);
        for Loaned { weight, arrival, .. } in run.loans_of(commands) {
            let Import { region, offset, bytes } = weight;
            self.devices.on(at, |device| device.read_ahead(*arrival, region, *offset, *bytes))?;
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
        let (at, run) = (self.at(Side::Device)?, &self.prepared[replay.0 as usize].runs[run]);
        for Loaned { weight, arrival, slot, .. } in run.loans_of(commands) {
            self.devices.on(at, |device| device.refill(*slot, *arrival, weight.bytes))?;
        }
        Ok(())
    }

    fn note_writes(&mut self, replay: ReplayId, run: usize, commands: std::ops::Range<usize>) {
        let Run { device, ref writes, .. } = self.prepared[replay.0 as usize].runs[run];
        for (command, buffer) in writes {
            if commands.contains(command) {
                self.buffers[buffer.0 as usize].latest = device;
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

    /// Runs all commands of a table. The last run of a device may not be over.
    fn run_all(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError> {
        self.read_ahead(replay, 0)?;
        for index in 0..self.prepared[replay.0 as usize].runs.len() {
            let Run { first, count, beside, .. } = self.prepared[replay.0 as usize].runs[index];
            match beside {
                true => self.run_beside(replay, index, submission)?,
                false => self.run(replay, index, submission)?,
            }
            if !self.prepared[replay.0 as usize].runs[index].loans.is_empty() {
                self.read_ahead(replay, index + 1)?;
            }
            self.note_writes(replay, index, first..first + count);
        }
        Ok(())
    }

    fn run(&mut self, replay: ReplayId, index: usize, submission: Submission<'_>) -> Result<(), DeviceError> {
        let runs = &self.prepared[replay.0 as usize].runs;
        let Run { device, first, count, replay: part, routed, .. } = runs[index];
        let behind = runs.get(index + 1).filter(|run| run.beside).map(|run| run.first..run.first + run.count);
        let is_host = self.sides[device].is_host();
        if routed > 0
            && !is_host
            && !self.devices.look(device, |device| Ok(device.expert_reads().is_some()))?
        {
            self.uncounted += routed;
        }
        // Reading from a device waits for it, too, so that this is done first.
        self.copy_for(replay, index, first..first + count)?;
        if let Some(commands) = behind {
            self.copy_for(replay, index + 1, commands)?;
        }
        if !self.is_after_beside(replay, index) {
            self.finish()?;
        }
        self.refill(replay, index, first..first + count)?;
        self.on(device, |device| device.replay(part, submission))?;
        match is_host {
            true => self.outcome = self.on(device, |device| device.wait())?,
            false => self.running = Some(device),
        }
        Ok(())
    }

    /// Submits a run behind the one before it, whose rows are in the device's memory.
    fn run_beside(
        &mut self,
        replay: ReplayId,
        index: usize,
        submission: Submission<'_>,
    ) -> Result<(), DeviceError> {
        let Run { device, replay: part, .. } = self.prepared[replay.0 as usize].runs[index];
        // Only devices that sample run one table after another.
        let follows = self.devices.look(device, |device| Ok(device.capabilities().samples))?;
        self.on(device, |device| match follows {
            true => device.follow(part, submission),
            false => device.replay(part, submission),
        })
    }

    fn check_replay(&self, replay: ReplayId, submission: &Submission<'_>) -> Result<(), DeviceError> {
        check_submission(self.capabilities.name, &self.prepared(replay)?.table, submission)
    }
}

impl Copies {
    /// Whether several devices have it.
    fn is_shared(&self) -> bool {
        self.of.iter().flatten().count() > 1
    }
}

/// The device that has written a buffer last in a table, and those that have had it since.
#[derive(Clone, Debug)]
struct Written {
    by: usize,
    had_by: Vec<usize>,
}

impl Device for Hybrid {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The kernels of a part of a table are among those of the whole.
    fn expect(&mut self, tables: &[&Arc<DispatchTable>]) {
        if self.capabilities.host.is_some() {
            return;
        }
        for device in 0..self.sides.len() {
            // A device that fails meanwhile is found when it prepares the first table.
            let _ = self.on(device, |device| {
                device.expect(tables);
                Ok(())
            });
        }
    }

    fn make_on(&mut self, home: Home) {
        self.home = home;
    }

    fn allocate(&mut self, what: &str, bytes: u64) -> Result<DeviceBuffer, DeviceError> {
        self.make(|device| device.allocate(what, bytes))
    }

    fn import(&mut self, region: &Region, offset: usize, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        let buffer = self.make(|device| device.import(region, offset, bytes))?;
        if self.home == Home::HOST {
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
        self.on(device, |device| device.download(there, offset, bytes))
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
        self.on(device, |device| device.download_strips(there, strips, bytes))
    }

    fn page_experts(&mut self, paging: &Paging, buffers: &[DeviceBuffer]) -> Result<(), DeviceError> {
        let host = self.at(Side::Host)?;
        let on_host = |buffer: &DeviceBuffer| {
            let there = self.copies(*buffer)?.of[host];
            Ok(there.unwrap_or(DeviceBuffer(u32::MAX)))
        };
        let buffers: Vec<DeviceBuffer> = buffers.iter().map(on_host).collect::<Result<_, DeviceError>>()?;
        self.on(host, |device| device.page_experts(paging, &buffers))
    }

    fn expert_reads(&self) -> Option<ExpertReads> {
        let reads = |side| self.devices.look(self.at(side)?, |device| Ok(device.expert_reads()));
        let host = reads(Side::Host).ok()??;
        let device = reads(Side::Device).ok()?.unwrap_or_default();
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
            buffers.iter().map(|buffer| self.copies(*buffer).cloned()).collect::<Result<_, DeviceError>>()?;
        // A buffer that a device does not have, which its commands do not bind.
        let none = DeviceBuffer(u32::MAX);
        let ids_on = |device: usize| -> Vec<DeviceBuffer> {
            of.iter().map(|copies| copies.of[device].unwrap_or(none)).collect()
        };
        let ids: Vec<Vec<DeviceBuffer>> = (0..self.sides.len()).map(ids_on).collect();
        // Each device is given the entries of a pass.
        let given = [table.io.rows, table.io.logit_rows];
        let mut written: Vec<Option<Written>> = vec![None; buffers.len()];
        let mut runs = Vec::new();
        for Span { side, first, count, beside } in spans(table) {
            let device = self.at(side)?;
            let (mut transfers, mut writes) = (Vec::new(), Vec::new());
            for index in first..first + count {
                let command = &table.commands[index];
                let bound = command.kernel.bindings().into_iter().zip(command.bindings()).enumerate();
                for (binding, (slot, bound)) in bound {
                    let id = bound.buffer;
                    let is_shared = of.get(id.index()).is_some_and(|copies| copies.is_shared());
                    if !is_shared || given.contains(&id) {
                        continue;
                    }
                    let buffer = buffers[id.index()];
                    if let Some(Written { by, had_by }) = &mut written[id.index()]
                        && slot.access != Access::Write
                        && !had_by.contains(&device)
                    {
                        had_by.push(device);
                        transfers.push(Transfer { from: *by, command: index, binding, buffer, bytes: 0 });
                    }
                    if slot.access != Access::Read {
                        writes.push((index, buffer));
                        written[id.index()] = Some(Written { by: device, had_by: vec![device] });
                    }
                }
            }
            let on_device = |id: BufferId| ids[device][id.index()];
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
            let replay = match self.same_run(device, &part, buffers) {
                Some(replay) => replay,
                None => self.on(device, |there| there.prepare(&part, &ids[device]))?,
            };
            let routed = part.routed().len() as u64;
            runs.push(Run { device, first, count, beside, part, replay, routed, transfers, loans, writes });
        }
        if table.steps > 1 && runs.len() > 1 {
            let message =
                format!("table {} has {} steps, and runs on several devices", table.name, table.steps);
            return Err(DeviceError::Failed { device: name, message });
        }
        let buffers = buffers.to_vec();
        self.prepared.push(Prepared { table: Arc::clone(table), buffers, runs, counted: None });
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
        let ran = self.run_all(replay, Submission { cancel: None, ..submission });
        if ran.is_err() {
            // What still runs is not needed any more, and its error is not that of the next submission.
            let _ = self.finish();
        }
        ran
    }

    /// Of tables that one device runs alone.
    fn follow(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError> {
        let [Run { device, count, replay: part, .. }] = self.prepared(replay)?.runs[..] else {
            return Err(self.failed("a table of several devices does not follow another one"));
        };
        self.on(device, |device| device.follow(part, submission))?;
        self.running = Some(device);
        self.note_writes(replay, 0, 0..count);
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
        self.on(device, |device| device.on_threads(there, parts, work))
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
            let Run { device, first: begin, count: length, replay: part, .. } =
                self.prepared[replay.0 as usize].runs[index];
            let (from, to) = (first.max(begin), (first + count).min(begin + length));
            if from < to {
                self.copy_for(replay, index, from..to)?;
                self.read(replay, index, from..to)?;
                self.refill(replay, index, from..to)?;
                self.on(device, |device| device.run_range(part, submission, from - begin, to - from))?;
                self.note_writes(replay, index, from..to);
            }
        }
        self.outcome = Outcome { steps: 1 };
        Ok(())
    }

    fn health(&self) -> Health {
        self.health.clone()
    }

    /// Without those of the host, which are [`Hybrid::bytes_of`] that side.
    fn allocated_bytes(&self) -> u64 {
        let devices = self.sides.iter().filter(|side| !side.is_host());
        devices.map(|side| self.bytes_of(*side).unwrap_or(0)).sum()
    }

    fn driver_memory(&self) -> Result<Option<DriverMemory>, DeviceError> {
        self.devices.look(self.at(Side::Device)?, |device| device.driver_memory())
    }
}
