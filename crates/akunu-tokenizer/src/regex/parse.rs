//! Reads the syntax of regular expressions.
//!
//! It differs in details from that of other libraries. A flag that is set in a group holds after the group, too, unless
//! the group itself has flags; a brace that begins no repetition is a literal; an escaped character keeps its case.

use super::node::{Assert, Node};
use super::sets::{Sets, folded};
use crate::error::printable;

/// Maximum depth of groups in groups.
const MAX_DEPTH: usize = 100;

#[derive(Clone, Copy, Debug, Default)]
struct Flags {
    fold: bool,
    lines: bool,
    dot_is_all: bool,
    swap_greed: bool,
    spaced: bool,
}

/// A part of an expression, and whether a repetition may follow.
struct Piece(Node, bool);

enum Escape {
    Char(char),
    /// Case is ignored where the flag says so.
    FoldedChar(char),
    /// In the syntax of `regex-syntax`.
    Class(String, bool),
    Piece(Piece),
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    flags: Flags,
    sets: Sets,
}

pub(super) fn parse(text: &str) -> Result<(Node, Sets), String> {
    let mut parser = Parser { text, at: 0, flags: Flags::default(), sets: Sets::default() };
    let Piece(node, _) = parser.alternatives(0)?;
    if parser.at < text.len() {
        return Err(format!("a group is closed at byte {} that was not opened", parser.at));
    }
    Ok((node, parser.sets))
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn next_char(&mut self) -> Option<char> {
        let c = self.rest().chars().next()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        self.at += if found { text.len() } else { 0 };
        found
    }

    fn unsupported<T>(&self, what: &str) -> Result<T, String> {
        Err(format!("it has {what} before byte {}, which is not supported", self.at))
    }

    fn unclosed<T>(&self) -> Result<T, String> {
        Err("a group is opened that is not closed".into())
    }

    /// Skips comments and, if the flag says so, white space.
    fn skip(&mut self) -> Result<(), String> {
        loop {
            match self.byte() {
                Some(b' ' | b'\r' | b'\n' | b'\t') if self.flags.spaced => self.at += 1,
                Some(b'#') if self.flags.spaced => {
                    self.at = self.rest().find('\n').map_or(self.text.len(), |len| self.at + len + 1);
                }
                Some(b'(') if self.eat("(?#") => loop {
                    match self.next_char() {
                        Some(')') => break,
                        Some('\\') => drop(self.next_char()),
                        Some(_) => (),
                        None => return Err("a comment is opened that is not closed".into()),
                    }
                },
                _ => return Ok(()),
            }
        }
    }

    fn alternatives(&mut self, depth: usize) -> Result<Piece, String> {
        let Piece(first, repeatable) = self.branch(depth)?;
        if self.byte() != Some(b'|') {
            return Ok(Piece(first, repeatable));
        }
        let mut nodes = vec![first];
        while self.eat("|") {
            nodes.push(self.branch(depth)?.0);
        }
        // Alternatives of one character each are a set.
        let mut sets = Vec::new();
        for node in &nodes {
            match node {
                Node::Char(c) => sets.push(self.sets.of_char(*c)?),
                Node::Set(set) => sets.push(*set),
                _ => return Ok(Piece(Node::Alt(nodes), true)),
            }
        }
        Ok(Piece(Node::Set(self.sets.union(&sets)?), true))
    }

    fn branch(&mut self, depth: usize) -> Result<Piece, String> {
        let (mut nodes, mut pieces, mut all_repeatable) = (Vec::new(), 0, true);
        loop {
            let before = self.at;
            let Piece(node, repeatable) = self.piece(depth)?;
            let is_empty = matches!(node, Node::Empty);
            if !is_empty || repeatable {
                pieces += 1;
                all_repeatable &= repeatable;
            }
            if !is_empty {
                nodes.push(node);
            }
            if self.at == before {
                break;
            }
        }
        self.skip()?;
        let node = match nodes.pop() {
            None => Node::Empty,
            Some(node) if nodes.is_empty() => node,
            Some(node) => {
                nodes.push(node);
                Node::Cat(nodes)
            }
        };
        Ok(Piece(node, pieces > 1 || pieces == 1 && all_repeatable))
    }

    fn piece(&mut self, depth: usize) -> Result<Piece, String> {
        self.skip()?;
        let Piece(node, repeatable) = self.atom(depth)?;
        self.skip()?;
        let start = self.at;
        let (min, max) = match self.byte() {
            Some(b'?') => (0, Some(1)),
            Some(b'*') => (0, None),
            Some(b'+') => (1, None),
            Some(b'{') => match self.counts()? {
                Some(counts) => counts,
                None => {
                    self.at = start;
                    return Ok(Piece(node, repeatable));
                }
            },
            _ => return Ok(Piece(node, repeatable)),
        };
        if !repeatable {
            return Err(format!("nothing that can be repeated is before the repetition at byte {start}"));
        }
        if max.is_some_and(|max| max < min) {
            return Err(format!("the repetition at byte {start} has a minimum above its maximum"));
        }
        self.at += 1;
        self.skip()?;
        let greedy = !self.eat("?") ^ self.flags.swap_greed;
        let possessive = self.eat("+");
        if matches!(node, Node::Empty) || max == Some(0) {
            return Ok(Piece(Node::Empty, true));
        }
        let node = Node::Repeat { node: Box::new(node), min, max, greedy };
        Ok(Piece(if possessive { Node::Atomic(Box::new(node)) } else { node }, true))
    }

    /// The numbers of a repetition, up to its closing brace; `None` if the opening one is a literal.
    fn counts(&mut self) -> Result<Option<(usize, Option<usize>)>, String> {
        self.at += 1;
        self.skip()?;
        let min = match self.number() {
            Some(min) => min,
            None if self.byte() == Some(b',') => 0,
            None => return Ok(None),
        };
        self.skip()?;
        let mut max = Some(min);
        if self.eat(",") {
            self.skip()?;
            max = self.number();
        }
        self.skip()?;
        Ok((self.byte() == Some(b'}')).then_some((min, max)))
    }

    fn number(&mut self) -> Option<usize> {
        let digits = self.rest().bytes().take_while(u8::is_ascii_digit).count();
        let number = self.rest()[..digits].parse().ok()?;
        self.at += digits;
        Some(number)
    }

    fn atom(&mut self, depth: usize) -> Result<Piece, String> {
        let Some(byte) = self.byte() else { return Ok(Piece(Node::Empty, false)) };
        let assert = |assert| Ok(Piece(Node::Assert(assert), true));
        match byte {
            b'+' | b'*' | b'?' | b'|' | b')' => return Ok(Piece(Node::Empty, false)),
            b'(' => return self.group(depth + 1),
            b'[' => return self.class(),
            _ => (),
        }
        match self.next_char() {
            Some('.') => self.any(self.flags.dot_is_all),
            Some('^') => assert(if self.flags.lines { Assert::LineStart } else { Assert::TextStart }),
            Some('$') => assert(if self.flags.lines { Assert::LineEnd } else { Assert::TextEnd }),
            Some('\\') => match self.escape(false)? {
                Escape::Char(c) => Ok(Piece(Node::Char(c), true)),
                Escape::FoldedChar(c) => self.char(c),
                Escape::Class(text, fold) => Ok(Piece(Node::Set(self.sets.of_text(&text, fold)?), true)),
                Escape::Piece(piece) => Ok(piece),
            },
            Some(c) => self.char(c),
            None => Ok(Piece(Node::Empty, false)),
        }
    }

    fn any(&mut self, newline: bool) -> Result<Piece, String> {
        Ok(Piece(Node::Set(self.sets.of_text(if newline { "(?s:.)" } else { "." }, false)?), true))
    }

    fn char(&mut self, c: char) -> Result<Piece, String> {
        let folded = if self.flags.fold { folded(c) } else { None };
        Ok(Piece(
            match folded {
                Some(text) => Node::Set(self.sets.of_text(&text, true)?),
                None => Node::Char(c),
            },
            true,
        ))
    }

    fn class(&mut self) -> Result<Piece, String> {
        let (start, mut text, mut nested) = (self.at, String::new(), 0);
        let mut copy = |parser: &mut Self, copied: &str, text: &mut String| {
            let found = parser.eat(copied);
            text.push_str(if found { copied } else { "" });
            nested += usize::from(found && copied == "[");
        };
        copy(self, "[", &mut text);
        copy(self, "^", &mut text);
        copy(self, "]", &mut text);
        while nested > 0 {
            match self.next_char() {
                Some('\\') => match self.escape(true)? {
                    Escape::Char(c) | Escape::FoldedChar(c) => {
                        text.push_str(&regex_syntax::escape(c.encode_utf8(&mut [0; 4])));
                    }
                    Escape::Class(class, _) => text.push_str(&class),
                    Escape::Piece(_) => {
                        return Err(format!("an escape before byte {} cannot be in a class", self.at));
                    }
                },
                Some(c) => {
                    text.push(c);
                    match c {
                        '[' => nested += 1,
                        ']' => nested -= 1,
                        _ => (),
                    }
                }
                None => return Err(format!("the class of characters at byte {start} is not closed")),
            }
        }
        Ok(Piece(Node::Set(self.sets.of_text(&text, self.flags.fold)?), true))
    }

    /// What follows a backslash.
    fn escape(&mut self, in_class: bool) -> Result<Escape, String> {
        let start = self.at;
        let Some(c) = self.next_char() else { return Err("a backslash is its last character".into()) };
        let assert = |assert| Ok(Escape::Piece(Piece(Node::Assert(assert), true)));
        let hex_digits = |class: &str| Ok(Escape::Class(class.to_string(), false));
        match c {
            '0'..='9' => return self.unsupported("a backreference"),
            'd' | 'D' | 's' | 'S' | 'w' | 'W' => return Ok(Escape::Class(format!("\\{c}"), self.flags.fold)),
            'h' => return hex_digits("[0-9A-Fa-f]"),
            'H' => return hex_digits("[^0-9A-Fa-f]"),
            'x' => return self.code(2),
            'u' => return self.code(4),
            'U' => return self.code(8),
            'p' | 'P' if self.byte().is_some() => {
                if self.next_char() == Some('{') {
                    while self.next_char().ok_or("the name of a property is not closed")? != '}' {}
                }
                return Ok(Escape::Class(format!("\\{}", &self.text[start..self.at]), self.flags.fold));
            }
            'a' => return Ok(Escape::Char('\x07')),
            'e' => return Ok(Escape::Char('\x1b')),
            'f' => return Ok(Escape::Char('\x0c')),
            'n' => return Ok(Escape::Char('\n')),
            'r' => return Ok(Escape::Char('\r')),
            't' => return Ok(Escape::Char('\t')),
            'v' => return Ok(Escape::Char('\x0b')),
            'b' if in_class => return Ok(Escape::Char('\x08')),
            'k' | 'A' | 'z' | 'B' | 'K' | 'G' if in_class => return Ok(Escape::Char(c)),
            _ if in_class => (),
            'k' => return self.unsupported("a backreference"),
            'g' => return self.unsupported("a call of a group"),
            'K' => return self.unsupported("\\K"),
            'A' => return assert(Assert::TextStart),
            'z' => return assert(Assert::TextEnd),
            'Z' => return self.last_lines(),
            'b' | 'B' => return self.word_boundary(c == 'B'),
            '<' => return assert(Assert::WordStart),
            '>' => return assert(Assert::WordEnd),
            'G' => return Ok(Escape::Piece(Piece(Node::Assert(Assert::SearchStart), false))),
            'O' => return Ok(Escape::Piece(self.any(true)?)),
            _ => (),
        }
        if c.is_ascii_alphabetic() {
            return Err(format!("\\{c} before byte {} is no known escape", self.at));
        }
        Ok(Escape::Char(c))
    }

    /// The end of the text, or before line ends at its end.
    fn last_lines(&mut self) -> Result<Escape, String> {
        let line_ends = Node::Repeat { node: Box::new(Node::Char('\n')), min: 0, max: None, greedy: true };
        let node = Box::new(Node::Cat(vec![line_ends, Node::Assert(Assert::TextEnd)]));
        Ok(Escape::Piece(Piece(Node::Look { behind: false, negative: false, node }, false)))
    }

    fn word_boundary(&mut self, negative: bool) -> Result<Escape, String> {
        let end = self.at;
        let mut assert = if negative { Assert::NotWord } else { Assert::Word };
        self.skip()?;
        let mut is_named = self.eat("{");
        if is_named {
            self.skip()?;
            is_named = !self.byte().is_some_and(|byte| byte.is_ascii_digit() || byte == b',');
        }
        if !is_named {
            self.at = end;
            return Ok(Escape::Piece(Piece(Node::Assert(assert), true)));
        }
        let mut name = String::new();
        loop {
            self.skip()?;
            match self.next_char() {
                Some('}') => break,
                Some(c) => name.push(c),
                None => return Err("the name of a boundary is not closed".into()),
            }
        }
        assert = match &*name {
            "start" if !negative => Assert::WordStart,
            "end" if !negative => Assert::WordEnd,
            "start-half" if !negative => Assert::WordStartHalf,
            "end-half" if !negative => Assert::WordEndHalf,
            _ => return Err(format!("the boundary \"{}\" is not known", printable(&name))),
        };
        Ok(Escape::Piece(Piece(Node::Assert(assert), true)))
    }

    /// The number of a character: some hexadecimal digits, or any number of them in braces.
    fn code(&mut self, digits: usize) -> Result<Escape, String> {
        self.skip()?;
        let start = self.at;
        let mut code = String::new();
        if self.rest().len() >= digits
            && self.rest().bytes().take(digits).all(|byte| byte.is_ascii_hexdigit())
        {
            code.push_str(&self.rest()[..digits]);
            self.at += digits;
        } else if self.eat("{") {
            loop {
                self.skip()?;
                match self.next_char() {
                    Some('}') => break,
                    Some(c) if c.is_ascii_hexdigit() && code.len() < 8 => code.push(c),
                    _ => return Err(format!("the number of a character at byte {start} is not valid")),
                }
            }
        }
        let c = u32::from_str_radix(&code, 16).ok().and_then(char::from_u32);
        let c = c.ok_or_else(|| format!("the number of a character at byte {start} is not valid"))?;
        Ok(Escape::FoldedChar(c))
    }

    fn group(&mut self, depth: usize) -> Result<Piece, String> {
        if depth > MAX_DEPTH {
            return Err(format!("it has more than {MAX_DEPTH} groups in each other"));
        }
        self.at += 1;
        self.skip()?;
        for (text, behind, negative) in
            [("?=", false, false), ("?!", false, true), ("?<=", true, false), ("?<!", true, true)]
        {
            if self.eat(text) {
                let node = Box::new(self.group_body(depth)?);
                return Ok(Piece(Node::Look { behind, negative, node }, false));
            }
        }
        if self.eat("?>") {
            return Ok(Piece(Node::Atomic(Box::new(self.group_body(depth)?)), true));
        }
        if self.eat("?(") {
            return self.unsupported("a conditional");
        }
        if self.eat("?P=") {
            return self.unsupported("a backreference");
        }
        if self.eat("?P>") {
            return self.unsupported("a call of a group");
        }
        if self.eat("?<") || self.eat("?P<") {
            self.name('>')?;
        } else if self.eat("?'") {
            self.name('\'')?;
        } else if self.eat("?") {
            return self.flags(depth);
        }
        Ok(Piece(Node::Group(Box::new(self.group_body(depth)?)), true))
    }

    fn group_body(&mut self, depth: usize) -> Result<Node, String> {
        let Piece(node, _) = self.alternatives(depth)?;
        if self.eat(")") { Ok(node) } else { self.unclosed() }
    }

    fn name(&mut self, close: char) -> Result<(), String> {
        let len = self.rest().find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(0);
        self.at += len;
        if len > 0 && self.next_char() == Some(close) {
            return Ok(());
        }
        Err(format!("the name of a group before byte {} is not valid", self.at))
    }

    /// Flags that hold from here on, or in a group.
    fn flags(&mut self, depth: usize) -> Result<Piece, String> {
        let (start, before, mut on) = (self.at, self.flags, true);
        loop {
            self.skip()?;
            let any = self.at > start + usize::from(!on);
            match self.next_char() {
                Some('i') => self.flags.fold = on,
                Some('m') => self.flags.lines = on,
                Some('s') => self.flags.dot_is_all = on,
                Some('U') => self.flags.swap_greed = on,
                Some('x') => self.flags.spaced = on,
                Some('u') if on => (),
                Some('-') if on => on = false,
                Some(')') if any => return Ok(Piece(Node::Empty, false)),
                Some(':') if any || on => {
                    // Whether it may be repeated is decided as if the group was not there.
                    let content = self.alternatives(depth)?;
                    if !self.eat(")") {
                        return self.unclosed();
                    }
                    self.flags = before;
                    return Ok(content);
                }
                None => return self.unclosed(),
                Some(_) => return Err(format!("the flags at byte {start} are not known")),
            }
        }
    }
}
