//! The blocks of sessions on the device: the table through which kernels find them, and copies of shared ones.

use akunu_plan::{BufferId, Entries, Move, PassKind, Submission};

use crate::blocks::{BlockCopy, MIN_COPY, PoolFull};
use crate::{Engine, Error, Session};

impl Engine {
    /// Prepares `more` positions after a session's tokens to be written.
    pub(crate) fn reserve(&mut self, session: &mut Session, more: usize) -> Result<(), Error> {
        if !session.goes_on() {
            return Err(Error::StateLost { len: session.len() });
        }
        let Session { list, tokens, pool, .. } = session;
        let copy = list.reserve(&mut pool.lock().blocks, tokens.len(), more);
        let copy = copy.map_err(|full| {
            session.unreserve();
            self.out_of_blocks(full)
        })?;
        self.copy_into(session, copy.as_slice())?;
        self.upload_blocks(session)
    }

    /// As [`Engine::reserve`] for several passes of which only the time matters: in sliding-window layers, they use the
    /// blocks of the first one again.
    pub(crate) fn reserve_to_time(&mut self, session: &mut Session, more: usize) -> Result<(), Error> {
        self.reserve(session, more.min(self.plan.tables.prefill().rows))?;
        let grown = session.list.grow(&mut session.pool.lock().blocks, session.tokens.len() + more);
        grown.map_err(|full| self.out_of_blocks(full))?;
        self.upload_blocks(session)?;
        let Some(windows) = self.plan.cache.windows else { return Ok(()) };
        let own: Vec<u32> = session.list.held_windows().iter().map(|block| block.id).collect();
        let (first, all) = (session.list.windows().len(), session.list.ids().len());
        let again: Vec<u32> = own.into_iter().cycle().take(all.saturating_sub(first)).collect();
        self.write_table(windows.table, session, first, &again)
    }

    /// Writes the blocks of a session that are new to the device's tables.
    pub(crate) fn upload_blocks(&mut self, session: &mut Session) -> Result<(), Error> {
        self.move_leaving()?;
        let list = &session.list;
        if let Some(table) = self.plan.cache.table {
            self.write_table(table, session, list.synced, &list.ids()[list.synced.min(list.ids().len())..])?;
        }
        if let Some(windows) = self.plan.cache.windows {
            let first = list.windows_synced.min(list.windows().len());
            let mut entries = std::mem::take(&mut self.entries);
            entries.clear();
            entries.extend(list.windows()[first..].iter().map(|block| block.id));
            let written = self.write_table(windows.table, session, first, &entries);
            self.entries = entries;
            written?;
        }
        let list = &mut session.list;
        (list.synced, list.windows_synced) = (list.ids().len(), list.windows().len());
        Ok(())
    }

    /// Writes entries of a session to a table, from number `first` on.
    fn write_table(
        &mut self,
        table: BufferId,
        session: &Session,
        first: usize,
        entries: &[u32],
    ) -> Result<(), Error> {
        if entries.is_empty() {
            return Ok(());
        }
        let (block, slot_blocks) = (self.plan.cache.block, self.plan.cache.slot_blocks);
        let (buffer, at) =
            (self.loaded.buffers[table.index()], (session.slot * slot_blocks) as usize + first);
        let (offset, entries) = ((at * size_of::<u32>()) as u64, bytemuck::cast_slice(entries));
        let start = self.start_of(session);
        // A pass that runs may be one of a request that has ended, whose slot has another request now.
        let is_beside =
            self.ahead.is_some_and(|row| row.start != start || ((row.position / block) as usize) < first);
        match is_beside {
            true => self.device.upload_beside(buffer, offset, entries)?,
            false => self.device.upload(buffer, offset, entries)?,
        }
        Ok(())
    }

    /// Copies what a session's blocks replace. After an error it has no tokens.
    fn copy_into(&mut self, session: &mut Session, copies: &[BlockCopy]) -> Result<(), Error> {
        self.copy_blocks(copies).inspect_err(|_| session.clear())
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy]) -> Result<(), Error> {
        self.move_leaving()?;
        let block = self.plan.cache.block;
        copies.iter().try_for_each(|copy| {
            let len = copy.len as u32;
            if self.plan.cache.table.is_some() {
                let moved = Move { from: copy.from * block, to: copy.to * block, len };
                self.move_cache(PassKind::KvCopy, moved)?;
            }
            let Some([from, to]) = copy.windows else { return Ok(()) };
            let moved = Move { from: from * block, to: to * block, len };
            self.move_cache(self.of_windows(PassKind::WindowCopy, PassKind::KvCopy), moved)
        })
    }

    /// The kind of pass that moves positions of sliding-window layers: `alone`, if there are no others.
    fn of_windows(&self, kind: PassKind, alone: PassKind) -> PassKind {
        if self.plan.cache.table.is_some() { kind } else { alone }
    }

    fn move_cache(&mut self, kind: PassKind, moved: Move) -> Result<(), Error> {
        let entries = Entries::Moves(std::slice::from_ref(&moved));
        let submission = Submission { entries, logit_rows: &[], steps: 1, stop: &[], cancel: None };
        self.ahead = None;
        self.device.replay(self.loaded.replays[kind], submission)?;
        self.device.wait()?;
        Ok(())
    }

    pub(crate) fn out_of_blocks(&self, _: PoolFull) -> Error {
        let positions = (self.plan.cache.count * self.plan.cache.block) as usize;
        Error::CacheFull { positions }
    }

    /// Makes the session's tokens those of the longest known prefix of `tokens`.
    pub(crate) fn adopt(&mut self, session: &mut Session, salt: u64, tokens: &[u32]) -> Result<(), Error> {
        let (len, copy) = session.list.adopt(&mut session.pool.lock().blocks, salt, tokens);
        session.tokens.clear();
        session.exact = usize::MAX;
        self.copy_blocks(copy.as_slice()).inspect_err(|_| session.abandon())?;
        session.tokens.extend_from_slice(&tokens[..len]);
        Ok(())
    }

    /// How many tokens [`Engine::adopt`] would find.
    pub(crate) fn known(&self, salt: u64, tokens: &[u32]) -> usize {
        let found = self.pool.lock().blocks.find(salt, tokens);
        let part = found.part.map_or(0, |(_, len)| len);
        found.blocks.len() * self.pool.block() + if part < MIN_COPY { 0 } else { part }
    }

    /// Discards `discard` tokens after the first `keep_first`, and moves the rest down, with their keys rotated to the new
    /// positions. The rest was computed with attention to the discarded tokens, so this differs from prefilling it again.
    pub fn shift(&mut self, session: &mut Session, keep_first: usize, discard: usize) -> Result<(), Error> {
        self.check_own(session)?;
        if !self.model().moves_keys() {
            return Err(Error::CannotShift);
        }
        let len = session.len();
        if keep_first.checked_add(discard).is_none_or(|end| end > len) {
            return Err(Error::OutsideSession { what: "a shift", first: keep_first, count: discard, len });
        }
        if discard == 0 {
            return Ok(());
        }
        if discard > self.most_discarded(len, keep_first) {
            return Err(self.outside_window("a shift", len - discard));
        }
        let mut copies = Vec::new();
        let owned = session.list.own_from(&mut session.pool.lock().blocks, keep_first, len, &mut copies);
        self.copy_into(session, &copies)?;
        self.upload_blocks(session)?;
        owned.map_err(|full| self.out_of_blocks(full))?;
        let to = self.start_of(session) + keep_first as u32;
        let rest = len - keep_first - discard;
        let moved = Move { from: to + discard as u32, to, len: rest as u32 };
        let windowed = self.plan.cache.windows.is_some();
        let shifted = match self.plan.cache.table {
            Some(_) => self.move_cache(PassKind::KvShift, moved),
            None => Ok(()),
        };
        let shifted = shifted.and_then(|()| self.shift_windows(session, discard));
        // After an error, some layers may have moved.
        shifted.inspect_err(|_| session.truncate(if windowed { 0 } else { keep_first }))?;
        session.tokens.copy_within(keep_first + discard.., keep_first);
        session.exact = session.exact.min(keep_first);
        session.truncate(keep_first + rest);
        Ok(())
    }

    /// The most tokens of `len` that a shift may discard after the first `keep_first`. Sliding-window layers need everything
    /// that the next token sees to be after those that are kept, because of these nothing else is there.
    pub(crate) fn most_discarded(&self, len: usize, keep_first: usize) -> usize {
        match self.plan.cache.windows {
            Some(windows) if keep_first > 0 => {
                (len + 1).saturating_sub(keep_first.saturating_add(windows.positions as usize))
            }
            _ => len,
        }
    }

    fn outside_window(&self, what: &'static str, at: usize) -> Error {
        let window = self.plan.cache.windows.map_or(0, |windows| windows.positions as usize);
        Error::OutsideWindow { what, at, window }
    }

    /// Removes `discard` positions before those that the next row of sliding-window layers sees.
    fn shift_windows(&mut self, session: &mut Session, discard: usize) -> Result<(), Error> {
        let Some(windows) = self.plan.cache.windows else { return Ok(()) };
        let (len, block) = (session.len() - discard, self.plan.cache.block as usize);
        let shifted = session.list.shift_windows(&mut session.pool.lock().blocks, discard, len);
        let blocks = shifted.map_err(|full| self.out_of_blocks(full))?;
        let start = self.start_of(session);
        let first = (len + 1).saturating_sub(windows.positions as usize);
        for index in blocks.clone() {
            let id = session.list.windows()[index].id;
            // What follows in the table is where it was: the positions of this block come from there.
            self.write_table(windows.table, session, index, &[id])?;
            let (from, to) = (first.max(index * block), len.min((index + 1) * block));
            let target = start + from as u32;
            let moved = Move { from: target + discard as u32, to: target, len: (to - from) as u32 };
            self.move_cache(self.of_windows(PassKind::WindowShift, PassKind::KvShift), moved)?;
        }
        session.list.windows_synced = blocks.end;
        Ok(())
    }

    /// Replaces the content of `to` with the first `n` tokens of `from`, without running the model. Both use the same
    /// blocks of the KV cache, except the last one, until one of them changes them.
    pub fn copy_prefix(&mut self, from: &Session, to: &mut Session, n: usize) -> Result<(), Error> {
        self.check_own(from)?;
        self.check_own(to)?;
        if n > from.len() {
            return Err(Error::OutsideSession { what: "a copy", first: 0, count: n, len: from.len() });
        }
        if from.reach_to_share(n) < n {
            return Err(self.outside_window("a copy", n));
        }
        to.tokens.clear();
        let copy = to.list.share(&mut to.pool.lock().blocks, &from.list, n);
        let copy = copy.map_err(|full| self.out_of_blocks(full))?;
        self.copy_blocks(copy.as_slice()).inspect_err(|_| to.abandon())?;
        to.tokens.extend_from_slice(&from.tokens[..n]);
        to.exact = if n <= from.exact { usize::MAX } else { from.exact };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use akunu_device_testing::FailingDevice;

    use crate::{BackendOptions, DeviceChoice, Engine, EngineOptions, Model, Session, open_device};

    /// The embedded model on a device whose next submission fails when the flag is set, with blocks of 64 positions.
    fn engine() -> (Engine, Arc<AtomicBool>) {
        let device = open_device(DeviceChoice::Cpu, Some(1), &BackendOptions::default()).unwrap();
        let device = FailingDevice::new(device);
        let failing = device.failing();
        let options = EngineOptions { context: Some(256), ..EngineOptions::default().batching(3) };
        let engine =
            Engine::on_device(Arc::new(Model::embedded().unwrap()), Box::new(device), &options).unwrap();
        (engine, failing)
    }

    fn ids(n: u32) -> Vec<u32> {
        (0..n).map(|i| 10 + i * 7 % 1000).collect()
    }

    fn logits(engine: &mut Engine, session: &mut Session, ids: &[u32]) -> Vec<u32> {
        engine.prefill(session, ids).unwrap();
        engine.last_logits().unwrap().iter().map(|logit| logit.to_bits()).collect()
    }

    fn expected(ids: &[u32]) -> Vec<u32> {
        let (mut engine, _) = engine();
        let mut session = engine.session().unwrap();
        logits(&mut engine, &mut session, ids)
    }

    #[track_caller]
    fn assert_failed<T: std::fmt::Debug>(result: Result<T, crate::Error>) {
        assert!(result.unwrap_err().to_string().contains("failed on purpose"));
    }

    /// Each block has the users that it counts.
    fn check(engine: &Engine, sessions: &[&Session]) {
        let blocks = &engine.pool.lock().blocks;
        blocks.check(sessions.iter().flat_map(|session| session.list.ids()));
    }

    #[test]
    fn a_failed_shift_leaves_the_tokens_before_it() {
        let (mut engine, failing) = engine();
        let mut session = engine.session().unwrap();
        engine.prefill(&mut session, &ids(200)).unwrap();
        failing.store(true, Ordering::Relaxed);
        assert_failed(engine.shift(&mut session, 10, 50));
        assert_eq!(session.tokens(), ids(10));
        check(&engine, &[&session]);
        assert_eq!(logits(&mut engine, &mut session, &ids(200)), expected(&ids(200)));
    }

    #[test]
    fn a_shift_whose_copies_fail_leaves_no_tokens_and_what_others_have() {
        let (mut engine, failing) = engine();
        let [mut first, mut second] = [(); 2].map(|()| engine.session().unwrap());
        engine.prefill(&mut first, &ids(200)).unwrap();
        engine.copy_prefix(&first, &mut second, 128).unwrap();
        failing.store(true, Ordering::Relaxed);
        assert_failed(engine.shift(&mut first, 10, 50));
        assert!(first.is_empty() && first.list.ids().is_empty());
        check(&engine, &[&first, &second]);
        assert_eq!(logits(&mut engine, &mut second, &ids(150)), expected(&ids(150)));
    }

    #[test]
    fn a_failed_copy_leaves_no_tokens_and_no_shared_blocks() {
        let (mut engine, failing) = engine();
        let [mut first, mut second] = [(); 2].map(|()| engine.session().unwrap());
        engine.prefill(&mut first, &ids(100)).unwrap();
        failing.store(true, Ordering::Relaxed);
        assert_failed(engine.copy_prefix(&first, &mut second, 90));
        assert!(second.is_empty() && second.list.ids().is_empty());
        check(&engine, &[&first, &second]);
        // A block that has become known, and a copy of the beginning of the next one.
        first.retire(7);
        let text = [&ids(80)[..], &[5; 10]].concat();
        failing.store(true, Ordering::Relaxed);
        assert_failed(engine.adopt(&mut second, 7, &text));
        assert!(second.is_empty() && second.list.ids().is_empty());
        check(&engine, &[&first, &second]);
        engine.adopt(&mut second, 7, &text).unwrap();
        assert_eq!(second.tokens(), ids(80));
        assert_eq!(logits(&mut engine, &mut second, &text), expected(&text));
    }
}
