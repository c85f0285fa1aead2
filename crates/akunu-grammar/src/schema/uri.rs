//! As much of RFC 3986 as references between schemas need.

/// The URI without its fragment, and the fragment.
pub(super) fn split(uri: &str) -> (&str, &str) {
    uri.split_once('#').unwrap_or((uri, ""))
}

fn scheme_end(uri: &str) -> Option<usize> {
    let end = uri.find(':')?;
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    (uri.starts_with(|c: char| c.is_ascii_alphabetic()) && uri[..end].chars().all(is_scheme)).then_some(end)
}

/// `reference`, which has no fragment, relative to `base`.
pub(super) fn join(base: &str, reference: &str) -> String {
    if reference.is_empty() {
        return base.to_string();
    }
    if scheme_end(reference).is_some() || base.is_empty() {
        return reference.to_string();
    }
    let after_scheme = scheme_end(base).map_or(0, |end| end + 1);
    if reference.starts_with("//") {
        return format!("{}{reference}", &base[..after_scheme]);
    }
    let authority = if base[after_scheme..].starts_with("//") {
        base[after_scheme + 2..].find('/').map_or(base.len(), |at| after_scheme + 2 + at)
    } else {
        after_scheme
    };
    if reference.starts_with('/') {
        return format!("{}{}", &base[..authority], without_dots(reference));
    }
    let folder = base[authority..].rfind('/').map_or("/", |at| &base[authority..authority + at + 1]);
    format!("{}{}", &base[..authority], without_dots(&format!("{folder}{reference}")))
}

fn without_dots(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." => {
                if parts.len() > 1 {
                    parts.pop();
                }
            }
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// A JSON pointer's token without its escapes, in a fragment where `%` escapes bytes.
pub(super) fn token(escaped: &str) -> String {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = |at: usize| tail.get(at).and_then(|digit| (*digit as char).to_digit(16));
        match (first, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).replace("~1", "/").replace("~0", "~")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_joined_with_their_base() {
        for (base, reference, whole) in [
            ("http://a.example/b/c.json", "d.json", "http://a.example/b/d.json"),
            ("http://a.example/b/c.json", "/d", "http://a.example/d"),
            ("http://a.example/b/c.json", "../d", "http://a.example/d"),
            ("http://a.example", "d", "http://a.example/d"),
            ("http://a.example/b", "urn:x", "urn:x"),
            ("http://a.example/b", "//c.example/d", "http://c.example/d"),
            ("", "d.json", "d.json"),
            ("http://a.example/b", "", "http://a.example/b"),
        ] {
            assert_eq!(join(base, reference), whole, "{base} {reference}");
        }
        assert_eq!(token("a~1b~0c%25"), "a/b~c%");
    }
}
