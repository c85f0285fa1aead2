//! What a device does for a table. One device belongs to one thread.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use akunu_format::{DType, Region};

use crate::{BufferId, DispatchTable, Entries, EntryBounds, KeyOrder, Move, Row};

/// A device's own handle to memory; never freed before the device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceBuffer(pub u32);

/// A device's own handle to a prepared table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReplayId(pub u32);

/// What the builder asks of a device before it writes a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Capabilities {
    /// `reference`, `cpu`, …
    pub name: &'static str,
    /// What this one is, for people: `AVX2, 2 threads`.
    pub detail: String,
    /// Norms are folded into the products around them, and the rotation into attention, where they can be: fewer commands, each
    /// with more to do. For devices where a command costs more than that.
    pub folds: bool,
    /// Tables of more rows than this multiply in half precision ([`crate::halves`]), whatever the weights but f32. Unpacking them takes as long for
    /// one row as for many, so fewer go another way.
    pub half_products: Option<usize>,
    /// How keys lie in its cache.
    pub keys: KeyOrder,
    /// Which weights are used where the file's mapping put them.
    pub in_place: InPlace,
    /// Whether it picks tokens by [`crate::sample`] itself, so that sampled decoding chains too.
    pub samples: bool,
    /// The most steps worth chaining in one submission.
    pub chain: usize,
    /// Rows of a prefill table.
    pub prefill_rows: usize,
    /// Bytes that the device itself allocates when it is made, whatever the model.
    pub workspace_bytes: u64,
    /// Bytes that may still be allocated, where known.
    pub available_bytes: Option<u64>,
}

/// Weights that need no memory of the device's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPlace {
    All,
    /// Those of mapped files that stand as they are, floats and scales of their own plane, where wide loads are aligned. The host's memory is the
    /// device's too, but blocks are laid out anew.
    Unpacked,
    /// The device has memory of its own.
    Nothing,
}

impl InPlace {
    /// `plane`: of those that the type has.
    pub fn holds(self, dtype: DType, plane: usize, region: &Region, offset: usize) -> bool {
        match self {
            InPlace::All => true,
            InPlace::Unpacked => (plane > 0 || !dtype.is_quantised()) && InPlace::is_bindable(region, offset),
            InPlace::Nothing => false,
        }
    }

    /// Whether a GPU of the same memory can read it: pages of a file, at a multiple of 16 bytes.
    pub fn is_bindable(region: &Region, offset: usize) -> bool {
        region.is_mapped() && offset.is_multiple_of(16)
    }
}

/// What is asked of a device at once: `steps` replays of a table, each step's rows following from the last one's.
#[derive(Clone, Copy, Debug)]
pub struct Submission<'a> {
    /// At most `table.rows`, of the kind that the table takes.
    pub entries: Entries<'a>,
    /// Indices of rows that ask for logits, ascending; at most `table.logit_rows`.
    pub logit_rows: &'a [u32],
    /// At least 1; more only where the table's last command advances its rows.
    pub steps: usize,
    /// A row that finds one of these ends the chain.
    pub stop: &'a [u32],
    /// Looked at between steps.
    pub cancel: Option<&'a AtomicBool>,
}

/// How far a submission got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Steps whose tokens were written.
    pub steps: usize,
}

/// What a device takes through a driver. Replays leave both as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverMemory {
    /// Times that it was asked for memory, the device's or the host's, or for what takes some: graphs, events, loaded code.
    pub requests: u64,
    /// Of the device's memory, as the driver counts them: what libraries and the driver itself take is seen here.
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
        "{device}: move {index}, of {len} positions from {from} on to {to}, is not one that table {table} can make"
    )]
    BadMove { device: &'static str, table: &'static str, index: usize, from: u32, to: u32, len: u32 },
    #[error("{device}: table {table} takes {expected}")]
    WrongEntries { device: &'static str, table: &'static str, expected: &'static str },
    #[error("{device}: access to bytes {offset}..{end} of a buffer of {bytes}")]
    OutOfBounds { device: &'static str, offset: u64, end: u64, bytes: u64 },
    #[error("{device}: {message}")]
    Failed { device: &'static str, message: String },
}

/// The checks that every device makes before it touches its memory: counts and entries against the table.
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

/// The check before bytes of a buffer are touched: whether so many at an offset are among its `all`.
pub fn check_bytes(device: &'static str, offset: u64, bytes: u64, all: u64) -> Result<(), DeviceError> {
    let end = offset.saturating_add(bytes);
    if end > all {
        return Err(DeviceError::OutOfBounds { device, offset, end, bytes: all });
    }
    Ok(())
}

/// What a device has for a handle that it gave out.
pub fn buffer_in<'b, B>(
    device: &'static str,
    buffers: &'b [B],
    buffer: DeviceBuffer,
) -> Result<&'b B, DeviceError> {
    let message = "that buffer is not this device's";
    buffers.get(buffer.0 as usize).ok_or_else(|| DeviceError::Failed { device, message: message.into() })
}

/// Which of a device's `count` buffers a table's id stands for; `ids`: as of [`Device::prepare`].
pub fn index_of(
    device: &'static str,
    ids: &[DeviceBuffer],
    count: usize,
    id: BufferId,
) -> Result<usize, DeviceError> {
    let index = ids.get(id.index()).map(|buffer| buffer.0 as usize);
    index.filter(|&index| index < count).ok_or_else(|| {
        let message = format!("buffer {} of a table is not this device's", id.0);
        DeviceError::Failed { device, message }
    })
}

/// What is to be imported of a region.
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

pub trait Device: std::fmt::Debug {
    fn capabilities(&self) -> &Capabilities;

    /// Zeroed memory.
    fn allocate(&mut self, what: &str, bytes: u64) -> Result<DeviceBuffer, DeviceError>;

    /// Read-only memory that already exists: in place or copied, as [`Capabilities::in_place`] says.
    fn import(&mut self, region: &Region, offset: usize, bytes: usize) -> Result<DeviceBuffer, DeviceError>;

    fn upload(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError>;

    fn download(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Resolves every kernel and buffer (`buffers` is indexed by `BufferId`) into the device's own form, once.
    fn prepare(
        &mut self,
        table: &Arc<DispatchTable>,
        buffers: &[DeviceBuffer],
    ) -> Result<ReplayId, DeviceError>;

    /// Submits; may return before it is done. Uploads the rows first.
    fn replay(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError>;

    /// Waits for the last submission.
    fn wait(&mut self) -> Result<Outcome, DeviceError>;

    /// Runs `count` commands from `first` for one step, and waits: for profiling and verifying. With `rows` empty, the
    /// rows of the last call stay.
    fn run_range(
        &mut self,
        replay: ReplayId,
        submission: Submission<'_>,
        first: usize,
        count: usize,
    ) -> Result<(), DeviceError>;

    /// Runs one step, and tells how many nanoseconds each command took: as many as `ns` and the table have.
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

    /// Bytes allocated so far, imports in place not counted.
    fn allocated_bytes(&self) -> u64;

    /// `None`: it has no driver, and the host's allocator sees all that it takes.
    fn driver_memory(&self) -> Result<Option<DriverMemory>, DeviceError> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_devices_own_is_refused() {
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
            assert_eq!(refused, format!("d: buffer {id} of a table is not this device's"));
        }
    }
}
