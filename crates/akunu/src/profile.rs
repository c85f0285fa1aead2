//! How long each command of a pass takes.

use std::time::Instant;

use akunu_plan::{CommandInfo, Row, Submission};

use crate::{Engine, Error};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileOptions {
    /// Passes measured; one more comes before them to warm up.
    pub passes: usize,
    /// Positions that stand in the cache before each pass.
    pub depth: usize,
    /// 1: a decode step; more: a prefill pass of as many rows.
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
    /// Nanoseconds: the median of the passes.
    pub ns: u64,
    /// Bytes of weights and of KV cache read in one pass.
    pub weight_bytes: u64,
    pub kv_bytes: u64,
}

impl Engine {
    /// Times each command of a pass on its own. Uses a free slot for the while; the cache before the pass holds whatever
    /// it held, which takes as long to read as anything else.
    pub fn profile(&mut self, options: ProfileOptions) -> Result<Vec<LabelTiming>, Error> {
        let ProfileOptions { passes, depth, rows } = options;
        let (table, replay) = match rows {
            1 => (self.plan().tables.decode.clone(), self.loaded.decode),
            _ => (self.plan().tables.prefill.clone(), self.loaded.prefill),
        };
        if rows == 0 || rows > table.rows {
            let value = rows.to_string();
            return Err(Error::Setting {
                name: "rows",
                value,
                expected: "at least 1 and no more than the chunk",
            });
        }
        if depth + rows > self.context() {
            return Err(Error::ContextFull { context: self.context() });
        }
        let session = self.session()?;
        let vocab = self.vocab_size();
        // Tokens far apart, so that no embedding is in the cache by luck.
        let row = |i: usize| Row::causal((i * 7919 % vocab) as u32, (depth + i) as u32, session.slot());
        let rows: Vec<Row> = (0..rows).map(row).collect();
        let asking = [rows.len() as u32 - 1];
        let submission = Submission { rows: &rows, logit_rows: &asking, steps: 1, stop: &[], cancel: None };

        let mut samples = vec![Vec::with_capacity(passes); table.commands.len()];
        for pass in 0..=passes.max(1) {
            for (index, samples) in samples.iter_mut().enumerate() {
                let start = Instant::now();
                self.device.run_range(replay, submission, index, 1)?;
                let ns = start.elapsed().as_nanos() as u64;
                if pass > 0 {
                    samples.push(ns);
                }
            }
        }
        let timing =
            |((command, info), mut samples): ((&akunu_plan::DispatchCommand, &CommandInfo), Vec<u64>)| {
                samples.sort_unstable();
                LabelTiming {
                    label: info.label.clone(),
                    kernel: command.kernel.name(),
                    ns: samples[samples.len() / 2],
                    weight_bytes: info.weight_bytes,
                    kv_bytes: rows.iter().map(|row| kv_bytes(info, row)).sum(),
                }
            };
        Ok(table.commands.iter().zip(&table.info).zip(samples).map(timing).collect())
    }
}

fn kv_bytes(info: &CommandInfo, row: &Row) -> u64 {
    let seen = row.kv_len.min(info.kv_window.unwrap_or(u32::MAX));
    info.kv_bytes_per_position * u64::from(seen)
}
