//! Filters.

use std::cmp::Ordering;
use std::sync::Arc;

use super::ast::Args;
use super::eval::Interpreter;
use super::functions::Arguments;
use super::methods::{PART, capitalized, count_of, ends_line, lines, stripped};
use super::operators::html_escaped;
use super::text::{Text, TextBuffer, shown};
use super::value::{Dict, Value};
use super::{JinjaError, JinjaResult, input, json};

pub(super) const NAMES: [&str; 49] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "forceescape",
    "format",
    "from_json",
    "fromjson",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
];

impl<'t> Interpreter<'t> {
    pub(super) fn filter(&mut self, name: &str, value: Value, args: &'t Args) -> JinjaResult<Value> {
        let arguments = self.arguments(args)?;
        self.limits.enter()?;
        let result = self.apply(name, value, arguments)?;
        self.limits.leave();
        Ok(result)
    }

    fn apply(&mut self, name: &str, value: Value, arguments: Arguments) -> JinjaResult<Value> {
        if !NAMES.contains(&name) {
            return Err(JinjaError::type_error(format!("no filter named '{}'", shown(name))));
        }
        match name {
            "map" => self.map(&value, arguments),
            "select" | "reject" | "selectattr" | "rejectattr" => self.select(name, &value, arguments),
            "tojson" => self.tojson(&value, arguments),
            "default" | "d" => {
                let [default, boolean] = arguments.take(name, ["default_value", "boolean"])?;
                let falsy = boolean.is_some_and(|b| self.heap.truth(&b)) && !self.heap.truth(&value);
                let replace = value.is_undefined() || falsy;
                Ok(if replace { default.unwrap_or_else(|| Value::str("")) } else { value })
            }
            "length" | "count" => {
                let [] = arguments.take(name, [])?;
                Ok(Value::Int(self.length(&value)? as i128))
            }
            "string" => Ok(Value::Str(self.text_of(&value)?)),
            "safe" => Ok(Value::Str(self.text_of(&value)?.marked_safe(true))),
            "list" => {
                let items = self.iterate(&value)?;
                self.heap.list(items.to_vec(), &mut self.limits)
            }
            "first" | "last" => {
                let items = self.iterate(&value)?;
                let found = if name == "first" { items.first() } else { items.last() };
                let none = || Value::Undefined("No item, sequence was empty.".into());
                Ok(found.cloned().unwrap_or_else(none))
            }
            "items" => match &value {
                Value::Dict(_) => self.call_method(&value, "items", arguments),
                Value::Undefined(_) => self.heap.list(Vec::new(), &mut self.limits),
                _ => Err(JinjaError::type_error("Can only get item pairs from a mapping.")),
            },
            "join" => self.join_filter(&value, arguments),
            "sort" | "unique" | "min" | "max" | "sum" | "groupby" => {
                self.by_attribute(name, &value, arguments)
            }
            "dictsort" => self.dictsort(&value, arguments),
            "reverse" => self.reverse(&value),
            "batch" | "slice" => self.batch(name, &value, arguments),
            "abs" | "int" | "float" | "round" => self.number(name, &value, arguments),
            "attr" => {
                let [name] = arguments.take(name, ["name"])?;
                self.item(&value, &name.unwrap_or(Value::None))
            }
            "from_json" | "fromjson" => {
                let text = self.text_of(&value)?;
                // A value of one character takes 32 bytes in a list, which may be twice as long as its items.
                self.limits.bytes(32 * text.len())?;
                let parsed = json::parse(text.as_str())?;
                input::value(self, &parsed, !text.untrusted().is_empty())
            }
            _ => self.text_filter(name, &value, arguments),
        }
    }

    fn text_filter(&mut self, name: &str, value: &Value, arguments: Arguments) -> JinjaResult<Value> {
        let text = self.text_of(value)?;
        // The result, and a copy before it is shared. Methods with longer results count them separately.
        self.limits.bytes(4 * text.len())?;
        let done = match name {
            "trim" => {
                let [chars] = arguments.take(name, ["chars"])?;
                stripped(&text, "strip", chars.as_ref())?
            }
            "upper" => text.map_runs(str::to_uppercase),
            "lower" => text.map_runs(str::to_lowercase),
            "capitalize" => text.like(capitalized(text.as_str())),
            "title" => text.like(title(text.as_str())),
            "escape" | "e" | "forceescape" => {
                self.limits.bytes(6 * text.len())?;
                if text.safe && name != "forceescape" { text } else { html_escaped(&text) }
            }
            "replace" => {
                let [old, new, count] = arguments.take(name, ["old", "new", "count"])?;
                let count = count.filter(|count| !matches!(count, Value::None));
                let mut as_text = |value: Option<Value>| match value {
                    Some(value) => self.text_of(&value).map(Value::Str),
                    None => Err(JinjaError::type_error("replace(): missing argument")),
                };
                let (old, new) = (as_text(old)?, as_text(new)?);
                self.replace(&text, Some(&old), Some(&new), count.as_ref())?
            }
            "indent" => self.indent(&text, arguments)?,
            "center" => {
                let value = self.call_method(&Value::Str(text), "center", arguments)?;
                return Ok(value);
            }
            "format" => {
                let Arguments { positional, named } = arguments;
                let values = match named.is_empty() {
                    true => self.heap.tuple(positional, &mut self.limits)?,
                    false => {
                        let entries = named.into_iter().map(|(name, value)| (Value::Str(name), value));
                        self.make_dict(entries.collect())?
                    }
                };
                self.percent(&text, &values)?
            }
            "wordcount" => {
                let words = text.as_str().split(|c: char| !(c.is_alphanumeric() || c == '_'));
                return Ok(Value::Int(words.filter(|word| !word.is_empty()).count() as i128));
            }
            "truncate" => self.truncate(&text, arguments)?,
            "urlencode" => {
                self.limits.bytes(8 * text.len())?;
                text.map_runs(url_encoded)
            }
            _ => text,
        };
        Ok(Value::Str(done))
    }

    fn indent(&mut self, text: &Text, arguments: Arguments) -> JinjaResult<Text> {
        let [width, first, blank] = arguments.take("indent", ["width", "first", "blank"])?;
        let indent: Text = match width {
            None => "    ".into(),
            Some(Value::Str(text)) => text,
            Some(other) => " ".repeat(other.as_int().unwrap_or(4).clamp(0, 256) as usize).into(),
        };
        let is_true = |value: Option<Value>| value.is_some_and(|value| self.heap.truth(&value));
        let (first, blank) = (is_true(first), is_true(blank));
        let mut out = TextBuffer::default();
        // Jinja2 appends a newline before splitting into lines, so that an empty last line counts.
        let with_newline = format!("{}\n", text.as_str());
        self.limits.bytes(PART * count_of(&with_newline, ends_line))?;
        for (index, line) in lines(&with_newline, false).into_iter().enumerate() {
            self.limits.bytes(indent.len() + 1)?;
            out.push_trusted(if index > 0 { "\n" } else { "" });
            if if index == 0 { first } else { blank || !line.is_empty() } {
                out.push_text(&indent);
            }
            out.push_text(&text.slice(line));
        }
        Ok(out.finish().marked_safe(text.safe))
    }

    fn truncate(&mut self, text: &Text, arguments: Arguments) -> JinjaResult<Text> {
        let [length, kill, end, leeway] =
            arguments.take("truncate", ["length", "killwords", "end", "leeway"])?;
        let number =
            |value: Option<Value>, default| value.and_then(|v| v.as_int()).unwrap_or(default).max(0) as usize;
        let (length, leeway) = (number(length, 255), number(leeway, 5));
        let end = match end {
            Some(Value::Str(end)) => end,
            _ => "...".into(),
        };
        if text.as_str().chars().count() <= length.saturating_add(leeway) {
            return Ok(text.clone());
        }
        self.limits.bytes(2 * end.len())?;
        let kept = length.saturating_sub(end.as_str().chars().count());
        let cut = text.as_str().char_indices().nth(kept).map_or(text.len(), |(at, _)| at);
        let mut head = text.slice(0..cut);
        if !kill.is_some_and(|kill| self.heap.truth(&kill))
            && let Some(space) = head.as_str().rfind(' ')
        {
            head = head.slice(0..space);
        }
        let mut out = TextBuffer::default();
        out.push_text(&head);
        out.push_text(&end);
        Ok(out.finish())
    }

    fn reverse(&mut self, value: &Value) -> JinjaResult<Value> {
        if let Value::Str(text) = value {
            self.limits.bytes(text.len() * 16)?;
            let mut out = TextBuffer::default();
            for (at, c) in text.as_str().char_indices().rev() {
                out.push_text(&text.slice(at..at + c.len_utf8()));
            }
            return Ok(Value::Str(out.finish()));
        }
        let items = self.iterate(value)?;
        self.heap.list(items.iter().rev().cloned().collect(), &mut self.limits)
    }

    fn batch(&mut self, name: &str, value: &Value, arguments: Arguments) -> JinjaResult<Value> {
        let [count, fill] = arguments.take(name, ["linecount", "fill_with"])?;
        let count = count.and_then(|count| count.as_int()).unwrap_or(0);
        let count = usize::try_from(count).ok().filter(|count| (1..=100_000).contains(count));
        let count = count.ok_or_else(|| JinjaError::type_error(format!("{name} needs a positive number")))?;
        let items = self.iterate(value)?;
        let mut groups: Vec<Vec<Value>> = Vec::new();
        if name == "batch" {
            groups.extend(items.chunks(count).map(<[Value]>::to_vec));
            if let (Some(last), Some(fill)) = (groups.last_mut(), fill) {
                last.resize(count, fill);
            }
        } else {
            let (each, longer) = (items.len() / count, items.len() % count);
            let mut at = 0;
            for index in 0..count {
                let len = each + usize::from(index < longer);
                let mut group = items[at..at + len].to_vec();
                if index >= longer && longer > 0 {
                    group.extend(fill.clone());
                }
                groups.push(group);
                at += len;
            }
        }
        self.limits.bytes(groups.len() * count.min(64) * size_of::<Value>())?;
        let lists = groups.into_iter().map(|group| self.heap.list(group, &mut self.limits));
        let lists = lists.collect::<JinjaResult<_>>()?;
        self.heap.list(lists, &mut self.limits)
    }

    /// Resolves an attribute path such as `a.b.0`.
    pub(super) fn path(&mut self, value: &Value, path: &Value) -> JinjaResult<Value> {
        let Value::Str(path) = path else { return self.item(value, path) };
        let mut value = value.clone();
        for part in path.as_str().split('.') {
            let index = match part.parse::<i128>() {
                Ok(number) if part.bytes().all(|b| b.is_ascii_digit()) => Value::Int(number),
                _ => Value::str(part),
            };
            value = self.item(&value, &index)?;
        }
        Ok(value)
    }

    fn join_filter(&mut self, value: &Value, arguments: Arguments) -> JinjaResult<Value> {
        let [separator, attribute] = arguments.take("join", ["d", "attribute"])?;
        let separator = match separator {
            Some(separator) => self.text_of(&separator)?,
            None => Text::default(),
        };
        let mut items = self.iterate(value)?.to_vec();
        if let Some(attribute) = attribute {
            for item in &mut items {
                *item = self.path(item, &attribute)?;
            }
        }
        Ok(Value::Str(self.join(&items, &separator)?))
    }

    /// The items of a value, or none if it is false, as for `map` and `select`.
    fn items_if_true(&mut self, value: &Value) -> JinjaResult<Arc<[Value]>> {
        if self.heap.truth(value) { self.iterate(value) } else { Ok(Arc::from([])) }
    }

    fn map(&mut self, value: &Value, mut arguments: Arguments) -> JinjaResult<Value> {
        let items = self.items_if_true(value)?;
        let mut out = Vec::with_capacity(items.len());
        if arguments.positional.is_empty() {
            let [attribute, default] = arguments.take("map", ["attribute", "default"])?;
            let attribute =
                attribute.ok_or_else(|| JinjaError::type_error("map needs a filter or an attribute"))?;
            for item in items.iter() {
                let found = self.path(item, &attribute)?;
                out.push(if found.is_undefined() { default.clone().unwrap_or(found) } else { found });
            }
        } else {
            let name = self.text_of(&arguments.positional.remove(0))?;
            for item in items.iter() {
                self.limits.spend(arguments.positional.len() + arguments.named.len())?;
                let given =
                    Arguments { positional: arguments.positional.clone(), named: arguments.named.clone() };
                out.push(self.apply(name.as_str(), item.clone(), given)?);
            }
        }
        self.heap.list(out, &mut self.limits)
    }

    fn select(&mut self, name: &str, value: &Value, arguments: Arguments) -> JinjaResult<Value> {
        let items = self.items_if_true(value)?;
        let mut given = arguments.positional.into_iter();
        let attribute = match name.ends_with("attr") {
            true => Some(
                given.next().ok_or_else(|| JinjaError::type_error(format!("{name} needs an attribute")))?,
            ),
            false => None,
        };
        let test = match given.next() {
            Some(test) => Some(self.text_of(&test)?),
            None => None,
        };
        let rest: Vec<Value> = given.collect();
        let wanted = name.starts_with("select");
        let mut kept = Vec::new();
        for item in items.iter() {
            let subject = match &attribute {
                Some(attribute) => self.path(item, attribute)?,
                None => item.clone(),
            };
            let holds = match &test {
                Some(test) => {
                    self.limits.spend(rest.len())?;
                    let arguments = Arguments { positional: rest.clone(), named: Vec::new() };
                    self.check(test.as_str(), &subject, arguments)?
                }
                None => self.heap.truth(&subject),
            };
            if holds == wanted {
                kept.push(item.clone());
            }
        }
        self.heap.list(kept, &mut self.limits)
    }

    /// Sorted by a key, stably, as Python's `sorted`.
    pub(super) fn sorted(
        &mut self,
        items: Vec<Value>,
        mut key: impl FnMut(&mut Self, &Value) -> JinjaResult<Value>,
        reverse: bool,
    ) -> JinjaResult<Vec<Value>> {
        let mut keyed = Vec::with_capacity(items.len());
        for item in items {
            keyed.push((key(self, &item)?, item));
        }
        let len = keyed.len();
        self.merge_sort(&mut keyed, len, reverse)?;
        Ok(keyed.into_iter().map(|(_, item)| item).collect())
    }

    /// The sort of the standard library may panic if there is no total order (NaN, or a comparison that fails).
    fn merge_sort(&mut self, keyed: &mut Vec<(Value, Value)>, len: usize, reverse: bool) -> JinjaResult<()> {
        let mut width = 1;
        while width < len {
            self.limits.spend(len / 4)?;
            let mut merged = Vec::with_capacity(len);
            for start in (0..len).step_by(2 * width) {
                let (middle, end) = ((start + width).min(len), (start + 2 * width).min(len));
                let (mut left, mut right) = (start, middle);
                while left < middle && right < end {
                    let order = match reverse {
                        false => self.order(&keyed[left].0, &keyed[right].0)?,
                        true => self.order(&keyed[right].0, &keyed[left].0)?,
                    };
                    let from = if order == Some(Ordering::Greater) { &mut right } else { &mut left };
                    merged.push(keyed[*from].clone());
                    *from += 1;
                }
                merged.extend_from_slice(&keyed[left..middle]);
                merged.extend_from_slice(&keyed[right..end]);
            }
            *keyed = merged;
            width *= 2;
        }
        Ok(())
    }

    /// Lower-cases strings unless the sort is case-sensitive.
    fn folded(&mut self, value: Value, case_sensitive: bool) -> JinjaResult<Value> {
        match value {
            Value::Str(text) if !case_sensitive => {
                self.limits.bytes(4 * text.len())?;
                Ok(Value::str(&text.as_str().to_lowercase()))
            }
            other => Ok(other),
        }
    }

    fn by_attribute(&mut self, name: &str, value: &Value, arguments: Arguments) -> JinjaResult<Value> {
        let (reverse, case_sensitive, attribute, extra) = match name {
            "sort" => {
                let [reverse, case, attribute] =
                    arguments.take(name, ["reverse", "case_sensitive", "attribute"])?;
                (reverse, case, attribute, None)
            }
            "sum" => {
                let [attribute, start] = arguments.take(name, ["attribute", "start"])?;
                (None, None, attribute, start)
            }
            "groupby" => {
                let [attribute, default, case] =
                    arguments.take(name, ["attribute", "default", "case_sensitive"])?;
                (None, case, attribute, default)
            }
            _ => {
                let [case, attribute] = arguments.take(name, ["case_sensitive", "attribute"])?;
                (None, case, attribute, None)
            }
        };
        let truth = |value: Option<Value>| value.is_some_and(|value| self.heap.truth(&value));
        let (reverse, case_sensitive) = (truth(reverse), truth(case_sensitive));
        let attribute = attribute.filter(|attribute| !matches!(attribute, Value::None));
        let key = |me: &mut Self, item: &Value| {
            let found = match &attribute {
                Some(attribute) => me.path(item, attribute)?,
                None => item.clone(),
            };
            let found = if found.is_undefined() { extra.clone().unwrap_or(found) } else { found };
            me.folded(found, case_sensitive || name == "sum")
        };
        let items = self.iterate(value)?.to_vec();
        match name {
            "sort" => {
                let paths = attribute_list(attribute.as_ref());
                let keys = |me: &mut Self, item: &Value| {
                    let mut keys = Vec::with_capacity(paths.len());
                    for path in &paths {
                        let found = if let Some(path) = path { me.path(item, path)? } else { item.clone() };
                        keys.push(me.folded(found, case_sensitive)?);
                    }
                    me.heap.tuple(keys, &mut me.limits)
                };
                let sorted = self.sorted(items, keys, reverse)?;
                self.heap.list(sorted, &mut self.limits)
            }
            "sum" => {
                let mut sum = extra.clone().unwrap_or(Value::Int(0));
                for item in &items {
                    let item = key(self, item)?;
                    sum = self.math(super::ast::MathOp::Add, &sum, &item)?;
                }
                Ok(sum)
            }
            "min" | "max" => {
                let wanted = if name == "max" { Ordering::Greater } else { Ordering::Less };
                let mut best: Option<(Value, Value)> = None;
                for item in items {
                    let key = key(self, &item)?;
                    let is_better = match &best {
                        Some((best, _)) => self.order(&key, best)? == Some(wanted),
                        None => true,
                    };
                    if is_better {
                        best = Some((key, item));
                    }
                }
                let none = || Value::Undefined("No aggregated item, sequence was empty.".into());
                Ok(best.map_or_else(none, |(_, item)| item))
            }
            "unique" => {
                let mut seen = std::collections::HashSet::new();
                let mut kept = Vec::new();
                for item in items {
                    let key = key(self, &item)?;
                    if seen.insert(self.heap.key(&key, &mut self.limits)?) {
                        kept.push(item);
                    }
                }
                self.heap.list(kept, &mut self.limits)
            }
            _ => {
                let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
                for item in self.sorted(items, key, false)? {
                    let found = key(self, &item)?;
                    match groups.last_mut() {
                        Some((last, group)) if self.heap.equal(last, &found, &mut self.limits)? => {
                            group.push(item)
                        }
                        _ => groups.push((found, vec![item])),
                    }
                }
                let mut pairs = Vec::with_capacity(groups.len());
                for (key, group) in groups {
                    let group = self.heap.list(group, &mut self.limits)?;
                    pairs.push(self.heap.tuple(vec![key, group], &mut self.limits)?);
                }
                self.heap.list(pairs, &mut self.limits)
            }
        }
    }

    fn dictsort(&mut self, value: &Value, arguments: Arguments) -> JinjaResult<Value> {
        let [case, by, reverse] = arguments.take("dictsort", ["case_sensitive", "by", "reverse"])?;
        let truth = |value: Option<Value>| value.is_some_and(|value| self.heap.truth(&value));
        let (case_sensitive, reverse) = (truth(case), truth(reverse));
        let place = match by {
            None => 0,
            Some(Value::Str(by)) if by.as_str() == "key" => 0,
            Some(Value::Str(by)) if by.as_str() == "value" => 1,
            _ => return Err(JinjaError::type_error("You can only sort by either \"key\" or \"value\"")),
        };
        let Value::Dict(id) = value else {
            return Err(JinjaError::type_error(format!("dictsort needs a mapping, not {}", value.kind())));
        };
        let Dict { entries, .. } = self.heap.entries(*id).clone();
        let mut pairs = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            pairs.push(self.heap.tuple(vec![key, value], &mut self.limits)?);
        }
        let key = |me: &mut Self, pair: &Value| {
            let found = me.item(pair, &Value::Int(place))?;
            me.folded(found, case_sensitive)
        };
        let sorted = self.sorted(pairs, key, reverse)?;
        self.heap.list(sorted, &mut self.limits)
    }
}

/// The attributes by which `sort` sorts, such as `a.b,c`; `None` is the item itself. Equal keys have no order, so they need not
/// have an operator for it.
fn attribute_list(attribute: Option<&Value>) -> Vec<Option<Value>> {
    match attribute {
        Some(Value::Str(text)) => text.as_str().split(',').map(|path| Some(Value::str(path))).collect(),
        other => vec![other.cloned()],
    }
}

fn url_encoded(text: &str) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"_.-~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.extend([byte >> 4, byte & 15].map(|digit| char::from(DIGITS[usize::from(digit)])));
        }
    }
    out
}

/// The `title` filter: words begin after whitespace, hyphens and opening brackets.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut begins = true;
    for c in text.chars() {
        if begins {
            out.extend(c.to_uppercase())
        } else {
            out.extend(c.to_lowercase())
        }
        begins = c.is_whitespace() || "-({[<".contains(c);
    }
    out
}
