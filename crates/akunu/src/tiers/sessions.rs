//! Sessions in files.

use std::path::Path;

use super::file::{Header, Reader, Writer, failed};
use super::{check_movable, moves};
use crate::blocks::Name;
use crate::memory::reserved;
use crate::{Engine, Error, KvFileProblem, Session, tiers};

/// What was written to a file, or read from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedSession {
    pub tokens: usize,
    pub bytes: u64,
}

impl Engine {
    /// Writes a session's tokens with their keys and values to a file, from which [`Engine::restore_session`] takes them. A file
    /// of this name is replaced when the new one is complete.
    pub fn save_session(&mut self, session: &Session, path: &Path) -> Result<SavedSession, Error> {
        self.check_own(session)?;
        check_movable("saving a session", &self.plan.cache)?;
        let fail = |error| failed(path, KvFileProblem::Io(error));
        let (tokens, exact) = (session.tokens.clone(), session.exact_tokens().len());
        let header = Header { model: self.name(), parent: Name([0; 32]), exact, tokens };
        let mut data = self.block_memory()?;
        let mut writer = Writer::create(path, &header).map_err(fail)?;
        let size = self.pool.block();
        for (index, id) in session.list.ids().iter().take(session.len().div_ceil(size)).enumerate() {
            moves::download(&mut *self.device, (&self.plan, &self.loaded), *id, &mut data)?;
            self.clear_unused(&mut data, session.len() - index * size)?;
            writer.add(&data).map_err(fail)?;
        }
        Ok(SavedSession { tokens: session.len(), bytes: writer.finish().map_err(fail)? })
    }

    /// Replaces the content of a session with that of a file. After an error the session is empty.
    pub fn restore_session(&mut self, session: &mut Session, path: &Path) -> Result<SavedSession, Error> {
        self.check_own(session)?;
        check_movable("restoring a session", &self.plan.cache)?;
        session.clear();
        let restored = self.read_session(session, path);
        restored.inspect_err(|_| session.clear())
    }

    fn read_session(&mut self, session: &mut Session, path: &Path) -> Result<SavedSession, Error> {
        let (size, block) = (self.pool.block(), self.plan.cache.block_bytes());
        let data_bytes = |tokens: usize| (tokens.div_ceil(size) * block) as u64;
        let mut reader = Reader::open(path, self.name(), self.context(), data_bytes)?;
        let damaged = || failed(path, KvFileProblem::Damaged);
        let (tokens, exact) = (reader.header.tokens.clone(), reader.header.exact);
        if tokens.iter().any(|&token| token as usize >= self.vocab_size()) {
            return Err(damaged());
        }
        let mut data = self.block_memory()?;
        for part in tokens.chunks(size) {
            self.reserve(session, part.len())?;
            reader.read(&mut data)?;
            let id = session.list.ids()[session.len() / size];
            moves::upload(&mut *self.device, (&self.plan, &self.loaded), id, &data)?;
            session.extend(part);
        }
        reader.finish()?;
        session.exact = if exact < tokens.len() { exact } else { usize::MAX };
        session.is_kept = true;
        let bytes = tiers::file::file_bytes(tokens.len(), data_bytes(tokens.len()) as usize);
        Ok(SavedSession { tokens: tokens.len(), bytes })
    }

    fn name(&self) -> Name {
        *self
            .fingerprint
            .get_or_init(|| tiers::fingerprint(self.model(), &self.plan, self.device.capabilities()))
    }

    fn block_memory(&self) -> Result<Vec<u8>, Error> {
        let bytes = self.plan.cache.block_bytes();
        let mut data = reserved("a block of the cache", bytes)?;
        data.resize(bytes, 0);
        Ok(data)
    }

    /// Clears the keys and values of a block after its first `used` positions, which may be those of other sequences.
    fn clear_unused(&self, data: &mut [u8], used: usize) -> Result<(), Error> {
        let (cache, kv) = (&self.plan.cache, self.plan.options.kv);
        if used >= cache.block as usize {
            return Ok(());
        }
        let (row, order) = (cache.row_bytes as usize, self.device.capabilities().keys);
        let strips = cache.strips(0);
        // Rows that are keys and values at once are in the order of values.
        let transposed = if cache.k == cache.v { 0 } else { strips.all() };
        let (keys, values) = data.split_at_mut(transposed);
        for values in values.chunks_exact_mut(strips.bytes) {
            values[used * row..].fill(0);
        }
        let head_dim = self.plan.config.head_dim;
        for keys in keys.chunks_exact_mut(strips.bytes) {
            let rows = order.to_positions(kv, head_dim, keys);
            let cleared = rows.and_then(|mut rows| {
                rows[used * row..].fill(0);
                order.from_positions(kv, head_dim, &rows)
            });
            // Blocks are whole groups of positions.
            cleared.iter().for_each(|cleared| keys.copy_from_slice(cleared));
        }
        Ok(())
    }
}
