//! What is done with the text of a slot between two requests: its keys and values are saved, restored or forgotten.

use std::path::PathBuf;

use super::Scheduler;
use super::request::catch_panic;
use crate::{Error, SavedSession};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotAction {
    /// Writes the text of the slot's last request to a file, as far as it is still in the cache.
    Save(PathBuf),
    /// Takes a text from a file. Requests that begin with it need not process it.
    Restore(PathBuf),
    /// Forgets the text of the slot's last request, as far as no other text begins with it. Copies in the host's memory and
    /// on disk stay.
    Erase,
}

/// Called on the engine's thread with what was saved, restored or forgotten.
pub type OnSlot = Box<dyn FnOnce(Result<SavedSession, Error>) + Send>;

pub(super) struct SlotCommand {
    pub(super) slot: usize,
    /// That of the requests whose text it may be.
    pub(super) salt: u64,
    pub(super) action: SlotAction,
    pub(super) on_done: OnSlot,
}

/// Called on the engine's thread with the number of tokens that were forgotten.
pub type OnFlush = Box<dyn FnOnce(usize) + Send>;

/// What a handle asks for beside requests.
pub(super) enum Command {
    Slot(SlotCommand),
    Flush(OnFlush),
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Command::Slot(command) => command.fmt(f),
            Command::Flush(_) => f.write_str("Flush"),
        }
    }
}

impl std::fmt::Debug for SlotCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlotCommand").field("slot", &self.slot).field("action", &self.action).finish()
    }
}

/// The text of the last request in a slot.
#[derive(Clone, Debug, Default)]
pub(super) struct LastText {
    pub(super) salt: u64,
    pub(super) tokens: Vec<u32>,
}

impl Scheduler {
    /// Runs the commands, but those for slots with requests.
    pub(super) fn run_commands(&mut self) {
        let mut index = 0;
        while let Some(command) = self.commands.get(index) {
            if let Command::Slot(SlotCommand { slot, .. }) = command
                && self.batch.slots.get(*slot).is_some_and(|slot| slot.active.is_some())
            {
                index += 1;
                continue;
            }
            // A panic of the caller's function is not one of the engine.
            let _ = match self.commands.remove(index) {
                Command::Slot(SlotCommand { slot, salt, action, on_done }) => {
                    let done = self.run_command(slot, salt, &action);
                    catch_panic(move || {
                        on_done(done);
                        Ok(())
                    })
                }
                Command::Flush(on_done) => {
                    let forgotten = self.engine.flush_cache();
                    catch_panic(move || {
                        on_done(forgotten);
                        Ok(())
                    })
                }
            };
        }
    }

    fn run_command(&mut self, slot: usize, salt: u64, action: &SlotAction) -> Result<SavedSession, Error> {
        let Scheduler { batch, engine, .. } = self;
        let (Some(place), Some(text)) = (batch.slots.get_mut(slot), batch.texts.get_mut(slot)) else {
            return Err(Error::EmptySlot { slot });
        };
        let session = &mut *place.session;
        if let SlotAction::Restore(path) = action {
            let restored = engine.restore_session(session, path)?;
            *text = LastText { salt, tokens: session.exact_tokens().to_vec() };
            session.retire(salt);
            return Ok(restored);
        }
        if text.tokens.is_empty() || text.salt != salt {
            return Err(Error::EmptySlot { slot });
        }
        engine.bring_back(session, salt, &text.tokens)?;
        engine.adopt(session, salt, &text.tokens)?;
        match action {
            SlotAction::Save(path) => {
                let saved = engine.save_session(session, path);
                session.retire(salt);
                saved
            }
            _ => {
                let tokens = std::mem::take(&mut text.tokens).len();
                session.erase();
                Ok(SavedSession { tokens, bytes: 0 })
            }
        }
    }
}
