//! Decoding with a sampler: on the device, a chain at a time, where it can; a step at a time with the host's picks where not.

use std::sync::atomic::AtomicBool;

use crate::{Engine, Error, Sampler, Session};

impl Engine {
    /// As [`Engine::decode`], but that `sampler` picks what follows `history`: all of the text's tokens, of which the last is fed to
    /// the session. One step where the device does not sample, or has no room for the settings; the tokens are the same.
    pub fn decode_sampled(
        &mut self,
        session: &mut Session,
        sampler: &mut Sampler,
        history: &[u32],
        steps: usize,
        stop: &[u32],
        cancel: Option<&AtomicBool>,
    ) -> Result<&[u32], Error> {
        let &token = history.last().ok_or(Error::EmptyPrompt)?;
        self.check_step(session, token, 0)?;
        let on_device = match (self.loaded.sampled, sampler.record(history)) {
            (Some(sampled), Some(record)) => {
                self.device.upload(sampled.decode_records, 0, bytemuck::cast_slice(record))?;
                Some(sampled.decode)
            }
            _ => None,
        };
        let steps = if on_device.is_some() { self.chain_steps(session, steps)? } else { 1 };
        let replay = on_device.unwrap_or(self.loaded.decode);
        let done = self.chain(session, (replay, token), steps, stop, cancel)?;
        if done > 0 && on_device.is_none() {
            self.found[0] = sampler.pick(self.last_logits()?, history)?;
        }
        if let Some(step) = self.found[..done].iter().position(|&id| id == u32::MAX) {
            let finite = self.last_logits()?.iter().all(|logit| logit.is_finite());
            let position = session.len() + step;
            return Err(if finite { Error::NothingToPick } else { Error::NotFinite { position } });
        }
        self.follow(session, token, done);
        Ok(&self.found[..done])
    }
}
