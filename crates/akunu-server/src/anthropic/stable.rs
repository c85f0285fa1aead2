//! Lines at the start of system prompts that change between the turns of a conversation.
//!
//! Agents for coding begin a system prompt with a header for billing, which differs in each request, or with
//! the date. All tokens after the first difference would be processed again in each turn. A header means
//! nothing to a model and is removed; a date is moved to the end of the system prompt.

/// The beginnings of lines that are removed. Letters may be of any case.
const HEADERS: [&str; 1] = ["x-anthropic-billing-header:"];

/// The beginnings of lines that are moved.
const DATES: [&str; 8] = [
    "today's date:",
    "today's date is",
    "today is",
    "current date:",
    "current date and time:",
    "the current date is",
    "the current date and time is",
    "the date is",
];

/// The longest line that counts as one of these: others are instructions that begin alike.
const MAX_LINE: usize = 512;
const MAX_DATE: usize = 120;

/// The most lines that are moved.
const MAX_DATES: usize = 4;

/// A system prompt without such lines at its start, and with dates at its end.
pub(super) fn rewrite(text: String) -> String {
    let (mut rest, mut dates) = (text.as_str(), Vec::new());
    loop {
        let line_end = rest.find('\n').unwrap_or(rest.len());
        let line = rest[..line_end].trim();
        let begins_with = |names: &[&str], limit: usize| {
            let begins =
                |name: &&str| line.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
            line.len() <= limit && names.iter().any(begins)
        };
        let is_date = dates.len() < MAX_DATES && begins_with(&DATES, MAX_DATE);
        // White space between them goes with them, but that before the text is the text's own.
        let is_blank = line.is_empty() && line_end < rest.len() && rest.len() < text.len();
        if !(is_date || is_blank || begins_with(&HEADERS, MAX_LINE)) {
            break;
        }
        if is_date {
            dates.push(line);
        }
        rest = rest.get(line_end + 1..).unwrap_or_default();
    }
    if rest.len() == text.len() {
        return text;
    }
    let mut written = rest.to_string();
    for date in dates {
        if !written.is_empty() {
            written.push('\n');
        }
        written.push_str(date);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_removed_and_dates_moved() {
        for (given, expected) in [
            ("x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;\nYou are kind.", "You are kind."),
            (
                "X-Anthropic-Billing-Header: a\n\nToday's date: 2026-11-27\n\nYou are kind.\n",
                "You are kind.\n\nToday's date: 2026-11-27",
            ),
            ("Today is Friday.\nBe brief.", "Be brief.\nToday is Friday."),
            ("x-anthropic-billing-header: a", ""),
            ("Today is Friday.", "Today is Friday."),
            ("", ""),
        ] {
            assert_eq!(rewrite(given.into()), expected, "{given}");
        }
    }

    #[test]
    fn other_text_is_not_touched() {
        let five = "Today is Friday.\n".repeat(5);
        assert_eq!(rewrite(five), format!("Today is Friday.\n{}", "\nToday is Friday.".repeat(4)));
        let long = format!("Today is {}\nBe brief.", "a good day to ".repeat(20));
        for text in [
            "\n\n  Be brief.\nx-anthropic-billing-header: a\nToday is Friday.",
            "Be brief.",
            "é x-anthropic-billing-header: a",
            " \n",
            &long,
        ] {
            assert_eq!(rewrite(text.into()), text);
        }
    }
}
