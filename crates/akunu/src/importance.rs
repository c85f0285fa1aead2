//! Importance matrices: the mean squares of the inputs of each weight matrix over a text, for quantisation.

use std::ops::ControlFlow;

use akunu_arch::convert::gguf_name;
use akunu_format::{Imatrix, ImatrixEntry};
use akunu_plan::{
    Device, Entries, Loaded, ModelPlan, PlanOptions, ProductInput, Row, RowSet, Submission, product_inputs,
};

use crate::{EngineOptions, Error, Model, engine};

/// Rows of a pass for which the input of the output matrix is computed at once.
const LOGIT_ROWS: usize = 16;

/// Processes `ids` in windows of as many tokens as the context of `options`, each a sequence of its own, and adds up
/// the squares of what each weight matrix is multiplied by. Entries have the names that the matrices have in GGUF files.
///
/// `progress` gets (done, all) tokens after each pass; after a `Break`, the result is that of the tokens so far.
pub fn importance(
    model: &Model,
    options: &EngineOptions,
    ids: &[u32],
    progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Imatrix, Error> {
    let mut device = crate::open_device(options.device, options.threads, &options.backends)?;
    let plan = plan(model, &*device, options)?;
    let window = plan.options.context;
    if ids.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    ids.chunks(window).try_for_each(|ids| crate::check_prompt(ids, plan.config.vocab_size, window))?;
    engine::check_fits(&plan, device.capabilities())?;
    let loaded = akunu_plan::load(&plan, model.weights(), &mut *device, &mut akunu_plan::unwatched)?;
    let inputs = product_inputs(&plan);
    let matrices = |input: &ProductInput| input.sorted.map_or(1, |sorted| sorted.experts);
    let sums = inputs.iter().map(|input| vec![0.0; input.columns * matrices(input)]).collect();
    let counts = inputs.iter().map(|input| vec![0; matrices(input)]).collect();
    let mut collector =
        Collector { device: &mut *device, plan: &plan, loaded, inputs, sums, counts, rows: Vec::new() };

    let mut tokens = 0;
    let passes = ids.chunks(window).flat_map(|ids| {
        let rows: Vec<Row> =
            ids.iter().zip(0..).map(|(&id, position)| Row::causal(id, position, 0)).collect();
        rows.chunks(plan.tables.prefill().rows).map(<[Row]>::to_vec).collect::<Vec<_>>()
    });
    for rows in passes {
        collector.pass(&rows)?;
        tokens += rows.len();
        if progress(tokens, ids.len()).is_break() {
            break;
        }
    }
    let chunks = tokens.div_ceil(window) as u32;
    let mut imatrix = Imatrix { chunks, chunk_size: Some(window as u32), ..Imatrix::default() };
    let Collector { inputs, sums, counts, .. } = collector;
    for ((input, sums), counts) in inputs.iter().zip(&sums).zip(&counts) {
        for &tensor in &input.tensors {
            let name = gguf_name(model.weights(), &model.weights().tensors()[tensor]);
            let sums: Vec<f32> = sums.iter().map(|&sum| sum as f32).collect();
            if !sums.iter().all(|sum| sum.is_finite()) {
                return Err(Error::InputNotFinite { tensor: name.to_string() });
            }
            let entry = ImatrixEntry { sums, counts: counts.iter().map(|&count| count as f32).collect() };
            imatrix.entries.insert(name.to_string(), entry);
        }
    }
    Ok(imatrix)
}

fn plan(model: &Model, device: &dyn Device, options: &EngineOptions) -> Result<ModelPlan, Error> {
    let plan = engine::plan(model, device.capabilities(), options)?;
    let options = PlanOptions {
        slots: 1,
        prefill_logit_rows: LOGIT_ROWS.min(plan.options.prefill_rows),
        chain: 1,
        keep_inputs: true,
        host: akunu_plan::OnHost::default(),
        stream_rows: None,
        ..plan.options
    };
    Ok(akunu_plan::plan(model.weights(), device.capabilities(), &options)?)
}

struct Collector<'a> {
    device: &'a mut dyn Device,
    plan: &'a ModelPlan,
    loaded: Loaded,
    inputs: Vec<ProductInput>,
    /// For each input, the sum of squares of each column, for each matrix.
    sums: Vec<Vec<f64>>,
    /// Rows of each matrix.
    counts: Vec<Vec<usize>>,
    /// Of the device, as they are read.
    rows: Vec<f32>,
}

impl Collector<'_> {
    /// Runs a pass up to each input, and reads the input before other commands overwrite it. The logits themselves are
    /// not computed.
    fn pass(&mut self, rows: &[Row]) -> Result<(), Error> {
        let table = self.plan.tables.prefill();
        let mut next = 0;
        for index in 0..self.inputs.len() {
            let command = self.inputs[index].command;
            match self.inputs[index].rows {
                RowSet::All => {
                    self.run(rows, &[], next..command)?;
                    self.read(index, rows.len())?;
                }
                RowSet::Logits => {
                    let of_logits = |at: &usize| table.commands[*at].kernel.row_set() == Some(RowSet::Logits);
                    let first = (next..command).find(of_logits).unwrap_or(command);
                    self.run(rows, &[], next..first)?;
                    let all: Vec<u32> = (0..rows.len() as u32).collect();
                    for asked in all.chunks(table.logit_rows) {
                        self.run(rows, asked, first..command)?;
                        self.read(index, asked.len())?;
                    }
                }
            }
            next = command;
        }
        Ok(())
    }

    fn run(
        &mut self,
        rows: &[Row],
        logit_rows: &[u32],
        commands: std::ops::Range<usize>,
    ) -> Result<(), Error> {
        let submission =
            Submission { entries: Entries::Rows(rows), logit_rows, steps: 1, stop: &[], cancel: None };
        let replay = self.loaded.replays[akunu_plan::PassKind::Prefill];
        Ok(self.device.run_range(replay, submission, commands.start, commands.len())?)
    }

    fn read(&mut self, index: usize, count: usize) -> Result<(), Error> {
        let ProductInput { binding, columns, sorted, .. } = self.inputs[index];
        // Where the rows of each matrix begin.
        let mut starts = vec![0, count as u32];
        if let Some(sorted) = sorted {
            starts.resize(sorted.experts + 1, 0);
            let buffer = self.loaded.buffers[sorted.starts.buffer.index()];
            self.device.download(buffer, sorted.starts.offset, bytemuck::cast_slice_mut(&mut starts))?;
        }
        let all = count * sorted.map_or(1, |sorted| sorted.top);
        self.rows.resize(all * columns, 0.0);
        let buffer = self.loaded.buffers[binding.buffer.index()];
        self.device.download(buffer, binding.offset, bytemuck::cast_slice_mut(&mut self.rows))?;
        let sums = self.sums[index].chunks_exact_mut(columns);
        for ((rows, sums), total) in starts.windows(2).zip(sums).zip(&mut self.counts[index]) {
            let rows = rows[0] as usize..(rows[1] as usize).min(all);
            *total += rows.len();
            for row in self.rows.chunks_exact(columns).take(rows.end).skip(rows.start) {
                for (sum, &x) in sums.iter_mut().zip(row) {
                    *sum += f64::from(x) * f64::from(x);
                }
            }
        }
        Ok(())
    }
}
