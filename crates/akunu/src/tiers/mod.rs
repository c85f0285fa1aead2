//! The cache outside of the device: blocks that its pool drops move to the host's memory and to files on disk, and come
//! back when a prompt begins with their tokens ([`crate::EngineOptions::kv_host`], [`crate::EngineOptions::kv_disk`]).
//! Sessions are saved in files of the same format.

mod disk;
mod file;
mod fingerprint;
mod host;
mod moves;
mod sessions;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use akunu_plan::CachePlan;

use crate::blocks::{Name, Named};
use crate::memory::reserved;
use crate::{EngineOptions, Error};
use disk::DiskTier;
pub(crate) use fingerprint::fingerprint;
use host::HostTier;
pub use sessions::SavedSession;

/// A folder for blocks of the cache, which several processes may share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvDisk {
    /// Created if it does not exist.
    pub folder: PathBuf,
    /// The most bytes of all files of the cache in it. Several processes may exceed it by a sixteenth each.
    pub bytes: u64,
}

impl KvDisk {
    pub const DEFAULT_BYTES: u64 = 16 << 30;
}

/// Blocks of memory beside those of the host's tier: one that leaves the device, and one that comes back.
const PASSING: usize = 2;

/// Warnings that are kept until there is a function for them.
const MOST_WARNINGS: usize = 64;

/// What the tiers have and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Tokens in the host's memory.
    pub host_tokens: usize,
    /// Bytes of memory that were allocated so far, at most those of the plan.
    pub host_bytes: usize,
    /// Those of the plan.
    pub host_capacity: u64,
    /// Bytes of the files on disk, of all models, as far as known.
    pub disk_bytes: u64,
    /// Tokens that left the device, and tokens that came back.
    pub moved_tokens: u64,
    pub returned_tokens: u64,
    /// Files that were not usable, and other failures.
    pub warnings: u64,
}

#[derive(Debug)]
pub(crate) struct Tiers {
    host: Option<HostTier>,
    disk: Option<DiskTier>,
    /// The block that leaves the device, and the one that comes back.
    leaving: Vec<u8>,
    coming: Vec<u8>,
    stats: TierStats,
    /// Not reported yet.
    warnings: Vec<String>,
    log: Option<fn(&str)>,
    /// Until there is a `log`.
    unlogged: Vec<String>,
}

/// Bytes of the host's memory for the cache.
pub(crate) fn host_bytes(options: &EngineOptions, cache: &CachePlan) -> Result<u64, Error> {
    if options.kv_host.is_none() && options.kv_disk.is_none() {
        return Ok(0);
    }
    check_movable(TIERS, cache)?;
    let block = cache.block_bytes() as u64;
    Ok(block * (PASSING as u64 + host_blocks(options, block)?))
}

fn host_blocks(options: &EngineOptions, block: u64) -> Result<u64, Error> {
    let Some(bytes) = options.kv_host else { return Ok(0) };
    match (bytes / block).checked_sub(PASSING as u64) {
        Some(most @ 1..) => Ok(most),
        _ => {
            let least = crate::human(block * (PASSING as u64 + 1));
            let value = format!("{} (this model needs at least {least})", crate::human(bytes));
            let (name, expected) = ("the cache in the host's memory", "at least three blocks");
            Err(Error::Setting { name, value, expected })
        }
    }
}

/// What messages call the tiers.
pub(crate) const TIERS: &str = "the cache outside of the device (--kv-host, --kv-disk)";

/// Blocks of sliding-window layers have a pool of their own, whose blocks nothing moves; nor are those moved of which
/// the host has a part.
pub(crate) fn check_movable(what: &'static str, cache: &CachePlan) -> Result<(), Error> {
    match (cache.windows, cache.other_layers) {
        (Some(_), _) => Err(Error::WindowsStay { what }),
        (None, 0) => Ok(()),
        (None, _) => Err(Error::LayersOnHost { what }),
    }
}

impl Tiers {
    /// The tiers that the options ask for.
    pub(crate) fn open(
        options: &EngineOptions,
        cache: &CachePlan,
        model: impl FnOnce() -> Name,
    ) -> Result<Option<Tiers>, Error> {
        let host_capacity = host_bytes(options, cache)?;
        if host_capacity == 0 {
            return Ok(None);
        }
        let (block, positions) = (cache.block_bytes(), cache.block as usize);
        let mut warnings = Vec::new();
        let most = host_blocks(options, block as u64)?;
        let host = options.kv_host.map(|_| HostTier::new(most as usize));
        let disk = match &options.kv_disk {
            Some(KvDisk { folder, bytes }) => {
                Some(DiskTier::open(folder, *bytes, model(), (positions, block), &mut warnings)?)
            }
            None => None,
        };
        let memory = || {
            let mut memory = reserved("a block of the cache", block)?;
            memory.resize(block, 0);
            Ok::<_, Error>(memory)
        };
        let (leaving, coming) = (memory()?, memory()?);
        let (stats, unlogged) = (TierStats { host_capacity, ..TierStats::default() }, Vec::new());
        let mut tiers = Tiers { host, disk, leaving, coming, stats, warnings, log: None, unlogged };
        tiers.report();
        Ok(Some(tiers))
    }

    pub(crate) fn stats(&self, positions: usize) -> TierStats {
        let passing = self.leaving.capacity() + self.coming.capacity();
        TierStats {
            host_tokens: self.host.as_ref().map_or(0, HostTier::len) * positions,
            host_bytes: self.host.as_ref().map_or(0, HostTier::allocated) + passing,
            disk_bytes: self.disk.as_ref().map_or(0, DiskTier::used),
            ..self.stats
        }
    }

    /// Calls `log` with each warning from now on, and with those that there were.
    pub(crate) fn set_log(&mut self, log: fn(&str)) {
        self.log = Some(log);
        self.unlogged.drain(..).for_each(|warning| log(&warning));
    }

    /// Reports the warnings.
    fn report(&mut self) {
        self.stats.warnings += self.warnings.len() as u64;
        match self.log {
            Some(log) => self.warnings.drain(..).for_each(|warning| log(&warning)),
            None => self.unlogged.append(&mut self.warnings),
        }
        self.unlogged.truncate(MOST_WARNINGS);
    }

    /// Whether a block that leaves the device need not be read from there: it is kept already.
    fn touch(&mut self, name: Name) -> bool {
        match (&mut self.host, &self.disk) {
            (Some(host), _) => host.touch(name),
            (None, Some(disk)) => !disk.takes_more() || disk.touch(name),
            (None, None) => true,
        }
    }

    /// Keeps a block, whose content is in `leaving`.
    fn keep(&mut self, block: Named) {
        let gone = match &mut self.host {
            Some(host) => host.put(block, &mut self.leaving),
            None => Some(block),
        };
        if let (Some(disk), Some(gone)) = (&mut self.disk, gone) {
            disk.put(&gone, &self.leaving, &mut self.warnings);
        }
        self.report();
    }

    /// Forgets the blocks in the host's memory, and returns their number.
    fn clear_host(&mut self) -> usize {
        self.host.as_mut().map_or(0, HostTier::clear)
    }

    /// Whether a block seems to be here.
    fn has(&self, name: Name) -> bool {
        let in_memory = self.host.as_ref().is_some_and(|host| host.has(name));
        in_memory || self.disk.as_ref().is_some_and(|disk| disk.has(name))
    }

    /// Reads a block into `coming`; the host's memory does not have it any more then.
    fn take(&mut self, block: &Named) -> bool {
        let in_memory = self.host.as_mut().is_some_and(|host| host.take(block, &mut self.coming));
        let (coming, warnings) = (&mut self.coming, &mut self.warnings);
        let found = in_memory || self.disk.as_mut().is_some_and(|disk| disk.get(block, coming, warnings));
        self.report();
        found
    }
}
