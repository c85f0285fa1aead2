//! Writes `docs/server-fields.md`.

use super::{Field, Group, ROUTES, Status};

const HEAD: &str = "# Fields of requests

<!-- Made by `akunu __fields`: do not edit. -->

Every field that the protocols and other servers describe for these routes, and what is done with it:

- **done**: it has its effect. A value of a wrong type or out of range is 400, with the name as `param`.
- **ignored**: it has no effect, and its value is not looked at.
- **warned**: it has no effect, and the header `x-akunu-warnings` of the response names it: `ignored: prediction`.
- **ignored, checked** and **warned, checked**: the same, and a wrong value is 400.
- **refused**: 400 with the code `unsupported_parameter` and the name as `param`, unless its value asks for nothing:
  null, or the values in brackets, or where there are none, false and the empty text and list.

Fields that are in none of these tables are ignored, except that unknown names of the form `guided_*` and
`structured_outputs.*` are refused: a misspelt one would leave an answer unconstrained; and unknown `options` of Ollama
are named in `x-akunu-warnings` and in the log, where Ollama has a warning for each. Errors have the format of the
path's protocol; those without a `param` have the name in the message.
";

/// The page, from the tables.
pub fn page() -> String {
    let mut page = HEAD.to_string();
    let mut written: Vec<&Group> = Vec::new();
    for group in ROUTES.iter().flat_map(|route| route.groups) {
        if written.iter().any(|before| std::ptr::eq(*before, *group)) {
            continue;
        }
        written.push(group);
        let of = ROUTES.iter().filter(|route| route.groups.iter().any(|other| std::ptr::eq(*other, *group)));
        let paths: Vec<String> = of.flat_map(|route| route.paths).map(|path| format!("`{path}`")).collect();
        page.push_str(&format!("\n## {}\n\n{}\n\n", group.title, wrapped(&paths)));
        page.push_str("| field | | what | example |\n|---|---|---|---|\n");
        group.fields.iter().for_each(|field| page.push_str(&row(field)));
    }
    page
}

/// A list in lines of at most 120 columns.
fn wrapped(words: &[String]) -> String {
    let (mut text, mut column) = (String::new(), 0);
    for (index, word) in words.iter().enumerate() {
        let end = if index + 1 < words.len() { "," } else { "" };
        if index > 0 {
            let fits = column + word.len() + 2 <= 118;
            text.push(if fits { ' ' } else { '\n' });
            column = if fits { column + 1 } else { 0 };
        }
        text.push_str(word);
        text.push_str(end);
        column += word.len() + end.len();
    }
    text
}

fn row(field: &Field) -> String {
    let status = match field.status {
        Status::Done => "done",
        Status::Ignored if field.is_checked => "ignored, checked",
        Status::Ignored => "ignored",
        Status::Warned if field.is_checked => "warned, checked",
        Status::Warned => "warned",
        Status::Refused => "refused",
    };
    let unless = match field.unless.trim_start_matches('[').trim_end_matches(']') {
        "" => String::new(),
        values if field.unless.starts_with("[[") => format!(" [`[{values}]`]"),
        values => format!(" [`{}`]", values.replace(", ", "`, `")),
    };
    let Field { name, what, example, .. } = field;
    format!("| `{name}` | {status}{unless} | {what} | `{}` |\n", example.replace('|', "\\|"))
}
