//! Profiling of the commands of a pass.

use akunu_plan::{
    Cost, Device, DeviceBuffer, DispatchCommand, DispatchTable, Entries, ExpertSet, ReplayId, Row, Submission,
};

use crate::{Engine, Error};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileOptions {
    /// Number of measurements, after one for warm-up.
    pub passes: usize,
    /// Tokens in the KV cache before each pass.
    pub depth: usize,
    pub rows: PassRows,
}

/// The rows of a profiled pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassRows {
    /// A decode step of this many sequences.
    Step(usize),
    /// A prompt of this many tokens, in passes as large as the prefill table.
    Prompt(usize),
}

impl Default for ProfileOptions {
    fn default() -> ProfileOptions {
        ProfileOptions { passes: 10, depth: 0, rows: PassRows::Step(1) }
    }
}

/// One command of the table, in the table's order.
#[derive(Clone, Debug, PartialEq)]
pub struct LabelTiming {
    /// Such as `layer.3.attention`, or `layer.3.attention (CPU)` if the CPU computes it beside the device.
    pub label: String,
    /// Such as `gemv_q8_0`.
    pub kernel: String,
    /// The median; for a prompt in several passes, their sum.
    pub ns: u64,
    pub cost: Cost,
}

impl Engine {
    /// Times each command of a pass on its own. Uses free slots temporarily.
    pub fn profile(&mut self, options: ProfileOptions) -> Result<Vec<LabelTiming>, Error> {
        let ProfileOptions { passes, depth, rows } = options;
        let (sequences, tokens) = match rows {
            PassRows::Step(sequences) => (sequences, 1),
            PassRows::Prompt(tokens) => (1, tokens),
        };
        let count = sequences * tokens;
        if count == 0 {
            let value = count.to_string();
            return Err(Error::Setting { name: "the number of rows", value, expected: "at least 1" });
        }
        let logit_rows = self.plan.tables.prefill().logit_rows;
        if sequences > logit_rows {
            return Err(Error::Setting {
                name: "the number of sequences",
                value: sequences.to_string(),
                expected: "at most the number of logit rows",
            });
        }
        if depth + tokens > self.context() {
            return Err(Error::ContextFull { context: self.context() });
        }
        let kind = self.plan.tables.kind_for(count);
        let (table, replay) = (self.plan.tables[kind].clone(), self.loaded.replays[kind]);
        let vocab = self.vocab_size();
        // Tokens that are far apart, so that their embeddings are not in the CPU's caches.
        let token = |sequence: usize, i: usize| ((sequence * 31 + i) * 7919 % vocab) as u32;
        let mut sessions = (0..sequences).map(|_| self.session()).collect::<Result<Vec<_>, Error>>()?;
        let mut rows = Vec::with_capacity(count);
        for (sequence, session) in sessions.iter_mut().enumerate() {
            // The cache is filled, because memory that was never written is read much faster.
            self.feed(session, &(0..depth).map(|i| token(sequence, i)).collect::<Vec<u32>>())?;
            self.reserve_to_time(session, tokens)?;
            let start = self.start_of(session);
            rows.extend((depth..depth + tokens).map(|i| Row::causal(token(sequence, i), i as u32, start)));
        }

        // Every sequence of a step has logits; of a prompt, the last token.
        let parts: Vec<&[Row]> = rows.chunks(table.rows).collect();
        let asking = |part: &[Row], is_last: bool| match (sequences, is_last) {
            (2.., _) => (0..part.len() as u32).collect(),
            (_, true) => vec![part.len() as u32 - 1],
            (_, false) => vec![],
        };
        let numbered = parts.iter().zip(1..);
        let asking: Vec<Vec<u32>> =
            numbered.map(|(part, number)| asking(part, number == parts.len())).collect();
        let submissions: Vec<Submission<'_>> = parts
            .iter()
            .zip(&asking)
            .map(|(part, logit_rows)| Submission {
                entries: Entries::Rows(part),
                logit_rows,
                steps: 1,
                stop: &[],
                cancel: None,
            })
            .collect();
        time_table(&mut *self.device, (replay, &self.loaded.buffers), &table, &submissions, passes)
    }
}

/// Times each command of a table over all submissions: medians over `passes`, after one for warm-up. `buffers` are those
/// that it was prepared with.
pub(crate) fn time_table(
    device: &mut dyn Device,
    (replay, buffers): (ReplayId, &[DeviceBuffer]),
    table: &DispatchTable,
    submissions: &[Submission<'_>],
    passes: usize,
) -> Result<Vec<LabelTiming>, Error> {
    let mut samples = vec![Vec::with_capacity(passes + 1); table.commands.len()];
    let mut ns = vec![0; table.commands.len()];
    for pass in 0..=passes.max(1) {
        samples.iter_mut().for_each(|samples| samples.push(0));
        for submission in submissions {
            device.time_commands(replay, *submission, &mut ns)?;
            samples.iter_mut().zip(&ns).for_each(|(samples, ns)| samples[pass] += ns);
        }
    }
    let cost = |command: &DispatchCommand| {
        submissions.iter().map(|part| command.cost(part.entries, part.logit_rows.len())).sum()
    };
    let mut costs: Vec<Cost> = table.commands.iter().map(cost).collect();
    count_experts(device, (replay, buffers), table, submissions, &mut costs)?;
    let commands = table.commands.iter().zip(&table.labels).zip(samples).zip(costs);
    let timing =
        |(((command, label), mut samples), cost): (((&DispatchCommand, &String), Vec<u64>), Cost)| {
            // The first one is for warm-up.
            let samples = &mut samples[1..];
            samples.sort_unstable();
            LabelTiming {
                label: command.side.of_label(label),
                kernel: command.kernel.name(),
                ns: samples[samples.len() / 2],
                cost,
            }
        };
    Ok(commands.map(timing).collect())
}

/// Replaces the bytes of the experts that rows can reach by those of the experts that they are routed to, which a further
/// pass finds: after each router, its picks are read.
fn count_experts(
    device: &mut dyn Device,
    (replay, buffers): (ReplayId, &[DeviceBuffer]),
    table: &DispatchTable,
    submissions: &[Submission<'_>],
    costs: &mut [Cost],
) -> Result<(), Error> {
    let all = table.routed();
    for command in all.iter().flat_map(|routed| [routed.glu, routed.down]) {
        costs[command].weight_bytes = 0;
    }
    for submission in submissions.iter().filter(|_| !all.is_empty()) {
        let mut next = 0;
        for routed in &all {
            let Some((picks, experts, top)) = routed.picks(table) else { continue };
            device.run_range(replay, *submission, next, routed.route + 1 - next)?;
            next = routed.route + 1;
            let mut read = vec![0_u32; submission.entries.len() * top];
            device.download(
                buffers[picks.buffer.index()],
                picks.offset,
                bytemuck::cast_slice_mut(&mut read),
            )?;
            let chosen = ExpertSet::of_picks(read, experts).len() as u64;
            for command in [routed.glu, routed.down] {
                costs[command].weight_bytes += chosen * table.commands[command].expert_bytes();
            }
        }
        device.run_range(replay, *submission, next, table.commands.len() - next)?;
    }
    Ok(())
}
