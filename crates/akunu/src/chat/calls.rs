//! Separates tool calls from the text around them, as it streams.

use std::sync::Arc;

use akunu_grammar::{CallForm, fits_tags};
use serde_json::{Map, Value as Json};

use super::call_json::{self, Scan, Unnamed, begins_bare, is_json, named_arguments};
use super::call_literals::{self, LiteralStream, Reached};
use super::call_stream::{TagCall, TagStream};
use super::call_tags::{self, name_of};
use super::families::CallMarks;
use super::reasoning::overlap;

/// A tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    /// The JSON text of an object, in which numbers have the digits that the model wrote.
    pub arguments: String,
}

impl Call {
    /// The arguments. `None`: a number is beyond the range of f64, values are too deep, or a string is not Unicode.
    pub fn object(&self) -> Option<Map<String, Json>> {
        serde_json::from_str(&self.arguments).ok()
    }
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
    /// In a list, which goes on at this offset, after a call or before one. It is 0 unless the list has just begun.
    Listed {
        at: usize,
        after_call: bool,
        has_mark: bool,
    },
    /// The JSON text of a call.
    Json {
        place: Place,
        scan: Scan,
        arguments: Early,
    },
    /// A call with arguments as literals.
    Literals {
        place: Place,
        stream: LiteralStream,
    },
    /// A call with arguments between tags, whose end is searched for from this offset.
    Tagged {
        mark: usize,
        from: usize,
        stream: TagStream,
    },
    /// After a call, or a mark that ends calls.
    After,
}

/// Where a call begins in what is held.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The end of the mark, or of what precedes the call in a list.
    mark: usize,
    start: usize,
    is_listed: bool,
    /// Whether a mark precedes the call, or the list of which it is.
    has_mark: bool,
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
        let has_start = marks.form.is_bare || !marks.form.text_name.is_empty();
        let state = if has_start { State::Start } else { State::Text };
        CallReader { marks, tools: tools.into(), state, held: String::new(), space_end: 0 }
    }

    /// The reader of an answer to a prompt, which may end within a text that the model continues.
    #[must_use]
    pub fn of_prompt(mut self, prompt: &str) -> CallReader {
        if !self.marks.form.text_name.is_empty() && !prompt.ends_with(self.marks.open()) {
            self.state = State::Text;
        }
        self
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
        if matches!(self.state, State::After | State::Listed { at: 0, .. }) {
            let space = self.skip_space(0);
            self.drop_held(space);
        }
        if self.marks.form.ends_text
            && matches!(self.state, State::Text)
            && let Some(end) = self.section_before(self.held.len())
        {
            self.say(end, on_segment);
            self.held.clear();
        }
        let has_begun = match self.state {
            State::Json { arguments, .. } => matches!(arguments, Early::Sent { .. } | Early::All),
            State::Literals { stream, .. } => stream.has_begun(),
            State::Tagged { stream, .. } => stream.has_begun(),
            _ => false,
        };
        if has_begun {
            self.cut(self.held.len(), on_segment);
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
                if !self.marks.form.text_name.is_empty() {
                    return self.named(start, on_segment);
                }
                match self.held[start..].starts_with(self.bare_begin()) {
                    true => self.enter(State::Marked { mark: start }),
                    false => self.enter(State::Text),
                }
            }
            State::Text => {
                let start = self.skip_space(0);
                if let Some((at, mark)) = self.begin_of_call(start) {
                    let before = self.held[..self.section_before(at).unwrap_or(at)].trim_end();
                    let text = if at > start { before.len() } else { 0 };
                    self.say(text, on_segment);
                    self.enter(State::Marked { mark: mark - text });
                } else {
                    let certain = self.held.len() - self.begun();
                    if certain > start {
                        self.say(self.held[..certain].trim_end().len(), on_segment);
                    }
                    return false;
                }
            }
            State::Marked { mark } => return self.marked(mark, on_segment),
            State::Listed { at, after_call, has_mark } => {
                return self.listed(at, after_call, has_mark, on_segment);
            }
            State::Json { place, mut scan, arguments } => {
                let end = scan.end(self.held.as_bytes());
                let arguments = self.pass_on(place, arguments, on_segment);
                let Some(end) = end else {
                    self.state = State::Json { place, scan, arguments };
                    return false;
                };
                match (self.call(place, end), arguments) {
                    (Some(call), _) => self.complete(call, place, end, on_segment),
                    (None, Early::Sent { .. } | Early::All) => self.cut(end, on_segment),
                    (None, _) => self.give_up(end, on_segment),
                }
            }
            State::Literals { place, stream } => return self.literals(place, stream, on_segment),
            State::Tagged { mark, from, mut stream } => {
                let [_, end] = self.marks.around();
                let Some(tags) = self.marks.tags() else { return false };
                self.stream(&mut stream, (mark, self.held.len()), false, on_segment);
                // Only when there is more than before of what may end it.
                let Some(seen) = self.held[from..].rfind(end).map(|at| from + at + end.len()) else {
                    let from = self.held.len() - overlap(&self.held, end);
                    self.state = State::Tagged { mark, from, stream };
                    return false;
                };
                let around = self.marks.around();
                let found = call_tags::end_of(tags, around, &self.held[mark..], &self.tools);
                let Some(at) = found.map(|at| mark + at) else {
                    self.state = State::Tagged { mark, from: seen, stream };
                    return false;
                };
                match call_tags::read(tags, around[0], &self.held[mark..at], &self.tools) {
                    Some(call) => {
                        self.stream(&mut stream, (mark, at), true, on_segment);
                        self.drop_held(at + end.len());
                        self.enter(State::After);
                        on_segment(Segment::Call(call));
                    }
                    None if stream.has_begun() => self.cut(at, on_segment),
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

    /// In a list of calls.
    fn listed(&mut self, at: usize, after_call: bool, has_mark: bool, on_segment: OnSegment<'_>) -> bool {
        let start = self.skip_space(at);
        let literals = self.marks.literals();
        match self.held[start..].chars().next() {
            None => return false,
            Some(',') if after_call => {
                self.drop_held(start + 1);
                self.enter(State::Listed { at: 0, after_call: false, has_mark });
            }
            Some(']') if after_call || at == 0 => {
                self.drop_held(start + 1);
                self.enter(State::After);
            }
            Some('{') if !after_call => {
                let place = Place { mark: at, start, is_listed: true, has_mark };
                self.enter(State::Json { place, scan: Scan::from(start), arguments: Early::Unknown });
            }
            Some(_) if !after_call && literals.is_some() => {
                let place = Place { mark: at, start, is_listed: true, has_mark };
                self.enter(State::Literals { place, stream: LiteralStream::default() });
            }
            Some(_) if after_call => {
                self.drop_held(start);
                self.enter(State::Text);
            }
            Some(_) => self.give_up(start, on_segment),
        }
        true
    }

    /// In a call with arguments as literals.
    fn literals(&mut self, place: Place, mut stream: LiteralStream, on_segment: OnSegment<'_>) -> bool {
        let Some(form) = self.marks.literals() else { return false };
        let text = &self.held[place.start..];
        let may_call = |name: &str| self.is_known(place, name);
        match stream.advance(&form, text, &may_call, on_segment) {
            Reached::Yet => {
                self.state = State::Literals { place, stream };
                return false;
            }
            Reached::End(len) => match call_literals::read(&form, text) {
                Some(call) => self.complete(call, place, place.start + len, on_segment),
                None => self.cut(place.start + len, on_segment),
            },
            Reached::Never if stream.has_begun() => self.cut(place.start + stream.reached(), on_segment),
            Reached::Never => self.give_up(place.start, on_segment),
        }
        true
    }

    /// Emits a call that ends here.
    fn complete(&mut self, call: Call, place: Place, end: usize, on_segment: OnSegment<'_>) {
        self.drop_held(end);
        let has_mark = place.has_mark;
        self.enter(match place.is_listed {
            true => State::Listed { at: 0, after_call: true, has_mark },
            false => State::After,
        });
        on_segment(Segment::Call(call));
    }

    /// Announces a call that is JSON, once its name is known, and passes on its arguments.
    fn pass_on(&self, place: Place, arguments: Early, on_segment: OnSegment<'_>) -> Early {
        let (mut scan, mut sent) = match arguments {
            Early::Late | Early::All => return arguments,
            Early::Sent { scan, sent } => (scan, sent),
            Early::Unknown => {
                let (start, header) = (place.start, self.header(place));
                let found = match header.is_empty() {
                    true => named_arguments(&self.held[start..], self.marks.names_by_key())
                        .map(|(name, at)| (name, start + at)),
                    false => self.name_in(header).map(|name| (name, start)).ok_or(Unnamed::Never),
                };
                match found {
                    Ok((name, at)) if self.is_known(place, &name) && self.may_begin(place) => {
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

    /// Where the first call begins behind `start`, and where its mark ends, which may be missing.
    fn begin_of_call(&self, start: usize) -> Option<(usize, usize)> {
        let (text, open) = (&self.held[start..], self.marks.open());
        let CallForm { section, ends_text, .. } = self.marks.form;
        let may_begin = |at: &usize| !ends_text || self.held[..*at].ends_with(section[0]);
        let found = text.match_indices(open).map(|(at, _)| start + at).find(may_begin);
        let marked = found.map(|at| (at, at + open.len()));
        let unmarked =
            self.unmarked().filter_map(|begin| text.find(&begin)).map(|at| (start + at, start + at));
        marked.into_iter().chain(unmarked).min()
    }

    /// What begins calls of the tools without a mark.
    fn unmarked(&self) -> impl Iterator<Item = String> {
        let fits = |tool: &&Json| tool["function"].get("parameters").is_none_or(fits_tags);
        self.tools.iter().filter(fits).filter_map(name_of).filter_map(|name| self.marks.unmarked(name))
    }

    /// How much of the end of what is held may be the beginning of marks before a call.
    fn begun(&self) -> usize {
        let (held, section) = (self.held.as_str(), self.marks.form.section[0]);
        let unmarked = self.unmarked().map(|begin| overlap(held, &begin)).max().unwrap_or(0);
        let open = overlap(held, self.marks.open()).max(unmarked);
        match self.section_before(held.len() - open) {
            _ if section.is_empty() => open,
            Some(at) => held.len() - at,
            None => open.max(overlap(held, section)),
        }
    }

    /// Where the mark before all calls begins, if what is held has it before `end`, and little white space behind it.
    fn section_before(&self, end: usize) -> Option<usize> {
        let section = self.marks.form.section[0].trim_end();
        let near = self.held.ceil_char_boundary(end.saturating_sub(section.len() + LONGEST_HEADER)).min(end);
        let before = self.held[near..end].trim_end().strip_suffix(section)?;
        (!section.is_empty()).then_some(near + before.len())
    }

    /// Decides by the text after a mark.
    fn marked(&mut self, mark: usize, on_segment: OnSegment<'_>) -> bool {
        let place = self.place(mark);
        let Place { start, has_mark, .. } = place;
        let rest = &self.held[start..];
        if !self.marks.form.text_name.is_empty() {
            return !rest.is_empty() && self.named(start, on_segment);
        }
        let is_json = rest.starts_with('{');
        if rest.is_empty() {
            return false;
        }
        if self.marks.open().ends_with('[') {
            self.enter(State::Listed { at: mark, after_call: false, has_mark });
            return true;
        }
        if rest.starts_with('[') && self.marks.tags().is_none() {
            self.enter(State::Listed { at: start + 1, after_call: false, has_mark });
            return true;
        }
        if self.marks.literals().is_some() && !is_json {
            self.enter(State::Literals { place, stream: LiteralStream::default() });
            return true;
        }
        if self.marks.tags().is_some() && !is_json {
            match self.marks.around()[0] {
                name if rest.starts_with(name) => {
                    self.enter(State::Tagged { mark, from: start, stream: TagStream::default() })
                }
                name if name.starts_with(rest) => return false,
                _ => self.give_up(mark, on_segment),
            }
            return true;
        }
        self.headed(place, on_segment)
    }

    /// The place of a call that is not in a list, behind this mark or where one could be.
    fn place(&mut self, mark: usize) -> Place {
        let has_mark = self.held[..mark].ends_with(self.marks.open());
        Place { mark, start: self.skip_space(mark), is_listed: false, has_mark }
    }

    /// Looks for the arguments behind a name.
    fn headed(&mut self, place: Place, on_segment: OnSegment<'_>) -> bool {
        let Place { mark, start, .. } = place;
        let rest = &self.held[start..];
        let has_header = !self.marks.between.is_empty() && !rest.starts_with('{');
        let header = if has_header { rest.find('{').unwrap_or(rest.len()) } else { 0 };
        match rest.as_bytes().get(header) {
            _ if header > LONGEST_HEADER => self.give_up(mark, on_segment),
            None => return false,
            Some(b'{') => {
                let start = start + header;
                let (scan, arguments) = (Scan::from(start), Early::Unknown);
                self.enter(State::Json { place: Place { start, ..place }, scan, arguments });
            }
            Some(_) => self.give_up(mark, on_segment),
        }
        true
    }

    /// Decides by the name of a tool, or that of text, at this place.
    fn named(&mut self, start: usize, on_segment: OnSegment<'_>) -> bool {
        let (rest, text_name) = (&self.held[start..], self.marks.form.text_name);
        let end = self.marks.between.first().copied().unwrap_or_default();
        let names = || self.tools.iter().filter_map(name_of);
        if rest.starts_with(text_name) {
            self.drop_held(start + text_name.len());
            self.enter(State::Text);
        } else if names().any(|name| rest.strip_prefix(name).is_some_and(|behind| behind.starts_with(end))) {
            let place = self.place(start);
            return self.headed(place, on_segment);
        } else if text_name.starts_with(rest) || names().any(|name| format!("{name}{end}").starts_with(rest))
        {
            return false;
        } else {
            self.give_up(start, on_segment);
        }
        true
    }

    /// After a call there may be a closing mark, or another call.
    fn after(&mut self) -> bool {
        let (fence, bare) = (self.marks.fence, self.marks.form.is_bare);
        let CallForm { close, section, .. } = self.marks.form;
        let ends = [close, self.marks.ending, section[1]].into_iter().filter(|end| !end.is_empty());
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
        } else if bare && next.starts_with(self.bare_begin()) {
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

    /// Emits this much as the text of a call that has begun and is not complete.
    fn cut(&mut self, len: usize, on_segment: OnSegment<'_>) {
        on_segment(Segment::Cut(&self.held[..len]));
        self.drop_held(len);
        self.enter(State::Text);
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

    /// Parses a call that is JSON, or has JSON as its arguments.
    fn call(&self, place: Place, end: usize) -> Option<Call> {
        let text = &self.held[place.start..end];
        let call = match self.header(place) {
            "" => call_json::read(text, self.marks.names_by_key())?,
            header if is_json(text) => Call { name: self.name_in(header)?, arguments: text.into() },
            _ => return None,
        };
        // Only such a beginning is held to the tool's schema.
        (self.is_known(place, &call.name) && self.may_begin(place)).then_some(call)
    }

    /// What is between the mark and the arguments.
    fn header(&self, place: Place) -> &str {
        self.held[place.mark..place.start].trim()
    }

    fn may_begin(&self, place: Place) -> bool {
        let is_named = !self.marks.form.text_name.is_empty();
        place.has_mark || is_named || begins_bare(&self.held[place.start..], &self.tools)
    }

    /// Whether a name is a tool's, if its call has no mark.
    fn is_known(&self, place: Place, name: &str) -> bool {
        place.has_mark || self.tools.iter().any(|tool| name_of(tool) == Some(name))
    }

    /// What calls without a mark begin with.
    fn bare_begin(&self) -> char {
        if self.marks.form.is_list { '[' } else { '{' }
    }

    /// `NAME`, `NAME[ARGS]`, `NAME[CALL_ID]ID[ARGS]`, `NAME<|channel|>commentary json<|message|>`, `functions.NAME:0`.
    fn name_in(&self, header: &str) -> Option<String> {
        let header = header.strip_prefix(self.marks.prefix).unwrap_or(header);
        let ends = self.marks.between.iter().filter_map(|mark| header.find(mark));
        let name = header[..ends.min().unwrap_or(header.len())].trim();
        (!name.is_empty() && !name.contains(char::is_whitespace)).then(|| name.to_string())
    }
}

#[cfg(test)]
mod tests;
