//! How long each command of a pass takes.

use akunu_plan::{Cost, Row, Submission};

use crate::{Engine, Error};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileOptions {
    /// Times that all is measured; one more comes before to warm up.
    pub passes: usize,
    /// Positions that stand in the cache before each pass.
    pub depth: usize,
    /// 1: a decode step; more: a prompt of as many tokens, in passes as large as the prefill table.
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
    /// `layer.3.attention`
    pub label: String,
    /// `gemv_q8_0`
    pub kernel: String,
    /// Median. Of a prompt in several passes: all of them together.
    pub ns: u64,
    pub cost: Cost,
}

impl Engine {
    /// Times each command of a pass on its own. Uses a free slot for the while.
    pub fn profile(&mut self, options: ProfileOptions) -> Result<Vec<LabelTiming>, Error> {
        let ProfileOptions { passes, depth, rows } = options;
        if rows == 0 {
            let value = rows.to_string();
            return Err(Error::Setting { name: "the number of rows", value, expected: "at least 1" });
        }
        let (table, replay) = match rows {
            1 => (self.plan().tables.decode.clone(), self.loaded.decode),
            _ => {
                let tables = &self.plan().tables;
                (tables.feeding(rows).clone(), self.loaded.feeding(tables, rows))
            }
        };
        if depth + rows > self.context() {
            return Err(Error::ContextFull { context: self.context() });
        }
        let mut session = self.session()?;
        let vocab = self.vocab_size();
        // Tokens far apart, so that no embedding is in the cache by luck.
        let token = |i: usize| (i * 7919 % vocab) as u32;
        // Filled for good: memory that was never written is read much faster.
        self.feed(&mut session, &(0..depth).map(token).collect::<Vec<u32>>())?;
        let row = |i: usize| Row::causal(token(i), (depth + i) as u32, session.slot());
        let rows: Vec<Row> = (0..rows).map(row).collect();

        let mut samples = vec![Vec::with_capacity(passes); table.commands.len()];
        let mut ns = vec![0; table.commands.len()];
        let mut costs = vec![Cost::default(); table.commands.len()];
        for pass in 0..=passes.max(1) {
            samples.iter_mut().for_each(|samples| samples.push(0));
            for (number, part) in rows.chunks(table.rows).enumerate() {
                let is_last = (number + 1) * table.rows >= rows.len();
                let last = [part.len() as u32 - 1];
                let asking = if is_last { &last[..] } else { &[] };
                let submission =
                    Submission { rows: part, logit_rows: asking, steps: 1, stop: &[], cancel: None };
                self.device.time_commands(replay, submission, &mut ns)?;
                for (index, command) in table.commands.iter().enumerate() {
                    samples[index][pass] += ns[index];
                    if pass == 0 {
                        costs[index] = costs[index] + command.cost(part, asking.len());
                    }
                }
            }
        }
        let mut timings = Vec::with_capacity(table.commands.len());
        for (index, (mut samples, cost)) in samples.into_iter().zip(costs).enumerate() {
            // The first one was to warm up.
            let samples = &mut samples[1..];
            samples.sort_unstable();
            timings.push(LabelTiming {
                label: table.labels[index].clone(),
                kernel: table.commands[index].kernel.name(),
                ns: samples[samples.len() / 2],
                cost,
            });
        }
        Ok(timings)
    }
}
