//! `format`: the strings of each known format, or a part of them, as expressions of whole strings.
//!
//! Unknown formats have no effect, as JSON Schema says.

use std::collections::HashMap;
use std::rc::Rc;

const HEX: &str = "[0-9a-fA-F]";
const OCTET: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
/// Labels of at most 61 and of at most 29 characters, without two hyphens in a row.
const LONG: &str = "[a-zA-Z0-9](?:[a-zA-Z0-9]|-[a-zA-Z0-9]){0,30}";
const SHORT: &str = "[a-zA-Z0-9](?:[a-zA-Z0-9]|-[a-zA-Z0-9]){0,14}";
const PCHAR: &str = "(?:[a-zA-Z0-9\\-._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})";

pub(super) fn lookup(name: &str) -> Option<String> {
    let date = date();
    let minutes = "(?:[01][0-9]|2[0-3]):[0-5][0-9]";
    let time = format!("{minutes}:[0-5][0-9](?:\\.[0-9]{{1,9}})?(?:[zZ]|[+-]{minutes})");
    Some(match name {
        "date" => date,
        "time" => time,
        "date-time" => format!("{date}[tT]{time}"),
        "duration" => duration(),
        "email" | "idn-email" => {
            let atom = "[a-zA-Z0-9!#$%&'*+\\-/=?^_`{|}~]{1,20}";
            let one = atom.replace("20}", "64}");
            format!("(?:{one}|{atom}(?:\\.{atom}){{1,2}})@{SHORT}(?:\\.{SHORT}){{0,4}}")
        }
        "hostname" | "idn-hostname" => {
            // At most 253 characters.
            format!("(?:{LONG}(?:\\.{LONG}){{0,3}}|{SHORT}(?:\\.{SHORT}){{4,7}})")
        }
        "ipv4" => ipv4(),
        "ipv6" => ipv6(),
        "uuid" => format!("{HEX}{{8}}-{HEX}{{4}}-{HEX}{{4}}-{HEX}{{4}}-{HEX}{{12}}"),
        "uri" | "iri" => uri(),
        "uri-reference" | "iri-reference" => {
            format!(
                "(?:{}|/{PCHAR}+(?:/{PCHAR}*)*{q}|(?:/|[a-zA-Z0-9\\-._~]+(?:/{PCHAR}*)*)?{q})",
                uri(),
                q = query()
            )
        }
        "json-pointer" => "(?:/(?:[^/~]|~[01])*)*".into(),
        "relative-json-pointer" => "(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^/~]|~[01])*)*)".into(),
        "regex" => regex(),
        "uri-template" => "(?:[a-zA-Z0-9\\-._~:/?#@!$&()*+,;=]|\\{[a-zA-Z0-9_]{1,40}\\})*".into(),
        _ => return None,
    })
}

/// What every string of a format matches, for those of which [`lookup`] has a part only. Two formats exclude each other
/// where these expressions do.
const WIDE: [(&str, &str); 12] = [
    ("date-time", "[0-9]{4}-[0-9]{2}-[0-9]{2}[tT ][0-9:.,zZ+\\-]*"),
    ("time", "[0-9]{2}:[0-9]{2}:[0-9]{2}[0-9.,:zZ+\\-]*"),
    ("duration", "P[0-9.,TYMWDHS]*"),
    ("idn-email", "(?s:.*)@(?s:.*)"),
    ("idn-hostname", "[^@:/ ]*"),
    ("ipv6", "[0-9a-fA-F.]*:[0-9a-fA-F:.]*"),
    ("iri", "[a-zA-Z][a-zA-Z0-9+\\-.]*:(?s:.*)"),
    ("iri-reference", ANYTHING),
    ("json-pointer", "(?:/(?s:.*))?"),
    ("relative-json-pointer", "[0-9](?s:.*)"),
    ("regex", ANYTHING),
    ("uri-template", ANYTHING),
];
const ANYTHING: &str = "(?s:.*)";

/// For the expression of a format, one that all its strings match; `None` if it is one itself, or of no format.
pub(super) fn wide(pattern: &str) -> Option<Rc<str>> {
    thread_local! {
        static BY_PATTERN: HashMap<String, Rc<str>> = WIDE
            .iter()
            .filter_map(|(name, wide)| Some((lookup(name)?, Rc::from(*wide))))
            .collect();
    }
    BY_PATTERN.with(|wide| wide.get(pattern).cloned())
}

/// Regular expressions without much: characters, classes, repetitions, and groups that are not nested.
fn regex() -> String {
    let class = "\\[\\^?(?:[a-zA-Z0-9_ ]|\\\\[dDwWsS])+\\]";
    let ranges = "\\[\\^?(?:a-z|A-Z|0-9|_)+\\]";
    let atom = format!("(?:[a-zA-Z0-9 _,:;=@#%&<>~\"'!-]|\\.|\\\\[dDwWsS.*+?/-]|{class}|{ranges})[*+?]?");
    format!("\\^?(?:{atom}|\\((?:\\?:)?{atom}(?:{atom}|\\|)*\\)[*+?]?)*\\$?")
}

fn date() -> String {
    let leap = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29";
    format!(
        "(?:[0-9]{{4}}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|\
         02-(?:0[1-9]|1[0-9]|2[0-8]))|{leap})"
    )
}

fn duration() -> String {
    let n = "[0-9]+";
    let time = format!("T(?:{n}H(?:{n}M(?:{n}S)?)?|{n}M(?:{n}S)?|{n}S)");
    let date = format!("(?:{n}Y(?:{n}M(?:{n}D)?)?|{n}M(?:{n}D)?|{n}D)");
    format!("P(?:{date}(?:{time})?|{time}|{n}W)")
}

fn ipv4() -> String {
    format!("(?:{OCTET}\\.){{3}}{OCTET}")
}

fn ipv6() -> String {
    let group = format!("{HEX}{{1,4}}");
    let mut forms = vec![format!("(?:{group}:){{7}}{group}")];
    // Groups before and after `::`, at most seven in all.
    for before in 0..=7 {
        let head = match before {
            0 => String::new(),
            1 => group.clone(),
            _ => format!("{group}(?::{group}){{{}}}", before - 1),
        };
        let tail = match 7 - before {
            0 => String::new(),
            1 => format!("(?:{group})?"),
            most => format!("(?:{group}(?::{group}){{0,{}}})?", most - 1),
        };
        forms.push(format!("{head}::{tail}"));
    }
    format!("(?:{})", forms.join("|"))
}

fn query() -> String {
    let part = format!("(?:{PCHAR}|[/?])*");
    format!("(?:\\?{part})?(?:#{part})?")
}

fn uri() -> String {
    let user = "(?:[a-zA-Z0-9\\-._~!$&'()*+,;=:]|%[0-9a-fA-F]{2})*@";
    let host = format!("(?:(?:[a-zA-Z0-9\\-._~!$&'()*+,;=]|%[0-9a-fA-F]{{2}})*|\\[{}\\])", ipv6());
    let authority = format!("//(?:{user})?{host}(?::[0-9]{{0,5}})?(?:/{PCHAR}*)*");
    let path = format!("/?{PCHAR}+(?:/{PCHAR}*)*");
    format!("[a-zA-Z][a-zA-Z0-9+\\-.]*:(?:{authority}|{path}){}", query())
}

#[cfg(test)]
mod tests {
    use super::super::regexes::Regexes;
    use super::*;

    /// `date`, `ipv4` and `uuid` have all their strings.
    #[test]
    fn wide_expressions_have_the_strings_of_their_formats_and_more() {
        let mut regexes = Regexes::default();
        for (format, more) in [
            ("date-time", "1990-12-31T23:59:60.123456789012Z"),
            ("time", "23:59:60Z"),
            ("duration", "P1Y"),
            ("email", "\"joe bloggs\"@[127.0.0.1]"),
            ("idn-email", "실례@실례.테스트"),
            ("hostname", "a--b"),
            ("idn-hostname", "실례.테스트"),
            ("ipv6", "::ffff:192.168.0.1"),
            ("uri", "urn:"),
            ("iri", "http://ƒøø.ßår/?∂éœ=πîx"),
            ("uri-reference", "\\\\a"),
            ("iri-reference", "ƒøø"),
            ("json-pointer", "/a"),
            ("relative-json-pointer", "0#"),
            ("regex", "(?:(?=a))b{2}"),
            ("uri-template", "{+a,b*}"),
        ] {
            let narrow = lookup(format).unwrap();
            let wide = wide(&narrow).unwrap();
            assert_eq!(regexes.matches(&wide, more), Some(true), "{format} {more}");
            let samples =
                ["2024-02-29T12:00:00Z", "12:00:00+01:30", "P1Y2M3DT4H5M6S", "a.b@c.de", "c.de", "1::8"];
            let samples =
                samples.into_iter().chain(["http://[::1]/?a#b", "", "/a/~0", "1/a", "a[b]*", "a{b}"]);
            for sample in samples {
                let is_narrow = regexes.matches(&narrow.as_str().into(), sample) == Some(true);
                assert!(!is_narrow || regexes.matches(&wide, sample) == Some(true), "{format} {sample}");
            }
        }
        for exact in ["date", "ipv4", "uuid"] {
            assert_eq!(wide(&lookup(exact).unwrap()), None);
        }
    }

    #[test]
    fn formats_have_their_strings() {
        let mut regexes = Regexes::default();
        for (format, yes, no) in [
            (
                "date",
                &["2024-02-29", "2000-02-29", "2023-12-31"][..],
                &["2023-02-29", "1900-02-29", "2023-04-31"][..],
            ),
            ("time", &["12:00:00Z", "23:59:59.5+01:30"], &["24:00:00Z", "12:00:00", "12:00Z"]),
            ("date-time", &["2024-02-29T12:00:00Z"], &["2024-02-30T12:00:00Z", "2024-02-29 12:00:00Z"]),
            ("duration", &["P1Y2M3DT4H5M6S", "PT1S", "P4W"], &["P", "PT", "P1Y4W", "P1YT", "1D"]),
            ("email", &["joe.bloggs@example.com", "a+b@c"], &["a", ".a@b", "a..b@c", "a@-b.de"]),
            ("hostname", &["www.example.com", "a-b.c"], &["-a", "a-", "a..b", ""]),
            ("ipv4", &["192.168.0.1"], &["256.1.1.1", "1.2.3", "01.2.3.4"]),
            (
                "ipv6",
                &["::1", "::", "1:2:3:4:5:6:7:8", "1::8", "1:2:3:4:5:6:7::"],
                &["1::2::3", ":1", "12345::", "1:2"],
            ),
            ("uuid", &["2EB8AA08-aa98-11ea-b4aa-73b441d16380"], &["2eb8aa08-aa98-11ea-b4aa-73b441d1638"]),
            (
                "uri",
                &["http://a.example/b?c#d", "mailto:a@b.de", "urn:x:y", "http://[::1]/"],
                &["//a", "a", "http://a b"],
            ),
            ("uri-reference", &["/abc", "a/b?c", "#x", "", "http://a"], &["\\\\a", "a b"]),
            ("regex", &["^a+b[0-9_]*(c|\\d)?$", ""], &["a**", "(a", "[", "a{2"]),
            ("uri-template", &["http://a/{b}"], &["{", "http://a/{b c}"]),
            ("json-pointer", &["", "/a/~0~1"], &["a", "/~"]),
        ] {
            let pattern = lookup(format).unwrap().into();
            for (texts, expected) in [(yes, true), (no, false)] {
                for text in texts {
                    assert_eq!(regexes.matches(&pattern, text), Some(expected), "{format} {text}");
                }
            }
        }
        assert_eq!(lookup("colour"), None);
    }
}
