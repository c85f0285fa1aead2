//! End-of-generation tokens. Files state one or two; models use more, so tokens with well-known texts are added.

use crate::SpecialTokens;

/// Texts of tokens that end a text, a turn or a call in common model families.
const TEXTS: [&str; 22] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Tokens that separate files in fill-in-the-middle prompts: another file would begin after them.
const FILE_ENDS: [&str; 10] = [
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<|file_sep|>",
    "<reponame>",
];

/// The first of these that is in the vocabulary ends a turn, if the file does not state one.
const TURN_ENDS: [&str; 11] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];

/// A token of the vocabulary that may be special.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'v> {
    pub(crate) id: u32,
    pub(crate) text: &'v str,
}

/// Whether this text is a well-known special token, regardless of the kind stated in the file.
pub(crate) fn is_end_text(text: &str) -> bool {
    TEXTS.contains(&text) || FILE_ENDS.contains(&text)
}

/// The sorted end-of-generation ids, and the id that ends a turn.
pub(crate) fn collect(special: &SpecialTokens, candidates: &[Candidate<'_>]) -> (Vec<u32>, Option<u32>) {
    let find = |text: &str| candidates.iter().find(|candidate| candidate.text == text).map(|c| c.id);
    let eot = special.eot.or_else(|| TURN_ENDS.iter().find_map(|text| find(text)));
    let mut ids: Vec<u32> = special.eos.into_iter().chain(eot).collect();
    // If the model has tokens that return from and call a tool, `<|end|>` ends only a message before them.
    let tool_ends = find("<|return|>").is_some() && find("<|call|>").is_some()
        || find("<|calls|>").is_some() && find("<|flush|>").is_some();
    let kept_text = [
        if tool_ends { find("<|end|>") } else { None },
        // In these vocabularies `</s>` is a tag that the model may write.
        if find("<|tool_response>").is_some() { find("</s>") } else { None },
    ];
    for candidate in candidates {
        ids.push(candidate.id);
    }
    ids.retain(|&id| !kept_text.contains(&Some(id)) || special.eos == Some(id) || special.eot == Some(id));
    ids.sort_unstable();
    ids.dedup();
    let eot = eot.filter(|id| ids.binary_search(id).is_ok());
    (ids, eot)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collected(texts: &[&str], eos: Option<u32>) -> (Vec<u32>, Option<u32>) {
        let candidates: Vec<_> =
            texts.iter().enumerate().map(|(id, text)| Candidate { id: id as u32, text }).collect();
        collect(&SpecialTokens { eos, ..SpecialTokens::default() }, &candidates)
    }

    #[test]
    fn the_files_own_and_the_well_known_ones_end_a_generation() {
        assert_eq!(collected(&["<|endoftext|>", "<|im_end|>"], Some(7)), (vec![0, 1, 7], Some(1)));
        assert_eq!(collected(&[], None), (vec![], None));
    }

    #[test]
    fn a_message_before_a_tool_call_does_not_end_one() {
        assert_eq!(collected(&["<|end|>", "<|return|>", "<|call|>"], None), (vec![1, 2], None));
        assert_eq!(collected(&["<|end|>", "<|return|>"], None), (vec![0, 1], Some(0)));
        assert_eq!(collected(&["</s>", "<|tool_response>", "<eos>"], None).0, [1, 2]);
    }
}
