//! From texts to the tokens of an encoder: prompts before them, what the model wants around them, pairs to be scored.

use akunu_tokenizer::EncodeOptions;

use crate::{EmbedTask, Error, Model, TextIds};

/// Of a text that a stranger wrote.
const PLAIN: EncodeOptions = EncodeOptions { add_special: true, parse_special: false };

impl Model {
    /// What the model makes of whole texts; `None` where its files describe a model that generates text.
    pub fn text_task(&self) -> Option<EmbedTask> {
        let config = self.config();
        if self.weights().tensor("cls.output.weight").is_some() {
            return Some(EmbedTask::Scores);
        }
        (config.bidirectional || config.embedding.pooling.is_some()).then_some(EmbedTask::Vectors(None))
    }

    /// What stands before a text that is embedded for some purpose: the prompt of that name, or where none is named the
    /// one that the model's files name.
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

    /// The tokens of a text to be embedded, with what the model wants around it. Special tokens written out in the text are
    /// the text that they are.
    pub fn text_ids(&self, text: &str, prompt: &str) -> Result<TextIds, Error> {
        let tokenizer = self.tokenizer()?;
        Ok(match prompt {
            "" => tokenizer.encode(text, PLAIN)?.into(),
            prompt => tokenizer.encode(&format!("{prompt}{text}"), PLAIN)?.into(),
        })
    }

    /// The tokens by which the model scores how well a document answers a query.
    pub fn pair_ids(&self, query: &str, document: &str, instruction: Option<&str>) -> Result<TextIds, Error> {
        let tokenizer = self.tokenizer()?;
        let card = akunu_arch::Card::find(&self.config().architecture);
        let prompt = card.and_then(|card| card.rerank).filter(|_| !self.config().bidirectional);
        let Some(prompt) = prompt else {
            let pair = tokenizer.encode_pair(query, document, PLAIN)?;
            return Ok(TextIds { ids: pair.ids, segments: pair.segments });
        };
        let parsed = EncodeOptions { add_special: false, parse_special: true };
        let mut ids = tokenizer.encode(prompt.head, parsed)?;
        let middle = format!(
            "{}{}{}{query}{}{document}",
            prompt.before_instruction,
            instruction.unwrap_or(prompt.instruction),
            prompt.before_query,
            prompt.before_document,
        );
        let text = EncodeOptions { add_special: false, parse_special: false };
        tokenizer.encode_into(&middle, text, &mut ids)?;
        tokenizer.encode_into(prompt.tail, parsed, &mut ids)?;
        Ok(ids.into())
    }

    /// Cuts a text to `most` tokens, and keeps what the model wants at its end.
    pub fn cut(&self, text: &mut TextIds, most: usize) -> Result<(), Error> {
        let tokenizer = self.tokenizer()?;
        if text.ids.len() <= most || most == 0 {
            return Ok(());
        }
        tokenizer.truncate(&mut text.ids, most);
        text.segments.truncate(text.ids.len());
        Ok(())
    }
}
