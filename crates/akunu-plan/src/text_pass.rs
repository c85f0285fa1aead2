//! One pass of an encoder: the rows of several texts, and the indices of those that produce an embedding or a score.

use akunu_arch::Pooling;

use crate::{EncodeOutput, EncodePlan, Entries, Row, Submission};

/// The input of one pass on the host. It is reused without allocating.
#[derive(Clone, Debug, Default)]
pub struct TextPass {
    pub rows: Vec<Row>,
    /// Indices of the rows that produce an embedding or a score.
    pub asking: Vec<u32>,
    /// The token type of each row.
    pub segments: Vec<u32>,
    /// Where the next text begins in the cache of the pass.
    start: usize,
}

impl TextPass {
    /// Removes all texts.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.asking.clear();
        self.segments.clear();
        self.start = 0;
    }

    /// Adds a text if it fits, and returns whether it did. Tokens beyond the end of `segments` have type 0.
    pub fn add(&mut self, ids: &[u32], segments: &[u32], plan: &EncodePlan) -> bool {
        let (first, len) = (self.rows.len(), ids.len());
        let asking = match plan.options.output {
            EncodeOutput::Vectors(Pooling::None) => first..first + len,
            EncodeOutput::Vectors(Pooling::First) => first..first + 1,
            EncodeOutput::Scores if plan.scores_first() => first..first + 1,
            _ => first + len - 1..first + len,
        };
        if first + len > plan.options.rows || self.asking.len() + asking.len() > plan.options.texts {
            return false;
        }
        self.start = self.start.next_multiple_of(plan.alignment);
        for (position, &token) in ids.iter().enumerate() {
            let kv_len = if plan.config.bidirectional { len } else { position + 1 } as u32;
            self.rows.push(Row { token, position: position as u32, kv_len, start: self.start as u32 });
            self.segments.push(segments.get(position).copied().unwrap_or(0));
        }
        self.asking.extend(asking.map(|row| row as u32));
        self.start += len;
        true
    }

    pub fn submission(&self) -> Submission<'_> {
        Submission {
            entries: Entries::Rows(&self.rows),
            logit_rows: &self.asking,
            steps: 1,
            stop: &[],
            cancel: None,
        }
    }
}
