//! Log likelihoods of texts, and perplexity.

use crate::pass::Feed;
use crate::{Engine, Error};

/// The result of [`Engine::perplexity`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Perplexity {
    /// Tokens scored.
    pub tokens: usize,
    /// Mean of −ln p over them.
    pub mean_nll: f64,
}

impl Perplexity {
    pub fn perplexity(&self) -> f64 {
        self.mean_nll.exp()
    }
}

impl Engine {
    /// ln p(ids\[i\] | ids\[..i\]) for i from 1 on: one fewer than ids. They have to fit the context. Uses a free slot
    /// temporarily; passes compute as many logits as [`crate::EngineOptions::logit_rows`].
    pub fn log_likelihoods(&mut self, ids: &[u32]) -> Result<Vec<f64>, Error> {
        self.log_likelihoods_from(ids, 1)
    }

    /// The same for i from `first` (at least 1) on: earlier tokens are processed without logits.
    fn log_likelihoods_from(&mut self, ids: &[u32], first: usize) -> Result<Vec<f64>, Error> {
        self.check_prompt(ids)?;
        let mut session = self.session()?;
        let vocab = self.vocab_size();
        let chunk = self.plan().tables.prefill().logit_rows;
        let mut scores = Vec::with_capacity(ids.len() - 1);
        // The row before a token predicts it, so the last token need not be processed.
        let (unscored, scored) = ids[..ids.len() - 1].split_at((first - 1).min(ids.len() - 1));
        for part in unscored.chunks(self.plan().tables.prefill().rows) {
            self.pass(&mut [Feed { session: &mut session, ids: part, logits: 0 }])?;
        }
        let mut logits = Vec::new();
        for part in scored.chunks(chunk) {
            self.pass(&mut [Feed { session: &mut session, ids: part, logits: part.len() }])?;
            logits.clear();
            self.append_logits(&mut logits)?;
            for row in logits.chunks_exact(vocab) {
                let position = first - 1 + scores.len();
                let score = log_softmax(row, ids[position + 1]);
                scores.push(score.ok_or(Error::NotFinite { position })?);
            }
        }
        Ok(scores)
    }

    /// Perplexity over windows of `window` tokens at intervals of `stride`; in each, the tokens that no earlier window
    /// scored are scored (the first token of a window has nothing before it, so it never is). `progress` gets (done, all)
    /// tokens after each window.
    pub fn perplexity(
        &mut self,
        ids: &[u32],
        window: usize,
        stride: usize,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Perplexity, Error> {
        let refuse =
            |name, value: usize, expected| Err(Error::Setting { name, value: value.to_string(), expected });
        if window < 2 || window > self.context() {
            return refuse("the window", window, "at least 2 and no more than the engine's context");
        }
        if stride == 0 || stride > window {
            return refuse("the stride", stride, "at least 1 and no more than the window");
        }
        if ids.len() < 2 {
            return refuse(
                "the number of tokens",
                ids.len(),
                "at least 2: the first of them is only a beginning",
            );
        }
        let (mut start, mut done, mut sum, mut tokens) = (0, 0, 0.0, 0);
        while done < ids.len() {
            let end = ids.len().min(start + window);
            // A single last token has no context.
            if end - start >= 2 {
                let first = done.saturating_sub(start).max(1);
                let scores = self.log_likelihoods_from(&ids[start..end], first)?;
                sum -= scores.iter().sum::<f64>();
                tokens += scores.len();
            }
            done = end;
            start += stride;
            progress(done, ids.len());
        }
        Ok(Perplexity { tokens, mean_nll: sum / tokens as f64 })
    }
}

/// ln softmax(logits)\[id\]; `None` where some logit is NaN or +∞, or all are −∞.
fn log_softmax(logits: &[f32], id: u32) -> Option<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let max = f64::from(max);
    let sum: f64 = logits.iter().map(|&l| (f64::from(l) - max).exp()).sum();
    let score = f64::from(logits[id as usize]) - max - sum.ln();
    (!score.is_nan() && max.is_finite()).then_some(score)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_softmax_is_stable_and_reports_nan() {
        let even = log_softmax(&[1e6, 1e6], 1).unwrap();
        assert!((even + 2f64.ln()).abs() < 1e-15);
        assert_eq!(log_softmax(&[0.0, f32::NAN, 1.0], 0), None);
        assert_eq!(log_softmax(&[0.0, f32::INFINITY], 0), None);
        assert_eq!(log_softmax(&[f32::NEG_INFINITY; 2], 0), None);
    }
}
