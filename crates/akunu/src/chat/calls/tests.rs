use super::*;
use proptest::prelude::*;
use serde_json::json;

const HERMES: &str = "{{ '<tool_call>' }}";
const MISTRAL: &str = "{{ '[TOOL_CALLS]' }}";
const CODER: &str = "{{ '<tool_call> <parameter=' }}";
const HARMONY: &str = "{{ '<|call|>' }}";
const GLM: &str = "{{ '<tool_call> <arg_key>' }}";
const DEEPSEEK: &str = "{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' }}";
const KIMI: &str = "{{ '<|tool_calls_section_begin|> <|tool_call_begin|>' }}";
const GEMMA: &str = "{{ '<|tool_call>' }}";
const LFM: &str = "List of tools: [";
const FUNCTIONARY: &str = ">>>${recipient}";
const FUNCTOOLS: &str = "functools[{…";
const PHI: &str = "message['tools'] + '<|/tool|>'";
const APERTUS: &str = "<|tools_prefix|>";
const PYTHONIC: &str = "[func_name1(a=1)]";
const LLAMA_4: &str = "<|python_start|> {\"name\": function name, \"parameters\": …}";
const LLAMA: &str = "Respond in the format {\"name\": function name, \"parameters\": …}";

/// Text and calls of an answer in pieces, with calls as `name(arguments)`.
/// Checks that what is passed on early agrees with the complete calls.
fn read(template: &str, pieces: &[&str]) -> Vec<String> {
    let marks = CallMarks::of_template(template).unwrap();
    let properties = json!({ "s": { "type": "string" }, "list": { "type": "array" } });
    let parameters = json!({ "properties": properties });
    let tools =
        ["clock", "add"].map(|name| json!({ "function": { "name": name, "parameters": parameters } }));
    let mut reader = CallReader::new(marks, tools.to_vec());
    let mut all: Vec<String> = Vec::new();
    let mut in_text = false;
    let mut early: Option<(String, String)> = None;
    let mut on_segment = |segment: Segment<'_>| match segment {
        Segment::Begun(name) => assert_eq!(early.replace((name.into(), String::new())), None),
        Segment::Arguments(text) => early.as_mut().unwrap().1.push_str(text),
        Segment::Text(text) | Segment::Cut(text) => {
            assert_eq!(early.take().is_some(), segment == Segment::Cut(text));
            match in_text {
                true => all.last_mut().unwrap().push_str(text),
                false => all.push(text.to_string()),
            }
            in_text = true;
        }
        Segment::Call(Call { name, arguments }) => {
            in_text = false;
            if let Some(early) = early.take() {
                assert_eq!(early, (name.clone(), arguments.clone()));
            }
            let arguments: Json = serde_json::from_str(&arguments).unwrap();
            all.push(format!("{name}({arguments})"));
        }
    };
    pieces.iter().for_each(|piece| reader.push(piece, &mut on_segment));
    reader.finish(&mut on_segment);
    all
}

#[test]
fn a_call_of_gigachat_3_is_a_message_of_its_own() {
    const GIGACHAT: &str = "'function call' <|role_sep|> <|message_sep|>";
    const CALL: &str = "function call<|role_sep|>\n{\"name\": \"clock\", \"arguments\": {}}";
    for (text, expected) in [
        (format!("Hm.<|message_sep|>\n\n{CALL}<|message_sep|>\n\n"), vec!["Hm.", "clock({})"]),
        (format!("<|message_sep|>\n\n{CALL}"), vec!["clock({})"]),
        ("Noon.<|message_sep|>\n\n".to_string(), vec!["Noon."]),
        // The grammar holds no such call.
        (
            format!("Hm. {CALL}"),
            vec!["Hm. function call<|role_sep|>\n{\"name\": \"clock\", \"arguments\": {}}"],
        ),
    ] {
        let by_character: Vec<String> = text.chars().map(String::from).collect();
        let pieces: Vec<&str> = by_character.iter().map(String::as_str).collect();
        assert_eq!((read(GIGACHAT, &[&text]), read(GIGACHAT, &pieces)), (owned(&expected), owned(&expected)));
    }
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}

#[test]
fn calls_between_marks_are_parsed() {
    let call = r#"<tool_call>
{"name": "add", "arguments": {"b": "}\"</tool_call>", "a": [1]}}
</tool_call>"#;
    let called = r#"add({"b":"}\"</tool_call>","a":[1]})"#;
    assert_eq!(read(HERMES, &[call]), [called]);
    assert_eq!(
        read(HERMES, &["Sure.\n\n", call, "\n", call, "\n\nDone."]),
        ["Sure.", called, called, "Done."]
    );
    assert_eq!(read(HERMES, &["<tool_call>{\"name\": \"now\"}"]), ["now({})"]);
    assert_eq!(read(HERMES, &[r#"<tool_call>{"name": "f", "arguments": "{\"x\": 1}"}"#]), [r#"f({"x":1})"#]);
}

#[test]
fn calls_after_a_mark_are_parsed() {
    let list = r#"[TOOL_CALLS] [{"name": "clock", "arguments": {}, "id": "a"}, {"name": "add", "arguments": {"a": 1}}]"#;
    assert_eq!(read(MISTRAL, &[list]), ["clock({})", r#"add({"a":1})"#]);
    let named = r#"[TOOL_CALLS]clock[ARGS]{}[TOOL_CALLS]add[CALL_ID]x9[ARGS]{"a": 1}"#;
    assert_eq!(read(MISTRAL, &[named]), ["clock({})", r#"add({"a":1})"#]);
}

#[test]
fn calls_in_the_headers_of_messages_are_parsed() {
    for header in [
        "clock<|channel|>commentary json<|message|>",
        "clock <|constrain|>json<|message|>",
        "clock<|constrain|>json",
        "clock json",
        "clock",
    ] {
        let text = format!("Let me see. to=functions.{header}{{\"zone\": \"UTC\"}}<|call|>");
        assert_eq!(read(HARMONY, &[&text]), ["Let me see.", r#"clock({"zone":"UTC"})"#], "{header}");
    }
    let text = "written to=functions. as it is";
    assert_eq!(read(HARMONY, &[text]), [text]);
}

#[test]
fn arguments_are_passed_on_as_they_come() {
    for (template, before, after) in [
        (HERMES, "<tool_call>\n{\"name\": \"clock\", \"arguments\": ", "}\n</tool_call>"),
        (LLAMA, "{\"type\": \"function\", \"name\": \"clock\", \"parameters\": ", "}"),
        (MISTRAL, "[TOOL_CALLS]clock[ARGS]", ""),
        (HARMONY, "to=functions.clock<|channel|>commentary json<|message|>", "<|call|>"),
    ] {
        let marks = CallMarks::of_template(template).unwrap();
        let mut reader = CallReader::new(marks, vec![json!({ "function": { "name": "clock" } })]);
        let (arguments, mut seen) = ("{\"a\": \"}é{\", \"b\": [1]}", Vec::new());
        for piece in [before, &arguments[..8], &arguments[8..], after] {
            reader.push(piece, &mut |segment| seen.push(format!("{segment:?}")));
        }
        reader.finish(&mut |segment| seen.push(format!("{segment:?}")));
        let [begun, first, second, call] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!(begun, "Begun(\"clock\")");
        assert_eq!(first, &format!("Arguments({:?})", &arguments[..8]));
        assert_eq!(second, &format!("Arguments({:?})", &arguments[8..]));
        assert!(call.starts_with("Call("), "{call}");
    }
    let text = json!({ "properties": { "a": { "type": "string" }, "b": { "type": "array" } } });
    let tools = vec![json!({ "function": { "name": "clock", "parameters": text } })];
    for (template, pieces, expected) in [
        (
            CODER,
            &[
                "<tool_call>\n<function=clock",
                ">\n<parameter=a>\n\n \"é\n</para",
                "meter x\n",
                "\n</parameter>\n<parameter=b>[\"</parameter>\", ",
                "1]\n</parameter>",
                "</function>",
            ][..],
            &["", "{\"a\": \"\\n \\\"é", "\\n</parameter x", "\\n\", \"b\": ", "[\"</parameter>\", 1]", "}"]
                [..],
        ),
        (
            GLM,
            &[
                "<tool_call>clock\n",
                "<arg_key>a</arg_key>\n<arg_value>x",
                "\ny</arg_value>\n",
                "</tool_call>",
            ],
            &["", "{\"a\": \"x", "\\ny\"", "}"],
        ),
    ] {
        let marks = CallMarks::of_template(template).unwrap();
        let mut reader = CallReader::new(marks, tools.clone());
        let mut seen: Vec<String> = Vec::new();
        for piece in pieces {
            let mut arguments = String::new();
            reader.push(piece, &mut |segment| {
                if let Segment::Arguments(text) = segment {
                    arguments.push_str(text);
                }
            });
            seen.push(arguments);
        }
        assert_eq!(seen, expected);
    }
    let cut = "<tool_call>{\"name\": \"clock\", \"arguments\": {\"a\": ";
    assert_eq!(read(HERMES, &[cut]), [cut]);
    let late = "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"clock\"}</tool_call>";
    assert_eq!(read(HERMES, &[late]), ["clock({\"a\":1})"]);
}

#[test]
fn sections_of_calls_are_parsed() {
    let (begin, end) = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>");
    let fenced = |name: &str, arguments: &str| {
        format!(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
        )
    };
    let plain = |name: &str, arguments: &str| {
        format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>")
    };
    let add = r#"add({"a":1})"#;
    for call in [&fenced as &dyn Fn(&str, &str) -> String, &plain] {
        let (first, second) = (call("clock", "{}"), call("add", "{\"a\": 1}"));
        let text = format!("Sure.\n\n{begin}{first}\n{second}{end}");
        assert_eq!(read(DEEPSEEK, &[&text]), ["Sure.", "clock({})", add]);
        assert_eq!(read(DEEPSEEK, &[&format!("{first}{end} Done.")]), ["clock({})", "Done."]);
    }
    let kimi = "<|tool_calls_section_begin|><|tool_call_begin|>functions.clock:0<|tool_call_argument_begin|>{}\
                <|tool_call_end|><|tool_call_begin|>functions.add:1<|tool_call_argument_begin|>{\"a\": 1}\
                <|tool_call_end|><|tool_calls_section_end|>";
    assert_eq!(read(KIMI, &[kimi]), ["clock({})", add]);
    for text in
        ["<|tool_calls_section_begin|> nothing", "<|tool_calls_section_begin|>", "a <|tool_call_begin|>b"]
    {
        assert_eq!(read(KIMI, &[text]), [text]);
    }
}

#[test]
fn arguments_between_tags_are_parsed() {
    let coder = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>";
    let glm = "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>";
    for (template, call) in [(CODER, coder), (GLM, glm)] {
        let twice = ["Sure.\n", call, "\n", call];
        assert_eq!(read(template, &twice), ["Sure.", r#"add({"a":1})"#, r#"add({"a":1})"#]);
        let json = r#"<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>"#;
        assert_eq!(read(template, &[json]), [r#"add({"a":1})"#]);
    }
    for text in [
        "<tool_call>\n<function>",
        "<tool_call>\n<function=add>\n<param",
        "<tool_call><function=></function>",
    ] {
        assert_eq!(read(CODER, &[text]), [text]);
    }
}

#[test]
fn literal_arguments_are_parsed() {
    let gemma =
        "Sure.<|tool_call>call:add{a:1,b:<|\"|>}<|\"|>}<tool_call|><|tool_call>call:clock{}<tool_call|>";
    let add = r#"add({"a":1,"b":"}"})"#;
    assert_eq!(read(GEMMA, &[gemma]), ["Sure.", add, "clock({})"]);
    let lfm = "<|tool_call_start|>[add(a=1, b=\"}\"), clock()]<|tool_call_end|>Done.";
    assert_eq!(read(LFM, &[lfm]), [add, "clock({})", "Done."]);
    for text in ["<|tool_call_start|>[add(a=)]<|tool_call_end|>", "<|tool_call_start|>[add("] {
        assert_eq!(read(LFM, &[text]), [text]);
    }
    let nested = "<|tool_call_start|>[add(a={'b': [1, None]})]<|tool_call_end|>";
    assert_eq!(read(LFM, &[nested]), [r#"add({"a":{"b":[1,null]}})"#]);
}

#[test]
fn names_before_parts_of_answers_are_no_text() {
    let (clock, add) = ("clock\n{\"zone\": \"UTC\"}", "add\n{\"a\": 1}");
    let called = [r#"clock({"zone":"UTC"})"#, r#"add({"a":1})"#];
    assert_eq!(read(FUNCTIONARY, &[&format!("{clock}>>>{add}")]), called);
    assert_eq!(
        read(FUNCTIONARY, &[&format!("all\nSure.>>>{clock}>>>{add}>>>all\nDone.")]),
        ["Sure.", called[0], called[1], "Done."]
    );
    for text in [">>> add(1)", "other\n{}", "add {}", "So >>>other\n{}", ">>>", "allways"] {
        assert_eq!(read(FUNCTIONARY, &[text]), [text]);
        assert_eq!(read(FUNCTIONARY, &[&format!("all\n{text}")]), [text]);
    }
    // A text that is continued has no name.
    for (prompt, expected) in [("…>>>", ""), ("…>>>all\nOf them ", "all\n")] {
        let marks = CallMarks::of_template(FUNCTIONARY).unwrap();
        let (mut reader, mut said) = (CallReader::new(marks, Vec::new()).of_prompt(prompt), String::new());
        let mut on_segment = |segment: Segment<'_>| match segment {
            Segment::Text(text) => said.push_str(text),
            other => panic!("{other:?}"),
        };
        reader.push("all\n", &mut on_segment);
        reader.finish(&mut on_segment);
        assert_eq!(said, expected);
    }
}

#[test]
fn lists_are_parsed() {
    let two = r#"[{"name": "clock", "arguments": {}}, {"name": "add", "arguments": {"a": 1}}]"#;
    let called = ["clock({})", r#"add({"a":1})"#];
    assert_eq!(read(FUNCTOOLS, &[&format!("functools{two}")]), called);
    assert_eq!(read(FUNCTOOLS, &["Use functools.cache[0]"]), ["Use functools.cache[0]"]);
    assert_eq!(read(PHI, &[&format!("<|tool_call|>{two}<|/tool_call|>")]), called);
    let by_key = "So.<|tools_prefix|>[{\"clock\": {}}, {\"add\": {\"a\": 1}}]<|tools_suffix|>";
    assert_eq!(read(APERTUS, &[by_key]), ["So.", called[0], called[1]]);
    for list in [
        "[clock(), add(a=1)]",
        "<|python_start|>[clock(), add(a=1)]<|python_end|>",
        " [ clock() , add( a = 1)] ",
    ] {
        assert_eq!(read(PYTHONIC, &[list]), called, "{list}");
    }
    for text in ["[1] Paris", "[other(a=1)]", "[clock (a=1)]", "[", "So [clock()]", "[clock"] {
        assert_eq!(read(PYTHONIC, &[text]), [text]);
    }
    let json = r#"{"name": "add", "parameters": {"a": 1}}"#;
    for before in ["", "<|python_start|><|python_end|>", "<|python_end|>"] {
        assert_eq!(read(LLAMA_4, &[&format!("{before}{json}{json}")]), [called[1]; 2], "{before}");
    }
    // What follows the calls that are complete is text.
    let cut = format!("functools{}", &two[..two.len() - 9]);
    assert_eq!(read(FUNCTOOLS, &[&cut])[0], called[0]);
    let cut = format!("functools{}", &two[..two.find("}, ").unwrap() + 3]);
    assert_eq!(read(FUNCTOOLS, &[&cut]), [called[0]]);
}

/// What of a call's arguments each piece passes on.
fn passed_on(template: &str, pieces: &[&str]) -> Vec<String> {
    let marks = CallMarks::of_template(template).unwrap();
    let mut reader = CallReader::new(marks, vec![json!({ "function": { "name": "clock" } })]);
    let each = |piece: &&str| {
        let mut arguments = String::new();
        reader.push(piece, &mut |segment| {
            if let Segment::Arguments(text) = segment {
                arguments.push_str(text);
            }
        });
        arguments
    };
    pieces.iter().map(each).collect()
}

#[test]
fn arguments_in_lists_and_literals_are_passed_on_as_they_come() {
    let nested =
        ["[clock(a={'b", "': \"x", "\\", "ny\", 'c': [12", "3, None", "]}", ", d=T", "rue), clock()]"];
    let expected =
        ["{\"a\": {", "\"b\": \"x", "", "\\ny\", \"c\": [", "123, ", "null]}", ", \"d\": ", "true}{}"];
    for (template, open) in [(LFM, "<|tool_call_start|>"), (PYTHONIC, "")] {
        let first = format!("{open}{}", nested[0]);
        let pieces: Vec<&str> = [first.as_str()].into_iter().chain(nested[1..].iter().copied()).collect();
        assert_eq!(passed_on(template, &pieces), expected);
    }
    assert_eq!(
        passed_on(
            GEMMA,
            &["<|tool_call>call:clock", "{a:<|\"", "|>x\n<|", "\"|>,b:[{c:1", "}]}<tool_call|>"]
        ),
        ["", "{\"a\": ", "\"x\\n", "\", \"b\": [{\"c\": ", "1}]}"]
    );
    assert_eq!(
        passed_on(
            MISTRAL,
            &[
                "[TOOL_CALLS][{\"name\": \"clock\", \"arguments\": {\"a\"",
                ": 1}}, {\"name\"",
                ": \"clock\", \"arguments\": {",
                "}}]"
            ]
        ),
        ["{\"a\"", ": 1}", "{", "}"]
    );
    assert_eq!(
        passed_on(APERTUS, &["<|tools_prefix|>[{\"clock\": ", "{\"a\"", ": 1}}]"]),
        ["", "{\"a\"", ": 1}"]
    );
}

#[test]
fn numbers_are_passed_on_as_they_were_written() {
    const NUMBERS: &str = "[12345678901234567890123, 1e999, 0.10]";
    for (template, before, after) in [
        (HERMES, "<tool_call>{\"name\": \"clock\", \"arguments\": {\"a\": ", "}}</tool_call>"),
        (HERMES, "<tool_call>{\"arguments\": {\"a\": ", "}, \"name\": \"clock\"}</tool_call>"),
        (MISTRAL, "[TOOL_CALLS][{\"name\": \"clock\", \"arguments\": {\"a\": ", "}}]"),
        (FUNCTIONARY, "clock\n{\"a\": ", "}"),
        (APERTUS, "<|tools_prefix|>[{\"clock\": {\"a\": ", "}}]"),
        (CODER, "<tool_call><function=clock><parameter=a>", "</parameter></function></tool_call>"),
        (GLM, "<tool_call>clock<arg_key>a</arg_key><arg_value>", "</arg_value></tool_call>"),
        (GEMMA, "<|tool_call>call:clock{a:", "}<tool_call|>"),
        (LFM, "<|tool_call_start|>[clock(a=", ")]<|tool_call_end|>"),
    ] {
        let mut reader = CallReader::new(
            CallMarks::of_template(template).unwrap(),
            vec![json!({ "function": { "name": "clock" } })],
        );
        let mut calls = Vec::new();
        let mut on_segment = |segment: Segment<'_>| {
            if let Segment::Call(call) = segment {
                calls.push(call.arguments);
            }
        };
        reader.push(&format!("{before}{NUMBERS}{after}"), &mut on_segment);
        reader.finish(&mut on_segment);
        assert_eq!(calls, [format!("{{\"a\": {NUMBERS}}}")], "{template}");
    }
}

#[test]
fn the_readers_of_choices_share_tools() {
    let tools = vec![json!({ "function": { "name": "f" } })];
    let reader = CallReader::new(CallMarks::of_template("<tool_call>").unwrap(), tools);
    assert!(Arc::ptr_eq(&reader.tools, &reader.clone().tools));
}

#[test]
fn bare_calls_of_known_tools_may_start_the_answer() {
    let two = r#" {"name": "clock", "parameters": {}}; {"type": "function", "name": "add", "parameters": {"a": 1}}"#;
    assert_eq!(read(LLAMA, &[two]), ["clock({})", r#"add({"a":1})"#]);
    assert_eq!(read(LLAMA, &["<|python_tag|>{\"name\": \"other\", \"parameters\": {}}"]), ["other({})"]);
    for text in [
        "{\"name\": \"other\", \"parameters\": {}}",
        "{1}",
        "So {\"name\": \"clock\"}",
        "{\"name\": \"clock\"",
    ] {
        assert_eq!(read(LLAMA, &[text]), [text]);
    }
}

#[test]
fn text_without_a_call_is_unchanged() {
    for text in [
        "The <tool_call> mark",
        "a \n<tool_call>\n{\"name\": 1}</tool_call> b ",
        "<tool_call>{\"arguments\": {}}",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}",
        "<tool_call>{\"name\": \"f\", \"arg",
        "<tool_call>[]</tool_call>",
        "<tool_ca",
        "a\n\n",
    ] {
        assert_eq!(read(HERMES, &[text]), [text]);
    }
    let long = format!("[TOOL_CALLS]{}{{}}", "x".repeat(300));
    for text in ["[TOOL_CALLS] two words{}", "[TOOL_CALLS]f[ARGS]", &long] {
        assert_eq!(read(MISTRAL, &[text]), [text]);
    }
}

#[test]
fn templates_identify_the_format_of_calls() {
    let open = |source| CallMarks::of_template(source).map(CallMarks::open);
    assert_eq!(open("{{ messages }}"), None);
    assert_eq!(open("a <|tool_call|> b"), Some("<|tool_call|>"));
    assert_eq!(
        [HERMES, MISTRAL, LLAMA].map(open),
        ["<tool_call>", "[TOOL_CALLS]", "<|python_tag|>"].map(Some)
    );
}

/// A text in pieces of about these sizes.
fn pieces<'t>(text: &'t str, sizes: &[usize]) -> Vec<&'t str> {
    let (mut rest, mut pieces) = (text, Vec::new());
    for size in sizes.iter().cycle() {
        let (piece, behind) = rest.split_at(rest.ceil_char_boundary(*size));
        pieces.push(piece);
        rest = behind;
        if rest.is_empty() {
            break;
        }
    }
    pieces
}

fn value() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i32>().prop_map(Json::from),
        "[a\"'\\\\\n{}\\[\\],:<(|)é]{0,6}".prop_map(Json::from),
    ];
    leaf.prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Json::from),
            prop::collection::vec(("[a-c]{1,3}", inner), 0..3)
                .prop_map(|members| Json::Object(members.into_iter().collect())),
        ]
    })
}

/// A value as Python, or as Gemma, writes it.
fn literal(value: &Json, is_python: bool) -> String {
    let text = |text: &str| match is_python {
        true if text.contains('"') => {
            format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n"))
        }
        true => Json::from(text).to_string(),
        false => format!("<|\"|>{text}<|\"|>"),
    };
    let separator = if is_python { ", " } else { "," };
    match value {
        Json::String(string) => text(string),
        Json::Array(list) => {
            let items: Vec<String> = list.iter().map(|item| literal(item, is_python)).collect();
            format!("[{}]", items.join(separator))
        }
        Json::Object(members) => {
            let one = |(key, value): (&String, &Json)| format!("{}:{}", text(key), literal(value, is_python));
            format!("{{{}}}", members.iter().map(one).collect::<Vec<_>>().join(separator))
        }
        Json::Null if is_python => "None".into(),
        Json::Bool(is_true) if is_python => if *is_true { "True" } else { "False" }.into(),
        other => other.to_string(),
    }
}

proptest! {
    #[test]
    fn pieces_give_what_the_whole_gives(
        words in prop::collection::vec(prop::sample::select(vec![
            "<tool_call>", "</tool_call>", "<function=", "</function>", ">", "<parameter=", "<arg_key>", "<function=add>", "<parameter=s>",
            "<parameter=list>", "</parameter>", "add", "<arg_key>s</arg_key>", "<arg_value>", "</arg_value>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "clock", "{", "}", "[", "]", "\"", "\\",
            "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
            "<|tool_call>", "call:", "<tool_call|>", "<|\"|>", "<|tool_call_start|>", "(", ")", "<|tool_call_end|>",
            ">>>", "all\n", "clock\n", "functools", "<|tools_prefix|>", "<|python_start|>", ",", "a=", "'", "\\u12", "<|python_end|>",
            ";", "to=functions.", "<|message|>", "{\"name\": \"clock\", \"parameters\": {}}", "<", "a", "é", " ", "\n",
        ]), 0..12),
        cuts in prop::collection::vec(0usize..80, 0..8),
        template in prop::sample::select(vec![
            HERMES, MISTRAL, LLAMA, CODER, GLM, HARMONY, DEEPSEEK, GEMMA, LFM, FUNCTIONARY, FUNCTOOLS, APERTUS, PYTHONIC, LLAMA_4,
        ]),
    ) {
        let whole = words.concat();
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|&at| whole.is_char_boundary(at)).collect();
        cuts.extend([0, whole.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&str> = cuts.windows(2).map(|pair| &whole[pair[0]..pair[1]]).collect();
        prop_assert_eq!(read(template, &pieces), read(template, &[&whole]));
    }

    /// Also of calls that are no longer ones, because a part of them is missing.
    #[test]
    fn literals_in_pieces_are_the_values_that_were_written(
        arguments in prop::collection::vec(("[a-c]{1,3}", value()), 0..3),
        is_python: bool,
        lost in prop::option::of(0usize..60),
        sizes in prop::collection::vec(1usize..9, 1..6),
    ) {
        let arguments: Map<String, Json> = arguments.into_iter().collect();
        let (template, mut whole) = match is_python {
            true => {
                let written: Vec<String> = arguments.iter().map(|(key, value)| format!("{key}={}", literal(value, true))).collect();
                (LFM, format!("So.<|tool_call_start|>[add({})]<|tool_call_end|>", written.join(", ")))
            }
            false => {
                let written: Vec<String> = arguments.iter().map(|(key, value)| format!("{key}:{}", literal(value, false))).collect();
                (GEMMA, format!("So.<|tool_call>call:add{{{}}}<tool_call|>", written.join(",")))
            }
        };
        if lost.is_none() {
            prop_assert_eq!(read(template, &[&whole]), ["So.".to_string(), format!("add({})", Json::Object(arguments))]);
        }
        if let Some(at) = lost.filter(|at| *at < whole.len() && whole.is_char_boundary(*at)) {
            whole.remove(at);
        }
        prop_assert_eq!(read(template, &pieces(&whole, &sizes)), read(template, &[&whole]));
    }

    /// `read` checks that what is passed on is what is parsed.
    #[test]
    fn what_is_passed_on_of_arguments_between_tags_is_what_is_parsed(
        arguments in prop::collection::vec(
            (
                prop::sample::select(vec!["s", "list", "other"]),
                prop::collection::vec(prop::sample::select(vec![
                    "\n", "a", "\"", "\\", "é", "<", "</para", "[", "]", "1", "{", "}", " ", "null", "</parameter>", "</arg_value>",
                    "</function>", "</tool_call>", "<parameter=s>", "<arg_key>",
                ]), 0..6),
            ),
            0..4,
        ),
        sizes in prop::collection::vec(1usize..9, 1..6),
        is_glm: bool,
    ) {
        let written: String = arguments
            .iter()
            .map(|(key, value)| match is_glm {
                true => format!("<arg_key>{key}</arg_key>\n<arg_value>{}</arg_value>\n", value.concat()),
                false => format!("<parameter={key}>{}</parameter>\n", value.concat()),
            })
            .collect();
        let (template, whole) = match is_glm {
            true => (GLM, format!("<tool_call>add\n{written}</tool_call>")),
            false => (CODER, format!("<tool_call>\n<function=add>\n{written}</function>\n</tool_call>")),
        };
        prop_assert_eq!(read(template, &pieces(&whole, &sizes)), read(template, &[&whole]));
    }
}
