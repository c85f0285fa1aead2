//! Tool calls with arguments as literals, `NAME(key="value", …)` or `call:NAME{key:…}`: the arguments as JSON text, written
//! while the call is generated.

use akunu_grammar::CallLiterals;
use serde_json::Value as Json;

use super::call_json::is_json;
use super::calls::{Call, LONGEST_HEADER, OnSegment, Segment};
use super::reasoning::overlap;

/// Objects and lists within each other, as many as `Literals::kinds` has bits.
const DEEPEST: u32 = 64;

/// How a call of a family is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct LiteralForm {
    /// What precedes the tool's name.
    pub(super) before: &'static str,
    /// Around the arguments.
    pub(super) around: [&'static str; 2],
    pub(super) literals: &'static CallLiterals,
}

/// How far a call is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    /// More text is needed.
    Yet,
    /// The call ends here.
    End(usize),
    /// What has come is not the beginning of a call.
    Never,
}

/// What of a call has been passed on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LiteralStream {
    stage: Stage,
    /// Where the text of this stage begins.
    at: usize,
    /// How much of the text was searched in this stage.
    seen: usize,
    /// How many objects and lists are open, with a bit for each that is set for a list.
    depth: u32,
    kinds: u64,
}

#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    #[default]
    Name,
    /// Before a name of an object's member, or its end.
    Key {
        is_first: bool,
    },
    /// Before an item of a list, or its end.
    Item {
        is_first: bool,
    },
    Value,
    /// In a string, which is passed on as it comes.
    Text {
        quote: char,
    },
    /// After a value.
    Behind,
}

/// Parses one call at the beginning of a text that has all of it.
pub(super) fn read(form: &LiteralForm, text: &str) -> Option<Call> {
    let (mut name, mut arguments) = (String::new(), String::new());
    let mut on_segment = |segment: Segment<'_>| match segment {
        Segment::Begun(begun) => name = begun.into(),
        Segment::Arguments(more) => arguments.push_str(more),
        _ => {}
    };
    let reached = LiteralStream::default().advance(form, text, &|_| true, &mut on_segment);
    matches!(reached, Reached::End(_)).then_some(Call { name, arguments })
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

impl LiteralStream {
    /// Whether the call has been announced.
    pub(super) fn has_begun(&self) -> bool {
        !matches!(self.stage, Stage::Name)
    }

    /// How much of the text has been read.
    pub(super) fn reached(&self) -> usize {
        self.at
    }

    /// Passes on what is certain of the call at the beginning of a text, if its name may be called.
    pub(super) fn advance(
        &mut self,
        form: &LiteralForm,
        text: &str,
        may_call: &dyn Fn(&str) -> bool,
        on_segment: OnSegment<'_>,
    ) -> Reached {
        loop {
            let step = match self.stage {
                Stage::Name => self.name(form, text, may_call, on_segment),
                stage => self.within(form, text, stage, on_segment),
            };
            match step {
                Ok(()) => {}
                Err(reached) => return reached,
            }
        }
    }

    fn name(
        &mut self,
        form: &LiteralForm,
        text: &str,
        may_call: &dyn Fn(&str) -> bool,
        on_segment: OnSegment<'_>,
    ) -> Result<(), Reached> {
        let Some(rest) = text.strip_prefix(form.before) else {
            return Err(if form.before.starts_with(text) { Reached::Yet } else { Reached::Never });
        };
        let [open, _] = form.around;
        let whole = &rest[..word(rest)];
        // What follows the name may begin with characters of a name.
        let name = whole.strip_suffix(&open[..word(open)]).unwrap_or(whole);
        let behind = &rest[name.len()..];
        match behind.strip_prefix(open) {
            Some(behind) if !name.is_empty() && may_call(name) => {
                on_segment(Segment::Begun(name));
                on_segment(Segment::Arguments("{"));
                self.depth = 1;
                self.enter(Stage::Key { is_first: true }, text.len() - behind.len());
                Ok(())
            }
            None if open.starts_with(behind) && name.len() <= LONGEST_HEADER => Err(Reached::Yet),
            _ => Err(Reached::Never),
        }
    }

    /// Reads the next part of the arguments.
    fn within(
        &mut self,
        form: &LiteralForm,
        text: &str,
        stage: Stage,
        on_segment: OnSegment<'_>,
    ) -> Result<(), Reached> {
        if let Stage::Text { quote } = stage {
            return self.text(form, text, quote, on_segment);
        }
        let rest = text[self.at..].trim_start();
        let at = text.len() - rest.len();
        self.at = at;
        if rest.is_empty() {
            return Err(Reached::Yet);
        }
        let close = if self.is_list() {
            "]"
        } else if self.depth == 1 {
            form.around[1]
        } else {
            "}"
        };
        let may_close = matches!(stage, Stage::Key { .. } | Stage::Item { .. } | Stage::Behind);
        if may_close && rest.starts_with(close) {
            on_segment(Segment::Arguments(if self.is_list() { "]" } else { "}" }));
            self.depth -= 1;
            self.enter(Stage::Behind, at + close.len());
            return if self.depth == 0 { Err(Reached::End(self.at)) } else { Ok(()) };
        }
        match stage {
            Stage::Behind if rest.starts_with(',') => {
                let is_first = false;
                self.enter(
                    if self.is_list() { Stage::Item { is_first } } else { Stage::Key { is_first } },
                    at + 1,
                );
                Ok(())
            }
            Stage::Item { is_first } => {
                on_segment(Segment::Arguments(if is_first { "" } else { ", " }));
                self.enter(Stage::Value, at);
                Ok(())
            }
            Stage::Key { is_first } => self.key(form, rest, text.len(), is_first, on_segment),
            Stage::Value => self.value(form, rest, text.len(), on_segment),
            _ => Err(Reached::Never),
        }
    }

    /// Reads the name of a member up to what follows it, at the beginning of the rest of a text of `len` bytes.
    fn key(
        &mut self,
        form: &LiteralForm,
        rest: &str,
        len: usize,
        is_first: bool,
        on_segment: OnSegment<'_>,
    ) -> Result<(), Reached> {
        let needs_more = if rest.len() > LONGEST_HEADER { Reached::Never } else { Reached::Yet };
        let (key, behind) = match opened(form, rest) {
            Ok((quote, inside)) => {
                let piece = Piece::read(form, quote, inside);
                (piece.text, piece.behind.ok_or(if piece.is_wrong { Reached::Never } else { needs_more })?)
            }
            Err(Reached::Yet) => return Err(needs_more),
            Err(_) => {
                let name = &rest[..word(rest)];
                if name.is_empty() {
                    return Err(Reached::Never);
                }
                (name.to_string(), &rest[name.len()..])
            }
        };
        let behind = behind.trim_start();
        if behind.is_empty() {
            return Err(needs_more);
        }
        let value = behind.strip_prefix(form.literals.assign).or_else(|| behind.strip_prefix(':'));
        let value = value.ok_or(Reached::Never)?;
        let separator = if is_first { "" } else { ", " };
        on_segment(Segment::Arguments(&format!("{separator}{}: ", Json::from(key))));
        self.enter(Stage::Value, len - value.len());
        Ok(())
    }

    fn value(
        &mut self,
        form: &LiteralForm,
        rest: &str,
        len: usize,
        on_segment: OnSegment<'_>,
    ) -> Result<(), Reached> {
        let at = len - rest.len();
        match opened(form, rest) {
            Ok((quote, inside)) => {
                on_segment(Segment::Arguments("\""));
                self.enter(Stage::Text { quote }, len - inside.len());
                return Ok(());
            }
            Err(Reached::Yet) => return Err(Reached::Yet),
            Err(_) => {}
        }
        let is_list = rest.starts_with('[');
        if is_list || rest.starts_with('{') {
            if self.depth == DEEPEST {
                return Err(Reached::Never);
            }
            on_segment(Segment::Arguments(if is_list { "[" } else { "{" }));
            self.kinds = (self.kinds & !(1 << self.depth)) | (u64::from(is_list) << self.depth);
            self.depth += 1;
            let is_first = true;
            self.enter(if is_list { Stage::Item { is_first } } else { Stage::Key { is_first } }, at + 1);
            return Ok(());
        }
        let known = self.seen.saturating_sub(at).min(rest.len());
        let end = known + word(&rest[known..]);
        (self.at, self.seen) = (at, at + end);
        if end == rest.len() {
            return Err(Reached::Yet);
        }
        let written = match &rest[..end] {
            "true" | "True" => "true",
            "false" | "False" => "false",
            "null" | "None" => "null",
            number if number.starts_with(|c: char| c == '-' || c.is_ascii_digit()) && is_json(number) => {
                number
            }
            _ => return Err(Reached::Never),
        };
        on_segment(Segment::Arguments(written));
        self.enter(Stage::Behind, at + end);
        Ok(())
    }

    fn text(
        &mut self,
        form: &LiteralForm,
        text: &str,
        quote: char,
        on_segment: OnSegment<'_>,
    ) -> Result<(), Reached> {
        let piece = Piece::read(form, quote, &text[self.at..]);
        if !piece.text.is_empty() {
            let quoted = Json::from(piece.text).to_string();
            on_segment(Segment::Arguments(&quoted[1..quoted.len() - 1]));
        }
        match piece.behind {
            None => {
                self.at += piece.len;
                Err(if piece.is_wrong { Reached::Never } else { Reached::Yet })
            }
            Some(behind) => {
                on_segment(Segment::Arguments("\""));
                self.enter(Stage::Behind, text.len() - behind.len());
                Ok(())
            }
        }
    }

    /// Whether the innermost value that is open is a list.
    fn is_list(&self) -> bool {
        self.kinds >> (self.depth - 1) & 1 == 1
    }

    fn enter(&mut self, stage: Stage, at: usize) {
        (self.stage, self.at, self.seen) = (stage, at, at);
    }
}

/// The length of the word at the beginning of a text.
fn word(text: &str) -> usize {
    text.find(|c: char| !(c.is_alphanumeric() || "_-+.".contains(c))).unwrap_or(text.len())
}

/// The quotation mark of a string, if a text begins with one, and what follows it.
fn opened<'t>(form: &LiteralForm, text: &'t str) -> Result<(char, &'t str), Reached> {
    match form.literals.quote {
        Some(quote) => match text.strip_prefix(quote) {
            Some(inside) => Ok(('"', inside)),
            None if quote.starts_with(text) => Err(Reached::Yet),
            None => Err(Reached::Never),
        },
        None => match text.chars().next() {
            Some(quote @ ('"' | '\'')) => Ok((quote, &text[1..])),
            _ => Err(Reached::Never),
        },
    }
}

/// The beginning of the inside of a string.
struct Piece<'t> {
    text: String,
    /// The bytes that were read, without an escape sequence or a mark that may not be complete.
    len: usize,
    /// What follows the string, if its end was found.
    behind: Option<&'t str>,
    /// What was not read is an escape sequence that means no character.
    is_wrong: bool,
}

impl<'t> Piece<'t> {
    fn read(form: &LiteralForm, quote: char, inside: &'t str) -> Piece<'t> {
        if let Some(quote) = form.literals.quote {
            let found = inside.find(quote);
            let len = found.unwrap_or_else(|| inside.len() - overlap(inside, quote));
            let behind = found.map(|at| &inside[at + quote.len()..]);
            return Piece { text: inside[..len].into(), len, behind, is_wrong: false };
        }
        let (mut text, mut len) = (String::new(), 0);
        loop {
            let rest = &inside[len..];
            let plain = rest.find([quote, '\\']).unwrap_or(rest.len());
            text.push_str(&rest[..plain]);
            len += plain;
            let rest = &rest[plain..];
            if rest.is_empty() {
                return Piece { text, len, behind: None, is_wrong: false };
            }
            if let Some(behind) = rest.strip_prefix(quote) {
                return Piece { text, len, behind: Some(behind), is_wrong: false };
            }
            match unescaped(&rest[1..]) {
                Escape::Of(c, bytes) => {
                    text.push(c);
                    len += 1 + bytes;
                }
                Escape::Nothing(bytes) => {
                    text.push('\\');
                    text.push_str(&rest[1..1 + bytes]);
                    len += 1 + bytes;
                }
                Escape::Yet => return Piece { text, len, behind: None, is_wrong: false },
                Escape::Never => return Piece { text, len, behind: None, is_wrong: true },
            }
        }
    }
}

/// What follows a backslash.
enum Escape {
    /// A character, written in this many bytes.
    Of(char, usize),
    /// No escape sequence, so the backslash is meant.
    Nothing(usize),
    /// More text is needed.
    Yet,
    /// An escape sequence that means no character.
    Never,
}

fn unescaped(text: &str) -> Escape {
    let Some(c) = text.chars().next() else { return Escape::Yet };
    let of_digits = |from: usize, count: usize| {
        let digits = text.get(from..from + count)?;
        let are_digits = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        u32::from_str_radix(digits, 16).ok().filter(|_| are_digits)
    };
    let of_code = |code: Option<u32>, bytes: usize| match code.and_then(char::from_u32) {
        Some(c) => Escape::Of(c, bytes),
        None if text.len() < bytes => Escape::Yet,
        None => Escape::Never,
    };
    match c {
        'n' => Escape::Of('\n', 1),
        't' => Escape::Of('\t', 1),
        'r' => Escape::Of('\r', 1),
        'b' => Escape::Of('\u{8}', 1),
        'f' => Escape::Of('\u{c}', 1),
        '\\' | '\'' | '"' | '/' => Escape::Of(c, 1),
        'x' => of_code(of_digits(1, 2), 3),
        'U' => of_code(of_digits(1, 8), 9),
        'u' => match of_digits(1, 4) {
            Some(high @ 0xd800..0xdc00) => {
                let is_pair = "\\u".starts_with(text.get(5..text.len().min(7)).unwrap_or("x"));
                let low = of_digits(7, 4).filter(|low| is_pair && (0xdc00..0xe000).contains(low));
                match low.map(|low| 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)) {
                    None if !is_pair => Escape::Never,
                    code => of_code(code, 11),
                }
            }
            code => of_code(code, 5),
        },
        other => Escape::Nothing(other.len_utf8()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const PYTHON: LiteralForm = LiteralForm {
        before: "",
        around: ["(", ")"],
        literals: &CallLiterals { assign: "=", separator: ", ", quote: None, is_sorted: false },
    };
    const QUOTED: LiteralForm = LiteralForm {
        before: "call:",
        around: ["{", "}"],
        literals: &CallLiterals { assign: ":", separator: ",", quote: Some("<|\"|>"), is_sorted: true },
    };

    fn read_one(form: &LiteralForm, text: &str) -> Option<Json> {
        read(form, text).map(|call| json!([call.name, call.object()]))
    }

    #[test]
    fn literals_are_parsed() {
        let python = r#"f(a="x \"y\"\n", b=['é', -1.5], c=True, d={"k": None, 'l': {}}, e=[], )"#;
        let expected = json!(["f", { "a": "x \"y\"\n", "b": ["é", -1.5], "c": true, "d": { "k": null, "l": {} }, "e": [] }]);
        assert_eq!(read_one(&PYTHON, python), Some(expected));
        let quoted = "call:f{a:<|\"|>x, {\\n<|\"|>,b:[1,true],c:{k:<|\"|><|\"|>,<|\"|>l<|\"|>:1}}";
        let expected = json!(["f", { "a": "x, {\\n", "b": [1, true], "c": { "k": "", "l": 1 } }]);
        assert_eq!(read_one(&QUOTED, quoted), Some(expected));
        assert_eq!(read_one(&PYTHON, "f(a = \"\\u00e9\")"), Some(json!(["f", { "a": "é" }])));
        let escaped = r#"f(a="\b\f\x41\ud83d\ude00\U0001f600\d\'")"#;
        assert_eq!(read_one(&PYTHON, escaped), Some(json!(["f", { "a": "\u{8}\u{c}A😀😀\\d'" }])));
        assert_eq!(read_one(&PYTHON, r#"f(a="\ud83d")"#), None);
        let nested = "f(a={'b': [1, None, {'c': (2)}]})";
        assert_eq!(read_one(&PYTHON, nested), None);
        let nested = "f(a={'b': [1, None, {'c': [True]}]})";
        assert_eq!(
            read_one(&PYTHON, nested),
            Some(json!(["f", { "a": { "b": [1, null, { "c": [true] }] } }]))
        );
    }

    #[test]
    fn numbers_keep_their_digits() {
        for (form, text) in [
            (PYTHON, "f(a=12345678901234567890123, b=[1e999, -0.10])"),
            (QUOTED, "call:f{a:12345678901234567890123,b:[1e999,-0.10]}"),
        ] {
            let call = read(&form, text).unwrap();
            assert_eq!(call.arguments, r#"{"a": 12345678901234567890123, "b": [1e999, -0.10]}"#);
        }
    }

    #[test]
    fn what_is_no_literal_is_not_parsed() {
        for text in
            ["", "f", "f(", "f(a)", "f(a=)", "f(a=b)", "f(a=1 b=2)", "f (a=1)", "f(a='x)", "f(a=\"\\u00\")"]
        {
            assert_eq!(read_one(&PYTHON, text), None, "{text}");
        }
        let deep = |levels: usize| format!("f(a={}{})", "[".repeat(levels), "]".repeat(levels));
        assert!(read(&PYTHON, &deep(63)).is_some());
        assert_eq!(read_one(&PYTHON, &deep(64)), None);
        assert_eq!(read_one(&QUOTED, "call:f{a:<|\"|>x}"), None);
    }
}
