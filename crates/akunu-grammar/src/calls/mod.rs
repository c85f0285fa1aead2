//! Calls of tools in an answer, as a family of models writes them.
//!
//! What a family writes is data ([`CallForm`]), from which the rules of a grammar are made: once the mark of a call has been
//! generated, only calls of the given tools can follow it, with arguments that conform to their schemas.

use serde_json::Value as Json;

mod literals;
mod properties;
mod writer;

pub use properties::{ValueKind, fits_tags, value_kind};
use writer::Writer;

use crate::error::GrammarError;
use crate::format::{Parts, Reasoning, ResponseFormat, Tool, escaped, quoted};

/// How a family of models writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallForm {
    /// What may be around all calls of an answer.
    pub section: [&'static str; 2],
    /// What precedes all calls also ends a text, so that a call or nothing follows it.
    pub ends_text: bool,
    /// Precedes a call, or a list of calls. A bracket at its end begins the list.
    pub open: &'static str,
    /// A call.
    pub call: &'static [CallPart],
    /// Another way in which models of the family write a call after `open`; empty: there is none.
    pub other: &'static [CallPart],
    /// Calls are the elements of a JSON array.
    pub is_list: bool,
    /// Follows a call, or a list of calls.
    pub close: &'static str,
    /// The answer may also start with a call without `open`.
    pub is_bare: bool,
    /// Models leave out `open` at times. Then what precedes the name of a tool begins a call in a text.
    pub may_lack_open: bool,
    /// What precedes text in place of a tool's name. Then the prompt ends with `open`, and only with a name is `open` the
    /// beginning of a call. Empty: text has no name.
    pub text_name: &'static str,
}

/// A part of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallPart {
    Text(&'static str),
    /// One of these texts, of which the last may be empty.
    OneOf(&'static [&'static str]),
    /// Parts that may be left out.
    Maybe(&'static [CallPart]),
    /// White space that may be left out.
    Gap,
    /// The tool's name.
    Name,
    /// The tool's name as a JSON string.
    QuotedName,
    /// The arguments as a JSON object.
    Arguments,
    /// The arguments between tags.
    Tagged(CallTags),
    /// The arguments as literals.
    Literals(CallLiterals),
    /// A number of at most three digits.
    Number,
    /// Letters, digits, `_` and `-`.
    Id,
}

impl CallPart {
    fn tags(&self) -> Option<&CallTags> {
        if let CallPart::Tagged(tags) = self { Some(tags) } else { None }
    }

    fn literals(&self) -> Option<&CallLiterals> {
        if let CallPart::Literals(form) = self { Some(form) } else { None }
    }
}

/// How each argument is written between tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallTags {
    /// Around the name of an argument.
    pub key: [&'static str; 2],
    /// Around its value.
    pub value: [&'static str; 2],
    /// What follows the name of a string, and of any other value, if the second text of `key` does not.
    pub kinds: Option<[&'static str; 2]>,
}

/// How arguments are written as literals of a language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallLiterals {
    /// Between the name of an argument and its value.
    pub assign: &'static str,
    pub separator: &'static str,
    /// Around strings, in which nothing is escaped; `None`: values are Python's.
    pub quote: Option<&'static str>,
    /// Arguments come in the order of their names.
    pub is_sorted: bool,
}

/// `{"name": …, "arguments": …}`.
pub const NAME_AND_ARGUMENTS: &[CallPart] = &[
    CallPart::Text("{"),
    CallPart::Gap,
    CallPart::Text("\"name\":"),
    CallPart::Gap,
    CallPart::QuotedName,
    CallPart::Text(","),
    CallPart::Gap,
    CallPart::Text("\"arguments\":"),
    CallPart::Gap,
    CallPart::Arguments,
    CallPart::Gap,
    CallPart::Text("}"),
];

/// An answer with calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Calls {
    pub form: CallForm,
    pub tools: Vec<Tool>,
    /// There is at most one call.
    pub is_single: bool,
    pub without: WithoutCalls,
}

/// What an answer without calls may be.
#[derive(Clone, Debug, PartialEq)]
pub enum WithoutCalls {
    /// Any text, which may also be before and after calls.
    Text,
    /// A text of this format.
    Format(Box<ResponseFormat>),
    /// There must be a call.
    Refused,
}

impl Calls {
    /// Allows any object as the arguments of tools that are not strict. False: it did already.
    pub fn relax(&mut self) -> bool {
        let held = self.tools.iter_mut().filter(|tool| !tool.is_strict && tool.parameters.is_some());
        held.map(|tool| tool.parameters = None).count() > 0
    }

    /// The rules of the whole text for calls in any text.
    pub(crate) fn in_text(
        &self,
        before: Option<&Reasoning>,
        parts: &mut Parts<'_>,
    ) -> Result<String, GrammarError> {
        let mut rules = self.rules(parts)?;
        let next = if self.is_single { "" } else { " rest" };
        let CallForm { section: [section, end], ends_text, open, text_name, is_list, .. } = self.form;
        let mut rest = "rest: TEXT?".to_string();
        if ends_text {
            rest += &format!(" | ended ({} gap? marked {}?)?", quoted(open), quoted(end));
            rules += &format!("ended[lazy]: /(?s:.*){}/\n", escaped(section));
        } else if text_name.is_empty() {
            rest += &format!(" | opened marked{next}");
        }
        for (index, tool) in self.tools.iter().enumerate().filter(|(_, tool)| self.may_lack_open(tool)) {
            rest += &format!(" | lacks{index} rest{index}{next}");
            rules += &format!("lacks{index}[lazy]: /(?s:.*){}/\n", escaped(&self.named(tool)));
        }
        if let Some(Reasoning { open, .. }) = before.filter(|reasoning| reasoning.anywhere) {
            rest += " | reasons thought rest";
            rules += &format!("reasons[lazy]: /(?s:.*){}/\n", escaped(open));
        }
        let mut first = "first: rest".to_string();
        if self.form.is_bare {
            let again = if self.is_single { "" } else { " first" };
            let listed = if is_list { " listed" } else { "" };
            for (index, tool) in self.tools.iter().enumerate() {
                first += &format!(" | bare{index} rest{index}{listed}{again}");
                rules += &format!("bare{index}[lazy]: /{}/\n", self.bare_begin(tool));
            }
        }
        if !text_name.is_empty() {
            first = format!("first: {} rest", quoted(text_name));
            for (index, tool) in self.tools.iter().enumerate() {
                let name = self.named(tool);
                first += &format!(" | {} rest{index}{next}", quoted(&name));
                rest += &format!(" | named{index} rest{index}{next}");
                rules += &format!("named{index}[lazy]: /(?s:.*){}/\n", escaped(&format!("{open}{name}")));
            }
        }
        let start = match before {
            None => "first",
            Some(Reasoning { is_open: true, .. }) => "thought first",
            Some(Reasoning { anywhere: true, .. }) => "first",
            Some(Reasoning { open, .. }) => {
                rules += &format!("begins[lazy]: /\\s*{}/\n", escaped(open));
                "begins thought first | first"
            }
        };
        if let Some(Reasoning { close, .. }) = before {
            rules += &format!("thought[lazy]: /(?s:.*){}/\n", escaped(close));
        }
        if text_name.is_empty() && !ends_text {
            rules += &format!("opened[lazy]: /(?s:.*){}/\n", escaped(open));
        }
        rules += "TEXT: /(?s:.+)/\n";
        Ok(format!("start: {start}\n{first}\n{rest}\n{rules}"))
    }

    /// Adds the rules of calls to `rules`, and returns the expression of an answer that is calls, or of the other format.
    pub(crate) fn alone(&self, rules: &mut String, parts: &mut Parts<'_>) -> Result<String, GrammarError> {
        let CallForm { section, ends_text, open, is_bare, text_name, .. } = self.form;
        *rules += &self.rules(parts)?;
        let marked = format!("{} gap? marked", quoted(open));
        let more = match (self.is_single, is_bare) {
            _ if ends_text => String::new(),
            (true, _) => String::new(),
            (false, true) => " (/;? ?/ calls)*".to_string(),
            (false, false) => format!(" (gap? {marked})*"),
        };
        let around = |text: &str, gap: [&str; 2]| match text {
            "" => String::new(),
            text => format!("({}{}{})?", gap[0], quoted(text), gap[1]),
        };
        let before = match ends_text {
            true => quoted(section[0]),
            false => around(section[0], ["", " gap?"]),
        };
        let after = around(section[1], ["gap? ", ""]);
        // What precedes all calls only comes with a mark.
        let begin = match () {
            () if is_bare => format!("({before} {marked} | calls)"),
            () if !text_name.is_empty() => "calls".to_string(),
            () => format!("{before} {marked}"),
        };
        let calls = format!("{begin}{more} {after}");
        match &self.without {
            WithoutCalls::Format(format) => {
                let name = if text_name.is_empty() { String::new() } else { quoted(text_name) };
                Ok(format!("{calls} | {name} {}", format.answer(parts)?))
            }
            WithoutCalls::Text | WithoutCalls::Refused => Ok(calls),
        }
    }

    /// The rules of calls: `marked` of what follows the mark, and `calls` of what may also be without one.
    fn rules(&self, parts: &mut Parts<'_>) -> Result<String, GrammarError> {
        if self.tools.is_empty() {
            return Err(GrammarError::Invalid { what: WHAT, reason: "there are no tools to call".into() });
        }
        let CallForm { open, call, other, close, is_list, is_bare, text_name, .. } = self.form;
        let (mut rules, mut others) = (String::new(), vec!["calls".to_string()]);
        if let Some(tags) = call.iter().find_map(CallPart::tags) {
            rules += &format!("any_text[lazy]: /(?s:.*){}/\n", escaped(tags.value[1]));
        }
        if let Some(form) = call.iter().chain(other).find_map(CallPart::literals) {
            rules += &literals::rules(form);
        }
        for (index, tool) in self.tools.iter().enumerate() {
            let may_lack_open = self.may_lack_open(tool);
            let has_rest = is_bare || may_lack_open || !text_name.is_empty();
            let mut writer = Writer::new(tool, index, parts, &mut rules);
            let behind = if has_rest { writer.expression(&call[name_end(call)..])? } else { String::new() };
            // The rules of arguments between tags are written once.
            let mut whole = match may_lack_open {
                true => format!("{} rest{index}", quoted(&self.named(tool))),
                false => writer.call(call)?,
            };
            if !other.is_empty() {
                let expression = writer.expression(other)?;
                match is_bare {
                    true => others.push(expression),
                    false => whole += &format!(" | {expression}"),
                }
            }
            rules += &format!("tool{index}: {whole}\n");
            if has_rest {
                rules += &format!("rest{index}: {behind}\n");
            }
        }
        let any: Vec<String> = (0..self.tools.len()).map(|index| format!("tool{index}")).collect();
        let close = match close {
            "" => String::new(),
            close if is_bare => format!(" (gap? {})?", quoted(close)),
            close => format!(" gap? {}", quoted(close)),
        };
        let more = if self.is_single { "" } else { "(gap? \",\" gap? tool)*" };
        if is_list {
            rules += &format!("listed: {more} gap? \"]\"\n");
        }
        let calls = match is_list {
            true if open.ends_with('[') => "gap? tool listed",
            true => "gap? \"[\" gap? tool listed",
            false => "gap? tool",
        };
        let (marked, any) = (others.join(" | gap? "), any.join(" | "));
        Ok(format!("marked: {marked}\ncalls: {calls}{close}\ntool: {any}\n{rules}"))
    }

    /// Whether a call of a tool may begin without a mark: one that is held is read, and no other.
    fn may_lack_open(&self, tool: &Tool) -> bool {
        self.form.may_lack_open && tool.parameters.as_ref().is_none_or(fits_tags)
    }

    /// The beginning of a call of texts, up to its name and a text after it.
    fn named(&self, tool: &Tool) -> String {
        let call = self.form.call;
        let text = |part: &CallPart| match part {
            CallPart::Text(text) => text.to_string(),
            _ => tool.name.clone(),
        };
        call[..name_end(call)].iter().map(text).collect()
    }

    /// The beginning of a call without a mark, up to its name, as a regular expression. The readers take a field `type` before
    /// the name too.
    fn bare_begin(&self, tool: &Tool) -> String {
        let call = self.form.call;
        if self.form.is_list {
            return format!("[;\\s]*{}\\s*{}", escaped("["), escaped(&self.named(tool)));
        }
        let regexes = call[..name_end(call)].iter().map(|part| match part {
            CallPart::Text(text) => escaped(text).replace(&escaped(":"), &format!("\\s*{}", escaped(":"))),
            CallPart::QuotedName => escaped(&json_name(tool)),
            _ => "\\s*".into(),
        });
        let [brace, rest @ ..] = &regexes.collect::<Vec<_>>()[..] else { return String::new() };
        let kind = format!("({}\\s*:\\s*{}\\s*,\\s*)?", escaped("\"type\""), escaped("\"function\""));
        format!("[;\\s]*{brace}\\s*{kind}{}", rest.concat())
    }
}

fn json_name(tool: &Tool) -> String {
    Json::from(tool.name.as_str()).to_string()
}

pub(crate) const WHAT: &str = "schema of a tool's arguments";

/// The number of parts up to the tool's name, and to a text after it without which another name may go on.
fn name_end(call: &[CallPart]) -> usize {
    let is_name = |part: &CallPart| matches!(part, CallPart::Name | CallPart::QuotedName);
    match call.iter().position(is_name) {
        Some(at) if matches!(call[at..], [CallPart::Name, CallPart::Text(_), ..]) => at + 2,
        at => at.map_or(0, |at| at + 1),
    }
}
