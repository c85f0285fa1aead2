//! Methods of strings, lists and dictionaries.

use super::eval::Interpreter;
use super::functions::Arguments;
use super::python::is_space;
use super::text::{Text, TextBuffer};
use super::value::{Id, Value};
use super::{JinjaError, JinjaResult};

pub(super) const STR_METHODS: [&str; 41] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
];
pub(super) const DICT_METHODS: [&str; 9] =
    ["clear", "copy", "get", "items", "keys", "pop", "setdefault", "update", "values"];
pub(super) const LIST_METHODS: [&str; 11] =
    ["append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort"];
const TUPLE_METHODS: [&str; 2] = ["count", "index"];
const LOOP_METHODS: [&str; 2] = ["changed", "cycle"];

/// The method of a value, if it has one of this name.
pub(super) fn find(value: &Value, name: &str) -> Option<&'static str> {
    let known: &[&'static str] = match value {
        Value::Str(_) => &STR_METHODS,
        Value::Dict(_) => &DICT_METHODS,
        Value::List(_) => &LIST_METHODS,
        Value::Tuple(_) => &TUPLE_METHODS,
        Value::Loop(_) => &LOOP_METHODS,
        _ => &[],
    };
    known.iter().find(|known| **known == name).copied()
}

impl Interpreter<'_> {
    pub(super) fn call_method(&mut self, on: &Value, name: &str, arguments: Arguments) -> JinjaResult<Value> {
        match on {
            Value::Str(text) => self.str_method(text, name, arguments),
            Value::Dict(id) => self.dict_method(*id, name, arguments),
            Value::List(id) | Value::Tuple(id) => self.list_method(*id, name, arguments),
            Value::Loop(id) => self.loop_method(*id, name, arguments),
            _ => Ok(Value::None),
        }
    }

    fn loop_method(&mut self, id: Id, name: &str, arguments: Arguments) -> JinjaResult<Value> {
        let values = arguments.positional;
        if name == "cycle" {
            let index = self.heap.get_loop(id).index;
            let chosen = index.checked_rem(values.len()).map(|at| values[at].clone());
            return chosen.ok_or_else(|| JinjaError::type_error("no items for cycling given"));
        }
        let before = self.heap.get_loop_mut(id).changed.replace(values.clone());
        let Some(before) = before.filter(|before| before.len() == values.len()) else {
            return Ok(Value::Bool(true));
        };
        for (a, b) in before.iter().zip(&values) {
            if !self.heap.equal(a, b, &mut self.limits)? {
                return Ok(Value::Bool(true));
            }
        }
        Ok(Value::Bool(false))
    }

    fn dict_method(&mut self, id: Id, name: &str, arguments: Arguments) -> JinjaResult<Value> {
        let (count, limits) = (self.heap.entries(id).entries.len(), &mut self.limits);
        // A key that is removed moves those after it.
        limits.spend(if name == "pop" { count / 4 } else { count / 16 })?;
        let entries = |me: &Self| me.heap.entries(id).entries.clone();
        match name {
            "get" | "pop" | "setdefault" => {
                let given = arguments.positional.len();
                let [key, default] = arguments.take(name, ["key", "default"])?;
                let key_value = key.ok_or_else(|| missing(name))?;
                let key = self.heap.key(&key_value, &mut self.limits)?;
                let found = self.heap.entries(id).get(&key).cloned();
                match (name, found) {
                    ("pop", Some(_)) => Ok(self.heap.entries_mut(id).remove(&key).unwrap_or(Value::None)),
                    ("pop", None) if given < 2 => {
                        let shown = self.text_of(&key_value)?;
                        Err(JinjaError::type_error(format!("there is no key '{}' to pop", shown.shown())))
                    }
                    ("setdefault", None) => {
                        let value = default.unwrap_or(Value::None);
                        self.limits.bytes(4 * size_of::<Value>())?;
                        self.heap.entries_mut(id).insert(key, key_value, value.clone());
                        Ok(value)
                    }
                    (_, Some(found)) => Ok(found),
                    (_, None) => Ok(default.unwrap_or(Value::None)),
                }
            }
            "items" => {
                let pairs = entries(self).into_iter();
                let pairs = pairs.map(|(key, value)| self.heap.tuple(vec![key, value], &mut self.limits));
                let pairs = pairs.collect::<JinjaResult<_>>()?;
                self.heap.list(pairs, &mut self.limits)
            }
            "keys" | "values" => {
                let pick = |(key, value)| if name == "keys" { key } else { value };
                let items = entries(self).into_iter().map(pick).collect();
                self.heap.list(items, &mut self.limits)
            }
            "copy" => self.make_dict(entries(self)),
            "clear" => {
                *self.heap.entries_mut(id) = Default::default();
                Ok(Value::None)
            }
            _ => {
                let mut added = match arguments.positional.as_slice() {
                    [] => Vec::new(),
                    [Value::Dict(other)] => {
                        self.limits.spend(self.heap.entries(*other).entries.len() / 16)?;
                        self.heap.entries(*other).entries.clone()
                    }
                    _ => return Err(JinjaError::type_error("update() takes a dictionary")),
                };
                added.extend(arguments.named.into_iter().map(|(name, value)| (Value::Str(name), value)));
                for (name, value) in added {
                    self.limits.bytes(4 * size_of::<Value>())?;
                    let key = self.heap.key(&name, &mut self.limits)?;
                    self.heap.entries_mut(id).insert(key, name, value);
                }
                Ok(Value::None)
            }
        }
    }

    fn list_method(&mut self, id: Id, name: &str, arguments: Arguments) -> JinjaResult<Value> {
        self.limits.bytes(size_of::<Value>())?;
        self.limits.spend(self.heap.items(id).len() / 64)?;
        let [first, second] = arguments.take(name, ["", " "])?;
        let index = |value: &Option<Value>, default: i128| match value {
            None => Ok(default),
            Some(value) => value.as_int().ok_or_else(|| JinjaError::type_error("an index must be a number")),
        };
        match name {
            "append" => self.heap.items_mut(id).push(first.ok_or_else(|| missing(name))?),
            "pop" => return self.pop(id, index(&first, -1)?),
            "insert" => {
                let len = self.heap.items(id).len() as i128;
                let at = index(&first, 0)?;
                let at = if at < 0 { (at + len).max(0) } else { at.min(len) };
                self.heap.items_mut(id).insert(at as usize, second.ok_or_else(|| missing(name))?);
            }
            "extend" => {
                let items = self.iterate(&first.ok_or_else(|| missing(name))?)?;
                self.heap.items_mut(id).extend(items.iter().cloned());
            }
            "clear" => self.heap.items_mut(id).clear(),
            "reverse" => self.heap.items_mut(id).reverse(),
            "sort" => {
                let items = self.heap.items(id).to_vec();
                let sorted = self.sorted(items, |_, item| Ok(item.clone()), false)?;
                *self.heap.items_mut(id) = sorted;
            }
            "copy" => {
                let items = self.heap.items(id).to_vec();
                return self.heap.list(items, &mut self.limits);
            }
            _ => {
                let wanted = first.ok_or_else(|| missing(name))?;
                let mut places = Vec::new();
                for (at, item) in self.heap.items(id).iter().enumerate() {
                    if self.heap.equal(item, &wanted, &mut self.limits)? {
                        places.push(at);
                    }
                }
                if name == "count" {
                    return Ok(Value::Int(places.len() as i128));
                }
                let Some(&at) = places.first() else {
                    return Err(JinjaError::type_error(format!("{name}(): the value is not in the list")));
                };
                if name == "index" {
                    return Ok(Value::Int(at as i128));
                }
                self.heap.items_mut(id).remove(at);
            }
        }
        Ok(Value::None)
    }

    fn str_method(&mut self, text: &Text, name: &str, arguments: Arguments) -> JinjaResult<Value> {
        // The result of most methods is about as long as the string; methods with longer results count them separately.
        self.limits.bytes(16 + 2 * text.len())?;
        let string = text.as_str();
        let all = |test: fn(char) -> bool| Ok(Value::Bool(!string.is_empty() && string.chars().all(test)));
        let cased = |upper: bool| {
            let wrong = |c: char| if upper { c.is_lowercase() } else { c.is_uppercase() };
            let right = |c: char| if upper { c.is_uppercase() } else { c.is_lowercase() };
            Ok(Value::Bool(string.chars().any(right) && !string.chars().any(wrong)))
        };
        match name {
            "strip" | "lstrip" | "rstrip" => {
                let [chars] = arguments.take(name, ["chars"])?;
                Ok(Value::Str(stripped(text, name, chars.as_ref())?))
            }
            "split" | "rsplit" => self.split(text, name == "rsplit", arguments),
            "splitlines" => {
                let [keep] = arguments.take(name, ["keepends"])?;
                let keep = keep.is_some_and(|keep| self.heap.truth(&keep));
                self.limits.bytes(PART * count_of(string, ends_line))?;
                let lines =
                    lines(string, keep).into_iter().map(|range| Value::Str(text.slice(range))).collect();
                self.heap.list(lines, &mut self.limits)
            }
            "partition" | "rpartition" => self.partition(text, name == "rpartition", arguments),
            "replace" => {
                let [old, new, count] = arguments.take(name, ["old", "new", "count"])?;
                self.replace(text, old.as_ref(), new.as_ref(), count.as_ref()).map(Value::Str)
            }
            "startswith" | "endswith" => self.starts_or_ends(string, name == "startswith", arguments),
            "removeprefix" | "removesuffix" => {
                let [affix] = arguments.take(name, ["affix"])?;
                let affix = expect_str(name, affix.as_ref())?;
                let rest = match name {
                    "removeprefix" => string.strip_prefix(affix.as_str()).map(|_| affix.len()..text.len()),
                    _ => string.strip_suffix(affix.as_str()).map(|rest| 0..rest.len()),
                };
                Ok(Value::Str(rest.map_or_else(|| text.clone(), |range| text.slice(range))))
            }
            "find" | "rfind" | "index" | "rindex" | "count" => {
                let [part] = arguments.take(name, ["sub"])?;
                search(text, name, &expect_str(name, part.as_ref())?)
            }
            "join" => {
                let [items] = arguments.take(name, ["iterable"])?;
                let items = self.iterate(&items.ok_or_else(|| missing(name))?)?;
                if let Some(other) = items.iter().find(|item| !matches!(item, Value::Str(_))) {
                    let message = format!("sequence item: expected str instance, {} found", other.kind());
                    return Err(JinjaError::type_error(message));
                }
                self.join(&items, text).map(Value::Str)
            }
            "format" => self.brace_format(text, arguments).map(Value::Str),
            "center" | "ljust" | "rjust" | "zfill" => self.justify(text, name, arguments).map(Value::Str),
            "isalnum" => all(char::is_alphanumeric),
            "isalpha" => all(char::is_alphabetic),
            "isdecimal" | "isdigit" | "isnumeric" => all(char::is_numeric),
            "isspace" => all(is_space),
            "isascii" => Ok(Value::Bool(string.is_ascii())),
            "islower" => cased(false),
            "isupper" => cased(true),
            "istitle" => Ok(Value::Bool(string.chars().any(char::is_alphabetic) && titled(string) == string)),
            "title" => Ok(Value::Str(text.like(titled(string)))),
            "capitalize" => Ok(Value::Str(text.like(capitalized(string)))),
            "swapcase" => Ok(Value::Str(text.map_runs(|run| {
                let swap = |c: char| match c.is_uppercase() {
                    true => c.to_lowercase().to_string(),
                    false => c.to_uppercase().to_string(),
                };
                run.chars().map(swap).collect()
            }))),
            "upper" => Ok(Value::Str(text.map_runs(str::to_uppercase))),
            "expandtabs" => {
                let [size] = arguments.take(name, ["tabsize"])?;
                let size = size.and_then(|size| size.as_int()).unwrap_or(8).clamp(0, 256) as usize;
                self.limits.bytes(2 * size * string.matches('\t').count() + string.len())?;
                let mut column = 0;
                Ok(Value::Str(text.map_runs(|run| tabs_expanded(run, size, &mut column))))
            }
            _ => Ok(Value::Str(text.map_runs(str::to_lowercase))),
        }
    }

    fn split(&mut self, text: &Text, from_end: bool, arguments: Arguments) -> JinjaResult<Value> {
        let [separator, most] = arguments.take("split", ["sep", "maxsplit"])?;
        let most = most.and_then(|most| most.as_int()).and_then(|most| usize::try_from(most).ok());
        let most = most.unwrap_or(usize::MAX);
        let string = text.as_str();
        let ranges = match separator {
            None | Some(Value::None) => {
                self.limits.bytes(PART * count_of(string, is_space))?;
                words(string, most, from_end)
            }
            Some(separator) => {
                let separator = expect_str("split", Some(&separator))?;
                if separator.is_empty() {
                    return Err(JinjaError::type_error("empty separator"));
                }
                self.limits.bytes(PART * string.matches(separator.as_str()).count())?;
                let found = |range: (usize, &str)| range.0..range.0 + range.1.len();
                let mut places: Vec<_> = match from_end {
                    true => string.rmatch_indices(separator.as_str()).take(most).map(found).collect(),
                    false => string.match_indices(separator.as_str()).take(most).map(found).collect(),
                };
                if from_end {
                    places.reverse();
                }
                let starts = std::iter::once(0).chain(places.iter().map(|range| range.end));
                let ends = places.iter().map(|range| range.start).chain([string.len()]);
                starts.zip(ends).map(|(start, end)| start..end).collect()
            }
        };
        let parts = ranges.into_iter().map(|range| Value::Str(text.slice(range))).collect();
        self.heap.list(parts, &mut self.limits)
    }

    fn partition(&mut self, text: &Text, from_end: bool, arguments: Arguments) -> JinjaResult<Value> {
        let [separator] = arguments.take("partition", ["sep"])?;
        let separator = expect_str("partition", separator.as_ref())?;
        let string = text.as_str();
        let at = if from_end { string.rfind(separator.as_str()) } else { string.find(separator.as_str()) };
        let parts = match (at, from_end) {
            (Some(at), _) => {
                let end = at + separator.len();
                [text.slice(0..at), text.slice(at..end), text.slice(end..text.len())]
            }
            (None, false) => [text.clone(), Text::default(), Text::default()],
            (None, true) => [Text::default(), Text::default(), text.clone()],
        };
        self.heap.tuple(parts.map(Value::Str).into(), &mut self.limits)
    }

    pub(super) fn replace(
        &mut self,
        text: &Text,
        old: Option<&Value>,
        new: Option<&Value>,
        count: Option<&Value>,
    ) -> JinjaResult<Text> {
        let (old, new) = (expect_str("replace", old)?, expect_str("replace", new)?);
        let most = count.and_then(Value::as_int).and_then(|most| usize::try_from(most).ok());
        let mut out = TextBuffer::default();
        let mut at = 0;
        for (start, found) in text.as_str().match_indices(old.as_str()).take(most.unwrap_or(usize::MAX)) {
            self.limits.bytes(16 + new.len())?;
            out.push_text(&text.slice(at..start));
            out.push_text(&new);
            at = start + found.len();
        }
        if at == 0 && out.len() == 0 {
            return Ok(text.clone());
        }
        out.push_text(&text.slice(at..text.len()));
        Ok(out.finish())
    }

    fn starts_or_ends(&mut self, string: &str, starts: bool, arguments: Arguments) -> JinjaResult<Value> {
        let name = if starts { "startswith" } else { "endswith" };
        let [affix] = arguments.take(name, ["prefix"])?;
        let has = |affix: &str| if starts { string.starts_with(affix) } else { string.ends_with(affix) };
        match affix {
            Some(Value::Str(affix)) => Ok(Value::Bool(has(affix.as_str()))),
            Some(Value::Tuple(id)) => {
                self.limits.spend(self.heap.items(id).len() * (1 + string.len() / 64))?;
                let any = |item: &Value| matches!(item, Value::Str(affix) if has(affix.as_str()));
                Ok(Value::Bool(self.heap.items(id).iter().any(any)))
            }
            _ => Err(JinjaError::type_error(format!("{name} first arg must be str or a tuple of str"))),
        }
    }

    /// `separator.join(items)`, with each item converted by `str`.
    pub(super) fn join(&mut self, items: &[Value], separator: &Text) -> JinjaResult<Text> {
        let mut out = TextBuffer::default();
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.limits.bytes(separator.len())?;
                out.push_text(separator);
            }
            super::python::write(&self.heap, item, self.names, &mut out, &mut self.limits)?;
        }
        Ok(out.finish())
    }

    fn justify(&mut self, text: &Text, name: &str, arguments: Arguments) -> JinjaResult<Text> {
        let [width, fill] = arguments.take(name, ["width", "fillchar"])?;
        let width = width.and_then(|width| width.as_int()).unwrap_or(0).clamp(0, 1 << 20) as usize;
        let fill = match fill {
            Some(Value::Str(fill)) => fill.as_str().to_string(),
            _ if name == "zfill" => "0".to_string(),
            _ => " ".to_string(),
        };
        let missing = width.saturating_sub(text.as_str().chars().count());
        self.limits.bytes((1 + missing) * fill.len())?;
        let (left, right) = match name {
            "ljust" => (0, missing),
            // Python puts the extra space on the right, unless the width is odd.
            "center" => (missing / 2 + (missing & width & 1), missing - missing / 2 - (missing & width & 1)),
            _ => (missing, 0),
        };
        let sign = usize::from(name == "zfill" && text.as_str().starts_with(['-', '+']));
        let mut out = TextBuffer::default();
        out.push_text(&text.slice(0..sign));
        out.push_trusted(&fill.repeat(left));
        out.push_text(&text.slice(sign..text.len()));
        out.push_trusted(&fill.repeat(right));
        Ok(out.finish())
    }
}

fn missing(name: &str) -> JinjaError {
    JinjaError::type_error(format!("{name}(): missing argument"))
}

fn expect_str(function: &str, value: Option<&Value>) -> JinjaResult<Text> {
    match value {
        Some(Value::Str(text)) => Ok(text.clone()),
        Some(Value::Undefined(what)) => Err(JinjaError::type_error(what.to_string())),
        Some(other) => {
            let message = format!("{function}() argument must be str, not {}", other.kind());
            Err(JinjaError::type_error(message))
        }
        None => Err(missing(function)),
    }
}

/// `strip`, `lstrip` or `rstrip` of the given characters, or of whitespace.
pub(super) fn stripped(text: &Text, name: &str, chars: Option<&Value>) -> JinjaResult<Text> {
    let set: Option<Vec<char>> = match chars {
        None | Some(Value::None) => None,
        given => {
            let mut set: Vec<char> = expect_str(name, given)?.as_str().chars().take(256).collect();
            set.sort_unstable();
            Some(set)
        }
    };
    let strip = |c: char| set.as_ref().map_or_else(|| is_space(c), |set| set.binary_search(&c).is_ok());
    let text = if name == "rstrip" { text.clone() } else { text.trim_start(strip) };
    Ok(if name == "lstrip" { text } else { text.trim_end(strip) })
}

fn search(text: &Text, name: &str, part: &Text) -> JinjaResult<Value> {
    let string = text.as_str();
    if name == "count" {
        return Ok(Value::Int(string.matches(part.as_str()).count() as i128));
    }
    let at = if name.starts_with('r') { string.rfind(part.as_str()) } else { string.find(part.as_str()) };
    match at {
        Some(at) => Ok(Value::Int(string[..at].chars().count() as i128)),
        None if name.ends_with("index") => Err(JinjaError::type_error("substring not found")),
        None => Ok(Value::Int(-1)),
    }
}

/// Bytes of a part of a string: its range, and the string with its header.
pub(super) const PART: usize = 96;

pub(super) fn count_of(string: &str, is_end: impl Fn(char) -> bool) -> usize {
    1 + string.chars().filter(|&c| is_end(c)).count()
}

/// Splits at runs of whitespace; the rest after the last split is kept whole.
fn words(string: &str, most: usize, from_end: bool) -> Vec<std::ops::Range<usize>> {
    let mut found = Vec::new();
    let (mut start, mut end) = (0, string.len());
    loop {
        let rest = &string[start..end];
        let rest = match from_end {
            true => rest.trim_end_matches(is_space),
            false => rest.trim_start_matches(is_space),
        };
        if rest.is_empty() {
            break;
        }
        (start, end) = if from_end { (start, start + rest.len()) } else { (end - rest.len(), end) };
        let space = if from_end { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = space.filter(|_| found.len() < most) else {
            let whole = match from_end {
                true => end - rest.trim_start_matches(is_space).len()..end,
                false => start..end,
            };
            found.push(if space.is_some() { whole } else { start..end });
            break;
        };
        if from_end {
            let space = rest[at..].chars().next().map_or(1, char::len_utf8);
            found.push(start + at + space..end);
            end = start + at;
        } else {
            found.push(start..start + at);
            start += at;
        }
    }
    if from_end {
        found.reverse();
    }
    found
}

/// Python knows more line separators than `\n` and `\r`.
pub(super) fn ends_line(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Python's `splitlines`.
pub(super) fn lines(string: &str, keep: bool) -> Vec<std::ops::Range<usize>> {
    let mut found = Vec::new();
    let mut start = 0;
    while start < string.len() {
        let (end, next) = match string[start..].find(ends_line) {
            None => (string.len(), string.len()),
            Some(at) => {
                let end = start + at;
                let len = if string[end..].starts_with("\r\n") {
                    2
                } else {
                    string[end..].chars().next().map_or(1, char::len_utf8)
                };
                (end, end + len)
            }
        };
        found.push(start..if keep { next } else { end });
        start = next;
    }
    found
}

pub(super) fn capitalized(string: &str) -> String {
    let mut chars = string.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().chain(chars.as_str().to_lowercase().chars()).collect(),
        None => String::new(),
    }
}

/// `str.title`: letters after a letter become lower case.
fn titled(string: &str) -> String {
    let mut inside = false;
    let mut out = String::with_capacity(string.len());
    for c in string.chars() {
        if inside {
            out.extend(c.to_lowercase())
        } else {
            out.extend(c.to_uppercase())
        }
        inside = c.is_alphabetic();
    }
    out
}

/// Spaces up to the next multiple of the size of a tab. The column is that at the end of the text before.
fn tabs_expanded(text: &str, size: usize, column: &mut usize) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' => {
                let width = if size == 0 { 0 } else { size - *column % size };
                out.extend(std::iter::repeat_n(' ', width));
                *column += width;
            }
            _ => {
                out.push(c);
                *column = if matches!(c, '\n' | '\r') { 0 } else { *column + 1 };
            }
        }
    }
    out
}
