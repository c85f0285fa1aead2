//! How likely a model finds a text.

use crate::{Engine, Error};

/// The outcome of [`Engine::perplexity`].
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
    /// ln p(ids\[i\] | ids\[..i\]) for i from 1 on: one fewer than ids. They have to fit the context. Uses a free slot for
    /// the while; passes give as many logits as [`crate::EngineOptions::logit_rows`].
    pub fn log_likelihoods(&mut self, ids: &[u32]) -> Result<Vec<f64>, Error> {
        let _ = ids;
        Err(Error::EmptyPrompt)
    }

    /// Perplexity over windows of `window` tokens that move on by `stride`; in each, the tokens that no earlier window
    /// scored are scored. `progress` is told (done, all) tokens after each window.
    pub fn perplexity(
        &mut self,
        ids: &[u32],
        window: usize,
        stride: usize,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Perplexity, Error> {
        let _ = (ids, window, stride, progress);
        Err(Error::EmptyPrompt)
    }
}
