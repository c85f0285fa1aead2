//! Splits a Go template into its text and its actions, and an action into tokens.

use super::{ChatError, fail};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// A function, or a word such as `if`.
    Word(String),
    /// `.name`
    Field(String),
    /// `.` alone.
    Dot,
    /// `$name`; what the template was given has no name.
    Variable(String),
    Text(String),
    Int(i64),
    Float(f64),
    /// `(`, `)`, `|`, `,`, `=`
    Sign(char),
    /// `:=`
    Declare,
}

/// A token of an action. `is_apart`: there is space before it.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) token: Token,
    pub(super) is_apart: bool,
}

#[derive(Debug)]
pub(super) enum Piece {
    Text(String),
    /// The tokens of an action, and its line.
    Action(Vec<Placed>, usize),
}

/// What Go takes for space.
const SPACE: [char; 4] = [' ', '\t', '\r', '\n'];

/// The text between actions without the space that they trim, and the actions without comments.
pub(super) fn pieces(source: &str) -> Result<Vec<Piece>, ChatError> {
    let mut pieces = Vec::new();
    let (mut at, mut trims) = (0, false);
    let (mut line, mut counted) = (1, 0);
    loop {
        let rest = &source[at..];
        let open = rest.find("{{").map(|open| at + open);
        let text = &source[at..open.unwrap_or(source.len())];
        let text = if trims { text.trim_start_matches(SPACE) } else { text };
        let trims_before = open
            .is_some_and(|open| source[open + 2..].starts_with('-') && source[open + 3..].starts_with(SPACE));
        let text = if trims_before { text.trim_end_matches(SPACE) } else { text };
        if !text.is_empty() {
            pieces.push(Piece::Text(text.into()));
        }
        let Some(open) = open else { return Ok(pieces) };
        line += source[counted..open].matches('\n').count();
        counted = open;
        let inside = open + 2 + usize::from(trims_before);
        let begun = source[inside..].trim_start_matches(SPACE);
        let end = if begun.starts_with("/*") {
            let comment = source.len() - begun.len();
            let Some(len) = begun.find("*/") else { return fail(line, "a comment has no end") };
            comment + len + 2
        } else {
            let mut tokens = Vec::new();
            let end = tokens_of(source, inside, &mut tokens).or_else(|what| fail(line, what))?;
            pieces.push(Piece::Action(tokens, line));
            end
        };
        let rest = &source[end..];
        let closed = rest.trim_start_matches(SPACE);
        trims = closed.starts_with("-}}") && closed.len() < rest.len();
        let closed = if trims { &closed[1..] } else { closed };
        if !closed.starts_with("}}") {
            return fail(line, "an action has no end");
        }
        at = source.len() - closed.len() + 2;
    }
}

/// The tokens from `at` to the end of an action, whose position is returned.
fn tokens_of(source: &str, mut at: usize, tokens: &mut Vec<Placed>) -> Result<usize, String> {
    loop {
        let rest = source[at..].trim_start_matches(SPACE);
        let is_apart = rest.len() < source.len() - at;
        if rest.starts_with("}}") || (is_apart && rest.starts_with("-}}")) {
            return Ok(at);
        }
        let (token, len) = token(rest)?;
        tokens.push(Placed { token, is_apart });
        at = source.len() - rest.len() + len;
    }
}

/// The token at the beginning of a text, and its length.
fn token(text: &str) -> Result<(Token, usize), String> {
    let Some(first) = text.chars().next() else { return Err("an action has no end".into()) };
    match first {
        '.' if text[1..].starts_with(is_letter) => {
            let name = word(&text[1..]);
            Ok((Token::Field(name.into()), 1 + name.len()))
        }
        '.' if !text[1..].starts_with(|c: char| c.is_ascii_digit()) => Ok((Token::Dot, 1)),
        '$' => {
            let name = word(&text[1..]);
            Ok((Token::Variable(name.into()), 1 + name.len()))
        }
        '"' => quoted(text),
        '`' => match text[1..].split_once('`') {
            Some((inside, _)) => Ok((Token::Text(inside.replace('\r', "")), inside.len() + 2)),
            None => Err("a text has no end".into()),
        },
        ':' if text.starts_with(":=") => Ok((Token::Declare, 2)),
        '(' | ')' | '|' | ',' | '=' => Ok((Token::Sign(first), 1)),
        _ if is_letter(first) => {
            let word = word(text);
            Ok((Token::Word(word.into()), word.len()))
        }
        _ => number(text),
    }
}

fn is_letter(c: char) -> bool {
    c == '_' || c.is_alphabetic()
}

fn word(text: &str) -> &str {
    &text[..text.find(|c: char| !is_letter(c) && !c.is_numeric()).unwrap_or(text.len())]
}

fn number(text: &str) -> Result<(Token, usize), String> {
    let signs = text.starts_with(['-', '+']) as usize;
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
    let mut len = signs + text[signs..].find(|c| !is_part(c)).unwrap_or(text.len() - signs);
    let is_hex = text[signs..].starts_with("0x");
    if !is_hex && text[..len].ends_with(['e', 'E']) && text[len..].starts_with(['-', '+']) {
        len += 1 + text[len + 1..].find(|c| !is_part(c)).unwrap_or(text.len() - len - 1);
    }
    let unexpected = || format!("unexpected {:?}", text.chars().next().unwrap_or_default());
    if !text[signs..].starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Err(unexpected());
    }
    let digits = text[signs..len].replace('_', "");
    let (radix, whole) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        // As in Go and C.
        [b'0', b'0'..=b'9', ..] => (8, &digits[1..]),
        _ => (10, digits.as_str()),
    };
    let is_negative = text.starts_with('-');
    if let Ok(value) = i64::from_str_radix(whole, radix) {
        return Ok((Token::Int(if is_negative { -value } else { value }), len));
    }
    let value: f64 = digits.parse().map_err(|_| unexpected())?;
    // A whole number that is too large is not a fraction.
    match value.is_finite() && digits.contains(['.', 'e', 'E']) {
        true => Ok((Token::Float(if is_negative { -value } else { value }), len)),
        false => Err(format!("the number {} is not supported", &text[..len])),
    }
}

/// A text in quotes, with Go's escapes.
fn quoted(text: &str) -> Result<(Token, usize), String> {
    let mut inside = String::new();
    let mut rest = &text[1..];
    loop {
        let mut chars = rest.chars();
        match chars.next() {
            None | Some('\n') => return Err("a text has no end".into()),
            Some('"') => return Ok((Token::Text(inside), text.len() - rest.len() + 1)),
            Some('\\') => {
                let escape = chars.next().unwrap_or_default();
                let digits = match escape {
                    'x' => 2,
                    'u' => 4,
                    'U' => 8,
                    _ => 0,
                };
                let after = chars.as_str();
                let c = match escape {
                    'n' => Some('\n'),
                    't' => Some('\t'),
                    'r' => Some('\r'),
                    'a' => Some('\x07'),
                    'b' => Some('\x08'),
                    'f' => Some('\x0c'),
                    'v' => Some('\x0b'),
                    '\\' | '"' | '\'' => Some(escape),
                    _ => after.get(..digits).filter(|hex| !hex.is_empty()).and_then(|hex| {
                        // Bytes beyond ASCII would be parts of a character.
                        let code = u32::from_str_radix(hex, 16).ok()?;
                        char::from_u32(code).filter(|c| digits > 2 || c.is_ascii())
                    }),
                };
                inside.push(c.ok_or_else(|| format!("the escape \\{escape} is not known"))?);
                rest = &after[digits..];
            }
            Some(c) => {
                inside.push(c);
                rest = chars.as_str();
            }
        }
    }
}
