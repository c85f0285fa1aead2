//! Log likelihoods of texts, and perplexity.

use std::ops::ControlFlow;

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

/// A token that was scored, with the logits that predict it.
#[derive(Clone, Copy, Debug)]
pub struct ScoredToken<'a> {
    pub id: u32,
    /// ln p of the token.
    pub log_p: f64,
    pub logits: &'a [f32],
}

/// Perplexity over windows of `window` tokens at intervals of `stride`. In each window, the tokens that no earlier one
/// scored are scored. The first token of a window has nothing before it, so it never is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    pub window: usize,
    pub stride: usize,
}

impl Windows {
    /// (start, end, number of leading tokens that are not scored) of each window over `tokens`.
    fn over(self, tokens: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let mut done = 0;
        let starts = (0..tokens).step_by(self.stride.max(1));
        starts.map_while(move |start| {
            let end = tokens.min(start + self.window);
            let first = done.max(start + 1) - start;
            let is_new = done < tokens;
            done = end;
            // A single last token has no context.
            is_new.then_some((start, end, first.min(end - start)))
        })
    }

    /// Number of tokens that are scored.
    pub fn scored(self, tokens: usize) -> usize {
        self.over(tokens).map(|(start, end, first)| end - start - first).sum()
    }
}

impl Engine {
    /// ln p(ids\[i\] | ids\[..i\]) for i from 1 on: one fewer than ids. They have to fit the context. Uses a free slot
    /// temporarily; passes compute as many logits as [`crate::EngineOptions::logit_rows`].
    pub fn log_likelihoods(&mut self, ids: &[u32]) -> Result<Vec<f64>, Error> {
        let mut scores = Vec::with_capacity(ids.len().saturating_sub(1));
        let _ = self.score(ids, 1, &mut |token| {
            scores.push(token.log_p);
            ControlFlow::Continue(())
        })?;
        Ok(scores)
    }

    /// Visits ids\[i\] for i from `first` (at least 1) on: earlier tokens are processed without logits.
    fn score(
        &mut self,
        ids: &[u32],
        first: usize,
        visit: &mut dyn FnMut(ScoredToken<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Error> {
        self.check_prompt(ids)?;
        let mut session = self.session()?;
        let vocab = self.vocab_size();
        let chunk = self.plan().tables.prefill().logit_rows;
        // The row before a token predicts it, so the last token need not be processed.
        let (unscored, scored) = ids[..ids.len() - 1].split_at((first - 1).min(ids.len() - 1));
        for part in unscored.chunks(self.plan().tables.prefill().rows) {
            self.pass(&mut [Feed { session: &mut session, ids: part, logits: 0 }])?;
        }
        let mut logits = Vec::new();
        let mut position = first - 1;
        for part in scored.chunks(chunk) {
            self.pass(&mut [Feed { session: &mut session, ids: part, logits: part.len() }])?;
            logits.clear();
            self.append_logits(&mut logits)?;
            for logits in logits.chunks_exact(vocab) {
                let id = ids[position + 1];
                let log_p = log_softmax(logits, id).ok_or(Error::NotFinite { position })?;
                if visit(ScoredToken { id, log_p, logits }).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                position += 1;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Perplexity over windows. `progress` gets (done, all) tokens after each window.
    pub fn perplexity(
        &mut self,
        ids: &[u32],
        window: usize,
        stride: usize,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Perplexity, Error> {
        let windows = Windows { window, stride };
        self.perplexity_with(ids, windows, progress, &mut |_| ControlFlow::Continue(()))
    }

    /// As [`Engine::perplexity`], visiting each scored token in order. After a `Break`, the result is that of the tokens
    /// so far.
    pub fn perplexity_with(
        &mut self,
        ids: &[u32],
        windows: Windows,
        progress: &mut dyn FnMut(usize, usize),
        visit: &mut dyn FnMut(ScoredToken<'_>) -> ControlFlow<()>,
    ) -> Result<Perplexity, Error> {
        let Windows { window, stride } = windows;
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
        let (mut sum, mut tokens) = (0.0, 0);
        for (start, end, first) in windows.over(ids.len()) {
            if first < end - start {
                let scored = self.score(&ids[start..end], first, &mut |token| {
                    sum -= token.log_p;
                    tokens += 1;
                    visit(token)
                })?;
                if scored.is_break() {
                    break;
                }
            }
            progress(end, ids.len());
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
    fn windows_score_each_token_once_but_those_without_context() {
        let over = |tokens, window, stride| Windows { window, stride }.over(tokens).collect::<Vec<_>>();
        assert_eq!(over(10, 4, 4), [(0, 4, 1), (4, 8, 1), (8, 10, 1)]);
        assert_eq!(over(9, 4, 4), [(0, 4, 1), (4, 8, 1), (8, 9, 1)]);
        assert_eq!(over(10, 4, 2), [(0, 4, 1), (2, 6, 2), (4, 8, 2), (6, 10, 2)]);
        assert_eq!(over(5, 5, 1), [(0, 5, 1)]);
        let scored = |tokens, window, stride| Windows { window, stride }.scored(tokens);
        assert_eq!((scored(10, 4, 4), scored(9, 4, 4), scored(10, 4, 2)), (7, 6, 9));
    }

    #[test]
    fn log_softmax_is_stable_and_reports_nan() {
        let even = log_softmax(&[1e6, 1e6], 1).unwrap();
        assert!((even + 2f64.ln()).abs() < 1e-15);
        assert_eq!(log_softmax(&[0.0, f32::NAN, 1.0], 0), None);
        assert_eq!(log_softmax(&[0.0, f32::INFINITY], 0), None);
        assert_eq!(log_softmax(&[f32::NEG_INFINITY; 2], 0), None);
    }
}
