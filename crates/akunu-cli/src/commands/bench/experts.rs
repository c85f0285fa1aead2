//! What a test has read of experts: as its routers have chosen them, if the device counts that.

use akunu::{Engine, ExpertReads, human};
use serde::Serialize;

/// Counts of the measured runs of a test.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    /// `None`: they were not counted.
    reads: Option<ExpertReads>,
    runs: u64,
    /// Tokens of all sequences in a run.
    tokens: u64,
    is_paged: bool,
}

#[derive(Debug, Serialize)]
pub struct Report {
    /// Whether the bytes of a token are those that were read, and not the most that its rows can reach.
    experts_counted: bool,
    #[serde(flatten)]
    paged: Option<Paged>,
}

/// In all measured runs.
#[derive(Debug, Serialize)]
struct Paged {
    expert_hits: u64,
    expert_misses: u64,
    expert_file_bytes: u64,
}

impl Report {
    pub fn are_counted(&self) -> bool {
        self.experts_counted
    }
}

impl Experts {
    /// Of a test with these counts of each run. `None`: the model has no experts.
    pub fn of(engine: &Engine, runs: &[Option<ExpertReads>], tokens: usize) -> Option<Experts> {
        engine.plan().config.experts?;
        let add = |sum: ExpertReads, run: &Option<ExpertReads>| {
            let run = (*run).filter(|run| run.uncounted == 0 && run.bytes > 0)?;
            Some(ExpertReads {
                bytes: sum.bytes + run.bytes,
                uncounted: 0,
                hits: sum.hits + run.hits,
                misses: sum.misses + run.misses,
                file_bytes: sum.file_bytes + run.file_bytes,
            })
        };
        let reads = runs.iter().try_fold(ExpertReads::default(), add);
        let (runs, tokens, is_paged) = (runs.len() as u64, tokens as u64, engine.plan().paging.is_some());
        Some(Experts { reads, runs: runs.max(1), tokens, is_paged })
    }

    /// Bytes of the experts of a run, as counted.
    pub fn bytes(&self) -> Option<u64> {
        self.reads.map(|reads| reads.bytes / self.runs)
    }

    pub fn report(&self) -> Report {
        let paged = self.reads.filter(|_| self.is_paged).map(|reads| Paged {
            expert_hits: reads.hits,
            expert_misses: reads.misses,
            expert_file_bytes: reads.file_bytes,
        });
        Report { experts_counted: self.reads.is_some(), paged }
    }

    /// A line about experts that are paged.
    pub fn line(&self, test: &str) -> Option<String> {
        let reads = self.reads.filter(|_| self.is_paged)?;
        let all = reads.hits + reads.misses;
        let part = 100.0 * reads.hits as f64 / all.max(1) as f64;
        let bytes = reads.file_bytes / (self.runs * self.tokens).max(1);
        Some(format!(
            "{test}: {part:.0}% of the experts were in memory; a token read {} of others from the file",
            human(bytes)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experts(runs: &[Option<ExpertReads>]) -> Experts {
        let reads = ExpertReads { bytes: 900, uncounted: 0, hits: 30, misses: 10, file_bytes: 80 << 20 };
        let reads = runs.iter().all(Option::is_some).then_some(reads);
        Experts { reads, runs: 2, tokens: 4, is_paged: true }
    }

    #[test]
    fn paged_experts_are_told_in_a_line() {
        let counted = experts(&[Some(ExpertReads::default())]);
        assert_eq!(counted.bytes(), Some(450));
        let line = counted.line("tg4").unwrap();
        assert_eq!(
            line,
            "tg4: 75% of the experts were in memory; a token read 10.00 MiB of others from the file"
        );
        let uncounted = experts(&[None]);
        assert_eq!((uncounted.bytes(), uncounted.line("tg4")), (None, None));
        assert!(!uncounted.report().experts_counted);
    }
}
