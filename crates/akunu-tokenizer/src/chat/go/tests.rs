use serde_json::{Map, Value as Json};

use super::*;

const CASES: &str = include_str!("../../../../../testdata/go_templates.json");

fn rendered(template: &str, case: &Json) -> Result<Output, ChatError> {
    let messages = case["messages"].as_array().unwrap();
    let mut extra = Map::new();
    extra.extend(case.get("think").map(|think| ("enable_thinking".to_string(), think.clone())));
    extra.extend(case.get("effort").map(|effort| ("reasoning_effort".to_string(), effort.clone())));
    let at = (LocalTime::from_seconds(1_700_000_000), Template::deadline());
    GoTemplate::new(template)?.render("", messages, &case["tools"], &extra, at)
}

/// `training/go_templates` has Go's own implementation write what is expected.
#[test]
fn templates_give_what_go_gives() {
    let cases: Vec<Json> = serde_json::from_str(CASES).unwrap();
    assert!(cases.len() > 15);
    for case in cases {
        let text = rendered(case["template"].as_str().unwrap(), &case).unwrap().text;
        assert_eq!(text, case["expected"].as_str().unwrap(), "{}", case["name"]);
    }
}

fn of(template: &str) -> Result<Output, ChatError> {
    let messages = serde_json::json!([
        { "role": "system", "content": "<s>" },
        { "role": "user", "content": "a" },
        { "role": "assistant", "content": null, "tool_calls": [
            { "id": "1", "type": "function", "function": { "name": "f", "arguments": {} } },
        ] },
        { "role": "user", "content": [{ "type": "text", "text": "b" }, { "type": "text", "text": "c" }] },
    ]);
    rendered(template, &serde_json::json!({ "messages": messages }))
}

#[test]
fn what_messages_say_is_not_trusted_and_what_the_template_says_is() {
    for template in [
        "<s>{{ range .Messages }}<s>{{ .Content }}{{ end }}",
        "<s>{{ .System }}{{ .Prompt }}{{ printf \"<s>%s\" .System }}",
    ] {
        let Output { text, untrusted } = of(template).unwrap();
        let said: Vec<&str> = untrusted.iter().map(|range| &text[range.clone()]).collect();
        assert!(text.starts_with("<s>") && untrusted[0].start >= 3, "{text} {untrusted:?}");
        assert!(said.contains(&"<s>") && said.iter().all(|part| !part.contains("<s><s>")), "{said:?}");
    }
}

#[test]
fn the_beginning_of_a_models_texts_is_there_once() {
    let begun = |template: &str, system: &str| {
        let messages = [serde_json::json!({ "role": "system", "content": system })];
        let at = (LocalTime::from_seconds(0), Template::deadline());
        let template = GoTemplate::new(template).unwrap();
        let Output { text, untrusted } =
            template.render("<s>", &messages, &Json::Null, &Map::new(), at).unwrap();
        assert_eq!(untrusted.len(), 1);
        (text, untrusted[0].start, untrusted[0].end)
    };
    assert_eq!(begun("{{ .System }}", "a"), ("<s>a".into(), 3, 4));
    assert_eq!(begun("<s>{{ .System }}", "a"), ("<s>a".into(), 3, 4));
    assert_eq!(begun("{{ .System }}", "<s>"), ("<s><s>".into(), 3, 6));
}

#[test]
fn contents_of_parts_and_without_text_are_texts() {
    let text =
        of("{{ range .Messages }}[{{ .Content }}{{ if eq .Content \"\" }}-{{ end }}]{{ end }}").unwrap().text;
    assert_eq!(text, "[<s>][a][-][bc]");
    let text = of("{{ range .Messages }}{{ range .ToolCalls }}{{ .Function.Arguments }}{{ end }}{{ end }}");
    assert_eq!(text.unwrap().text, "{}");
    assert_eq!(
        of("{{ currentDate }} {{ .None.None }}{{ range .Messages }}{{ end }}").unwrap().text,
        "2023-11-14 "
    );
}

#[test]
fn what_is_no_template_is_refused_with_the_line() {
    for (template, reason) in [
        ("a\n{{ if .A }}", "line 2: a block has no {{ end }}"),
        ("{{ end }}", "line 1: {{ end }} without a block"),
        ("{{ else }}", "{{ else }} without a block"),
        ("{{ if .A }}{{ else }}{{ else }}{{ end }}", "{{ else }} instead of an {{ end }}"),
        ("{{ .A ", "an action has no end"),
        ("{{ /* a", "a comment has no end"),
        ("{{ \"a }}", "a text has no end"),
        ("{{ \"\\q\" }}", "the escape \\q is not known"),
        ("{{ \"\\x\" }}", "the escape \\x is not known"),
        ("{{ \"\\xé\" }}", "the escape \\x is not known"),
        ("{{ }}", "a value is missing"),
        ("{{ | }}", "a value is missing"),
        ("{{ (.A }}", "a parenthesis is not closed"),
        ("\n\n{{ system \"rm\" }}", "line 3: the function system is not known"),
        ("{{ html .A }}", "the function html is not known"),
        ("{{ .A .B }}", "arguments are given to what is no function"),
        ("{{ $x }}", "the variable $x is not defined"),
        ("{{ if .A }}{{ $x := 1 }}{{ end }}{{ $x }}", "the variable $x is not defined"),
        ("{{ $x = 1 }}", "the variable $x is not defined"),
        ("{{ $x, $y := .A }}", "only {{ range }} sets two variables"),
        ("{{ template \"a\" }}", "the template \"a\" is not defined"),
        ("{{ define }}{{ end }}", "the name of a template is missing"),
        ("{{ define \"a\" }}", "the end of the template instead of an {{ end }}"),
        ("\n\n{{ .A }}\n{{ break }}", "line 4: {{ break }} and {{ continue }} belong into a {{ range }}"),
        ("\n{{ template \"a\" }}", "line 2: the template \"a\" is not defined"),
        ("{{ 1e999 }}", "the number 1e999 is not supported"),
        ("{{ 9223372036854775808 }}", "the number 9223372036854775808 is not supported"),
        ("{{ 08 }}", "the number 08 is not supported"),
        ("{{ not }}", "the function not does not take 0 arguments"),
        ("{{ printf \"%d %d\" 1 }}", "printf has no value for %d"),
        ("{{ printf \"%z\" 1 }}", "printf does not know %z"),
        ("{{ printf .A 1 }}", "the format of printf has to be a text in quotes"),
        ("{{ 1x }}", "unexpected '1'"),
        ("{{ ? }}", "unexpected '?'"),
        ("{{ ($x := 1) }}", "a variable is set within parentheses"),
    ] {
        let error = GoTemplate::new(template).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(reason), "{template}: {error}");
    }
}

#[test]
fn no_template_takes_more_than_it_may() {
    for template in [
        "{{ if .A }}".repeat(100_000),
        "{{ if .A }}{{ else if .B }}".repeat(100_000),
        format!("{{{{ {} }}}}", "(".repeat(100_000)),
        "{{ define \"a\" }}".repeat(100_000),
    ] {
        let error = GoTemplate::new(&template).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("nested deeper than"), "{error}");
    }
    for template in [
        "{{ define \"a\" }}{{ template \"a\" . }}{{ end }}{{ template \"a\" . }}",
        "{{ range .Messages }}{{ define \"a\" }}{{ range .M }}x{{ end }}{{ template \"a\" . }}{{ end }}\
         {{ template \"a\" $ }}{{ end }}",
    ] {
        assert!(matches!(of(template), Err(ChatError::Limit { .. })), "{template}");
    }
    // All turns of a conversation have the limits of one.
    let doubled = "{{ $x = printf \"%s%s\" $x $x }}".repeat(18);
    let template = format!("{{{{ $x := \"{}\" }}}}{doubled}{{{{ $x }}}}{{{{ .Prompt }}}}", "a".repeat(64));
    let turn = |n: usize| {
        let role = if n.is_multiple_of(2) { "user" } else { "assistant" };
        serde_json::json!({ "role": role, "content": "a" })
    };
    let messages: Vec<Json> = (0..41).map(turn).collect();
    let rendered = rendered(&template, &serde_json::json!({ "messages": messages }));
    assert!(matches!(rendered, Err(ChatError::Limit { .. })));
    // What is written is at most a few times as long as the template.
    let long = "{{ if eq .A .B }}{{ .A.B.C }}{{ end }}".repeat(2_000);
    let written = jinja::write(&parser::parse(lexer::pieces(&long).unwrap()).unwrap(), false).unwrap();
    assert!(written.len() < 10 * long.len(), "{} of {}", written.len(), long.len());
}
