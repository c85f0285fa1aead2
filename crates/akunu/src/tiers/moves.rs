//! Blocks on their way between the device and the tiers.

use akunu_plan::{Device, DeviceError, Loaded, ModelPlan};

use super::{TierStats, Tiers};
use crate::blocks::{BlockId, Named, Parent};
use crate::engine::ALONE;
use crate::{Engine, Error, Session};

/// Reads the keys and values of a block.
pub(super) fn download(
    device: &mut dyn Device,
    (plan, loaded): (&ModelPlan, &Loaded),
    id: BlockId,
    data: &mut [u8],
) -> Result<(), DeviceError> {
    let strips = plan.cache.strips(id);
    for (buffer, part) in plan.cache.buffers().zip(data.chunks_exact_mut(plan.cache.half_block_bytes())) {
        device.download_strips(loaded.buffers[buffer.index()], strips, part)?;
    }
    Ok(())
}

/// Writes the keys and values of a block.
pub(super) fn upload(
    device: &mut dyn Device,
    (plan, loaded): (&ModelPlan, &Loaded),
    id: BlockId,
    data: &[u8],
) -> Result<(), DeviceError> {
    let strips = plan.cache.strips(id);
    for (buffer, part) in plan.cache.buffers().zip(data.chunks_exact(plan.cache.half_block_bytes())) {
        device.upload_strips(loaded.buffers[buffer.index()], strips, part)?;
    }
    Ok(())
}

impl Engine {
    /// What the tiers of the cache have; all 0 without any.
    pub fn tier_stats(&self) -> TierStats {
        self.tiers.as_ref().map(|tiers| tiers.stats(self.pool.block())).unwrap_or_default()
    }

    /// Calls `log` with each warning about the tiers of the cache, those that there were included.
    pub fn set_log(&mut self, log: fn(&str)) {
        if let Some(tiers) = &mut self.tiers {
            tiers.set_log(log);
        }
    }

    /// Moves the blocks that the pool has dropped to the tiers, before anything is written to them.
    pub(crate) fn move_leaving(&mut self) -> Result<(), Error> {
        let Some(tiers) = &mut self.tiers else { return Ok(()) };
        loop {
            let Some((id, block)) = self.pool.lock().blocks.next_leaving() else { return Ok(()) };
            if tiers.touch(block.name) {
                continue;
            }
            download(&mut *self.device, (&self.plan, &self.loaded), id, &mut tiers.leaving)?;
            tiers.stats.moved_tokens += block.tokens.len() as u64;
            tiers.keep(block);
        }
    }

    /// Forgets the blocks without users, on the device and in the host's memory, and returns the number of their tokens.
    pub(crate) fn flush_cache(&mut self) -> usize {
        let on_device = self.pool.lock().blocks.forget_kept();
        let in_memory = self.tiers.as_mut().map_or(0, |tiers| tiers.clear_host());
        on_device + in_memory * self.pool.block()
    }

    /// Makes the session's tokens those of the longest prefix of `tokens` in whole blocks that is known or in the tiers, if that
    /// is longer than what it has. Afterwards all of these blocks are known.
    pub(crate) fn bring_back(
        &mut self,
        session: &mut Session,
        salt: u64,
        tokens: &[u32],
    ) -> Result<(), Error> {
        if self.tiers.is_none() {
            return Ok(());
        }
        let size = self.pool.block();
        let known = self.pool.lock().blocks.find(salt, tokens).blocks;
        let parent = known.last().map_or(Parent::Root(salt), |id| Parent::Block(*id));
        let Some(first) = self.pool.lock().blocks.name_of(parent) else { return Ok(()) };
        let (mut blocks, mut parent) = (Vec::new(), first);
        let chunks = tokens.chunks_exact(size).skip(known.len());
        for tokens in chunks {
            let name = parent.followed_by(tokens);
            if !self.tiers.as_ref().is_some_and(|tiers| tiers.has(name)) {
                break;
            }
            blocks.push(Named { name, parent, tokens: tokens.to_vec() });
            parent = name;
        }
        if (known.len() + blocks.len()) * size <= session.len() {
            return Ok(());
        }
        session.adopt_whole(salt, tokens);
        for block in blocks {
            if !self.bring_block(session, &block)? {
                break;
            }
        }
        session.list.publish(&mut session.pool.lock().blocks, salt, &session.tokens);
        Ok(())
    }

    /// Appends a block in the tiers to a session that has the blocks before it. False: it is not there, or there is no memory
    /// for it.
    fn bring_block(&mut self, session: &mut Session, block: &Named) -> Result<bool, Error> {
        let (before, len) = (session.len(), session.len() + block.tokens.len());
        if session.list.grow(&mut session.pool.lock().blocks, len).is_err() {
            return Ok(false);
        }
        // Before others leave the device, for which it may have to make place.
        let found = self.tiers.as_mut().is_some_and(|tiers| tiers.take(block));
        let moved = self.move_leaving();
        if !found || moved.is_err() {
            session.list.truncate(&mut session.pool.lock().blocks, before);
            return moved.map(|()| false);
        }
        let id = session.list.ids()[before / self.pool.block()];
        let Some(tiers) = &mut self.tiers else { return Ok(false) };
        upload(&mut *self.device, (&self.plan, &self.loaded), id, &tiers.coming)
            .inspect_err(|_| session.abandon())?;
        tiers.stats.returned_tokens += block.tokens.len() as u64;
        session.extend(&block.tokens);
        Ok(true)
    }

    /// Writes the full blocks of a session that is used without a scheduler to disk, if there is a folder for that.
    pub fn keep_session(&mut self, session: &mut Session) -> Result<(), Error> {
        self.check_own(session)?;
        self.move_leaving()?;
        let Some(Tiers { disk: Some(disk), leaving, warnings, .. }) = &mut self.tiers else { return Ok(()) };
        let exact = session.exact.min(session.len());
        session.list.publish(&mut session.pool.lock().blocks, ALONE, &session.tokens[..exact]);
        let ids = &session.list.ids()[..exact / session.pool.block()];
        let blocks = self.pool.lock().blocks.named_blocks(ids);
        for (id, block) in blocks {
            if disk.takes_more() && !disk.touch(block.name) {
                download(&mut *self.device, (&self.plan, &self.loaded), id, leaving)?;
                disk.put(&block, leaving, warnings);
            }
        }
        if let Some(tiers) = &mut self.tiers {
            tiers.report();
        }
        Ok(())
    }

    /// As [`Engine::keep_on_disk`], where there is no request that could fail: an error is a warning.
    pub(crate) fn end_tiers(&mut self) {
        let kept = self.keep_on_disk();
        if let (Err(error), Some(tiers)) = (kept, &mut self.tiers) {
            tiers.warnings.push(format!("{error}: the rest of the cache is not written to disk"));
            tiers.report();
        }
    }

    /// Writes the blocks that are kept, on the device and in the host's memory, to disk: those that were used last first, as far
    /// as the limit allows. For the end of a process.
    pub fn keep_on_disk(&mut self) -> Result<(), Error> {
        self.move_leaving()?;
        let Some(Tiers { host, disk: Some(disk), leaving, warnings, .. }) = &mut self.tiers else {
            return Ok(());
        };
        let mut left = disk.limit() / disk.file_bytes();
        let kept = self.pool.lock().blocks.kept_blocks();
        for (id, block) in kept {
            if left == 0 || !disk.takes_more() {
                break;
            }
            left -= 1;
            if !disk.touch(block.name) {
                download(&mut *self.device, (&self.plan, &self.loaded), id, leaving)?;
                disk.put(&block, leaving, warnings);
            }
        }
        let in_memory = host.iter().flat_map(|host| host.newest_first());
        for (block, data) in in_memory.take(left as usize) {
            disk.put(block, data, warnings);
        }
        if let Some(tiers) = &mut self.tiers {
            tiers.report();
        }
        Ok(())
    }
}
