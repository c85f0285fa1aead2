//! The interface of devices. A device is used by one thread only.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use akunu_arch::WeightProvider;
use akunu_format::{DType, Region};

use crate::{
    BufferId, Cut, DispatchTable, Entries, EntryBounds, ExpertReads, Health, Home, KeyOrder, ModelPlan, Move,
    Paging, Row,
};

/// A handle to memory of a device. Memory is freed together with the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceBuffer(pub u32);

/// Equally long parts of a buffer at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strips {
    /// The offset of the first one in bytes.
    pub first: u64,
    /// Bytes of each.
    pub bytes: usize,
    /// From the beginning of one to that of the next.
    pub pitch: u64,
    pub count: usize,
}

impl Strips {
    /// Bytes of all together.
    pub fn all(&self) -> usize {
        self.bytes * self.count
    }

    /// The offset of each.
    pub fn offsets(&self) -> impl Iterator<Item = u64> + use<> {
        let Strips { first, pitch, count, .. } = *self;
        (0..count as u64).map(move |index| first + index * pitch)
    }
}

/// A handle to a prepared table of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReplayId(pub u32);

/// The most rows for which weights that are not f16 are multiplied as they are, by what the weights consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FewRows {
    /// Blocks with one scale.
    pub scaled: usize,
    /// Blocks with offsets or several scales, whose products take longer.
    pub shifted: usize,
    /// Numbers that are not quantised.
    pub floats: usize,
}

/// The rows for which products in f16 read quantised weights as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedRows {
    /// Up to this number, the rows too are quantised.
    pub few: usize,
    /// With more, weights are converted first.
    pub most: usize,
}

impl FewRows {
    /// The same for all weights.
    pub const fn all(rows: usize) -> FewRows {
        FewRows { scaled: rows, shifted: rows, floats: rows }
    }

    pub fn of(&self, weight: DType) -> usize {
        match weight {
            DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::IQ4NL | DType::MXFP4 => self.scaled,
            _ if weight.is_quantised() => self.shifted,
            _ => self.floats,
        }
    }
}

/// The properties of a device that the table builder depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct Capabilities {
    /// `reference`, `cpu`, …
    pub name: &'static str,
    /// A description for users: `AVX2, 2 threads`.
    pub detail: String,
    /// Fold norms into the neighbouring matrix products, and RoPE into attention, where possible: fewer commands with
    /// more work each. For devices on which launching a command costs more than the additional work.
    pub folds: bool,
    /// Tables with more rows than this multiply in half precision ([`crate::halves`]), for all weights except f32.
    /// Converting the weights takes the same time for any number of rows, so it does not pay for fewer rows.
    pub half_products: Option<FewRows>,
    /// If all weights that meet f16 rows are quantised and the rows are whole groups of lanes, tables of `few + 1` to `most`
    /// rows round the weights to f16 in their products. This then replaces the limits of `half_products`.
    pub packed_products: Option<PackedRows>,
    /// Tables with more rows than this multiply FP8 weights by rows in FP8 ([`crate::eights`]) where the file asks for it. This
    /// then replaces the limits of `half_products`.
    pub eight_products: Option<usize>,
    /// The layout of keys in its KV cache.
    pub keys: KeyOrder,
    /// Positions of a block of its KV cache ([`crate::blocks`]): a power of two, and a multiple of the alignment of keys.
    pub block: usize,
    /// Which weights are used in place in the mapped file.
    pub in_place: InPlace,
    /// Whether it samples tokens itself ([`crate::sample`]), so that sampled decoding runs in chains too.
    pub samples: bool,
    /// Maximum useful number of steps in one submission.
    pub chain: usize,
    /// Number of rows of a prefill table.
    pub prefill_rows: usize,
    /// Bytes that the device allocates for itself, for any model.
    pub workspace_bytes: u64,
    /// And in addition for each row of the largest table beyond `prefill_rows`, of which it takes 16 at once.
    pub workspace_row_bytes: u64,
    /// Bytes of the host's memory that weights of the host are copied through, if a pass streams them.
    pub streaming_bytes: u64,
    /// Bytes that can still be allocated, if known.
    pub available_bytes: Option<u64>,
    /// Ranks that share out a model between them; what else is said here is about each of them.
    pub ranks: usize,
    /// The device of the host that runs a part of the commands ([`crate::Side::Host`]), if there is one.
    pub host: Option<Box<Capabilities>>,
    /// The devices before this one that have some of the layers each ([`crate::Side::Stage`]), in order.
    pub stages: Vec<Capabilities>,
}

impl Capabilities {
    /// The devices that have some of the layers each, in the order of these: this one is the last.
    pub fn devices(&self) -> impl Iterator<Item = &Capabilities> {
        self.stages.iter().chain([self])
    }

    /// Bytes that the device allocates for itself with tables of up to so many rows.
    pub fn workspace(&self, rows: usize) -> u64 {
        let more = rows.saturating_sub(self.prefill_rows).next_multiple_of(16) as u64;
        self.workspace_bytes + more.saturating_mul(self.workspace_row_bytes)
    }
}

/// Which weights need no memory of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPlace {
    All,
    /// Unquantised weights in mapped files, and separate planes of scales, if aligned for wide loads. The device shares
    /// the host's memory, but rearranges quantised blocks.
    Unpacked,
    /// None: the device has its own memory.
    Nothing,
}

impl InPlace {
    /// Whether a plane of a weight is used in place. `plane`: index among the planes of the type.
    pub fn holds(self, dtype: DType, plane: usize, region: &Region, offset: usize) -> bool {
        match self {
            InPlace::All => true,
            InPlace::Unpacked => {
                // Whole bytes are not rearranged.
                let is_whole = matches!(dtype, DType::Affine(affine) if affine.bits() == 8);
                (plane > 0 || is_whole || !dtype.is_quantised()) && InPlace::is_bindable(region, offset)
            }
            InPlace::Nothing => false,
        }
    }

    /// Whether a GPU that shares the host's memory can bind it: page-aligned, at a multiple of 16 bytes.
    pub fn is_bindable(region: &Region, offset: usize) -> bool {
        region.is_page_aligned() && offset.is_multiple_of(16)
    }
}

/// One request to a device: `steps` replays of a table, where the rows of each step follow from the previous step.
#[derive(Clone, Copy, Debug)]
pub struct Submission<'a> {
    /// At most `table.rows` entries, of the kind that the table takes.
    pub entries: Entries<'a>,
    /// Indices of the rows whose logits are computed, ascending; at most `table.logit_rows`.
    pub logit_rows: &'a [u32],
    /// At least 1; more only if the last command of the table advances the rows.
    pub steps: usize,
    /// The chain ends when one of these tokens is produced.
    pub stop: &'a [u32],
    /// Checked between steps.
    pub cancel: Option<&'a AtomicBool>,
}

/// The result of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Number of steps whose tokens were written.
    pub steps: usize,
}

/// Memory that a device uses through a driver. Replays must not change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverMemory {
    /// Number of requests that allocate memory of the device or the host, including graphs, events and loaded code.
    pub requests: u64,
    /// Free device memory as reported by the driver, which includes what libraries and the driver itself use.
    pub free_bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("{device}: cannot allocate {bytes} bytes for {what}; try a smaller context (-c)")]
    OutOfMemory { device: &'static str, what: String, bytes: u64 },
    #[error("{device} has no kernel {kernel}; another one may have it (--device)")]
    MissingKernel { device: &'static str, kernel: String },
    #[error(
        "{device}: submission of {rows} rows, {logit_rows} logit rows and {steps} steps does not fit table {table}"
    )]
    BadSubmission { device: &'static str, table: &'static str, rows: usize, logit_rows: usize, steps: usize },
    #[error(
        "{device}: row {row} has token {token}, position {position} or start {start} outside the model's bounds"
    )]
    BadRow { device: &'static str, row: usize, token: u32, position: u32, start: u32 },
    #[error(
        "{device}: move {index}, of {len} positions from {from} on to {to}, is not valid for table {table}"
    )]
    BadMove { device: &'static str, table: &'static str, index: usize, from: u32, to: u32, len: u32 },
    #[error("{device}: table {table} takes {expected}")]
    WrongEntries { device: &'static str, table: &'static str, expected: &'static str },
    #[error("{device}: access to bytes {offset}..{end} of a buffer of {bytes}")]
    OutOfBounds { device: &'static str, offset: u64, end: u64, bytes: u64 },
    #[error("{device}: {message}")]
    Failed { device: &'static str, message: String },
    #[error("loading was cancelled")]
    Cancelled,
}

/// Checks that every device makes before it accesses memory: counts and entries against the bounds of the table.
pub fn check_submission(
    device: &'static str,
    table: &DispatchTable,
    submission: &Submission<'_>,
) -> Result<(), DeviceError> {
    let Submission { entries, logit_rows, steps, .. } = *submission;
    let rows = entries.len();
    let ascending = logit_rows.windows(2).all(|w| w[0] < w[1]);
    let within = logit_rows.last().is_none_or(|&last| (last as usize) < rows);
    let fits = rows <= table.rows
        && logit_rows.len() <= table.logit_rows
        && (1..=table.steps).contains(&steps)
        && ascending
        && within;
    if !fits {
        let logit_rows = logit_rows.len();
        return Err(DeviceError::BadSubmission { device, table: table.name, rows, logit_rows, steps });
    }
    let wrong = |expected| Err(DeviceError::WrongEntries { device, table: table.name, expected });
    match (table.bounds, entries) {
        (EntryBounds::Rows(bounds), Entries::Rows(rows)) => {
            match rows.iter().position(|row| !bounds.admit(row, steps)) {
                None => Ok(()),
                Some(row) => {
                    let Row { token, position, start, .. } = rows[row];
                    Err(DeviceError::BadRow { device, row, token, position, start })
                }
            }
        }
        (EntryBounds::Moves(bounds), Entries::Moves(moves)) => {
            match moves.iter().position(|moved| !bounds.admit(moved)) {
                None => Ok(()),
                Some(index) => {
                    let Move { from, to, len } = moves[index];
                    Err(DeviceError::BadMove { device, table: table.name, index, from, to, len })
                }
            }
        }
        (EntryBounds::Rows(_), Entries::Moves(_)) => wrong("rows, not moves"),
        (EntryBounds::Moves(_), Entries::Rows(_)) => wrong("moves, not rows"),
    }
}

/// The error of a rank that waited for another one, which has failed.
pub fn broken(device: &'static str) -> DeviceError {
    DeviceError::Failed { device, message: "another rank of the model has failed".into() }
}

/// The check before a range of a table's commands is run.
pub fn check_range(
    device: &'static str,
    table: &DispatchTable,
    first: usize,
    count: usize,
) -> Result<(), DeviceError> {
    let commands = table.commands.len();
    match first.checked_add(count).is_some_and(|end| end <= commands) {
        true => Ok(()),
        false => {
            let message = format!("commands {first} and {count} more of {commands}");
            Err(DeviceError::Failed { device, message })
        }
    }
}

/// The check before a buffer is accessed: whether `bytes` at `offset` are within its size `all`.
pub fn check_bytes(device: &'static str, offset: u64, bytes: u64, all: u64) -> Result<(), DeviceError> {
    let end = offset.saturating_add(bytes);
    if end > all {
        return Err(DeviceError::OutOfBounds { device, offset, end, bytes: all });
    }
    Ok(())
}

/// The object of a device for a handle that it returned.
pub fn buffer_in<'b, B>(
    device: &'static str,
    buffers: &'b [B],
    buffer: DeviceBuffer,
) -> Result<&'b B, DeviceError> {
    let message = "the buffer does not belong to this device";
    buffers.get(buffer.0 as usize).ok_or_else(|| DeviceError::Failed { device, message: message.into() })
}

/// The index among a device's `count` buffers for a buffer of the table; `ids` as in [`Device::prepare`].
pub fn index_of(
    device: &'static str,
    ids: &[DeviceBuffer],
    count: usize,
    id: BufferId,
) -> Result<usize, DeviceError> {
    let index = ids.get(id.index()).map(|buffer| buffer.0 as usize);
    index.filter(|&index| index < count).ok_or_else(|| {
        let message = format!("buffer {} of a table does not belong to this device", id.0);
        DeviceError::Failed { device, message }
    })
}

/// The bytes of a region that are to be imported.
pub fn part_of<'r>(
    device: &'static str,
    region: &'r Region,
    offset: usize,
    bytes: usize,
) -> Result<&'r [u8], DeviceError> {
    let all = region.bytes();
    check_bytes(device, offset as u64, bytes as u64, all.len() as u64)?;
    Ok(&all[offset..offset + bytes])
}

/// Imports a rank's part of some bytes of a region: in place, if it is in one piece.
pub fn import_part<D: Device + ?Sized>(
    device: &mut D,
    rank: usize,
    (region, offset, bytes): (&Region, usize, usize),
    cut: &Cut,
) -> Result<DeviceBuffer, DeviceError> {
    let source = part_of(device.capabilities().name, region, offset, bytes)?;
    match cut.is_in_one_piece() {
        true => device.import(region, offset + cut.offset(rank), cut.share),
        false => device.import_owned(cut.part(rank, source)),
    }
}

pub trait Device: std::fmt::Debug {
    fn capabilities(&self) -> &Capabilities;

    /// Which of [`Capabilities::ranks`] it is.
    fn rank(&self) -> usize {
        0
    }

    /// Says why it can no longer be used, once that is so.
    fn health(&self) -> Health {
        Health::default()
    }

    /// Begins to load a plan. A device of another process loads it there from its own copy of the weights, and ignores
    /// what it is asked until [`Device::end_load`], except for counting the buffers and tables.
    fn begin_load(&mut self, _plan: &ModelPlan, _weights: &dyn WeightProvider) -> Result<(), DeviceError> {
        Ok(())
    }

    /// The plan's buffers are written, and its tables are prepared.
    fn end_load(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Which devices have the buffers that are made from here on, if several run a table.
    fn make_on(&mut self, _home: Home) {}

    /// Allocates zeroed memory.
    fn allocate(&mut self, what: &str, bytes: u64) -> Result<DeviceBuffer, DeviceError>;

    /// Read-only memory that already exists: used in place or copied, depending on [`Capabilities::in_place`].
    fn import(&mut self, region: &Region, offset: usize, bytes: usize) -> Result<DeviceBuffer, DeviceError>;

    /// As [`Device::import`], of memory that nothing else holds.
    fn import_owned(&mut self, bytes: Vec<u8>) -> Result<DeviceBuffer, DeviceError> {
        let len = bytes.len();
        self.import(&Region::from_vec(bytes), 0, len)
    }

    /// As [`Device::import`], for each rank its part of these bytes.
    fn import_cut(
        &mut self,
        region: &Region,
        offset: usize,
        bytes: usize,
        cut: &Cut,
    ) -> Result<DeviceBuffer, DeviceError> {
        import_part(self, self.rank(), (region, offset, bytes), cut)
    }

    fn upload(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError>;

    /// As [`Device::upload`] at the beginning of a buffer, for each rank its part of these bytes.
    fn upload_cut(&mut self, buffer: DeviceBuffer, bytes: &[u8], cut: &Cut) -> Result<(), DeviceError> {
        self.upload(buffer, 0, &cut.part(self.rank(), bytes))
    }

    /// As [`Device::upload`], but without waiting for submissions that run: they must not use these bytes.
    fn upload_beside(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.upload(buffer, offset, bytes)
    }

    fn download(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes parts of a buffer, which `bytes` has one after the other.
    fn upload_strips(
        &mut self,
        buffer: DeviceBuffer,
        strips: Strips,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        let mut parts = strips.offsets().zip(bytes.chunks_exact(strips.bytes.max(1)));
        parts.try_for_each(|(offset, part)| self.upload(buffer, offset, part))
    }

    /// Reads parts of a buffer into `bytes`, one after the other.
    fn download_strips(
        &mut self,
        buffer: DeviceBuffer,
        strips: Strips,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        let mut parts = strips.offsets().zip(bytes.chunks_exact_mut(strips.bytes.max(1)));
        parts.try_for_each(|(offset, part)| self.download(buffer, offset, part))
    }

    /// Begins to copy bytes of a file to the beginning of a buffer, beside submissions that run and do not use it.
    /// [`Device::refill`] waits for the copy.
    fn read_ahead(
        &mut self,
        buffer: DeviceBuffer,
        region: &Region,
        offset: usize,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let part = part_of(self.capabilities().name, region, offset, bytes)?;
        self.upload(buffer, 0, part)
    }

    /// For all that is submitted from here on, the weight whose `bytes` were read ahead to `from` is in `slot`, as if it had
    /// been imported there. A prepared table binds the slot.
    fn refill(&mut self, slot: DeviceBuffer, from: DeviceBuffer, bytes: usize) -> Result<(), DeviceError> {
        let mut moved = vec![0; bytes];
        self.download(from, 0, &mut moved)?;
        self.upload(slot, 0, &moved)
    }

    /// Tables that will be prepared, so that a device can compile their kernels while weights are copied to it.
    fn expect(&mut self, _tables: &[&Arc<DispatchTable>]) {}

    /// Has experts read from their file when they are needed, for the tables that are prepared from here on. `buffers` is
    /// indexed by `BufferId`, and has imported them.
    fn page_experts(&mut self, _paging: &Paging, _buffers: &[DeviceBuffer]) -> Result<(), DeviceError> {
        let message = "it does not read experts from files".into();
        Err(DeviceError::Failed { device: self.capabilities().name, message })
    }

    /// What the passes so far have read of experts; `None`: the device does not count that.
    fn expert_reads(&self) -> Option<ExpertReads> {
        None
    }

    /// Resolves every kernel and buffer (`buffers` is indexed by `BufferId`) into the device's own form, once.
    fn prepare(
        &mut self,
        table: &Arc<DispatchTable>,
        buffers: &[DeviceBuffer],
    ) -> Result<ReplayId, DeviceError>;

    /// Uploads the rows and starts the submission; may return before it is done.
    fn replay(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError>;

    /// Starts a submission of one step after the last one, without waiting for that. Nothing is uploaded: apart from
    /// their tokens, its entries must be those that the last one leaves in the device's memory; its stop tokens are
    /// those of the last one. After a chain that has stopped, nothing is done. Only devices that sample support it.
    fn follow(&mut self, _replay: ReplayId, _submission: Submission<'_>) -> Result<(), DeviceError> {
        let message = "it does not run one table after another".into();
        Err(DeviceError::Failed { device: self.capabilities().name, message })
    }

    /// Reads the first bytes of a buffer as they are after the submission before [`Device::follow`], which alone is
    /// waited for. The one that follows it must not write them.
    fn peek(&mut self, buffer: DeviceBuffer, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.download(buffer, 0, bytes)
    }

    /// Calls `work` with each number below `parts`, in any order and on the device's own threads, and with the bytes of a
    /// buffer. False, without any call: the host cannot read the device's memory in place.
    fn on_threads(
        &mut self,
        _buffer: DeviceBuffer,
        _parts: usize,
        _work: &(dyn Fn(usize, &[u8]) + Sync),
    ) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// Waits for the last submission.
    fn wait(&mut self) -> Result<Outcome, DeviceError>;

    /// Runs `count` commands from `first` on for one step, and waits: for profiling and verification. If `rows` is
    /// empty, the rows of the previous call are used.
    fn run_range(
        &mut self,
        replay: ReplayId,
        submission: Submission<'_>,
        first: usize,
        count: usize,
    ) -> Result<(), DeviceError>;

    /// Runs one step and measures the nanoseconds of each command, up to the length of `ns`.
    fn time_commands(
        &mut self,
        replay: ReplayId,
        submission: Submission<'_>,
        ns: &mut [u64],
    ) -> Result<(), DeviceError> {
        for (index, ns) in ns.iter_mut().enumerate() {
            let start = Instant::now();
            self.run_range(replay, submission, index, 1)?;
            *ns = start.elapsed().as_nanos() as u64;
        }
        Ok(())
    }

    /// Bytes allocated so far, without imports in place.
    fn allocated_bytes(&self) -> u64;

    /// `None`: there is no driver, so the host's allocator accounts for all memory.
    fn driver_memory(&self) -> Result<Option<DriverMemory>, DeviceError> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_buffers_are_rejected() {
        assert!(check_bytes("d", 8, 8, 16).is_ok() && check_bytes("d", 16, 0, 16).is_ok());
        let refused = |offset, bytes| check_bytes("d", offset, bytes, 16).unwrap_err().to_string();
        assert_eq!(refused(8, 9), "d: access to bytes 8..17 of a buffer of 16");
        assert!(refused(u64::MAX, 2).contains(&u64::MAX.to_string()));

        assert_eq!(buffer_in("d", &["a", "b"], DeviceBuffer(1)).unwrap(), &"b");
        assert!(buffer_in("d", &["a", "b"], DeviceBuffer(2)).is_err());

        let ids = [DeviceBuffer(7), DeviceBuffer(2)];
        assert_eq!(index_of("d", &ids, 3, BufferId(1)).unwrap(), 2);
        for (count, id) in [(2, 1), (9, 2)] {
            let refused = index_of("d", &ids, count, BufferId(id)).unwrap_err().to_string();
            assert_eq!(refused, format!("d: buffer {id} of a table does not belong to this device"));
        }
    }
}
