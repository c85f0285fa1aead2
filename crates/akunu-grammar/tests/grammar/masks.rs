//! What grammars allow, byte by byte and token by token.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::common::{bytes_vocabulary, compile, takes, workers};
use akunu_grammar::{GrammarError, Reasoning, ResponseFormat, Session};
use serde_json::json;

fn lark(text: &str) -> ResponseFormat {
    ResponseFormat::Lark(text.into())
}

fn gbnf(text: &str) -> ResponseFormat {
    ResponseFormat::from_grammar(text)
}

#[test]
fn each_form_takes_its_answers_only() {
    let person = json!({ "type": "object", "properties": { "age": { "type": "integer" } }, "required": ["age"], "additionalProperties": false });
    let choice = ["Yes.", "No.", "é\"\\/"].map(String::from).to_vec();
    type Case<'a> = (ResponseFormat, &'a [&'a str], &'a [&'a str]);
    let cases: [Case<'_>; 8] = [
        (ResponseFormat::Object, &["{}", " {\"a\": [1, {\n  \"b\": null}]}"], &["[]", "{\"a\"}", "{} "]),
        (
            ResponseFormat::Schema(person),
            &["{\"age\": 3}", "{\n  \"age\": 3\n}"],
            &["{\"age\": 3.5}", "{}", "{\"age\":   3}"],
        ),
        (ResponseFormat::Regex("[a-c]+/\\d{2,3}".into()), &["abc/12", "a/123"], &["abc/1", "d/12", "a/1234"]),
        (ResponseFormat::Choice(choice), &["Yes.", "No.", "é\"\\/"], &["Yes", "Yes.No.", ""]),
        (
            lark("start: \"a\" other*\nother: \"b\" | \"(\" other \")\""),
            &["a", "abb", "a((b))b"],
            &["b", "a(b"],
        ),
        (gbnf("root ::= \"x\" [0-9]{2} # two\n  (\"/\" root)?"), &["x12", "x12/x34"], &["x1", "x12/"]),
        (
            gbnf("root ::= list\nlist ::= \"[\" (item (\",\" item)*)? \"]\"\nitem ::= [^\\n\\]\\[,]+ | list"),
            &["[a,[b,c],[]]"],
            &["[a,]", "["],
        ),
        (lark("start: /(?s:.*)/"), &["", "any\ntext"], &[]),
    ];
    let vocabulary = bytes_vocabulary();
    for (format, right, wrong) in cases {
        for text in right {
            assert_eq!(takes(&vocabulary, &format, None, text), Ok(true), "{format:?}: {text}");
        }
        for text in wrong {
            assert_ne!(takes(&vocabulary, &format, None, text), Ok(true), "{format:?}: {text}");
        }
    }
}

#[test]
fn as_many_texts_as_the_limit_allows_can_be_chosen_from() {
    let texts = (1..10_000).map(|n| format!("the same beginning {n:x}")).chain([String::new()]);
    let (vocabulary, format) = (bytes_vocabulary(), ResponseFormat::Choice(texts.collect()));
    for text in ["the same beginning 270f", "the same beginning 27", ""] {
        assert_eq!(takes(&vocabulary, &format, None, text), Ok(true), "{text}");
    }
    for text in ["the same", "the same beginning 2710"] {
        assert_ne!(takes(&vocabulary, &format, None, text), Ok(true), "{text}");
    }
}

#[test]
fn reasoning_precedes_the_answer() {
    let vocabulary = bytes_vocabulary();
    let format = ResponseFormat::Choice(vec!["Yes.".into()]);
    let think = Reasoning {
        open: "<think>".into(),
        close: "</think>".into(),
        silent: Vec::new(),
        anywhere: false,
        is_open: false,
    };
    let open = Reasoning { is_open: true, ..think.clone() };
    let channel = Reasoning {
        open: "<|c|>a<|m|>".into(),
        close: "<|end|>".into(),
        silent: vec!["<|c|>final<|m|>".into()],
        anywhere: true,
        is_open: false,
    };
    for (before, text, right) in [
        (&think, "Yes.", true),
        (&think, "<think>So {\"a\" \n <b></think>\n\nYes.", true),
        (&think, "<think>So</think>No.", false),
        (&think, "<think>So</think><think>So</think>Yes.", false),
        (&open, "Hm.</think>Yes.", true),
        (&open, "Yes.", false),
        (&channel, "<|c|>a<|m|>Hm.<|end|><|c|>a<|m|>Hm.<|end|><|c|>final<|m|>Yes.", true),
        (&channel, "<|c|>a<|m|>Hm.<|end|>No.", false),
    ] {
        let taken = takes(&vocabulary, &format, Some(before), text);
        assert_eq!(taken, Ok(right), "{before:?}: {text}");
    }
}

#[test]
fn the_twelve_grammars_of_other_engines_compile() {
    let Some(folder) = akunu_testing::data("grammars", "grammar") else { return };
    let vocabulary = bytes_vocabulary();
    let examples = [
        ("arithmetic", "x = (1 +2) \n", "x=)\n"),
        ("c", "int main(){return 1;}", "int main(){"),
        ("chess", "1. e4 e5\n2. Nf3 Nc6\n", "1. e9 e5\n"),
        ("english", "Hello there.", "Hé"),
        ("japanese", "こんにちは", "hello"),
        ("json", "{\"a\": [1.5e3, true]}", "[1]"),
        ("json_arr", "[\n1,\n{\"a\": 2}]", "{}"),
        ("list", "- one\n- two\n", "one\n"),
        ("vllm-sql", "SELECTcol_1fromtable_1wherecol_2=1", "SELECTcol_3"),
        ("whisper-assistant", " Ok Whisper, start listening for commands. Turn on lights.", " Turn on"),
        ("whisper-chess", " rook to b4, f3, d4.", " rook to b4"),
        ("whisper-colors", " red, green, blue, red.", " red, green, blue, black."),
    ];
    for (name, right, wrong) in examples {
        let text = std::fs::read_to_string(folder.join(format!("{name}.gbnf"))).unwrap();
        let format = ResponseFormat::from_grammar(&text);
        assert_eq!(takes(&vocabulary, &format, None, right), Ok(true), "{name}: {right}");
        assert_ne!(takes(&vocabulary, &format, None, wrong), Ok(true), "{name}: {wrong}");
    }
}

#[test]
fn wrong_grammars_are_refused_with_their_reason() {
    let vocabulary = bytes_vocabulary();
    for (format, word) in [
        (gbnf("root ::= a\na ::= \"x\"? b\nb ::= a \"y\""), "left recursion"),
        (gbnf("root ::= other"), "\"other\" is not defined"),
        (gbnf("other ::= \"a\""), "\"root\""),
        (gbnf("root ::= \"a"), "no end"),
        (gbnf("root ::= <[3]>"), "tokens"),
        (gbnf("root ::= \"a\"{3,2}"), "repetitions"),
        (lark("start: nothing"), "nothing"),
        (lark("start: \"a"), "lexer error"),
        (ResponseFormat::Regex("(a".into()), "regex"),
        (ResponseFormat::Choice(Vec::new()), "no text"),
        (ResponseFormat::Schema(json!({ "type": "integer", "minimum": 2, "maximum": 1 })), "no value"),
        (ResponseFormat::Schema(json!({ "type": "elephant" })), "elephant"),
        (ResponseFormat::Schema(json!({ "$ref": "#/nowhere" })), "nowhere"),
    ] {
        let error = compile(&vocabulary, &format, None).unwrap_err().to_string();
        assert!(error.contains(word), "{format:?}: {error}");
    }
}

#[test]
fn tokens_without_text_are_never_allowed() {
    // A token of a vocabulary, by number; 256 is a control token.
    let vocabulary = bytes_vocabulary();
    let grammar = compile(&vocabulary, &lark("start: \"a\" | <[0-256]>"), None).unwrap();
    let mut session = Session::new(workers(), grammar);
    let mask = session.mask().unwrap();
    assert!(mask.contains(3) && !mask.contains(256) && !mask.contains(1 << 20));
    let error = takes(&vocabulary, &lark("start: <[256]>"), None, "a").unwrap_err();
    assert_eq!(error, GrammarError::NothingFits);
}
