//! Profiling of the commands of a pass.

use akunu_plan::{Cost, Device, DispatchCommand, DispatchTable, Entries, ReplayId, Row, Submission};

use crate::{Engine, Error};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileOptions {
    /// Number of measurements, after one for warm-up.
    pub passes: usize,
    /// Tokens in the KV cache before each pass.
    pub depth: usize,
    /// 1: a decode step; more: a prompt of this many tokens, in passes as large as the prefill table.
    pub rows: usize,
}

impl Default for ProfileOptions {
    fn default() -> ProfileOptions {
        ProfileOptions { passes: 10, depth: 0, rows: 1 }
    }
}

/// One command of the table, in the table's order.
#[derive(Clone, Debug, PartialEq)]
pub struct LabelTiming {
    /// Such as `layer.3.attention`.
    pub label: String,
    /// Such as `gemv_q8_0`.
    pub kernel: String,
    /// The median; for a prompt in several passes, their sum.
    pub ns: u64,
    pub cost: Cost,
}

impl Engine {
    /// Times each command of a pass on its own. Uses a free slot temporarily.
    pub fn profile(&mut self, options: ProfileOptions) -> Result<Vec<LabelTiming>, Error> {
        let ProfileOptions { passes, depth, rows } = options;
        if rows == 0 {
            let value = rows.to_string();
            return Err(Error::Setting { name: "the number of rows", value, expected: "at least 1" });
        }
        let kind = self.plan.tables.kind_for(rows);
        let (table, replay) = (self.plan.tables[kind].clone(), self.loaded.replays[kind]);
        if depth + rows > self.context() {
            return Err(Error::ContextFull { context: self.context() });
        }
        let mut session = self.session()?;
        let vocab = self.vocab_size();
        // Tokens that are far apart, so that their embeddings are not in the CPU's caches.
        let token = |i: usize| (i * 7919 % vocab) as u32;
        // The cache is filled, because memory that was never written is read much faster.
        self.feed(&mut session, &(0..depth).map(token).collect::<Vec<u32>>())?;
        let start = self.start_of(&session);
        let row = |i: usize| Row::causal(token(i), (depth + i) as u32, start);
        let rows: Vec<Row> = (0..rows).map(row).collect();

        let parts: Vec<&[Row]> = rows.chunks(table.rows).collect();
        let lasts: Vec<[u32; 1]> = parts.iter().map(|part| [part.len() as u32 - 1]).collect();
        let numbered = parts.iter().zip(&lasts).zip(1..);
        let submissions = numbered.map(|((part, last), number)| Submission {
            entries: Entries::Rows(part),
            logit_rows: if number == parts.len() { last } else { &[] },
            steps: 1,
            stop: &[],
            cancel: None,
        });
        let submissions: Vec<Submission<'_>> = submissions.collect();
        time_table(&mut *self.device, replay, &table, &submissions, passes)
    }
}

/// Times each command of a table over all submissions: medians over `passes`, after one for warm-up.
pub(crate) fn time_table(
    device: &mut dyn Device,
    replay: ReplayId,
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
    let commands = table.commands.iter().zip(&table.labels).zip(samples);
    let timing = |((command, label), mut samples): ((&DispatchCommand, &String), Vec<u64>)| {
        // The first one is for warm-up.
        let samples = &mut samples[1..];
        samples.sort_unstable();
        LabelTiming {
            label: label.clone(),
            kernel: command.kernel.name(),
            ns: samples[samples.len() / 2],
            cost: cost(command),
        }
    };
    Ok(commands.map(timing).collect())
}
