//! How the next token is picked from the logits.

/// The default is greedy.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0: always the best token.
    pub temperature: f32,
    /// Only the k best; 0: all.
    pub top_k: usize,
    /// Only the fewest best whose probabilities reach this; 1: all.
    pub top_p: f32,
    /// Only those at least this times as probable as the best; 0: all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens among the last `repeat_last_n`; 1: off.
    pub repeat_penalty: f32,
    /// Subtracted for each occurrence among the last `repeat_last_n`; 0: off.
    pub frequency_penalty: f32,
    /// Subtracted once if there is an occurrence; 0: off.
    pub presence_penalty: f32,
    /// Tokens, the prompt's included, that the penalties look back at.
    pub repeat_last_n: usize,
    /// Added to the logits of these ids; −∞ rules one out.
    pub logit_bias: Vec<(u32, f32)>,
    /// The same seed gives the same tokens on every run, thread count and chunking.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repeat_last_n: 64,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// Picks tokens; all of its memory is taken when it is made.
#[derive(Debug)]
pub struct Sampler {}
