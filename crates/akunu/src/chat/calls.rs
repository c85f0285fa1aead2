//! Separates tool calls from the text around them, as it streams.

use std::sync::Arc;

use serde_json::{Map, Value as Json};

use super::call_json::{Scan, Unnamed, begins_bare, named_arguments};
use super::call_stream::{TagCall, TagStream};
use super::call_tags::name_of;
use super::families::CallMarks;
use super::reasoning::overlap;

/// A tool call.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub name: String,
    pub arguments: Map<String, Json>,
}

/// A segment of an answer.
#[derive(Debug, PartialEq)]
pub enum Segment<'a> {
    Text(&'a str),
    /// A call of this tool has begun, and its arguments follow as they are generated.
    Begun(&'a str),
    /// More of the JSON text of its arguments.
    Arguments(&'a str),
    /// A complete call. It may not have been announced.
    Call(Call),
    /// The text of a call that has begun and is not complete.
    Cut(&'a str),
}

pub type OnSegment<'a> = &'a mut dyn FnMut(Segment<'_>);

/// Parses calls from an answer. Text that may become a call is held back until it is certain. If it does not become one, it is
/// text, including its marks. White space around calls is removed.
#[derive(Clone, Debug)]
pub struct CallReader {
    marks: &'static CallMarks,
    /// In the form of OpenAI's API. A call without a mark must name one of them. The readers of a request's choices share them.
    tools: Arc<[Json]>,
    state: State,
    held: String,
    /// Where the white space ends that was searched in this state, so that it is not searched again.
    space_end: usize,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Only white space so far; a call without a mark may follow.
    Start,
    Text,
    /// `held` begins with a mark, or an equivalent, of this many bytes.
    Marked {
        mark: usize,
    },
    /// JSON has started after the mark.
    Json {
        mark: usize,
        start: usize,
        scan: Scan,
        arguments: Early,
    },
    /// Calls that are not JSON, whose end is searched for from this offset.
    WrittenOut {
        mark: usize,
        from: usize,
        stream: TagStream,
    },
    /// After a call, or a mark that ends calls.
    After,
}

/// The arguments of a call that is not complete.
#[derive(Clone, Copy, Debug)]
enum Early {
    /// The name and the beginning of the arguments are not known yet.
    Unknown,
    /// They are passed on as they come. This many bytes of what is held have been.
    Sent { scan: Scan, sent: usize },
    /// All of them have been passed on.
    All,
    /// They are passed on with the complete call.
    Late,
}

/// Maximum bytes between a mark and the arguments, for a name and an id, and between two calls without marks.
pub(super) const LONGEST_HEADER: usize = 256;

/// Maximum bytes that are added at once: what is removed from the beginning moves all that is held.
const LONGEST_PIECE: usize = 256;

impl CallReader {
    pub fn new(marks: &'static CallMarks, tools: Vec<Json>) -> CallReader {
        let state = if marks.form.is_bare { State::Start } else { State::Text };
        CallReader { marks, tools: tools.into(), state, held: String::new(), space_end: 0 }
    }

    pub fn push(&mut self, text: &str, on_segment: OnSegment<'_>) {
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.floor_char_boundary(LONGEST_PIECE));
            self.held.push_str(piece);
            while self.step(on_segment) {}
            rest = behind;
        }
    }

    /// Ends the answer; text that was held back is not a call.
    pub fn finish(&mut self, on_segment: OnSegment<'_>) {
        if matches!(self.state, State::After) {
            let space = self.skip_space(0);
            self.drop_held(space);
        }
        let has_begun = match self.state {
            State::Json { arguments, .. } => matches!(arguments, Early::Sent { .. } | Early::All),
            State::WrittenOut { stream, .. } => stream.has_begun(),
            _ => false,
        };
        if has_begun {
            on_segment(Segment::Cut(&self.held));
            self.drop_held(self.held.len());
        }
        self.say(self.held.len(), on_segment);
    }

    /// False: more text is needed.
    fn step(&mut self, on_segment: OnSegment<'_>) -> bool {
        match self.state {
            State::Start => {
                let start = self.skip_space(0);
                if start == self.held.len() {
                    return false;
                }
                match self.held[start..].starts_with('{') {
                    true => self.enter(State::Marked { mark: start }),
                    false => self.enter(State::Text),
                }
            }
            State::Text => {
                let start = self.skip_space(0);
                if let Some(at) = self.held[start..].find(self.marks.open()).map(|at| start + at) {
                    let before = self.held[..self.section_before(at).unwrap_or(at)].trim_end();
                    let text = if at > start { before.len() } else { 0 };
                    self.say(text, on_segment);
                    self.enter(State::Marked { mark: at - text + self.marks.open().len() });
                } else {
                    let certain = self.held.len() - self.begun();
                    if certain > start {
                        self.say(self.held[..certain].trim_end().len(), on_segment);
                    }
                    return false;
                }
            }
            State::Marked { mark } => return self.marked(mark, on_segment),
            State::Json { mark, start, mut scan, arguments } => {
                let end = scan.end(self.held.as_bytes());
                let arguments = self.pass_on(mark, start, arguments, on_segment);
                let Some(end) = end else {
                    self.state = State::Json { mark, start, scan, arguments };
                    return false;
                };
                match (self.calls(mark, start, end), arguments) {
                    (Some(calls), _) => {
                        self.drop_held(end);
                        self.enter(State::After);
                        calls.into_iter().for_each(|call| on_segment(Segment::Call(call)));
                    }
                    (None, Early::Sent { .. } | Early::All) => {
                        on_segment(Segment::Cut(&self.held[..end]));
                        self.drop_held(end);
                        self.enter(State::Text);
                    }
                    (None, _) => self.give_up(end, on_segment),
                }
            }
            State::WrittenOut { mark, from, mut stream } => {
                let [_, end] = self.marks.around();
                self.stream(&mut stream, (mark, self.held.len()), false, on_segment);
                // Only when there is more than before of what may end it.
                let Some(seen) = self.held[from..].rfind(end).map(|at| from + at + end.len()) else {
                    let from = self.held.len() - overlap(&self.held, end);
                    self.state = State::WrittenOut { mark, from, stream };
                    return false;
                };
                let found = self.marks.end_of(&self.held[mark..], &self.tools);
                let Some(at) = found.map(|at| mark + at) else {
                    self.state = State::WrittenOut { mark, from: seen, stream };
                    return false;
                };
                match self.marks.read(&self.held[mark..at], &self.tools) {
                    Some(calls) => {
                        self.stream(&mut stream, (mark, at), true, on_segment);
                        self.drop_held(at + end.len());
                        self.enter(State::After);
                        calls.into_iter().for_each(|call| on_segment(Segment::Call(call)));
                    }
                    None if stream.has_begun() => {
                        on_segment(Segment::Cut(&self.held[..at]));
                        self.drop_held(at);
                        self.enter(State::Text);
                    }
                    None => self.give_up(at, on_segment),
                }
            }
            State::After => return self.after(),
        }
        true
    }

    /// Passes on what is certain of a call between tags, whose text is in this range.
    fn stream(
        &self,
        stream: &mut TagStream,
        (start, end): (usize, usize),
        is_whole: bool,
        on_segment: OnSegment<'_>,
    ) {
        let Some(tags) = self.marks.tags() else { return };
        let (around, text, tools) = (self.marks.around(), &self.held[start..end], &*self.tools);
        stream.advance(TagCall { tags, around, text, is_whole, tools }, on_segment);
    }

    /// Announces a call whose JSON text begins at `start`, once its name is known, and passes on its arguments.
    fn pass_on(&self, mark: usize, start: usize, arguments: Early, on_segment: OnSegment<'_>) -> Early {
        let (mut scan, mut sent) = match arguments {
            Early::Late | Early::All => return arguments,
            Early::Sent { scan, sent } => (scan, sent),
            Early::Unknown => {
                let header = self.held[mark..start].trim();
                let found = match header.is_empty() {
                    true => named_arguments(&self.held[start..]).map(|(name, at)| (name, start + at)),
                    false if !self.held[start..].starts_with('{') => Err(Unnamed::Never),
                    false => self.name_in(header).map(|name| (name, start)).ok_or(Unnamed::Never),
                };
                match found {
                    Ok((name, at)) if self.is_known(mark, &name) && self.may_begin(mark, start) => {
                        on_segment(Segment::Begun(&name));
                        (Scan::from(at), at)
                    }
                    Err(Unnamed::Yet) if self.held.len() - start <= LONGEST_HEADER => return Early::Unknown,
                    _ => return Early::Late,
                }
            }
        };
        let end = scan.end(self.held.as_bytes());
        if scan.at > sent {
            on_segment(Segment::Arguments(&self.held[sent..scan.at]));
            sent = scan.at;
        }
        if end.is_some() { Early::All } else { Early::Sent { scan, sent } }
    }

    /// How much of the end of what is held may be the beginning of marks before a call.
    fn begun(&self) -> usize {
        let (held, section) = (self.held.as_str(), self.marks.form.section[0]);
        let open = overlap(held, self.marks.open());
        match self.section_before(held.len() - open) {
            _ if section.is_empty() => open,
            Some(at) => held.len() - at,
            None => open.max(overlap(held, section)),
        }
    }

    /// Where the mark before all calls begins, if what is held has it before `end`, and little white space behind it.
    fn section_before(&self, end: usize) -> Option<usize> {
        let section = self.marks.form.section[0];
        let near = self.held.ceil_char_boundary(end.saturating_sub(section.len() + LONGEST_HEADER)).min(end);
        let before = self.held[near..end].trim_end().strip_suffix(section)?;
        (!section.is_empty()).then_some(near + before.len())
    }

    /// Decides by the text after a mark.
    fn marked(&mut self, mark: usize, on_segment: OnSegment<'_>) -> bool {
        let start = self.skip_space(mark);
        let rest = &self.held[start..];
        let is_json = rest.starts_with('{') || (rest.starts_with('[') && !self.marks.is_written_out());
        if rest.is_empty() {
            return false;
        }
        if self.marks.is_written_out() && !is_json {
            match self.marks.around()[0] {
                name if rest.starts_with(name) => {
                    self.enter(State::WrittenOut { mark, from: start, stream: TagStream::default() })
                }
                name if name.starts_with(rest) => return false,
                _ => self.give_up(mark, on_segment),
            }
            return true;
        }
        let has_header = !self.marks.between.is_empty() && !is_json;
        let header = if has_header { rest.find('{').unwrap_or(rest.len()) } else { 0 };
        match rest.as_bytes().get(header) {
            _ if header > LONGEST_HEADER => self.give_up(mark, on_segment),
            None => return false,
            Some(b'{' | b'[') => {
                let start = start + header;
                let (scan, arguments) = (Scan::from(start), Early::Unknown);
                self.enter(State::Json { mark, start, scan, arguments });
            }
            Some(_) => self.give_up(mark, on_segment),
        }
        true
    }

    /// After a call there may be a closing mark, or another call.
    fn after(&mut self) -> bool {
        let (fence, bare) = (self.marks.fence, self.marks.form.is_bare);
        let ends = [self.marks.close(), self.marks.form.section[1]].into_iter().filter(|end| !end.is_empty());
        let mut space = self.skip_space(0);
        let fenced = &self.held[space..];
        if !fence.is_empty() && fence.starts_with(fenced) && fence != fenced {
            return false;
        }
        if !fence.is_empty() && fenced.starts_with(fence) {
            let behind = &fenced[fence.len()..];
            let near = &behind[..behind.floor_char_boundary(LONGEST_HEADER)];
            space = self.held.len() - behind.len() + near.len() - near.trim_start().len();
        }
        let rest = &self.held[space..];
        let next = rest.trim_start_matches(|c: char| bare && (c == ';' || c.is_whitespace()));
        let between = rest.len() - next.len();
        let may_go_on = next.is_empty() && between <= LONGEST_HEADER;
        if may_go_on || ends.clone().any(|end| end.starts_with(rest) && end != rest) {
            return false;
        }
        if let Some(end) = ends.clone().find(|end| rest.starts_with(*end)) {
            self.drop_held(space + end.len());
            self.enter(State::After);
        } else if bare && next.starts_with('{') {
            self.enter(State::Marked { mark: space + between });
        } else {
            self.drop_held(space);
            self.enter(State::Text);
        }
        true
    }

    fn enter(&mut self, state: State) {
        (self.state, self.space_end) = (state, 0);
    }

    /// Where white space ends that begins at `from`, which is the same while the state is.
    fn skip_space(&mut self, from: usize) -> usize {
        let start = self.space_end.max(from);
        self.space_end = self.held.len() - self.held[start..].trim_start().len();
        self.space_end
    }

    fn drop_held(&mut self, len: usize) {
        self.held.drain(..len);
        self.space_end = 0;
    }

    /// Emits this much as text.
    fn give_up(&mut self, len: usize, on_segment: OnSegment<'_>) {
        self.say(len, on_segment);
        self.enter(State::Text);
    }

    fn say(&mut self, len: usize, on_segment: OnSegment<'_>) {
        if len > 0 {
            on_segment(Segment::Text(&self.held[..len]));
            self.drop_held(len);
        }
    }

    /// Parses `held` as calls.
    fn calls(&self, mark: usize, start: usize, end: usize) -> Option<Vec<Call>> {
        let json: Json = serde_json::from_str(&self.held[start..end]).ok()?;
        let header = self.held[mark..start].trim();
        let calls = match json {
            Json::Object(arguments) if !header.is_empty() => {
                vec![Call { name: self.name_in(header)?, arguments }]
            }
            Json::Array(list) if header.is_empty() => list.into_iter().map(call).collect::<Option<_>>()?,
            json => vec![call(json)?],
        };
        let are_known = calls.iter().all(|call| self.is_known(mark, &call.name));
        // Only such a beginning is held to the tool's schema.
        let is_begun = self.may_begin(mark, start);
        (!calls.is_empty() && are_known && is_begun).then_some(calls)
    }

    fn may_begin(&self, mark: usize, start: usize) -> bool {
        self.has_mark(mark) || begins_bare(&self.held[start..], &self.tools)
    }

    fn has_mark(&self, mark: usize) -> bool {
        self.held[..mark].ends_with(self.marks.open())
    }

    /// Whether a name is a tool's, if its call has no mark.
    fn is_known(&self, mark: usize, name: &str) -> bool {
        self.has_mark(mark) || self.tools.iter().any(|tool| name_of(tool) == Some(name))
    }

    /// `NAME`, `NAME[ARGS]`, `NAME[CALL_ID]ID[ARGS]`, `NAME<|channel|>commentary json<|message|>`, `functions.NAME:0`.
    fn name_in(&self, header: &str) -> Option<String> {
        let header = header.strip_prefix(self.marks.prefix).unwrap_or(header);
        let ends = self.marks.between.iter().filter_map(|mark| header.find(mark));
        let name = header[..ends.min().unwrap_or(header.len())].trim();
        (!name.is_empty() && !name.contains(char::is_whitespace)).then(|| name.to_string())
    }
}

fn call(json: Json) -> Option<Call> {
    let Json::Object(mut fields) = json else { return None };
    if let Some(Json::Object(function)) = fields.remove("function") {
        fields = function;
    }
    let name = ["name", "tool_name"].into_iter().find_map(|key| fields.get(key)?.as_str());
    let name = name.filter(|name| !name.is_empty())?.to_string();
    let arguments = ["arguments", "parameters"].into_iter().find_map(|key| fields.remove(key));
    let arguments = match arguments {
        None | Some(Json::Null) => Map::new(),
        Some(Json::Object(arguments)) => arguments,
        Some(Json::String(text)) => serde_json::from_str(&text).ok()?,
        Some(_) => return None,
    };
    Some(Call { name, arguments })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const HERMES: &str = "{{ '<tool_call>' }}";
    const MISTRAL: &str = "{{ '[TOOL_CALLS]' }}";
    const CODER: &str = "{{ '<tool_call> <parameter=' }}";
    const HARMONY: &str = "{{ '<|call|>' }}";
    const GLM: &str = "{{ '<tool_call> <arg_key>' }}";
    const DEEPSEEK: &str = "{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' }}";
    const KIMI: &str = "{{ '<|tool_calls_section_begin|> <|tool_call_begin|>' }}";
    const GEMMA: &str = "{{ '<|tool_call>' }}";
    const LFM: &str = "List of tools: [";
    const LLAMA: &str = "Respond in the format {\"name\": function name, \"parameters\": …}";

    /// Text and calls of an answer in pieces, with calls as `name(arguments)`.
    /// Checks that what is passed on early agrees with the complete calls.
    fn read(template: &str, pieces: &[&str]) -> Vec<String> {
        let marks = CallMarks::of_template(template).unwrap();
        let properties = json!({ "s": { "type": "string" }, "list": { "type": "array" } });
        let parameters = json!({ "properties": properties });
        let tools =
            ["clock", "add"].map(|name| json!({ "function": { "name": name, "parameters": parameters } }));
        let mut reader = CallReader::new(marks, tools.to_vec());
        let mut all: Vec<String> = Vec::new();
        let mut in_text = false;
        let mut early: Option<(String, String)> = None;
        let mut on_segment = |segment: Segment<'_>| match segment {
            Segment::Begun(name) => assert_eq!(early.replace((name.into(), String::new())), None),
            Segment::Arguments(text) => early.as_mut().unwrap().1.push_str(text),
            Segment::Text(text) | Segment::Cut(text) => {
                assert_eq!(early.take().is_some(), segment == Segment::Cut(text));
                match in_text {
                    true => all.last_mut().unwrap().push_str(text),
                    false => all.push(text.to_string()),
                }
                in_text = true;
            }
            Segment::Call(Call { name, arguments }) => {
                in_text = false;
                let arguments = Json::Object(arguments);
                if let Some((begun, text)) = early.take() {
                    assert_eq!(
                        (begun, serde_json::from_str(&text).ok()),
                        (name.clone(), Some(arguments.clone()))
                    );
                }
                all.push(format!("{name}({arguments})"));
            }
        };
        pieces.iter().for_each(|piece| reader.push(piece, &mut on_segment));
        reader.finish(&mut on_segment);
        all
    }

    #[test]
    fn calls_between_marks_are_parsed() {
        let call = r#"<tool_call>
{"name": "add", "arguments": {"b": "}\"</tool_call>", "a": [1]}}
</tool_call>"#;
        let called = r#"add({"b":"}\"</tool_call>","a":[1]})"#;
        assert_eq!(read(HERMES, &[call]), [called]);
        assert_eq!(
            read(HERMES, &["Sure.\n\n", call, "\n", call, "\n\nDone."]),
            ["Sure.", called, called, "Done."]
        );
        assert_eq!(read(HERMES, &["<tool_call>{\"name\": \"now\"}"]), ["now({})"]);
        assert_eq!(
            read(HERMES, &[r#"<tool_call>{"name": "f", "arguments": "{\"x\": 1}"}"#]),
            [r#"f({"x":1})"#]
        );
    }

    #[test]
    fn calls_after_a_mark_are_parsed() {
        let list = r#"[TOOL_CALLS] [{"name": "clock", "arguments": {}, "id": "a"}, {"name": "add", "arguments": {"a": 1}}]"#;
        assert_eq!(read(MISTRAL, &[list]), ["clock({})", r#"add({"a":1})"#]);
        let named = r#"[TOOL_CALLS]clock[ARGS]{}[TOOL_CALLS]add[CALL_ID]x9[ARGS]{"a": 1}"#;
        assert_eq!(read(MISTRAL, &[named]), ["clock({})", r#"add({"a":1})"#]);
    }

    #[test]
    fn calls_in_the_headers_of_messages_are_parsed() {
        for header in [
            "clock<|channel|>commentary json<|message|>",
            "clock <|constrain|>json<|message|>",
            "clock<|constrain|>json",
            "clock json",
            "clock",
        ] {
            let text = format!("Let me see. to=functions.{header}{{\"zone\": \"UTC\"}}<|call|>");
            assert_eq!(read(HARMONY, &[&text]), ["Let me see.", r#"clock({"zone":"UTC"})"#], "{header}");
        }
        let text = "written to=functions. as it is";
        assert_eq!(read(HARMONY, &[text]), [text]);
    }

    #[test]
    fn arguments_are_passed_on_as_they_come() {
        for (template, before, after) in [
            (HERMES, "<tool_call>\n{\"name\": \"clock\", \"arguments\": ", "}\n</tool_call>"),
            (LLAMA, "{\"type\": \"function\", \"name\": \"clock\", \"parameters\": ", "}"),
            (MISTRAL, "[TOOL_CALLS]clock[ARGS]", ""),
            (HARMONY, "to=functions.clock<|channel|>commentary json<|message|>", "<|call|>"),
        ] {
            let marks = CallMarks::of_template(template).unwrap();
            let mut reader = CallReader::new(marks, vec![json!({ "function": { "name": "clock" } })]);
            let (arguments, mut seen) = ("{\"a\": \"}é{\", \"b\": [1]}", Vec::new());
            for piece in [before, &arguments[..8], &arguments[8..], after] {
                reader.push(piece, &mut |segment| seen.push(format!("{segment:?}")));
            }
            reader.finish(&mut |segment| seen.push(format!("{segment:?}")));
            let [begun, first, second, call] = &seen[..] else { panic!("{seen:?}") };
            assert_eq!(begun, "Begun(\"clock\")");
            assert_eq!(first, &format!("Arguments({:?})", &arguments[..8]));
            assert_eq!(second, &format!("Arguments({:?})", &arguments[8..]));
            assert!(call.starts_with("Call("), "{call}");
        }
        let text = json!({ "properties": { "a": { "type": "string" }, "b": { "type": "array" } } });
        let tools = vec![json!({ "function": { "name": "clock", "parameters": text } })];
        for (template, pieces, expected) in [
            (
                CODER,
                &[
                    "<tool_call>\n<function=clock",
                    ">\n<parameter=a>\n\n \"é\n</para",
                    "meter x\n",
                    "\n</parameter>\n<parameter=b>[\"</parameter>\", ",
                    "1]\n</parameter>",
                    "</function>",
                ][..],
                &[
                    "",
                    "{\"a\": \"\\n \\\"é",
                    "\\n</parameter x",
                    "\\n\", \"b\": ",
                    "[\"</parameter>\",1]",
                    "}",
                ][..],
            ),
            (
                GLM,
                &[
                    "<tool_call>clock\n",
                    "<arg_key>a</arg_key>\n<arg_value>x",
                    "\ny</arg_value>\n",
                    "</tool_call>",
                ],
                &["", "{\"a\": \"x", "\\ny\"", "}"],
            ),
        ] {
            let marks = CallMarks::of_template(template).unwrap();
            let mut reader = CallReader::new(marks, tools.clone());
            let mut seen: Vec<String> = Vec::new();
            for piece in pieces {
                let mut arguments = String::new();
                reader.push(piece, &mut |segment| {
                    if let Segment::Arguments(text) = segment {
                        arguments.push_str(text);
                    }
                });
                seen.push(arguments);
            }
            assert_eq!(seen, expected);
        }
        let cut = "<tool_call>{\"name\": \"clock\", \"arguments\": {\"a\": ";
        assert_eq!(read(HERMES, &[cut]), [cut]);
        let late = "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"clock\"}</tool_call>";
        assert_eq!(read(HERMES, &[late]), ["clock({\"a\":1})"]);
    }

    #[test]
    fn sections_of_calls_are_parsed() {
        let (begin, end) = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>");
        let fenced = |name: &str, arguments: &str| {
            format!(
                "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
            )
        };
        let plain = |name: &str, arguments: &str| {
            format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>")
        };
        let add = r#"add({"a":1})"#;
        for call in [&fenced as &dyn Fn(&str, &str) -> String, &plain] {
            let (first, second) = (call("clock", "{}"), call("add", "{\"a\": 1}"));
            let text = format!("Sure.\n\n{begin}{first}\n{second}{end}");
            assert_eq!(read(DEEPSEEK, &[&text]), ["Sure.", "clock({})", add]);
            assert_eq!(read(DEEPSEEK, &[&format!("{first}{end} Done.")]), ["clock({})", "Done."]);
        }
        let kimi = "<|tool_calls_section_begin|><|tool_call_begin|>functions.clock:0<|tool_call_argument_begin|>{}\
                    <|tool_call_end|><|tool_call_begin|>functions.add:1<|tool_call_argument_begin|>{\"a\": 1}\
                    <|tool_call_end|><|tool_calls_section_end|>";
        assert_eq!(read(KIMI, &[kimi]), ["clock({})", add]);
        for text in
            ["<|tool_calls_section_begin|> nothing", "<|tool_calls_section_begin|>", "a <|tool_call_begin|>b"]
        {
            assert_eq!(read(KIMI, &[text]), [text]);
        }
    }

    #[test]
    fn arguments_between_tags_are_parsed() {
        let coder = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>";
        let glm = "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>";
        for (template, call) in [(CODER, coder), (GLM, glm)] {
            let twice = ["Sure.\n", call, "\n", call];
            assert_eq!(read(template, &twice), ["Sure.", r#"add({"a":1})"#, r#"add({"a":1})"#]);
            let json = r#"<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>"#;
            assert_eq!(read(template, &[json]), [r#"add({"a":1})"#]);
        }
        for text in [
            "<tool_call>\n<function>",
            "<tool_call>\n<function=add>\n<param",
            "<tool_call><function=></function>",
        ] {
            assert_eq!(read(CODER, &[text]), [text]);
        }
    }

    #[test]
    fn literal_arguments_are_parsed() {
        let gemma =
            "Sure.<|tool_call>call:add{a:1,b:<|\"|>}<|\"|>}<tool_call|><|tool_call>call:clock{}<tool_call|>";
        let add = r#"add({"a":1,"b":"}"})"#;
        assert_eq!(read(GEMMA, &[gemma]), ["Sure.", add, "clock({})"]);
        let lfm = "<|tool_call_start|>[add(a=1, b=\"}\"), clock()]<|tool_call_end|>Done.";
        assert_eq!(read(LFM, &[lfm]), [add, "clock({})", "Done."]);
        for text in ["<|tool_call_start|>[add(a=)]<|tool_call_end|>", "<|tool_call_start|>[add("] {
            assert_eq!(read(LFM, &[text]), [text]);
        }
    }

    #[test]
    fn the_readers_of_choices_share_tools() {
        let tools = vec![json!({ "function": { "name": "f" } })];
        let reader = CallReader::new(CallMarks::of_template("<tool_call>").unwrap(), tools);
        assert!(Arc::ptr_eq(&reader.tools, &reader.clone().tools));
    }

    #[test]
    fn bare_calls_of_known_tools_may_start_the_answer() {
        let two = r#" {"name": "clock", "parameters": {}}; {"type": "function", "name": "add", "parameters": {"a": 1}}"#;
        assert_eq!(read(LLAMA, &[two]), ["clock({})", r#"add({"a":1})"#]);
        assert_eq!(read(LLAMA, &["<|python_tag|>{\"name\": \"other\", \"parameters\": {}}"]), ["other({})"]);
        for text in [
            "{\"name\": \"other\", \"parameters\": {}}",
            "{1}",
            "So {\"name\": \"clock\"}",
            "{\"name\": \"clock\"",
        ] {
            assert_eq!(read(LLAMA, &[text]), [text]);
        }
    }

    #[test]
    fn text_without_a_call_is_unchanged() {
        for text in [
            "The <tool_call> mark",
            "a \n<tool_call>\n{\"name\": 1}</tool_call> b ",
            "<tool_call>{\"arguments\": {}}",
            "<tool_call>{\"name\": \"f\", \"arguments\": [1]}",
            "<tool_call>{\"name\": \"f\", \"arg",
            "<tool_call>[]</tool_call>",
            "<tool_ca",
            "a\n\n",
        ] {
            assert_eq!(read(HERMES, &[text]), [text]);
        }
        let long = format!("[TOOL_CALLS]{}{{}}", "x".repeat(300));
        for text in ["[TOOL_CALLS] two words{}", "[TOOL_CALLS]f[ARGS]", &long] {
            assert_eq!(read(MISTRAL, &[text]), [text]);
        }
    }

    #[test]
    fn templates_identify_the_format_of_calls() {
        let open = |source| CallMarks::of_template(source).map(CallMarks::open);
        assert_eq!(open("{{ messages }}"), None);
        assert_eq!(open("a <|tool_call|> b"), Some("<|tool_call|>"));
        assert_eq!(
            [HERMES, MISTRAL, LLAMA].map(open),
            ["<tool_call>", "[TOOL_CALLS]", "<|python_tag|>"].map(Some)
        );
    }

    proptest! {
        #[test]
        fn pieces_give_what_the_whole_gives(
            words in prop::collection::vec(prop::sample::select(vec![
                "<tool_call>", "</tool_call>", "<function=", "</function>", ">", "<parameter=", "<arg_key>", "<function=add>", "<parameter=s>",
                "<parameter=list>", "</parameter>", "add", "<arg_key>s</arg_key>", "<arg_value>", "</arg_value>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "clock", "{", "}", "[", "]", "\"", "\\",
                "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
                "<|tool_call>", "call:", "<tool_call|>", "<|\"|>", "<|tool_call_start|>", "(", ")", "<|tool_call_end|>",
                ";", "to=functions.", "<|message|>", "{\"name\": \"clock\", \"parameters\": {}}", "<", "a", "é", " ", "\n",
            ]), 0..12),
            cuts in prop::collection::vec(0usize..80, 0..8),
            template in prop::sample::select(vec![HERMES, MISTRAL, LLAMA, CODER, GLM, HARMONY, DEEPSEEK, GEMMA, LFM]),
        ) {
            let whole = words.concat();
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|&at| whole.is_char_boundary(at)).collect();
            cuts.extend([0, whole.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|pair| &whole[pair[0]..pair[1]]).collect();
            prop_assert_eq!(read(template, &pieces), read(template, &[&whole]));
        }

        /// `read` checks that what is passed on is what is parsed.
        #[test]
        fn what_is_passed_on_of_arguments_between_tags_is_what_is_parsed(
            arguments in prop::collection::vec(
                (
                    prop::sample::select(vec!["s", "list", "other"]),
                    prop::collection::vec(prop::sample::select(vec![
                        "\n", "a", "\"", "\\", "é", "<", "</para", "[", "]", "1", "{", "}", " ", "null", "</parameter>", "</arg_value>",
                        "</function>", "</tool_call>", "<parameter=s>", "<arg_key>",
                    ]), 0..6),
                ),
                0..4,
            ),
            sizes in prop::collection::vec(1usize..9, 1..6),
            is_glm: bool,
        ) {
            let written: String = arguments
                .iter()
                .map(|(key, value)| match is_glm {
                    true => format!("<arg_key>{key}</arg_key>\n<arg_value>{}</arg_value>\n", value.concat()),
                    false => format!("<parameter={key}>{}</parameter>\n", value.concat()),
                })
                .collect();
            let (template, whole) = match is_glm {
                true => (GLM, format!("<tool_call>add\n{written}</tool_call>")),
                false => (CODER, format!("<tool_call>\n<function=add>\n{written}</function>\n</tool_call>")),
            };
            let (mut rest, mut pieces) = (whole.as_str(), Vec::new());
            for size in sizes.iter().cycle() {
                let (piece, behind) = rest.split_at(rest.ceil_char_boundary(*size));
                pieces.push(piece);
                rest = behind;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(read(template, &pieces), read(template, &[&whole]));
        }
    }
}
