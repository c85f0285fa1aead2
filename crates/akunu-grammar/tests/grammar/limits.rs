//! Limits on the work of a grammar. They end it with an error, and not the process.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::common::{bytes_vocabulary, compile, takes, workers};
use akunu_grammar::{Client, GrammarError, Limits, ResponseFormat, Session, Vocabulary, Workers};
use serde_json::json;

fn vocabulary(limits: Limits) -> Arc<Vocabulary> {
    let letters = || b'a'..=b'z';
    let pairs = letters().flat_map(|first| letters().map(move |second| vec![first, second]));
    let tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).chain(pairs).collect();
    Arc::new(Vocabulary::new(&tokens, limits).unwrap())
}

fn lark(text: &str) -> ResponseFormat {
    ResponseFormat::Lark(text.into())
}

/// A chain of rules, which takes some hundredths of a second to compile.
fn costly() -> ResponseFormat {
    let rules: Vec<String> = (1..1900).map(|n| format!("c{n}: \"a\" c{}", n - 1)).collect();
    lark(&format!("start: c1899\nc0: \"a\"\n{}", rules.join("\n")))
}

#[track_caller]
fn limited(change: impl FnOnce(&mut Limits), format: &ResponseFormat) -> GrammarError {
    let mut limits = Limits::default();
    change(&mut limits);
    let vocabulary = vocabulary(limits);
    compile(&vocabulary, format, None)
        .and_then(|grammar| Session::new(workers(), grammar).mask().map(|_| ()))
        .unwrap_err()
}

/// The library names none, and quotes its own form of the pattern.
#[test]
fn patterns_that_are_too_complex_are_refused_by_their_keywords() {
    let pattern = "^(([a-z]{1,50} ){1,50}){1,50}$";
    let format = ResponseFormat::Schema(json!({ "type": "string", "pattern": pattern, "minLength": 500 }));
    let error = limited(|_| {}, &format);
    let message = error.to_string();
    assert!(matches!(error, GrammarError::TooLarge { .. }), "{message}");
    assert!(message.contains("'pattern'") && message.contains("'minLength'"), "{message}");
    assert!(!message.contains("Regex"), "{message}");
}

#[test]
fn the_name_of_a_special_token_is_refused_where_the_vocabulary_has_none() {
    let error = limited(|_| (), &lark("start: <|end|> \"a\""));
    assert!(matches!(error, GrammarError::Invalid { .. }), "{error}");
    assert!(error.to_string().contains("names a special token"), "{error}");
}

#[test]
fn each_limit_has_its_error() {
    let object =
        ResponseFormat::Schema(json!({ "type": "object", "properties": { "a": { "type": "string" } } }));
    assert!(matches!(limited(|limits| limits.source_bytes = 10, &object), GrammarError::TooLarge { .. }));
    assert!(matches!(limited(|limits| limits.symbols = 5, &object), GrammarError::TooLarge { .. }));
    assert!(matches!(limited(|limits| limits.compile_steps = 5, &object), GrammarError::TooLarge { .. }));
    assert!(matches!(limited(|limits| limits.waiting = 0, &object), GrammarError::Busy { .. }));
    // The second one if no thread has begun.
    assert!(matches!(
        limited(|limits| limits.compile_time = Duration::ZERO, &costly()),
        GrammarError::CompileTime { .. } | GrammarError::Busy { .. }
    ));
    assert!(matches!(
        limited(|limits| limits.answer_time = Duration::ZERO, &object),
        GrammarError::MaskTime { .. }
    ));
    let many = lark("start: /[a-m]/ start | /[a-z]/ start | \"x\"");
    assert!(matches!(limited(|limits| limits.mask_items = 3, &many), GrammarError::TooComplex { .. }));
    let long = lark("start: /([a-z]{3,90}|[b-y]{5,80}){2,9}/");
    assert!(matches!(limited(|limits| limits.mask_steps = 3, &long), GrammarError::TooComplex { .. }));
    assert!(matches!(limited(|limits| limits.states = 3, &long), GrammarError::TooComplex { .. }));
}

#[test]
fn a_cancelled_request_does_not_wait() {
    let cancel = AtomicBool::new(true);
    let client = Client { owner: 1, cancel: Some(&cancel) };
    let result = workers().compile(&bytes_vocabulary(), &ResponseFormat::Object, None, client);
    assert_eq!(result.err(), Some(GrammarError::Cancelled));
}

#[test]
fn grammars_that_double_or_nest_are_refused_or_compiled_at_once() {
    let vocabulary = bytes_vocabulary();
    let lines =
        |count: usize, line: &dyn Fn(usize) -> String| (1..count).map(line).collect::<Vec<_>>().join("\n");
    let gbnf = lines(40, &|n| format!("r{n} ::= r{0} r{0}", n - 1));
    let terminals = lines(40, &|n| format!("T{n}: T{0} T{0}", n - 1));
    let rules = lines(40, &|n| format!("t{n}: t{0} t{0}", n - 1));
    let chain = lines(1900, &|n| format!("C{n}: \"a\" C{}", n - 1));
    let rule_chain = lines(1900, &|n| format!("c{n}: \"a\" c{}", n - 1));
    let deep = |open: &str, close: &str, count: usize| {
        format!("start: {}\"a\"{}", open.repeat(count), close.repeat(count))
    };
    for format in [
        ResponseFormat::from_grammar(&format!("root ::= r39\nr0 ::= \"a\"\n{gbnf}")),
        lark(&format!("start: T39\nT0: /[a-z]?/\n{terminals}")),
        lark(&format!("start: t39\nt0: /[a-z]?/\n{rules}")),
        lark(&format!("start: C1899\nC0: \"a\"\n{chain}")),
        lark(&format!("start: c1899\nc0: \"a\"\n{rule_chain}")),
        lark(&deep("(", ")", 90)),
        lark(&deep("(", ")", 100_000)),
        lark(&deep("[", "]", 100_000)),
        lark(&format!("start: {}/a/", "~".repeat(100_000))),
        lark("start: \"a\"{1000000}"),
        lark("start: ((\"a\"{1000}){1000}){1000}"),
        ResponseFormat::Regex("((a{1,1000}){1,1000}){1,1000}".into()),
        ResponseFormat::Regex("(".repeat(100_000)),
        ResponseFormat::from_grammar("root ::= ((\"a\"{1,1000}){1,1000}){1,1000}"),
    ] {
        let start = Instant::now();
        let taken = takes(&vocabulary, &format, None, "aaaa");
        let text: String = format!("{format:?}").chars().take(60).collect();
        println!("{text}: {taken:?} {:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(6), "{text}: {taken:?} {:?}", start.elapsed());
    }
}

/// Each took between 7 s and hours, or memory without bound.
#[test]
fn what_the_library_does_not_limit_is_refused_or_compiled_at_once() {
    let vocabulary = bytes_vocabulary();
    let many =
        |count: usize, part: &dyn Fn(usize) -> serde_json::Value| (0..count).map(part).collect::<Vec<_>>();
    let at_least = |n: usize| json!({ "type": "string", "minLength": n + 1 });
    let at_most = |n: usize| json!({ "type": "string", "maxLength": n + 2_000 });
    let longer = |n: usize| json!({ "type": "array", "minItems": n + 1 });
    let reference = |n: usize| json!({ "$ref": format!("#/$defs/{}", ["s", "a"][n % 2]) });
    let patterns = |n: usize| json!({ "pattern": format!("^x{n}$") });
    let branches = [many(4_000, &patterns), vec![json!(false); 60_000]].concat();
    let properties = |from: usize| {
        let named = (from..4_000).step_by(3).map(|n| (format!("p{n}"), json!({ "type": "string" })));
        json!({ "properties": named.collect::<serde_json::Map<_, _>>() })
    };
    let every_second =
        |from: u32| (from..from + 20_000).step_by(2).filter_map(char::from_u32).collect::<String>();
    let intersection: Vec<String> = (1..100).map(|n| format!("/(.*a.{{{n}}})/")).collect();
    let rules: Vec<String> = (0..400).map(|n| format!("x{n} ::= y{}*", n % 2)).collect();
    let names: Vec<String> = (0..400).map(|n| format!("x{n}")).collect();
    let class = |from: u32| every_second(from).chars().take(1_900).collect::<String>();
    let word =
        |n: usize| n.to_string().replace(|c: char| c.is_ascii_digit(), "ab") + ["c", "dd", "eee"][n % 3];
    let branches_of_text: Vec<String> = (0..700).map(|n| format!("[a-h]*{}[a-h]*z", word(n))).collect();
    let text: String = (0..300_000_u64).map(|n| char::from(b'a' + (n * n / 7 % 8) as u8)).collect();
    let texts = |count: usize| (0..count).map(|n| format!("{n:x}")).collect::<Vec<_>>();
    for format in [
        ResponseFormat::Schema(json!({ "anyOf": branches })),
        ResponseFormat::Schema(
            json!({ "allOf": [{ "anyOf": many(900, &at_least) }, { "anyOf": many(900, &at_most) }] }),
        ),
        ResponseFormat::Schema(json!({
            "$defs": { "s": { "anyOf": many(4_000, &at_least) }, "a": { "anyOf": many(4_000, &longer) } },
            "oneOf": many(1_000, &reference),
        })),
        ResponseFormat::Schema(
            json!({ "enum": [text], "pattern": format!("^(?:{})$", branches_of_text.join("|")) }),
        ),
        lark(&format!("start: %json {}", json!({ "allOf": many(3, &properties) }))),
        lark(&format!("start: T\nT: {}", intersection.join(" & "))),
        lark(&format!("start: \"{}\"", texts(40_000).join("\" | \""))),
        ResponseFormat::Choice(texts(40_000)),
        ResponseFormat::Gbnf(format!("root ::= [{}]+ [{}]+", every_second(0x10000), every_second(0x10001))),
        ResponseFormat::Gbnf(format!(
            "root ::= {}\n{}\ny0 ::= [{}]\ny1 ::= [{}]",
            names.join(" "),
            rules.join("\n"),
            class(0x10000),
            class(0x10001)
        )),
    ] {
        let start = Instant::now();
        let compiled = compile(&vocabulary, &format, None);
        let text: String = format!("{format:?}").chars().take(60).collect();
        println!("{text}: {:?} {:?}", compiled.as_ref().err(), start.elapsed());
        assert!(!matches!(compiled, Err(GrammarError::CompileTime { .. })), "{text}: {:?}", start.elapsed());
    }
}

#[test]
fn a_costly_grammar_delays_no_other_client() {
    let workers = Workers::default();
    let vocabulary = bytes_vocabulary();
    let costly = costly();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            let compile = || workers.compile(&vocabulary, &costly, None, Client { owner: 1, cancel: None });
            scope.spawn(compile);
        }
        std::thread::sleep(Duration::from_millis(20));
        let start = Instant::now();
        let client = Client { owner: 2, cancel: None };
        workers.compile(&vocabulary, &ResponseFormat::Object, None, client).unwrap();
        println!("another client waited for {:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    });
}
