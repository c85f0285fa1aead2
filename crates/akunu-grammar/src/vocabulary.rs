//! The tokens of a model, as a trie of their bytes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use toktrie::{
    ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie,
};

use crate::error::GrammarError;
use crate::limits::Limits;

/// The trie allows tokens of 1,024 bytes at most. Longer ones, and those that begin with a byte that no text has and by which the trie
/// marks control tokens, are never allowed.
const LONGEST_TOKEN: usize = 1000;
const MARKER: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// The tokens of a model that have text. Built once for a model, and shared by its grammars.
pub struct Vocabulary {
    pub(crate) factory: ParserFactory,
    pub(crate) limits: Limits,
    /// The tokens that have text.
    pub(crate) texts: SimpleVob,
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("size", &self.size()).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// The bytes of each token by id; empty for tokens without text, such as control tokens, which are never allowed. Tokens that end the
    /// text are not part of it: [`crate::Mask::may_end`] says where they are allowed.
    pub fn new(tokens: &[Vec<u8>], limits: Limits) -> Result<Vocabulary, GrammarError> {
        let refuse = |reason: String| GrammarError::Vocabulary { reason };
        let usable = |token: &Vec<u8>| token.len() <= LONGEST_TOKEN && token.first() != Some(&MARKER);
        let words: Vec<Vec<u8>> =
            tokens.iter().map(|token| if usable(token) { token.clone() } else { Vec::new() }).collect();
        let size = u32::try_from(words.len()).map_err(|error| refuse(error.to_string()))?;
        let build = || {
            let trie = TokTrie::from(&TokRxInfo::new(size, INVALID_TOKEN), &words);
            let mut texts = trie.alloc_token_set();
            for (id, word) in (0..).zip(&words) {
                texts.set(id, !word.is_empty());
            }
            // Not canonical: the model chooses how a text that is certain is divided into tokens.
            let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            // Parts of JSON strings, for which masks of the whole vocabulary are prepared.
            let slices = SlicedBiasComputer::json_slices();
            let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices);
            let mut factory = factory.map_err(|error| error.to_string())?;
            factory.quiet();
            *factory.limits_mut() = limits.parser();
            Ok((factory, texts))
        };
        let built = catch_unwind(AssertUnwindSafe(build));
        let built = built.map_err(|_| refuse("it is larger than the grammar library supports".into()))?;
        let (factory, texts) = built.map_err(refuse)?;
        Ok(Vocabulary { factory, limits, texts })
    }

    /// The number of ids.
    pub fn size(&self) -> usize {
        self.factory.tok_env().tok_trie().vocab_size()
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }
}
