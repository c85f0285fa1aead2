//! Conversations whose last message is an answer that the model continues.

use std::hash::{BuildHasher, RandomState};

use akunu_tokenizer::chat::{ChatTemplate, Rendered};
use serde_json::{Map, Value as Json};

use super::{ChatFormat, render};
use crate::Error;

impl ChatFormat {
    /// Renders a conversation whose last message, of the assistant, is left open. See [`render_open`].
    pub fn open_prompt(
        &self,
        messages: &[Json],
        tools: Option<&[Json]>,
        variables: &Map<String, Json>,
    ) -> Result<Rendered, Error> {
        render_open(self.template(), messages, tools, variables)
    }
}

/// Renders a conversation up to the end of its last message's content, so that the model continues it.
///
/// Templates have no common way to leave a message open. So a random word is appended to the content, and the
/// text is cut where that word was written. This fails for templates that leave the last message out, or
/// change its content.
pub fn render_open(
    template: &ChatTemplate,
    messages: &[Json],
    tools: Option<&[Json]>,
    variables: &Map<String, Json>,
) -> Result<Rendered, Error> {
    let refuse = |reason: &str| Err(Error::Conversation { reason: reason.into() });
    let Some((last, before)) = messages.split_last() else { return Err(Error::NothingToAnswer) };
    let Some(content) = last["content"].as_str().filter(|_| last["role"] == "assistant") else {
        return refuse("the last message is not a text of the assistant, so it cannot be continued");
    };
    // Random, so that no message contains it.
    let mark = format!("akunu{:016x}", RandomState::new().hash_one(0));
    let mut open = last.clone();
    open["content"] = format!("{content}{mark}").into();
    let messages: Vec<Json> = before.iter().cloned().chain([open]).collect();
    let mut rendered = render(template, &messages, tools, false, variables)?;
    let mut places = rendered.text.match_indices(&mark).map(|(at, _)| at);
    let (Some(end), None) = (places.next(), places.next()) else {
        return refuse(
            "the model's chat template does not write the assistant's last message, so it cannot be continued",
        );
    };
    if !rendered.text[..end].ends_with(kept(content)) {
        return refuse(
            "the model's chat template changes the assistant's last message, so it cannot be continued",
        );
    }
    rendered.text.truncate(end);
    rendered.untrusted.retain(|range| range.start < end);
    if let Some(range) = rendered.untrusted.last_mut() {
        range.end = range.end.min(end);
    }
    Ok(rendered)
}

/// What a template must write of a content: it may move reasoning, and remove white space at the start.
fn kept(content: &str) -> &str {
    const CLOSE: &str = "</think>";
    let answer = content.rfind(CLOSE).map_or(content, |at| &content[at + CLOSE.len()..]);
    answer.trim_start()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::chat::conversation::message;

    fn open(template: &str, messages: &[Json]) -> Result<Rendered, Error> {
        render_open(&ChatTemplate::new(template, None, None).unwrap(), messages, None, &Map::new())
    }

    const CHATML: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>{% endfor %}";

    #[test]
    fn the_last_message_is_left_open() {
        let rendered = open(CHATML, &[message("user", "a"), message("assistant", " So it \n")]).unwrap();
        assert_eq!(rendered.text, "<|user|>a<|end|><|assistant|>So it \n");
        // What was trimmed is no part of the untrusted text, and white space at the end is.
        let last = rendered.untrusted.last().unwrap();
        assert_eq!(&rendered.text[last.clone()], "So it \n");
        let empty = open(CHATML, &[message("user", "a"), message("assistant", "")]).unwrap();
        assert_eq!(empty.text, "<|user|>a<|end|><|assistant|>");
    }

    #[test]
    fn what_cannot_be_left_open_is_refused() {
        let said = [message("user", "a"), message("assistant", "said")];
        for (template, messages, words) in [
            ("{% for m in messages[:-1] %}{{ m.content }}{% endfor %}", &said[..], "does not write"),
            ("{% for m in messages %}{{ m.content ~ m.content }}{% endfor %}", &said[..], "does not write"),
            (
                "{% for m in messages %}{{ m.content | replace('said', 'told') }}{% endfor %}",
                &said[..],
                "changes",
            ),
            (CHATML, &said[..1], "is not a text of the assistant"),
            (CHATML, &[], "no message"),
        ] {
            let error = open(template, messages).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let call = json!({ "role": "assistant", "content": null });
        assert!(open(CHATML, &[call]).is_err());
    }
}
