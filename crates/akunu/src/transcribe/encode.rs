//! The encoder's pass: frames of audio to what the decoder attends to.

use akunu_plan::{Entries, PassKind, Row, Submission};

use super::Transcriber;
use crate::{Engine, Error};

impl Transcriber {
    /// Encodes windows, the first of which has number 0.
    pub(super) fn encode(&mut self, windows: usize, frames: &[f32]) -> Result<(), Error> {
        let batch = self.engine.plan().options.windows;
        let each = frames.len() / windows;
        for (part, frames) in frames.chunks(batch * each).enumerate() {
            self.engine.encode(part * batch, frames.len() / each, frames)?;
        }
        Ok(())
    }
}

impl Engine {
    /// Encodes `count` windows, at most those of a pass, from `first` on.
    pub(crate) fn encode(&mut self, first: usize, count: usize, frames: &[f32]) -> Result<(), Error> {
        let buffer = self.plan.tables.get(PassKind::Encode).and_then(|table| table.io.frames);
        let buffer = buffer.ok_or(Error::DoesNotTranscribe)?;
        self.device.upload(self.loaded.buffers[buffer.index()], 0, bytemuck::cast_slice(frames))?;
        let windows = first as u32..(first + count) as u32;
        let rows: Vec<Row> = windows.flat_map(|window| self.plan.window_rows(window)).collect();
        let submission =
            Submission { entries: Entries::Rows(&rows), logit_rows: &[], steps: 1, stop: &[], cancel: None };
        self.ahead = None;
        self.device.replay(self.loaded.replays[PassKind::Encode], submission)?;
        self.device.wait()?;
        Ok(())
    }
}
