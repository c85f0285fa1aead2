//! A test: a number of tokens, at some depth, of one sequence or several.

use akunu::{Cost, DispatchTable, ModelPlan};
use akunu_plan::{Entries, Row};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Prompt,
    Generate,
}

/// Settings of sampling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sampled {
    /// Temperature 0.8 and no limit, as requests of bench-serve
    Served,
    /// The default settings of run
    Run,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    pub kind: Kind,
    /// Per sequence.
    pub tokens: usize,
    /// Number of cached tokens before the test starts.
    pub depth: usize,
    /// Number of sequences; 1 for a prompt.
    pub batch: usize,
    /// How tokens are sampled; `None`: decoding is greedy.
    pub sampled: Option<Sampled>,
    /// Whether a grammar constrains the text.
    pub constrained: bool,
}

impl Test {
    /// The name used by llama-bench: `pp512`, `tg128`, `tg128@d4096`; and `tg128@b16` for sixteen sequences at once.
    pub fn name(self) -> String {
        let mut name = match self.kind {
            Kind::Prompt => format!("pp{}", self.tokens),
            Kind::Generate => format!("tg{}", self.tokens),
        };
        for (mark, number, plain) in [("d", self.depth, 0), ("b", self.batch, 1)] {
            if number != plain {
                name += &format!("@{mark}{number}");
            }
        }
        match self.sampled {
            None => {}
            Some(Sampled::Served) => name += "@sampled",
            Some(Sampled::Run) => name += "@sampled-run",
        }
        if self.constrained {
            name += "@constrained";
        }
        name
    }

    /// Of all sequences.
    pub fn all_tokens(self) -> usize {
        self.tokens * self.batch
    }

    /// The memory traffic and operations of one run, with as many experts as its rows can be routed to.
    pub fn cost(self, plan: &ModelPlan) -> Cost {
        self.sum(plan, |table, rows, logit_rows| table.cost(Entries::Rows(rows), logit_rows))
    }

    /// Bytes of the experts in it.
    pub fn most_expert_bytes(self, plan: &ModelPlan) -> u64 {
        let of = |table: &DispatchTable, rows: &[Row], _: usize| {
            table.routed().iter().map(|routed| routed.most_bytes(table, rows.len())).sum::<u64>()
        };
        self.sum(plan, of)
    }

    /// The sum over the passes of one run: of a table, its rows, and how many of them have logits.
    fn sum<S: std::iter::Sum>(self, plan: &ModelPlan, of: impl Fn(&DispatchTable, &[Row], usize) -> S) -> S {
        let table_for = |rows: usize| &*plan.tables[plan.tables.kind_for(rows)];
        let row =
            |slot: usize, i: usize| Row::causal(0, (self.depth + i) as u32, plan.slot_start(slot as u32));
        match self.kind {
            Kind::Generate => {
                let table = table_for(self.batch);
                let rows = |i: usize| (0..self.batch).map(|slot| row(slot, i)).collect::<Vec<Row>>();
                (0..self.tokens).map(|i| of(table, &rows(i), self.batch)).sum()
            }
            Kind::Prompt => {
                let rows: Vec<Row> = (0..self.tokens).map(|i| row(0, i)).collect();
                let most = plan.tables.prefill().rows;
                let passes = rows.len().div_ceil(most);
                let parts = rows.chunks(most).zip(1..);
                parts.map(|(part, pass)| of(table_for(part.len()), part, usize::from(pass == passes))).sum()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_named_as_llama_bench_names_them() {
        let plain =
            Test { kind: Kind::Prompt, tokens: 512, depth: 0, batch: 1, sampled: None, constrained: false };
        assert_eq!(plain.name(), "pp512");
        let deep = Test { kind: Kind::Generate, tokens: 128, depth: 4096, ..plain };
        assert_eq!(deep.name(), "tg128@d4096");
        assert_eq!(Test { batch: 16, ..deep }.name(), "tg128@d4096@b16");
        let all = Test { batch: 16, sampled: Some(Sampled::Served), constrained: true, ..deep };
        assert_eq!(all.name(), "tg128@d4096@b16@sampled@constrained");
        assert_eq!(Test { sampled: Some(Sampled::Run), ..deep }.name(), "tg128@d4096@sampled-run");
    }
}
