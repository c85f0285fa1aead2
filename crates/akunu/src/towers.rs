//! The two towers of a model that transcribes, run on random frames and tokens: for measurements of speed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use akunu_plan::random::Draws;
use akunu_plan::{
    Cost, Device, Entries, KvType, Loaded, ModelPlan, PassKind, PlanError, PlanOptions, Row, Submission,
    Tables,
};

use crate::engine::check_fits;
use crate::profile::time_table;
use crate::{BackendOptions, DeviceChoice, Error, LabelTiming, Model};

#[derive(Clone, Debug, PartialEq)]
pub struct TowerOptions {
    pub device: DeviceChoice,
    /// CPU threads; `None`: one per physical core.
    pub threads: Option<usize>,
    pub backends: BackendOptions,
    pub kv: KvType,
    /// Maximum positions of a sequence.
    pub context: usize,
    /// Maximum windows of audio in a pass of the encoder.
    pub windows: usize,
    /// Maximum number of sequences at once, each with a window of its own.
    pub sequences: usize,
}

/// Both towers of a model, loaded on a device. The decoder's sequences are about different windows.
#[derive(Debug)]
pub struct Towers {
    model: Arc<Model>,
    device: Box<dyn Device>,
    plan: ModelPlan,
    loaded: Loaded,
    load_time: Duration,
}

impl Towers {
    /// Also uploads random frames, and encodes the windows of all sequences.
    pub fn new(model: Arc<Model>, options: &TowerOptions) -> Result<Towers, Error> {
        let mut device = crate::open_device(options.device, options.threads, &options.backends)?;
        let began = Instant::now();
        if model.config().encoder.is_none() {
            return Err(PlanError::Unsupported("the model does not transcribe audio".into()).into());
        }
        let capabilities = device.capabilities();
        let plan_options = PlanOptions {
            context: options.context,
            slots: options.windows.max(options.sequences),
            kv: options.kv,
            kv_bytes: None,
            prefill_rows: capabilities.prefill_rows.min(options.context).max(options.sequences),
            prefill_logit_rows: options.sequences,
            chain: capabilities.chain.min(options.context),
            windows: options.windows,
            beams: 1,
            word_times: false,
            fuse: true,
            keep_inputs: false,
            host: akunu_plan::OnHost::default(),
            stages: Vec::new(),
            stream_rows: None,
        };
        let plan = akunu_plan::plan(model.weights(), capabilities, &plan_options)?;
        check_fits(&plan, capabilities)?;
        let loaded = akunu_plan::load(&plan, model.weights(), &mut *device, &mut akunu_plan::unwatched)?;
        let mut towers = Towers { model, device, plan, loaded, load_time: began.elapsed() };
        towers.upload_frames()?;
        let slots = towers.plan.options.slots;
        for first in (0..slots).step_by(options.windows) {
            towers.encode_from(first, options.windows.min(slots - first))?;
        }
        Ok(towers)
    }

    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    pub fn plan(&self) -> &ModelPlan {
        &self.plan
    }

    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// The time for planning, loading and preparing.
    pub fn load_time(&self) -> Duration {
        self.load_time
    }

    /// States of a window.
    pub fn positions(&self) -> usize {
        self.plan.config.encoder.map_or(0, |encoder| encoder.positions)
    }

    fn upload_frames(&mut self) -> Result<(), Error> {
        let Some(frames) = self.plan.tables[PassKind::Encode].io.frames else { return Ok(()) };
        let count = self.plan.buffers[frames.index()].bytes as usize / size_of::<f32>();
        let frames = self.loaded.buffers[frames.index()];
        let mut draws = Draws::new(1, 0);
        // From -1 to 1, as log-mel frames are.
        let values: Vec<f32> =
            (0..count).map(|at| draws.bits(at as u32) as i32 as f32 / 2f32.powi(31)).collect();
        Ok(self.device.upload(frames, 0, bytemuck::cast_slice(&values))?)
    }

    /// Encodes this many windows in one pass, and waits for it.
    pub fn encode(&mut self, windows: usize) -> Result<(), Error> {
        self.encode_from(0, windows)
    }

    fn encode_from(&mut self, first: usize, windows: usize) -> Result<(), Error> {
        let rows = window_rows(&self.plan, first, windows);
        self.device.replay(self.loaded.replays[PassKind::Encode], submission(&rows, &[], 1))?;
        self.device.wait()?;
        Ok(())
    }

    /// Decodes `tokens` tokens of each of `sequences` sequences, greedily, after `depth` tokens that [`Towers::fill`] has
    /// processed. One sequence is decoded in chains, as long as the device allows.
    pub fn decode(&mut self, sequences: usize, depth: usize, tokens: usize) -> Result<(), Error> {
        let kind = self.plan.tables.kind_for(sequences);
        let table = &self.plan.tables[kind];
        let (found, all) = (self.loaded.buffers[table.io.tokens.index()], table.logit_rows);
        let most = table.steps;
        let asking: Vec<u32> = (0..sequences as u32).collect();
        let mut rows: Vec<Row> = (0..sequences).map(|slot| self.row(slot, depth)).collect();
        let mut ids = vec![0u32; sequences];
        let mut done = 0;
        while done < tokens {
            let steps = most.min(tokens - done);
            self.device.replay(self.loaded.replays[kind], submission(&rows, &asking, steps))?;
            self.device.wait()?;
            let offset = steps * all * size_of::<u32>();
            self.device.download(found, offset as u64, bytemuck::cast_slice_mut(&mut ids))?;
            done += steps;
            for (row, &id) in rows.iter_mut().zip(&ids) {
                let ahead = steps as u32 - 1;
                *row = Row { position: row.position + ahead, kv_len: row.kv_len + ahead, ..*row }.next(id);
            }
        }
        Ok(())
    }

    /// Processes the first `depth` tokens of each of `sequences` sequences.
    pub fn fill(&mut self, sequences: usize, depth: usize) -> Result<(), Error> {
        for slot in 0..sequences {
            let rows: Vec<Row> = (0..depth).map(|position| self.row(slot, position)).collect();
            for part in rows.chunks(self.plan.tables.prefill().rows) {
                let kind = self.plan.tables.kind_for(part.len());
                self.device.replay(self.loaded.replays[kind], submission(part, &[], 1))?;
                self.device.wait()?;
            }
        }
        Ok(())
    }

    /// A token far from those at other positions and in other sequences.
    fn row(&self, slot: usize, position: usize) -> Row {
        let token = (slot * 31 + position) * 7919 % self.plan.config.vocab_size;
        Row::causal(token as u32, position as u32, self.plan.slot_start(slot as u32))
    }

    /// The memory traffic and operations of [`Towers::encode`].
    pub fn encode_cost(&self, windows: usize) -> Cost {
        let rows = window_rows(&self.plan, 0, windows);
        self.plan.tables[PassKind::Encode].cost(Entries::Rows(&rows), 0)
    }

    /// Times each command of the encoder's pass: the median over `passes`.
    pub fn profile_encoder(&mut self, windows: usize, passes: usize) -> Result<Vec<LabelTiming>, Error> {
        let rows = window_rows(&self.plan, 0, windows);
        self.profile(PassKind::Encode, &submission(&rows, &[], 1), passes)
    }

    /// Times each command of a step of the decoder after `depth` tokens: the median over `passes`.
    pub fn profile_decoder(
        &mut self,
        sequences: usize,
        depth: usize,
        passes: usize,
    ) -> Result<Vec<LabelTiming>, Error> {
        self.fill(sequences, depth)?;
        let rows: Vec<Row> = (0..sequences).map(|slot| self.row(slot, depth)).collect();
        let asking: Vec<u32> = (0..sequences as u32).collect();
        self.profile(self.plan.tables.kind_for(sequences), &submission(&rows, &asking, 1), passes)
    }

    fn profile(
        &mut self,
        kind: PassKind,
        submission: &Submission<'_>,
        passes: usize,
    ) -> Result<Vec<LabelTiming>, Error> {
        let tables: &Tables = &self.plan.tables;
        let (table, replay) = (tables[kind].clone(), self.loaded.replays[kind]);
        time_table(
            &mut *self.device,
            (replay, &self.loaded.buffers),
            &table,
            std::slice::from_ref(submission),
            passes,
        )
    }
}

fn window_rows(plan: &ModelPlan, first: usize, windows: usize) -> Vec<Row> {
    (first..first + windows).flat_map(|window| plan.window_rows(window as u32)).collect()
}

fn submission<'a>(rows: &'a [Row], asking: &'a [u32], steps: usize) -> Submission<'a> {
    Submission { entries: Entries::Rows(rows), logit_rows: asking, steps, stop: &[], cancel: None }
}
