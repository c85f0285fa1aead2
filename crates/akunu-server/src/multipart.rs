//! Forms: `multipart/form-data`, as RFC 7578 describes it, and no more of RFC 2046 than clients send.

use std::ops::Range;

/// Maximum parts of a form.
const MOST_PARTS: usize = 64;

/// Maximum bytes of the headers of a part.
const MOST_HEAD: usize = 4096;

/// Maximum bytes of a boundary.
const MOST_BOUNDARY: usize = 70;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    #[error("its Content-Type has no valid boundary")]
    Boundary,
    #[error("it does not begin with the boundary of its Content-Type")]
    Start,
    #[error("it ends before its last boundary")]
    Unfinished,
    #[error("a boundary is followed by other text")]
    Delimiter,
    #[error("the last boundary is followed by more")]
    AfterEnd,
    #[error("it has more than {MOST_PARTS} parts")]
    Parts,
    #[error("the headers of a part exceed {MOST_HEAD} bytes")]
    LongHead,
    #[error("the headers of a part are malformed")]
    Head,
    #[error("a part has no 'Content-Disposition: form-data' with a name")]
    Disposition,
    #[error("a part is encoded for transfer, which is not supported")]
    Encoded,
}

/// A field of a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub name: String,
    /// Whether it has a file name.
    pub is_file: bool,
    /// Where its content is.
    pub content: Range<usize>,
}

/// The boundary in a `Content-Type`; `None`: it is of another type.
pub fn boundary(content_type: &str) -> Option<Result<String, FormError>> {
    let (kind, rest) = content_type.split_at(content_type.find(';').unwrap_or(content_type.len()));
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(&byte);
    let is_valid = |text: &String| {
        (1..=MOST_BOUNDARY).contains(&text.len()) && text.bytes().all(is_allowed) && !text.ends_with(' ')
    };
    let found = parameters(rest).and_then(|found| value(found, "boundary"));
    Some(found.filter(is_valid).ok_or(FormError::Boundary))
}

/// The fields of a form.
pub fn parse(form: &[u8], boundary: &str) -> Result<Vec<Part>, FormError> {
    let delimiter = format!("\r\n--{boundary}").into_bytes();
    // The first one needs no line before it.
    let first = [&delimiter[2..], &delimiter].into_iter().find(|first| form.starts_with(first));
    let mut at = first.ok_or(FormError::Start)?.len();
    let mut parts = Vec::new();
    loop {
        let rest = &form[at..];
        if let Some(end) = rest.strip_prefix(b"--") {
            return if end.is_empty() || end == b"\r\n" { Ok(parts) } else { Err(FormError::AfterEnd) };
        }
        let is_cut = b"\r\n".starts_with(rest) || rest == b"-";
        let rest = rest.strip_prefix(b"\r\n").ok_or(match is_cut {
            true => FormError::Unfinished,
            false => FormError::Delimiter,
        })?;
        if parts.len() == MOST_PARTS {
            return Err(FormError::Parts);
        }
        let most = rest.len().min(MOST_HEAD);
        let head = rest[..most].windows(4).position(|end| end == b"\r\n\r\n");
        let head = head.ok_or(match most {
            MOST_HEAD => FormError::LongHead,
            _ => FormError::Unfinished,
        })?;
        let (name, is_file) = read_head(&rest[..head])?;
        let start = form.len() - rest.len() + head + 4;
        let length = find(&form[start..], &delimiter).ok_or(FormError::Unfinished)?;
        parts.push(Part { name, is_file, content: start..start + length });
        at = start + length + delimiter.len();
    }
}

/// Where `delimiter` is, of whose bytes only the first is a carriage return.
fn find(bytes: &[u8], delimiter: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += bytes[at..].iter().position(|byte| *byte == b'\r')?;
        if bytes[at..].starts_with(delimiter) {
            return Some(at);
        }
        at += 1;
    }
}

/// The name of a part, and whether it is a file.
fn read_head(head: &[u8]) -> Result<(String, bool), FormError> {
    let head = std::str::from_utf8(head).map_err(|_| FormError::Head)?;
    let mut disposition = None;
    for line in head.split("\r\n") {
        let (name, value) = line.split_once(':').ok_or(FormError::Head)?;
        if !is_token(name) || value.chars().any(|char| char.is_control() && char != '\t') {
            return Err(FormError::Head);
        }
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-disposition" if disposition.is_some() => return Err(FormError::Disposition),
            "content-disposition" => disposition = Some(value),
            "content-transfer-encoding" => {
                let plain = ["7bit", "8bit", "binary"];
                if !plain.iter().any(|plain| value.eq_ignore_ascii_case(plain)) {
                    return Err(FormError::Encoded);
                }
            }
            _ => {}
        }
    }
    let value_of = disposition.ok_or(FormError::Disposition)?;
    let (kind, rest) = value_of.split_at(value_of.find(';').unwrap_or(value_of.len()));
    let found = parameters(rest).filter(|_| kind.trim().eq_ignore_ascii_case("form-data"));
    let found = found.ok_or(FormError::Disposition)?;
    let is_file = found.iter().any(|(name, _)| name == "filename" || name == "filename*");
    let name = value(found, "name").filter(|name| !name.is_empty()).ok_or(FormError::Disposition)?;
    Ok((name, is_file))
}

fn is_token(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_allowed)
}

/// The value of a parameter that occurs once.
fn value(parameters: Vec<(String, String)>, name: &str) -> Option<String> {
    let mut values = parameters.into_iter().filter(|(other, _)| other == name);
    values.next().filter(|_| values.next().is_none()).map(|(_, value)| value)
}

/// Reads `; name=value; name="value"`. `None`: it is malformed.
fn parameters(mut text: &str) -> Option<Vec<(String, String)>> {
    let mut found = Vec::new();
    loop {
        text = text.trim_start_matches([' ', '\t']);
        if text.is_empty() {
            return Some(found);
        }
        let (name, rest) = text.strip_prefix(';')?.split_once('=')?;
        let name = name.trim_start_matches([' ', '\t']);
        if !is_token(name) {
            return None;
        }
        let (value, rest) = match rest.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let end = rest.find([';', ' ', '\t', '"']).unwrap_or(rest.len());
                (rest[..end].to_string(), &rest[end..])
            }
        };
        found.push((name.to_ascii_lowercase(), value));
        text = rest;
    }
}

/// A quoted value, and what follows it. A backslash that escapes nothing is itself: some clients send paths.
fn unquote(quoted: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = quoted.char_indices().peekable();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' => {
                let escaped = chars.next_if(|(_, next)| matches!(next, '"' | '\\'));
                value.push(escaped.map_or('\\', |(_, escaped)| escaped));
            }
            char => value.push(char),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, is_file: bool, content: Range<usize>) -> Part {
        Part { name: name.into(), is_file, content }
    }

    const FORM: &str = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ntiny\r\n--b\r\n\
                        content-type: audio/mpeg\r\ncontent-disposition: form-data; name=file; \
                        filename=\"a \\\"b\\\".mp3\"\r\n\r\n\r\n--\r\n--b\r\n--b";

    #[test]
    fn fields_and_files_are_found() {
        let form = FORM.replace("--b\r\n--b", "--c\r\n--b--\r\n");
        let found = parse(form.as_bytes(), "b").unwrap();
        let contents: Vec<&str> = found.iter().map(|part| &form[part.content.clone()]).collect();
        assert_eq!(contents, ["tiny", "\r\n--\r\n--c"]);
        assert_eq!(found[0], part("model", false, found[0].content.clone()));
        assert_eq!(found[1], part("file", true, found[1].content.clone()));
        assert_eq!(parse(b"--b--", "b"), Ok(Vec::new()));
        assert_eq!(parse(b"\r\n--b--\r\n", "b"), Ok(Vec::new()));
    }

    #[test]
    fn no_beginning_of_a_form_is_a_form() {
        let form = FORM.replace("--b\r\n--b", "--c\r\n--b--");
        for length in 0..form.len() {
            let error = parse(&form.as_bytes()[..length], "b").unwrap_err();
            let expected = if length < 3 { FormError::Start } else { FormError::Unfinished };
            assert_eq!(error, expected, "{length}: {:?}", &form[..length]);
        }
    }

    #[test]
    fn damaged_forms_are_errors_or_parts_without_a_delimiter() {
        let form = FORM.replace("--b\r\n--b", "--c\r\n--b--");
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let mut parsed = 0;
        for _ in 0..20_000 {
            let mut bytes = form.clone().into_bytes();
            for _ in 0..=random(3) {
                let (at, from) = (random(bytes.len()), random(form.len()));
                match random(3) {
                    0 => bytes[at] = form.as_bytes()[from],
                    1 => drop(bytes.remove(at)),
                    _ => drop(bytes.splice(at..at, form.bytes().skip(from).take(random(20)))),
                }
            }
            let Ok(parts) = parse(&bytes, "b") else { continue };
            parsed += 1;
            let mut end = 0;
            for part in parts {
                assert!(part.content.start > end && !part.name.is_empty());
                end = part.content.end;
                let content = String::from_utf8_lossy(&bytes[part.content]);
                assert!(!content.contains("\r\n--b"), "{content}");
            }
        }
        assert!(parsed > 1000, "{parsed}");
    }

    #[test]
    fn what_is_wrong_is_said() {
        let with_head = |head: &str| format!("--b\r\n{head}\r\n\r\n\r\n--b--");
        let named = "Content-Disposition: form-data; name=\"a\"";
        assert_eq!(parse(with_head(named).as_bytes(), "b").unwrap().len(), 1);
        for (form, expected) in [
            (with_head("Content-Disposition: form-data"), FormError::Disposition),
            (with_head("Content-Disposition: form-data; name=\"\""), FormError::Disposition),
            (with_head("Content-Disposition: form-data; name=a; name=b"), FormError::Disposition),
            (with_head("Content-Disposition: form-data; name=\"a"), FormError::Disposition),
            (with_head("Content-Disposition: attachment; name=\"a\""), FormError::Disposition),
            (with_head("Content-Type: text/plain"), FormError::Disposition),
            (with_head(&format!("{named}\r\n{named}")), FormError::Disposition),
            (with_head(&format!("{named}\r\n folded")), FormError::Head),
            (with_head(&format!("{named}\r\na b: c")), FormError::Head),
            (with_head(&format!("{named}\r\na: \u{1}")), FormError::Head),
            (with_head(&format!("{named}\r\nContent-Transfer-Encoding: base64")), FormError::Encoded),
            (with_head(&format!("{named}\r\na: {}", "b".repeat(MOST_HEAD))), FormError::LongHead),
            ("preamble\r\n--b--".into(), FormError::Start),
            ("--bc\r\n".into(), FormError::Delimiter),
            ("--b--epilogue".into(), FormError::AfterEnd),
            (format!("{}--b--", format!("--b\r\n{named}\r\n\r\n\r\n").repeat(65)), FormError::Parts),
        ] {
            assert_eq!(parse(form.as_bytes(), "b"), Err(expected), "{form}");
        }
    }

    #[test]
    fn boundaries_are_of_known_characters() {
        let long = "a".repeat(71);
        for (content_type, expected) in [
            ("application/json", None),
            ("multipart/mixed; boundary=a", None),
            (
                "multipart/form-data; boundary=----WebKitFormBoundary7MA4",
                Some(Ok("----WebKitFormBoundary7MA4")),
            ),
            ("Multipart/Form-Data;charset=utf-8;Boundary=\"a b\"", Some(Ok("a b"))),
            ("multipart/form-data; boundary===a==", Some(Ok("==a=="))),
            ("multipart/form-data", Some(Err(FormError::Boundary))),
            ("multipart/form-data; boundary=", Some(Err(FormError::Boundary))),
            ("multipart/form-data; boundary=a; boundary=b", Some(Err(FormError::Boundary))),
            ("multipart/form-data; boundary=\"a\r\"", Some(Err(FormError::Boundary))),
            (&format!("multipart/form-data; boundary={long}"), Some(Err(FormError::Boundary))),
        ] {
            let expected = expected.map(|found| found.map(str::to_string));
            assert_eq!(boundary(content_type), expected, "{content_type}");
        }
    }
}
