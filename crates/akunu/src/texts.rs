//! Tokenization for embedding and reranking: prompts, special tokens, and pairs of query and document.

use std::borrow::Cow;

use akunu_arch::RerankPrompt;
use akunu_tokenizer::EncodeOptions;

use crate::{EmbedTask, Error, Model, TextIds};

/// For untrusted text.
const PLAIN: EncodeOptions = EncodeOptions { add_special: true, parse_special: false };

impl Model {
    /// The task for whole texts; `None` for a model that generates text.
    pub fn text_task(&self) -> Option<EmbedTask> {
        let config = self.config();
        if self.weights().tensor("cls.output.weight").is_some() {
            return Some(EmbedTask::Scores);
        }
        (config.bidirectional || config.embedding.pooling.is_some()).then_some(EmbedTask::Vectors(None))
    }

    /// The prompt of this name in the model's files, to be put before a text; `None`: the default prompt.
    pub fn embedding_prompt(&self, name: Option<&str>) -> Result<&str, Error> {
        let facts = &self.config().embedding;
        let find =
            |name: &str| facts.prompts.iter().find(|(known, _)| known == name).map(|(_, text)| &text[..]);
        match name {
            None => Ok(facts.default_prompt.as_deref().and_then(find).unwrap_or_default()),
            Some(name) => find(name).ok_or_else(|| {
                let known: Vec<&str> = facts.prompts.iter().map(|(name, _)| &name[..]).collect();
                Error::UnknownPrompt {
                    name: name.into(),
                    known: if known.is_empty() { "none".into() } else { known.join(", ") },
                }
            }),
        }
    }

    /// Tokenizes a text to be embedded, with the special tokens that the model expects. Special tokens that are spelled out in the
    /// text are encoded as plain text.
    pub fn text_ids(&self, text: &str, prompt: &str) -> Result<TextIds, Error> {
        let tokenizer = self.tokenizer()?;
        let whole =
            if prompt.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(format!("{prompt}{text}")) };
        Ok(tokenizer.encode(&self.cased(&whole), PLAIN)?.into())
    }

    /// Lowercases a text if the model's files require it.
    fn cased<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.config().embedding.lower_case { text.to_lowercase().into() } else { text.into() }
    }

    /// Tokenizes a query and a document to be scored. If there are more than `max_tokens` tokens, the end of the longer text is
    /// truncated first, or in a generative reranker's prompt the document. Special tokens and the prompt are kept.
    pub fn pair_ids(
        &self,
        query: &str,
        document: &str,
        instruction: Option<&str>,
        max_tokens: Option<usize>,
    ) -> Result<TextIds, Error> {
        let tokenizer = self.tokenizer()?;
        let (query, document) = (self.cased(query), self.cased(document));
        let card = akunu_arch::Card::find(&self.config().architecture);
        let prompt = card.and_then(|card| card.rerank).filter(|_| !self.config().bidirectional);
        let Some(prompt) = prompt else {
            let mut pair = tokenizer.encode_pair(&query, &document, PLAIN)?;
            let is_cut = max_tokens.is_some_and(|max_tokens| pair.truncate(max_tokens));
            return Ok(TextIds { ids: pair.ids, segments: pair.segments, is_cut });
        };
        let instruction = instruction.unwrap_or(prompt.instruction);
        let mut text = self.prompted(&prompt, [instruction, &query, &document])?;
        let Some(max_tokens) = max_tokens.filter(|max_tokens| text.ids.len() > *max_tokens) else {
            return Ok(text);
        };
        let all = tokenizer.encode(&document, EncodeOptions { add_special: false, parse_special: false })?;
        let mut kept = all.len();
        while text.ids.len() > max_tokens && kept > 0 {
            kept = kept.saturating_sub(text.ids.len() - max_tokens);
            text = self.prompted(&prompt, [instruction, &query, &self.decode(&all[..kept])?])?;
        }
        Ok(TextIds { is_cut: true, ..text })
    }

    fn prompted(
        &self,
        prompt: &RerankPrompt,
        [instruction, query, document]: [&str; 3],
    ) -> Result<TextIds, Error> {
        let tokenizer = self.tokenizer()?;
        let parsed = EncodeOptions { add_special: false, parse_special: true };
        let mut ids = tokenizer.encode(prompt.head, parsed)?;
        let middle = format!(
            "{}{instruction}{}{query}{}{document}",
            prompt.before_instruction, prompt.before_query, prompt.before_document,
        );
        let text = EncodeOptions { add_special: false, parse_special: false };
        tokenizer.encode_into(&middle, text, &mut ids)?;
        tokenizer.encode_into(prompt.tail, parsed, &mut ids)?;
        Ok(ids.into())
    }

    /// Truncates a text to `max_tokens` tokens, and keeps the special tokens at its end.
    pub fn cut(&self, text: &mut TextIds, max_tokens: usize) {
        if text.ids.len() <= max_tokens || max_tokens == 0 {
            return;
        }
        if let Ok(tokenizer) = self.tokenizer() {
            tokenizer.truncate(&mut text.ids, max_tokens);
        }
        text.ids.truncate(max_tokens);
        text.segments.truncate(text.ids.len());
        text.is_cut = true;
    }
}
