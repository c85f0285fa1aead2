//! Separates reasoning from the answer, as the text streams.

use std::ops::ControlFlow;

/// The reasoning tags of a family of models.
#[derive(Debug, PartialEq, Eq)]
pub struct Tags {
    pub open: &'static str,
    pub close: &'static str,
    /// Headers that are neither reasoning nor answer.
    pub silent: &'static [&'static str],
    /// Reasoning may start anywhere, because its tags are control tokens, which cannot be quoted in an answer. Otherwise it
    /// may only start the text.
    pub anywhere: bool,
    /// Around the answer that follows reasoning, if anything.
    pub around: [&'static str; 2],
}

/// A template that contains the tags of a row belongs to its family. The last row is for all others.
const FAMILIES: [Tags; 9] = [
    Tags {
        open: "<|channel|>analysis<|message|>",
        close: "<|end|>",
        // A header may name the tool that its message is for: see the marks of calls. Calls in the channel of reasoning
        // occur, although tools are not called there.
        silent: &[
            "<|start|>assistant",
            "<|channel|>analysis ",
            "<|channel|>final",
            "<|channel|>commentary",
            "<|message|>",
            "<|end|>",
        ],
        anywhere: true,
        around: [""; 2],
    },
    Tags { open: "<|channel>thought", close: "<channel|>", silent: &[], anywhere: true, around: [""; 2] },
    Tags {
        open: "<|START_THINKING|>",
        close: "<|END_THINKING|>",
        silent: &["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"],
        anywhere: true,
        around: [""; 2],
    },
    Tags {
        open: "<|inner_prefix|>",
        close: "<|inner_suffix|>",
        silent: &[],
        anywhere: true,
        around: [""; 2],
    },
    Tags { open: "<seed:think>", close: "</seed:think>", silent: &[], anywhere: false, around: [""; 2] },
    Tags { open: "[THINK]", close: "[/THINK]", silent: &[], anywhere: false, around: [""; 2] },
    Tags {
        open: "Here are my reasoning steps:",
        close: "[BEGIN FINAL RESPONSE]",
        silent: &[],
        anywhere: false,
        around: [""; 2],
    },
    // Granite 3.3: its template names all four tags.
    Tags {
        open: "<think>",
        close: "</think>",
        silent: &[],
        anywhere: false,
        around: ["<response>", "</response>"],
    },
    Tags { open: "<think>", close: "</think>", silent: &[], anywhere: false, around: [""; 2] },
];

impl Tags {
    /// The tags of a template's models.
    pub fn of_template(source: &str) -> &'static Tags {
        let [families @ .., usual] = &FAMILIES;
        // Both are required, because other templates end messages with `<|end|>` too.
        let is_meant =
            |tags: &&Tags| source.contains(tags.close) && (!tags.anywhere || source.contains(tags.open));
        families.iter().find(is_meant).unwrap_or(usual)
    }

    /// Whether a prompt ends with the opening tag.
    pub fn opened_by(&self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.open)
    }

    /// Whether the text is part of a tag.
    pub(crate) fn contain(&self, text: &str) -> bool {
        let all = [self.open, self.close].into_iter().chain(self.silent.iter().copied());
        !text.is_empty() && all.into_iter().any(|tag| tag.contains(text))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Reasoning,
    /// A tag that begins or ends reasoning.
    Tag,
    Answer,
}

/// A part of generated text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    pub kind: Kind,
    pub text: &'a str,
}

pub type OnPart<'a> = &'a mut dyn FnMut(Part<'_>) -> ControlFlow<()>;

/// Splits text into reasoning and answer. Text that may be the beginning of a tag is held back until it is certain.
#[derive(Clone, Debug)]
pub struct Splitter {
    tags: &'static Tags,
    state: State,
    held: String,
    /// Where the white space ends at the start, so that it is not searched again.
    space_end: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Only white space so far.
    Start,
    Reasoning,
    /// After reasoning, where a tag may begin the answer.
    Between,
    /// In an answer that such a tag has begun, and another one may end.
    Within,
    Answer,
}

impl Splitter {
    /// `inside`: the prompt ends with the opening tag.
    pub fn new(tags: &'static Tags, inside: bool) -> Splitter {
        let state = match (inside, tags.anywhere) {
            (true, _) => State::Reasoning,
            (false, true) => State::Answer,
            (false, false) => State::Start,
        };
        Splitter { tags, state, held: String::new(), space_end: 0 }
    }

    /// The splitter of what follows `text`, with which the answer begins.
    #[must_use]
    pub fn after(self, text: &str) -> Splitter {
        let is_inside = text.rfind(self.tags.open) > text.rfind(self.tags.close);
        Splitter { state: if is_inside { State::Reasoning } else { State::Answer }, ..self }
    }

    pub fn push(&mut self, text: &str, on_part: OnPart<'_>) -> ControlFlow<()> {
        self.held.push_str(text);
        while self.step(on_part)? {}
        ControlFlow::Continue(())
    }

    /// Ends the text; what was held back is not a tag.
    pub fn finish(&mut self, on_part: OnPart<'_>) -> ControlFlow<()> {
        let kind = if self.state == State::Reasoning { Kind::Reasoning } else { Kind::Answer };
        if self.state == State::Within && self.held.trim() == self.tags.around[1] {
            self.held.clear();
        }
        self.give(kind, self.held.len(), on_part)
    }

    /// False: more text is needed.
    fn step(&mut self, on_part: OnPart<'_>) -> ControlFlow<(), bool> {
        let Tags { open, close, silent, anywhere, around: [begin, end] } = *self.tags;
        match self.state {
            State::Start => {
                self.space_end = self.held.len() - self.held[self.space_end..].trim_start().len();
                let text = &self.held[self.space_end..];
                if text.starts_with(open) {
                    self.state = State::Reasoning;
                    self.give(Kind::Tag, self.space_end + open.len(), on_part)?;
                } else if open.starts_with(text) {
                    return ControlFlow::Continue(false);
                } else {
                    self.state = State::Answer;
                }
            }
            State::Reasoning => match self.held.find(close) {
                Some(at) => {
                    self.give(Kind::Reasoning, at, on_part)?;
                    self.give(Kind::Tag, close.len(), on_part)?;
                    self.state = if begin.is_empty() { State::Answer } else { State::Between };
                    self.space_end = 0;
                }
                None => {
                    let certain = self.held.len() - overlap(&self.held, close);
                    self.give(Kind::Reasoning, certain, on_part)?;
                    return ControlFlow::Continue(false);
                }
            },
            State::Between => {
                self.space_end = self.held.len() - self.held[self.space_end..].trim_start().len();
                let text = &self.held[self.space_end..];
                if text.starts_with(begin) {
                    self.held.drain(..self.space_end + begin.len());
                    self.state = State::Within;
                } else if begin.starts_with(text) {
                    return ControlFlow::Continue(false);
                } else {
                    self.state = State::Answer;
                }
            }
            State::Within => {
                let text = self.held.trim_end();
                let held = match text.strip_suffix(end) {
                    Some(text) => text.len(),
                    None => self.held.len() - overlap(&self.held, end),
                };
                self.give(Kind::Answer, held, on_part)?;
                return ControlFlow::Continue(false);
            }
            State::Answer if !anywhere => {
                self.give(Kind::Answer, self.held.len(), on_part)?;
                return ControlFlow::Continue(false);
            }
            State::Answer => {
                let tags = || silent.iter().copied().chain([open]);
                match tags().filter_map(|tag| Some((self.held.find(tag)?, tag))).min_by_key(|(at, _)| *at) {
                    Some((at, tag)) => {
                        self.give(Kind::Answer, at, on_part)?;
                        if tag == open {
                            self.state = State::Reasoning;
                            self.give(Kind::Tag, tag.len(), on_part)?;
                        } else {
                            self.held.drain(..tag.len());
                        }
                    }
                    None => {
                        let open_end = tags().map(|tag| overlap(&self.held, tag)).max().unwrap_or(0);
                        self.give(Kind::Answer, self.held.len() - open_end, on_part)?;
                        return ControlFlow::Continue(false);
                    }
                }
            }
        }
        ControlFlow::Continue(true)
    }

    fn give(&mut self, kind: Kind, len: usize, on_part: OnPart<'_>) -> ControlFlow<()> {
        let flow = match len {
            0 => ControlFlow::Continue(()),
            _ => on_part(Part { kind, text: &self.held[..len] }),
        };
        self.held.drain(..len);
        flow
    }
}

/// Bytes at the end of `text` that may be the beginning of `tag`.
pub(super) fn overlap(text: &str, tag: &str) -> usize {
    let lens = (1..tag.len()).rev().filter(|&len| tag.is_char_boundary(len));
    lens.into_iter().find(|&len| text.ends_with(&tag[..len])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reasoning, answer, and the number of tags of text in pieces.
    fn split(tags: &'static Tags, inside: bool, pieces: &[&str]) -> (String, String, usize) {
        let mut splitter = Splitter::new(tags, inside);
        let (mut reasoning, mut answer, mut count) = (String::new(), String::new(), 0);
        let mut on_part = |part: Part<'_>| {
            match part.kind {
                Kind::Reasoning => reasoning.push_str(part.text),
                Kind::Answer => answer.push_str(part.text),
                Kind::Tag => count += 1,
            }
            ControlFlow::Continue(())
        };
        for piece in pieces {
            let _ = splitter.push(piece, &mut on_part);
        }
        let _ = splitter.finish(&mut on_part);
        (reasoning, answer, count)
    }

    fn parts(reasoning: &str, answer: &str, tags: usize) -> (String, String, usize) {
        (reasoning.into(), answer.into(), tags)
    }

    #[test]
    fn reasoning_starts_the_text_or_is_absent() {
        let think = Tags::of_template("{{ messages }}");
        assert_eq!(split(think, false, &["\n<think>a", "b</think>c"]), parts("ab", "c", 2));
        assert_eq!(split(think, true, &["ab</think>c"]), parts("ab", "c", 1));
        assert_eq!(split(think, false, &["The <think> tag"]), parts("", "The <think> tag", 0));
        assert_eq!(split(think, false, &["<thi"]), parts("", "<thi", 0));
        assert_eq!(split(think, true, &["never ends </thin"]), parts("never ends </thin", "", 0));
    }

    #[test]
    fn tags_around_the_answer_are_not_text() {
        let granite = Tags::of_template("between <think></think> and between <response></response>");
        let text = "<think>Hm.</think>\n<response>It is <b>so</b>: </response> ends it.</response>\n";
        let answer = "It is <b>so</b>: </response> ends it.";
        assert_eq!(split(granite, false, &[text]), parts("Hm.", answer, 2));
        let pieces: Vec<&str> = text.split_inclusive(|_: char| true).collect();
        assert_eq!(split(granite, false, &pieces), parts("Hm.", answer, 2));
        for text in ["<response>a</response>", "a </response>"] {
            assert_eq!(split(granite, false, &[text]), parts("", text, 0));
        }
        let cut = "<think>Hm.</think><response>It </resp";
        assert_eq!(split(granite, false, &[cut]), parts("Hm.", "It </resp", 2));
    }

    #[test]
    fn channel_headers_are_not_text() {
        let harmony = Tags::of_template("<|channel|>analysis<|message|> and <|end|>");
        assert!(harmony.anywhere);
        let text =
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.";
        assert_eq!(split(harmony, false, &[text]), parts("Hm.", "Yes.", 2));
        let call = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I \
                    ask.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}";
        let answer = "I ask. to=functions.f <|constrain|>json{}";
        assert_eq!(split(harmony, false, &[call]), parts("Hm.", answer, 2));
        let pieces: Vec<&str> = call.split_inclusive(&['|', '>', ' ']).collect();
        assert_eq!(split(harmony, false, &pieces), parts("Hm.", answer, 2));
        // Phi's messages end with <|end|> too, without channels.
        assert_eq!(Tags::of_template("<|assistant|>{{ x }}<|end|>").open, "<think>");
    }

    #[test]
    fn a_prompt_may_end_with_the_opening_tag() {
        let think = Tags::of_template("");
        assert!(think.opened_by("<|im_start|>assistant\n<think>\n"));
        assert!(!think.opened_by("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    }

    proptest! {
        #[test]
        fn pieces_give_what_the_whole_gives(
            words in prop::collection::vec(
                prop::sample::select(vec!["<think>", "</think>", "<response>", "</response>", "<|channel>thought", "<channel|>", "<", "a", "é", " "]), 0..8),
            cuts in prop::collection::vec(0usize..40, 0..6),
            row in prop::sample::select(vec![1usize, 7, 8]),
            inside in any::<bool>(),
        ) {
            let whole = words.concat();
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|&at| whole.is_char_boundary(at)).collect();
            cuts.extend([0, whole.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|pair| &whole[pair[0]..pair[1]]).collect();
            prop_assert_eq!(split(&FAMILIES[row], inside, &pieces), split(&FAMILIES[row], inside, &[&whole]));
        }
    }
}
