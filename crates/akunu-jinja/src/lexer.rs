//! Splits a template into tokens. Whitespace is trimmed as with transformers' settings `trim_blocks` and
//! `lstrip_blocks`.

use super::{JinjaError, JinjaResult};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// Text between tags.
    Data(String),
    /// `{{`.
    PrintBegin,
    /// `}}`.
    PrintEnd,
    /// `{%`.
    BlockBegin,
    /// `%}`.
    BlockEnd,
    Name(String),
    Str(String),
    Int(i128),
    Float(f64),
    /// An operator or bracket.
    Op(&'static str),
    End,
}

const OPERATORS: [&str; 29] = [
    "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "=", "(", ")", "[", "]", "{",
    "}", "|", ",", ":", ".", ";", "!", "&", "^",
];

#[derive(Debug)]
pub(super) struct Lexer<'s> {
    source: &'s str,
    at: usize,
    line: usize,
    /// Whether the position is at the start of a line.
    line_start: bool,
    tokens: Vec<(Token, usize)>,
}

/// Tokens with their line numbers; the last one is `End`.
pub(super) fn tokenize(source: &str) -> JinjaResult<Vec<(Token, usize)>> {
    let mut lexer = Lexer { source, at: 0, line: 1, line_start: true, tokens: Vec::new() };
    while lexer.at < source.len() {
        lexer.data()?;
    }
    lexer.push(Token::End);
    Ok(lexer.tokens)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tag {
    Print,
    Block,
    Comment,
}

fn is_space(c: char) -> bool {
    super::python::is_space(c)
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn push(&mut self, token: Token) {
        self.tokens.push((token, self.line));
    }

    fn advance(&mut self, bytes: usize) -> &'s str {
        let taken = &self.rest()[..bytes];
        self.line += taken.bytes().filter(|&b| b == b'\n').count();
        self.at += bytes;
        if let Some(last) = taken.bytes().last() {
            self.line_start = last == b'\n';
        }
        taken
    }

    fn error<T>(&self, message: impl Into<String>) -> JinjaResult<T> {
        Err(JinjaError::Syntax { line: self.line, message: message.into() })
    }

    /// Text up to the next tag, and the beginning of that tag.
    fn data(&mut self) -> JinjaResult<()> {
        let rest = self.rest();
        let mut search = 0;
        let found = loop {
            let Some(brace) = rest[search..].find('{') else { break None };
            let at = search + brace;
            match rest.as_bytes().get(at + 1) {
                Some(b'{') => break Some((at, Tag::Print)),
                Some(b'%') => break Some((at, Tag::Block)),
                Some(b'#') => break Some((at, Tag::Comment)),
                _ => search = at + 1,
            }
        };
        let Some((at, tag)) = found else {
            self.text(rest);
            self.advance(rest.len());
            return Ok(());
        };
        let sign = rest.as_bytes().get(at + 2).copied();
        let text = self.left_trimmed(&rest[..at], tag, sign);
        self.text(text);
        self.advance(at);
        let signed = matches!(sign, Some(b'-' | b'+'));
        match tag {
            Tag::Comment => self.comment(),
            Tag::Block if self.raw_begin(2 + usize::from(signed)).is_some() => {
                self.raw(2 + usize::from(signed))
            }
            _ => {
                let (begin, end) = match tag {
                    Tag::Print => (Token::PrintBegin, "}}"),
                    _ => (Token::BlockBegin, "%}"),
                };
                self.push(begin);
                self.advance(2 + usize::from(signed));
                self.inside(end)
            }
        }
    }

    fn text(&mut self, text: &str) {
        if !text.is_empty() {
            self.push(Token::Data(text.to_string()));
        }
    }

    fn left_trimmed<'t>(&self, text: &'t str, tag: Tag, sign: Option<u8>) -> &'t str {
        match sign {
            Some(b'-') => text.trim_end_matches(is_space),
            Some(b'+') => text,
            _ if tag == Tag::Print => text,
            _ => {
                let line = text.rfind('\n').map_or(0, |at| at + 1);
                let starts = line > 0 || self.line_start;
                if starts && text[line..].chars().all(is_space) { &text[..line] } else { text }
            }
        }
    }

    /// Skips whitespace after a tag: a newline for `trim_blocks`, or all whitespace for `-`.
    fn trim_after(&mut self, sign: Option<u8>, block: bool) {
        let rest = self.rest();
        let drop = match sign {
            Some(b'-') => rest.len() - rest.trim_start_matches(is_space).len(),
            Some(b'+') => 0,
            _ if block && rest.starts_with('\n') => 1,
            _ => 0,
        };
        self.advance(drop);
    }

    fn comment(&mut self) -> JinjaResult<()> {
        let Some(end) = self.rest()[2..].find("#}") else { return self.error("unterminated comment") };
        let sign = self.rest()[2..2 + end].bytes().last();
        self.advance(2 + end + 2);
        self.trim_after(sign, true);
        Ok(())
    }

    /// The length of `{% raw %}`, if it begins here.
    fn raw_begin(&self, opening: usize) -> Option<usize> {
        tag_of(&self.rest()[opening..], "raw").map(|len| opening + len)
    }

    fn raw(&mut self, opening: usize) -> JinjaResult<()> {
        let Some(begin) = self.raw_begin(opening) else { return Ok(()) };
        let dashed = self.rest()[..begin].ends_with("-%}");
        self.advance(begin);
        if dashed {
            self.trim_after(Some(b'-'), true);
        }
        let rest = self.rest();
        let mut search = 0;
        while let Some(found) = rest[search..].find("{%") {
            let at = search + found;
            let sign = rest.as_bytes().get(at + 2).copied();
            let opening = at + 2 + usize::from(matches!(sign, Some(b'-' | b'+')));
            if let Some(len) = rest.get(opening..).and_then(|rest| tag_of(rest, "endraw")) {
                let text = self.left_trimmed(&rest[..at], Tag::Block, sign);
                self.text(text);
                let close = rest[..opening + len - 2].bytes().last();
                self.advance(opening + len);
                self.trim_after(close, true);
                return Ok(());
            }
            search = at + 2;
        }
        self.error("unterminated raw block")
    }

    /// The tokens of a tag up to its end.
    fn inside(&mut self, end: &str) -> JinjaResult<()> {
        let mut open: Vec<u8> = Vec::new();
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start_matches(is_space);
            self.advance(rest.len() - trimmed.len());
            let rest = self.rest();
            let Some(first) = rest.chars().next() else { return self.error("unterminated tag") };
            if open.is_empty() {
                let sign =
                    rest.as_bytes().first().copied().filter(|&b| b == b'-' || (b == b'+' && end == "%}"));
                let signed = usize::from(sign.is_some());
                for (skip, sign) in [(signed, sign), (0, None)] {
                    if rest[skip..].starts_with(end) {
                        self.push(if end == "}}" { Token::PrintEnd } else { Token::BlockEnd });
                        self.advance(skip + end.len());
                        self.trim_after(sign, end == "%}");
                        return Ok(());
                    }
                }
            }
            if first.is_ascii_digit() {
                self.number()?;
            } else if first.is_alphanumeric() || first == '_' {
                let len = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
                self.push(Token::Name(rest[..len].to_string()));
                self.advance(len);
            } else if first == '"' || first == '\'' {
                self.string(first)?;
            } else {
                self.operator(&mut open)?;
            }
        }
    }

    fn operator(&mut self, open: &mut Vec<u8>) -> JinjaResult<()> {
        let rest = self.rest();
        let Some(op) = OPERATORS.into_iter().find(|op| rest.starts_with(op)) else {
            return self.error(format!("unexpected character {:?}", rest.chars().next().unwrap_or(' ')));
        };
        match op {
            "(" => open.push(b')'),
            "[" => open.push(b']'),
            "{" => open.push(b'}'),
            ")" | "]" | "}" if open.pop() != op.bytes().next() => {
                return self.error(format!("unexpected '{op}'"));
            }
            _ => {}
        }
        self.push(Token::Op(op));
        self.advance(op.len());
        Ok(())
    }

    fn number(&mut self) -> JinjaResult<()> {
        let rest = self.rest();
        let digits = |from: usize, ok: fn(&u8) -> bool| {
            let bytes = &rest.as_bytes()[from..];
            bytes.iter().take_while(|b| ok(b) || **b == b'_').count()
        };
        let radix = match rest.get(..2).map(str::to_ascii_lowercase).as_deref() {
            Some("0x") => 16,
            Some("0o") => 8,
            Some("0b") => 2,
            _ => 10,
        };
        let (start, mut len) = match radix {
            10 => (0, digits(0, u8::is_ascii_digit)),
            _ => (2, 2 + digits(2, u8::is_ascii_hexdigit)),
        };
        let mut float = false;
        let byte = |at: usize| rest.as_bytes().get(at).copied().unwrap_or(0);
        if radix == 10 {
            // `m.0.1` has two indices.
            let is_index = matches!(self.tokens.last(), Some((Token::Op("."), _)));
            if !is_index && byte(len) == b'.' && byte(len + 1).is_ascii_digit() {
                float = true;
                len += 1 + digits(len + 1, u8::is_ascii_digit);
            }
            let sign = usize::from(matches!(byte(len + 1), b'+' | b'-'));
            if matches!(byte(len), b'e' | b'E') && byte(len + 1 + sign).is_ascii_digit() {
                float = true;
                len += 1 + sign + digits(len + 1 + sign, u8::is_ascii_digit);
            }
        }
        let text = rest[start..len].replace('_', "");
        let token = match float {
            true => text.parse().ok().map(Token::Float),
            false => i128::from_str_radix(&text, radix).ok().map(Token::Int),
        };
        let Some(token) = token else { return self.error(format!("{} is not a number", &rest[..len])) };
        self.push(token);
        self.advance(len);
        Ok(())
    }

    fn string(&mut self, quote: char) -> JinjaResult<()> {
        let rest = self.rest();
        let mut out = String::new();
        let mut chars = rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            if c == quote {
                self.push(Token::Str(out));
                self.advance(at + 1);
                return Ok(());
            }
            if c != '\\' {
                out.push(c);
                continue;
            }
            let Some((at, escaped)) = chars.next() else { break };
            let simple = match escaped {
                'n' => Some('\n'),
                't' => Some('\t'),
                'r' => Some('\r'),
                'a' => Some('\x07'),
                'b' => Some('\x08'),
                'f' => Some('\x0c'),
                'v' => Some('\x0b'),
                '\\' | '\'' | '"' => Some(escaped),
                _ => None,
            };
            let (digits, radix, skip) = match escaped {
                'x' => (2, 16, 1),
                'u' => (4, 16, 1),
                'U' => (8, 16, 1),
                '0'..='7' => {
                    let octal = |b: &u8| (b'0'..=b'7').contains(b);
                    (rest.as_bytes()[at..].iter().take(3).take_while(|b| octal(b)).count(), 8, 0)
                }
                _ => (0, 0, 0),
            };
            if let Some(simple) = simple {
                out.push(simple);
            } else if digits > 0 {
                let code = rest.get(at + skip..at + skip + digits);
                let code = code.and_then(|code| u32::from_str_radix(code, radix).ok());
                let Some(c) = code.and_then(char::from_u32) else {
                    return self.error("invalid escape sequence in a string");
                };
                out.push(c);
                for _ in 0..digits + skip - 1 {
                    chars.next();
                }
            } else if escaped != '\n' {
                out.push('\\');
                out.push(escaped);
            }
        }
        self.error("unterminated string")
    }
}

/// The length of ` name %}`, optionally with `-` or `+` before its end.
fn tag_of(text: &str, name: &str) -> Option<usize> {
    let rest = text.trim_start_matches(is_space).strip_prefix(name)?.trim_start_matches(is_space);
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest).strip_prefix("%}")?;
    Some(text.len() - rest.len())
}
