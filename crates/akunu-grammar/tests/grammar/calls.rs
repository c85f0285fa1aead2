//! Calls of tools in the formats of families.
#![allow(clippy::unwrap_used)]

use crate::common::{bytes_vocabulary, compile, takes};
use akunu_grammar::{
    CallForm, CallLiterals, CallPart, CallTags, Calls, NAME_AND_ARGUMENTS, Reasoning, ResponseFormat, Tool,
    WithoutCalls,
};
use serde_json::{Value as Json, json};

const HERMES: CallForm = CallForm {
    section: ["", ""],
    ends_text: false,
    open: "<tool_call>",
    call: NAME_AND_ARGUMENTS,
    other: &[],
    is_list: false,
    close: "</tool_call>",
    is_bare: false,
    may_lack_open: false,
    text_name: "",
};

/// Calls in a list, as Python's: `[f(a=1)]`.
const PYTHON: CallForm = CallForm {
    call: &[
        CallPart::Name,
        CallPart::Text("("),
        CallPart::Literals(CallLiterals { assign: "=", separator: ", ", quote: None, is_sorted: false }),
        CallPart::Text(")"),
    ],
    is_list: true,
    ..HERMES
};

const TAGGED: &[CallPart] = &[
    CallPart::Text("<function="),
    CallPart::Name,
    CallPart::Text(">"),
    CallPart::Gap,
    CallPart::Tagged(CallTags { key: ["<parameter=", ">"], value: ["", "</parameter>"], kinds: None }),
    CallPart::Text("</function>"),
];

fn tools() -> Vec<Tool> {
    let add = json!({ "type": "object", "properties": { "a": { "type": "integer" }, "unit": { "type": "string", "enum": ["m", "km"] } },
        "required": ["a"], "additionalProperties": false });
    let say = json!({ "type": "object", "properties": { "text": { "type": "string" } }, "required": ["text"], "additionalProperties": false });
    [("add", add), ("say", say)]
        .map(|(name, schema)| Tool { name: name.into(), parameters: Some(schema), is_strict: false })
        .to_vec()
}

fn calls(form: CallForm) -> Calls {
    Calls { form, tools: tools(), is_single: false, without: WithoutCalls::Text }
}

fn check(calls: &Calls, before: Option<&Reasoning>, cases: &[(&str, bool)]) {
    let (vocabulary, format) = (bytes_vocabulary(), ResponseFormat::Calls(calls.clone()));
    for (text, right) in cases {
        let taken = takes(&vocabulary, &format, before, text);
        assert_eq!(taken == Ok(true), *right, "{text}: {taken:?}");
    }
}

#[test]
fn a_call_once_begun_is_held_to_its_tool() {
    let one = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    let other = "<tool_call>{\"name\": \"say\", \"arguments\": {\"text\": \"</tool_call>\"}}</tool_call>";
    let both = format!("Let me see. {one}\n{other}\nDone <b> {{\"a\"");
    check(
        &calls(HERMES),
        None,
        &[
            ("", true),
            ("No <tool, {\"name\": \"sub\"}", true),
            (one, true),
            (&both, true),
            ("<tool_call>", false),
            ("Text <tool_call>{\"name\": \"sub\"", false),
            ("Text <tool_call> or text", false),
            ("<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": \"1\"", false),
            ("<tool_call>{\"name\": \"add\", \"arguments\": {\"b\"", false),
            (&format!("{one}<tool_call>{{\"name\": 1"), false),
        ],
    );
    let single = Calls { is_single: true, ..calls(HERMES) };
    check(&single, None, &[("Text.", true), (one, true), (&format!("{one}\n{other}"), false)]);
}

#[test]
fn an_answer_may_have_to_be_a_call_or_a_format() {
    let one = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    let two = format!("{one}\n{one}");
    let required = Calls { without: WithoutCalls::Refused, ..calls(HERMES) };
    check(&required, None, &[(one, true), (&two, true), ("", false), ("Text", false), ("{}", false)]);
    let single = Calls { is_single: true, ..required };
    check(&single, None, &[(one, true), (&two, false)]);
    let schema = ResponseFormat::Schema(json!({ "type": "array", "items": { "type": "integer" } }));
    let formatted = Calls { without: WithoutCalls::Format(Box::new(schema)), ..calls(HERMES) };
    check(&formatted, None, &[(one, true), ("[1, 2]", true), ("[1, \"a\"]", false), ("Text", false)]);
}

#[test]
fn each_of_two_forms_is_held() {
    let list = CallForm { open: "<call>", close: "</call>", other: NAME_AND_ARGUMENTS, ..PYTHON };
    let json = "{\"name\": \"add\", \"arguments\": {\"a\": 1}}";
    check(
        &calls(list),
        None,
        &[
            (&format!("Now <call>[add(a=1), {json}]</call>"), true),
            (&format!("<call>[{json}, say(text=\"x\")]</call>"), true),
            ("<call>[{\"name\": \"sub\"", false),
            ("<call>[{\"name\": \"add\", \"arguments\": {\"a\": \"1\"", false),
        ],
    );
    // A form that only follows the mark.
    let marked = CallForm {
        call: NAME_AND_ARGUMENTS,
        other: PYTHON.call,
        is_list: false,
        close: "",
        is_bare: true,
        ..list
    };
    let required = Calls { without: WithoutCalls::Refused, ..calls(marked) };
    for (calls, is_required) in [(calls(marked), false), (required, true)] {
        check(
            &calls,
            None,
            &[
                (json, true),
                (&format!("<call>{json}"), true),
                ("<call>add(a=1)", true),
                ("<call>add(a=\"1\")", false),
                ("<call>sub(a=1)", false),
                ("add(b=\"1\")", !is_required),
            ],
        );
    }
}

#[test]
fn what_ends_a_text_is_followed_by_a_call_or_nothing() {
    let form = CallForm {
        section: ["<sep>\n", "<sep>\n"],
        ends_text: true,
        open: "call<role>",
        close: "",
        ..HERMES
    };
    let call = "<sep>\ncall<role>{\"name\": \"add\", \"arguments\": {\"a\": 1}}";
    let text = format!("Text.{call}<sep>\n");
    check(
        &calls(form),
        None,
        &[
            (&text, true),
            (call, true),
            ("Text.<sep>\n", true),
            // Without what precedes calls it is text, which is not read as a call.
            ("Text. call<role>{\"name\": \"sub\"", true),
            ("Text.<sep>\nuser<role>", false),
            ("Text.<sep>\ncall<role>{\"name\": \"sub\"", false),
            (&format!("{call}{call}"), false),
        ],
    );
    let required = Calls { without: WithoutCalls::Refused, ..calls(form) };
    check(&required, None, &[(call, true), (&call[6..], false), ("Text.<sep>\n", false), ("", false)]);
}

#[test]
fn lists_sections_names_and_tags_are_held() {
    let list = CallForm { open: "[TOOL_CALLS]", is_list: true, close: "", ..HERMES };
    let add = "{\"name\": \"add\", \"arguments\": {\"a\": 1}}";
    check(
        &calls(list),
        None,
        &[
            (&format!("[TOOL_CALLS] [{add}, {add}]"), true),
            (&format!("[TOOL_CALLS][{add}"), false),
            (&format!("[TOOL_CALLS]{add}"), false),
        ],
    );
    let named = CallForm {
        section: ["<calls>", "</calls>"],
        open: "<call>",
        call: &[
            CallPart::Text("functions."),
            CallPart::Name,
            CallPart::Text(":"),
            CallPart::Number,
            CallPart::Text("<args>"),
            CallPart::Arguments,
        ],
        close: "</call>",
        ..HERMES
    };
    let call = "<call>functions.add:0<args>{\"a\": 1}</call>";
    check(
        &calls(named),
        None,
        &[
            (&format!("Now <calls>{call}{call}</calls>"), true),
            (call, true),
            ("<call>functions.sub:0", false),
            ("<call>functions.add:x", false),
        ],
    );
    let required = Calls { without: WithoutCalls::Refused, ..calls(named) };
    check(
        &required,
        None,
        &[(&format!("<calls>{call}\n{call}</calls>"), true), (call, true), ("<calls></calls>", false)],
    );
    let tagged = calls(CallForm { call: TAGGED, ..HERMES });
    let tags = |inner: &str| format!("<tool_call>\n<function=add>\n{inner}</function>\n</tool_call>");
    check(
        &tagged,
        None,
        &[
            (&tags("<parameter=a>\n1\n</parameter>\n"), true),
            (&tags("<parameter=a>\n1\n</parameter>\n<parameter=unit>\nkm\n</parameter>\n"), true),
            (&tags("<parameter=a>\none\n</parameter>\n"), false),
            (&tags("<parameter=a>\n1\n</parameter>\n<parameter=unit>\nmiles\n</parameter>\n"), false),
            (&tags("<parameter=unit>\nkm\n</parameter>\n"), false),
            ("<tool_call><function=say><parameter=text>\na <b>\n\"</parameter></function></tool_call>", true),
            ("<tool_call><function=sub>", false),
        ],
    );
}

#[test]
fn a_call_may_begin_without_its_mark() {
    let form = CallForm { call: TAGGED, may_lack_open: true, ..HERMES };
    let add = |value: &str| format!("<function=add>\n<parameter=a>\n{value}\n</parameter>\n</function>");
    check(
        &calls(form),
        None,
        &[
            (&format!("So {}\n</tool_call> and <tool_call>{}</tool_call>", add("1"), add("2")), true),
            (&add("1"), true),
            (&add("one"), false),
            ("<function=sub> is no call", true),
        ],
    );
    let required = Calls { without: WithoutCalls::Refused, ..calls(form) };
    check(&required, None, &[(&format!("<tool_call>{}</tool_call>", add("1")), true), (&add("1"), false)]);
    // What is JSON for its schema has a mark.
    let pattern = json!({ "type": "object", "properties": { "a": { "type": "string", "pattern": "^a+$" } } });
    let tools = vec![Tool { name: "add".into(), parameters: Some(pattern), is_strict: false }];
    check(&Calls { tools, ..calls(form) }, None, &[(&add("b"), true)]);
}

#[test]
fn arguments_that_tags_cannot_hold_are_json() {
    let schema = |schema: Json| {
        let tools = vec![Tool { name: "f".into(), parameters: Some(schema), is_strict: false }];
        Calls { tools, ..calls(CallForm { call: TAGGED, ..HERMES }) }
    };
    let tagged = "<tool_call><function=f><parameter=x>abc</parameter></function></tool_call>";
    let in_json = "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"abc\"}}</tool_call>";
    let pattern = json!({ "type": "object", "properties": { "x": { "type": "string", "pattern": "^[a-c]+$" } },
        "required": ["x"], "additionalProperties": false });
    check(
        &schema(pattern),
        None,
        &[(in_json, true), (&in_json.replace("abc", "abd"), false), (tagged, false)],
    );
    check(&schema(json!({ "type": "object" })), None, &[(tagged, true), (in_json, false)]);
    let defined = json!({ "type": "object", "properties": { "x": { "$ref": "#/$defs/n" } }, "required": ["x"],
        "$defs": { "n": { "type": "integer" } } });
    check(&schema(defined), None, &[(&tagged.replace("abc", "12"), true), (tagged, false)]);
}

#[test]
fn literals_are_held() {
    let schema = json!({ "type": "object", "additionalProperties": false, "required": ["zone"], "properties": {
        "zone": { "type": "string" }, "count": { "type": "integer" },
        "kind": { "enum": ["a", 1] }, "all": { "type": "boolean" },
        "list": { "type": "array", "items": { "$ref": "#/$defs/n" } },
        "inner": { "type": "object", "properties": { "x": { "type": "string" } }, "required": ["x"] } },
        "$defs": { "n": { "type": "number" } } });
    let any = Tool { name: "any".into(), parameters: None, is_strict: false };
    let tools = vec![Tool { name: "f".into(), parameters: Some(schema), is_strict: true }, any];
    let python = CallForm { open: "<call>", close: "</call>", ..PYTHON };
    let of = |form: CallForm| Calls { tools: tools.clone(), ..calls(form) };
    check(
        &of(python),
        None,
        &[
            (r#"<call>[f(zone="a)", count=3, all=True), any()]</call>"#, true),
            (r#"<call>[f(zone="a", kind=1, list=[1, -2.5e3], inner={"x": ""})]</call>"#, true),
            (r#"<call>[any(a="x", b=[True, None], c={"k": 1})]</call>"#, true),
            (r#"<call>[any(a={'b': [1, None], "c": {'d': 'it\'s'}})]</call>"#, true),
            (r#"<call>[f(zone='a', kind='a', list=[1,2], inner={'x': "y"}), any()]</call>"#, true),
            (r#"<call>[f(zone="a", inner={'x': 1})]</call>"#, false),
            (r#"<call>[f(zone="a", inner={'y': ''})]</call>"#, false),
            (r#"<call>[f(zone="a", list=['1'])]</call>"#, false),
            (r#"<call>[f(zone="\x4")]</call>"#, false),
            (r#"<call>[f(zone="\ud83d")]</call>"#, false),
            ("<call>[f(count=3)]</call>", false),
            (r#"<call>[f(zone="a", count="3")]</call>"#, false),
            (r#"<call>[f(zone="a", kind=2)]</call>"#, false),
            (r#"<call>[f(zone="a" count=3)]</call>"#, false),
            ("<call>[g()]</call>", false),
        ],
    );
    let quoted = CallForm {
        open: "<call>",
        call: &[
            CallPart::Text("call:"),
            CallPart::Name,
            CallPart::Text("{"),
            CallPart::Literals(CallLiterals {
                assign: ":",
                separator: ",",
                quote: Some("%%"),
                is_sorted: true,
            }),
            CallPart::Text("}"),
        ],
        close: "</call>",
        ..HERMES
    };
    check(
        &of(quoted),
        None,
        &[
            (
                "<call>call:f{all:true,count:3,inner:{x:%%y}%%},kind:%%a%%,list:[1,2],zone:%%</call>%%}</call>",
                true,
            ),
            ("<call>call:f{zone:%%%%}</call>", true),
            ("<call>call:any{a:{b:[%%%%,null]}}</call>", true),
            ("<call>call:f{zone:a}</call>", false),
            ("<call>call:f{list:[%%1%%],zone:%%%%}</call>", false),
            ("<call>call:f{inner:{},zone:%%%%}</call>", false),
            ("<call>call:f{all:true}</call>", false),
        ],
    );
    let pattern = json!({ "type": "object", "properties": { "x": { "type": "string", "pattern": "a" } } });
    let of = |is_strict| {
        let tools = vec![Tool { name: "f".into(), parameters: Some(pattern.clone()), is_strict }];
        Calls { tools, ..calls(quoted) }
    };
    check(&of(false), None, &[("<call>call:f{x:%%b%%}</call>", true)]);
    let error = compile(&bytes_vocabulary(), &ResponseFormat::Calls(of(true)), None).unwrap_err().to_string();
    assert!(error.contains("format of calls"), "{error}");
}

#[test]
fn schemas_that_cannot_be_held_are_any_object_unless_strict() {
    let tool = |is_strict| Tool {
        name: "f".into(),
        parameters: Some(json!({ "type": "object", "properties": { "x": { "$ref": "#/nowhere" } } })),
        is_strict,
    };
    let of = |is_strict| Calls { tools: vec![tool(is_strict)], ..calls(HERMES) };
    check(
        &of(false),
        None,
        &[
            ("<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": [1]}}</tool_call>", true),
            ("<tool_call>{\"name\": \"f\", \"arguments\": []", false),
        ],
    );
    let error = compile(&bytes_vocabulary(), &ResponseFormat::Calls(of(true)), None).unwrap_err().to_string();
    assert!(error.contains("nowhere"), "{error}");
}

#[test]
fn calls_may_start_an_answer_without_a_mark() {
    let bare = CallForm { open: "<|python_tag|>", close: "", is_bare: true, ..HERMES };
    let add = "{\"name\": \"add\", \"arguments\": {\"a\": 1}}";
    check(
        &calls(bare),
        None,
        &[
            (add, true),
            (&format!("{add}; {add}"), true),
            (&format!("<|python_tag|>{add}"), true),
            (&format!("{add} Done."), true),
            ("{\"name\": \"Bob\"}", true),
            ("So {\"name\": \"add\", 1", true),
            ("{\"name\": \"add\"}", false),
            ("{\"name\": \"add\", \"arguments\": {\"a\": null", false),
            ("<|python_tag|>print(1)", false),
        ],
    );
    let required = Calls { without: WithoutCalls::Refused, ..calls(bare) };
    check(&required, None, &[(add, true), ("{\"name\": \"Bob\"}", false), ("Text", false)]);
    // What precedes all calls is only there with a mark.
    let section = Calls { form: CallForm { section: ["<|code|>", ""], ..bare }, ..required };
    check(
        &section,
        None,
        &[
            (&format!("<|code|><|python_tag|>{add}"), true),
            (&format!("<|code|>{add}"), false),
            (&format!("<|python_tag|>{add}"), true),
            (add, true),
        ],
    );
}

#[test]
fn lists_may_start_an_answer_or_begin_in_their_mark() {
    let bare = CallForm { open: "<code>", close: "</code>", is_bare: true, ..PYTHON };
    let cases = [
        ("[add(a=1), say(text='x')]", true),
        ("[add(a=1), say(text='x')] Done.", true),
        ("<code>[add(a=1)]</code>", true),
        ("[1] A note.", true),
        ("[added(1)]", true),
        ("So [add(1)]", true),
        ("[add(a='1')]", false),
        ("[add(a=1), sub()]", false),
        ("[add(a=1)", false),
        ("<code>print(1)", false),
    ];
    check(&calls(bare), None, &cases);
    let required = Calls { without: WithoutCalls::Refused, ..calls(bare) };
    check(&required, None, &[("[add(a=1)]", true), ("[added(1)]", false), ("Text", false)]);
    let single = Calls { is_single: true, ..calls(bare) };
    check(&single, None, &[("[add(a=1)]", true), ("[add(a=1), add(a=1)]", false)]);

    let list = CallForm { open: "functools[", is_list: true, close: "", ..HERMES };
    let add = "{\"name\": \"add\", \"arguments\": {\"a\": 1}}";
    let cases = [
        (format!("Text. functools[{add}, {add}]"), true),
        ("import functools; functools.cache".into(), true),
        (format!("functools[[{add}]]"), false),
        (format!("functools[{add}"), false),
        ("functools[]".into(), false),
    ];
    check(&calls(list), None, &cases.each_ref().map(|(text, right)| (text.as_str(), *right)));
}

#[test]
fn parts_of_an_answer_have_a_name() {
    let named = CallForm {
        open: ">>>",
        call: &[CallPart::Name, CallPart::Text("\n"), CallPart::Arguments],
        close: "",
        text_name: "all\n",
        ..HERMES
    };
    let cases = [
        ("add\n{\"a\": 1}", true),
        ("add\n{\"a\": 1}>>>say\n{\"text\": \"\"}", true),
        ("all\nText >>> 1>>>add\n{\"a\": 1}>>>all\nMore.", true),
        ("all\n>>> add(1)", true),
        ("Text", false),
        ("sub\n{}", false),
        ("add\n{\"a\": \"1\"}", false),
        ("all\nText>>>add\n{\"b\"", false),
        ("all\nText>>>add\n", false),
    ];
    check(&calls(named), None, &cases);
    let required = Calls { without: WithoutCalls::Refused, ..calls(named) };
    check(&required, None, &[("add\n{\"a\": 1}", true), ("all\nText", false)]);
    let single = Calls { is_single: true, ..calls(named) };
    check(&single, None, &[("add\n{\"a\": 1}", true), ("add\n{\"a\": 1}>>>add\n{\"a\": 1}", false)]);
    let format = WithoutCalls::Format(Box::new(ResponseFormat::Schema(json!({ "type": "integer" }))));
    check(
        &Calls { without: format, ..calls(named) },
        None,
        &[("add\n{\"a\": 1}", true), ("all\n12", true), ("12", false)],
    );
}

#[test]
fn reasoning_is_not_searched_for_calls() {
    let think = Reasoning {
        open: "<think>".into(),
        close: "</think>".into(),
        silent: Vec::new(),
        anywhere: false,
        is_open: false,
    };
    let one = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>";
    let hermes = calls(HERMES);
    let quoted = "I write <tool_call> for a call.</think>";
    check(
        &hermes,
        Some(&think),
        &[
            (&format!("<think>{quoted}\n\nText. {one}"), true),
            (&format!("\n<think>{quoted}<tool_call>x"), false),
            (one, true),
            ("Text <think> text", true),
            ("<think>never ends", false),
        ],
    );
    let open = Reasoning { is_open: true, ..think.clone() };
    check(&hermes, Some(&open), &[(&format!("{quoted}{one}"), true), (one, false)]);
    let channel = Reasoning {
        open: "<|c|>a<|m|>".into(),
        close: "<|end|>".into(),
        silent: vec!["<|c|>final<|m|>".into()],
        anywhere: true,
        is_open: false,
    };
    let header = CallForm {
        open: "to=functions.",
        call: &[CallPart::Name, CallPart::Text("<|m|>"), CallPart::Arguments],
        close: "",
        ..HERMES
    };
    check(
        &calls(header),
        Some(&channel),
        &[
            ("<|c|>a<|m|>to=functions.<|end|><|c|>final<|m|>Text.", true),
            ("<|c|>a<|m|>Hm.<|end|>Text <|c|>a<|m|>Hm.<|end|> to=functions.add<|m|>{\"a\": 1}", true),
            ("<|c|>a<|m|>Hm.<|end|>to=functions.sub", false),
        ],
    );
    let required = Calls { without: WithoutCalls::Refused, ..calls(header) };
    let forced = "<|c|>a<|m|>Hm.<|end|><|c|>final<|m|> to=functions.add<|m|>{\"a\": 1}";
    check(&required, Some(&channel), &[(forced, true), ("<|c|>final<|m|>Text", false)]);
}

#[test]
fn no_tools_are_refused() {
    let none = Calls { tools: Vec::new(), ..calls(HERMES) };
    let error = compile(&bytes_vocabulary(), &ResponseFormat::Calls(none), None).unwrap_err().to_string();
    assert!(error.contains("no tools"), "{error}");
}
