//! Tool calls with arguments as literals: `NAME(key="value", …)` or `call:NAME{key:…}`.

use akunu_grammar::CallLiterals;
use serde_json::{Map, Value as Json};

use super::calls::Call;

/// Values within others.
const DEEPEST: usize = 64;

/// Parses one call, or a list of calls in brackets.
pub(super) fn read(form: &CallLiterals, text: &str) -> Option<Vec<Call>> {
    let text = text.trim();
    let is_list = text.starts_with('[');
    let mut reader = Reader { form, rest: text.strip_prefix('[').unwrap_or(text) };
    let mut calls = Vec::new();
    loop {
        calls.push(reader.call()?);
        match is_list && reader.takes(",") {
            true => {}
            false => break,
        }
    }
    if is_list && !reader.takes("]") {
        return None;
    }
    reader.rest.trim().is_empty().then_some(calls)
}

/// Writes arguments as literals of Python; `None`: the form has other ones.
pub(super) fn write(form: &CallLiterals, arguments: &Json) -> Option<String> {
    let arguments = arguments.as_object().filter(|_| form.quote.is_none())?;
    let one = |(key, value): (&String, &Json)| format!("{key}{}{}", form.assign, literal(value));
    Some(arguments.iter().map(one).collect::<Vec<_>>().join(form.separator))
}

fn literal(value: &Json) -> String {
    match value {
        Json::Null => "None".into(),
        Json::Bool(true) => "True".into(),
        Json::Bool(false) => "False".into(),
        Json::Array(list) => format!("[{}]", list.iter().map(literal).collect::<Vec<_>>().join(", ")),
        Json::Object(members) => {
            let one =
                |(key, value): (&String, &Json)| format!("{}: {}", Json::from(key.as_str()), literal(value));
            format!("{{{}}}", members.iter().map(one).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// Where calls end: at the first `end` outside of a string. `None`: more text is needed.
pub(super) fn end_of(form: &CallLiterals, end: &str, text: &str) -> Option<usize> {
    let mut rest = text;
    loop {
        let found = rest.find(end)?;
        let quotes = match form.quote {
            Some(quote) => rest.find(quote).map(|at| (at, quote)),
            None => rest.find(['"', '\'']).map(|at| (at, &rest[at..=at])),
        };
        let Some((at, quote)) = quotes.filter(|(at, _)| *at < found) else {
            return Some(text.len() - rest.len() + found);
        };
        let inside = &rest[at + quote.len()..];
        let close = match form.quote {
            Some(quote) => inside.find(quote)?,
            None => unescaped(inside, quote)?,
        };
        rest = &inside[close + quote.len()..];
    }
}

/// The first place of a quotation mark that is not escaped.
fn unescaped(text: &str, quote: &str) -> Option<usize> {
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if text[at..].starts_with(quote) => return Some(at),
            _ => {}
        }
    }
    None
}

struct Reader<'t> {
    form: &'t CallLiterals,
    rest: &'t str,
}

impl<'t> Reader<'t> {
    /// Whether a mark follows, after white space; it is skipped.
    fn takes(&mut self, mark: &str) -> bool {
        let behind = self.rest.trim_start().strip_prefix(mark);
        self.rest = behind.unwrap_or(self.rest);
        behind.is_some()
    }

    fn word(&mut self) -> Option<&'t str> {
        let text = self.rest.trim_start();
        let is_part = |c: char| c.is_alphanumeric() || "_-+.".contains(c);
        let (word, behind) = text.split_at(text.find(|c| !is_part(c)).unwrap_or(text.len()));
        self.rest = behind;
        (!word.is_empty()).then_some(word)
    }

    fn call(&mut self) -> Option<Call> {
        self.takes("call:");
        let name = self.word()?.to_string();
        let close = if self.takes("(") { ")" } else { self.takes("{").then_some("}")? };
        let arguments = self.members(close, 0)?;
        Some(Call { name, arguments })
    }

    fn members(&mut self, close: &str, depth: usize) -> Option<Map<String, Json>> {
        let mut members = Map::new();
        while !self.takes(close) {
            if !members.is_empty() && !self.takes(",") {
                return None;
            }
            let key = match self.text() {
                Some(key) => key,
                None => self.word()?.to_string(),
            };
            if !self.takes(self.form.assign) && !self.takes(":") {
                return None;
            }
            members.insert(key, self.value(depth + 1)?);
        }
        Some(members)
    }

    fn value(&mut self, depth: usize) -> Option<Json> {
        if depth > DEEPEST {
            return None;
        }
        if let Some(text) = self.text() {
            return Some(text.into());
        }
        if self.takes("{") {
            return self.members("}", depth).map(Json::Object);
        }
        if self.takes("[") {
            let mut list = Vec::new();
            while !self.takes("]") {
                if !list.is_empty() && !self.takes(",") {
                    return None;
                }
                list.push(self.value(depth + 1)?);
            }
            return Some(list.into());
        }
        match self.word()? {
            "true" | "True" => Some(true.into()),
            "false" | "False" => Some(false.into()),
            "null" | "None" => Some(Json::Null),
            number => serde_json::from_str(number).ok(),
        }
    }

    /// A string, if one follows.
    fn text(&mut self) -> Option<String> {
        if let Some(quote) = self.form.quote {
            let (text, behind) = self.rest.trim_start().strip_prefix(quote)?.split_once(quote)?;
            self.rest = behind;
            return Some(text.to_string());
        }
        let rest = self.rest.trim_start();
        let quote = rest.chars().next().filter(|c| *c == '"' || *c == '\'')?;
        let mut text = String::new();
        let mut chars = rest[1..].char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                _ if c == quote => {
                    self.rest = &rest[at + 2..];
                    return Some(text);
                }
                '\\' => match chars.next()?.1 {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    'b' => text.push('\u{8}'),
                    'f' => text.push('\u{c}'),
                    'x' => text.push(char::from_u32(hex(&mut chars, 2)?)?),
                    'u' => {
                        let mut code = hex(&mut chars, 4)?;
                        if (0xd800..0xdc00).contains(&code) {
                            let is_pair = chars.next()?.1 == '\\' && chars.next()?.1 == 'u';
                            let low =
                                hex(&mut chars, 4).filter(|low| is_pair && (0xdc00..0xe000).contains(low))?;
                            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                        }
                        text.push(char::from_u32(code)?);
                    }
                    other => text.push(other),
                },
                other => text.push(other),
            }
        }
        None
    }
}

/// The number that the next digits are.
fn hex(chars: &mut std::str::CharIndices<'_>, digits: usize) -> Option<u32> {
    let digits: String = (0..digits).filter_map(|_| chars.next()).map(|(_, c)| c).collect();
    u32::from_str_radix(&digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const PYTHON: CallLiterals = CallLiterals { assign: "=", separator: ", ", quote: None, is_sorted: false };
    const QUOTED: CallLiterals =
        CallLiterals { assign: ":", separator: ",", quote: Some("<|\"|>"), is_sorted: true };

    fn read_all(form: &CallLiterals, text: &str) -> Option<Json> {
        read(form, text)
            .map(|calls| calls.into_iter().map(|call| json!([call.name, call.arguments])).collect())
    }

    #[test]
    fn literals_are_parsed() {
        let python = r#"[f(a="x \"y\"\n", b=['é', -1.5], c=True, d={"k": None}), g()]"#;
        let expected =
            json!([["f", { "a": "x \"y\"\n", "b": ["é", -1.5], "c": true, "d": { "k": null } }], ["g", {}]]);
        assert_eq!(read_all(&PYTHON, python), Some(expected));
        let quoted = "call:f{a:<|\"|>x, {\\n<|\"|>,b:[1,true],c:{k:<|\"|><|\"|>}}";
        let expected = json!([["f", { "a": "x, {\\n", "b": [1, true], "c": { "k": "" } }]]);
        assert_eq!(read_all(&QUOTED, quoted), Some(expected));
        assert_eq!(read_all(&PYTHON, "f(a = \"\\u00e9\")"), Some(json!([["f", { "a": "é" }]])));
        let escaped = r#"f(a="\b\f\x41\ud83d\ude00")"#;
        assert_eq!(read_all(&PYTHON, escaped), Some(json!([["f", { "a": "\u{8}\u{c}A😀" }]])));
        assert_eq!(read_all(&PYTHON, r#"f(a="\ud83d")"#), None);
    }

    #[test]
    fn what_is_no_literal_is_not_parsed() {
        for text in [
            "",
            "f",
            "f(",
            "f(a)",
            "f(a=)",
            "f(a=b)",
            "f(a=1 b=2)",
            "[f()",
            "f() g()",
            "f(a='x)",
            "f(a=\"\\u00\")",
        ] {
            assert_eq!(read_all(&PYTHON, text), None, "{text}");
        }
        assert_eq!(read_all(&PYTHON, &format!("f(a={}{})", "[".repeat(100), "]".repeat(100))), None);
        assert_eq!(read_all(&QUOTED, "call:f{a:<|\"|>x}"), None);
    }
}
