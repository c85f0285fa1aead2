//! Limits on the work of a grammar. They end it with an error, and not the process.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use akunu_grammar::{Client, GrammarError, Limits, ResponseFormat, Session, Vocabulary, Workers};
use common::{bytes_vocabulary, compile, takes, workers};
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

#[test]
fn each_limit_has_its_error() {
    let object =
        ResponseFormat::Schema(json!({ "type": "object", "properties": { "a": { "type": "string" } } }));
    assert!(matches!(limited(|limits| limits.source_bytes = 10, &object), GrammarError::TooLarge { .. }));
    assert!(matches!(limited(|limits| limits.symbols = 5, &object), GrammarError::TooLarge { .. }));
    assert!(matches!(limited(|limits| limits.compile_steps = 5, &object), GrammarError::TooLarge { .. }));
    assert!(matches!(limited(|limits| limits.waiting = 0, &object), GrammarError::Busy { .. }));
    let none = Duration::ZERO;
    assert!(matches!(
        limited(|limits| limits.compile_time = none, &costly()),
        GrammarError::CompileTime { .. }
    ));
    assert!(matches!(limited(|limits| limits.answer_time = none, &object), GrammarError::MaskTime { .. }));
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
