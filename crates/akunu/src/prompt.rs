//! Validation of prompts.

use crate::Error;

/// Checks that a prompt is not empty, has only ids of the vocabulary, and fits the context.
///
/// A prompt of `n` tokens fits a context of length `c` if `n <= c`: one token can then be generated, from the logits of the last
/// position. It needs a position of its own only for a second token. A prompt of exactly `c` tokens therefore gets one token,
/// and then the context is full ([`crate::FinishReason::ContextFull`], [`crate::Overflow`]).
pub fn check_prompt(ids: &[u32], vocab: usize, context: usize) -> Result<(), Error> {
    if ids.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    ids.iter().zip(0..).try_for_each(|(&id, index)| check_id(id, index, vocab))?;
    if ids.len() > context {
        return Err(Error::PromptTooLong { prompt: ids.len(), context });
    }
    Ok(())
}

pub(crate) fn check_id(id: u32, index: usize, vocab: usize) -> Result<(), Error> {
    if (id as usize) < vocab {
        return Ok(());
    }
    Err(Error::TokenOutsideVocabulary { id, index, vocab, place: "prompt" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_fits_up_to_exactly_the_context() {
        for len in [1, 15, 16] {
            assert!(check_prompt(&vec![3; len], 4, 16).is_ok(), "{len} tokens");
        }
        assert!(matches!(
            check_prompt(&[3; 17], 4, 16),
            Err(Error::PromptTooLong { prompt: 17, context: 16 })
        ));
    }

    #[test]
    fn empty_prompts_and_unknown_ids_are_refused() {
        assert!(matches!(check_prompt(&[], 4, 16), Err(Error::EmptyPrompt)));
        assert!(matches!(
            check_prompt(&[3, 4], 4, 16),
            Err(Error::TokenOutsideVocabulary { id: 4, index: 1, vocab: 4, .. })
        ));
    }
}
