//! Every filter and method takes time and memory in proportion to its input.

use std::time::Instant;

use akunu_testing::{Cases, cases, fewest_or, some_of, thread_time};
use serde_json::{Value as Json, json};

use crate::limits::{Limits, TIME};
use crate::methods::{DICT_METHODS, LIST_METHODS, STR_METHODS};
use crate::{JinjaError, LocalTime, Variable, eval, filters, parser};

/// The sizes of the two inputs that are compared: three doublings, so that what grows with its square takes 64 times as
/// much, and both small enough that caches serve them alike.
const SIZES: [usize; 2] = [1 << 11, 1 << 14];

/// What the larger input may take: 2.5 times as much for each doubling.
const MOST: f64 = 2.5 * 2.5 * 2.5;

/// Arguments of filters and methods that need some.
const ARGUMENTS: &[(&str, &str)] = &[
    ("append", "1"),
    ("attr", "'x'"),
    ("batch", "3"),
    ("center", "99"),
    ("count", "'ab'"),
    ("endswith", "'ab'"),
    ("extend", "l"),
    ("find", "'zzz'"),
    ("get", "'zzz'"),
    ("groupby", "0"),
    ("index", "'\\u0001'"),
    ("insert", "0, 1"),
    ("join", "['a', 'b']"),
    ("ljust", "99"),
    ("map", "'upper'"),
    ("partition", "'zzz'"),
    ("pop", "'0'"),
    ("reject", "'none'"),
    ("rejectattr", "'x', 'none'"),
    ("remove", "l[0]"),
    ("removeprefix", "'aB'"),
    ("removesuffix", "s"),
    ("replace", "'a', '<a>'"),
    ("rfind", "'zzz'"),
    ("rindex", "'\\u0001'"),
    ("rjust", "99"),
    ("rpartition", "'zzz'"),
    ("select", "'string'"),
    ("selectattr", "'x', 'none'"),
    ("setdefault", "'zzz', 1"),
    ("slice", "3"),
    ("startswith", "s"),
    ("truncate", "40"),
    ("update", "d"),
    ("zfill", "99"),
];

/// Calls on lists that differ from those on strings and dictionaries.
const OF_LISTS: &[(&str, &str)] = &[("count", "l[0]"), ("index", "l[0]"), ("pop", "")];

/// Calls of filters that differ from those of methods of the same name.
const OF_FILTERS: &[(&str, &str)] = &[("count", ""), ("join", "', '")];

fn input(size: usize) -> Vec<(&'static str, Json)> {
    let text = "\u{1}aB <\n\u{e9}'\"%20 zz\t".repeat(size / 20);
    let words: Vec<String> = (0..size / 8).map(|n| format!("word {}", n * 7919 % 100_003)).collect();
    let entries: serde_json::Map<String, Json> =
        (0..size / 16).map(|n| (n.to_string(), words[n].as_str().into())).collect();
    vec![
        ("s", text.into()),
        ("l", json!(words)),
        ("d", entries.into()),
        ("j", json!(json!(words).to_string())),
        ("n", json!(vec![7; size / 8])),
        ("i", json!(7)),
    ]
}

/// Steps and bytes, and seconds of processor time.
fn cost(template: &str, variables: &[(&str, Json)]) -> Result<([u64; 2], f64), JinjaError> {
    let parsed = parser::parse(template)?;
    let variables: Vec<Variable<'_>> =
        variables.iter().map(|(name, value)| Variable { name, value, untrusted: true }).collect();
    let (mut limits, started) = (Limits::until(Instant::now() + TIME), thread_time());
    eval::render(&parsed, &variables, LocalTime::from_seconds(0), &mut limits)?;
    Ok((limits.spent(), (thread_time() - started).as_secs_f64()))
}

/// Checks the growth of a template, that of its time only with many cases; `None` if it does not apply to this kind of
/// value.
fn check(template: &str, inputs: &[Vec<(&str, Json)>; 2]) -> Option<()> {
    let result = inputs.each_ref().map(|input| cost(template, input));
    let [Ok((small, _)), Ok((large, _))] = result else {
        let limit = result.iter().find(|result| matches!(result, Err(JinjaError::Limit(_))));
        assert!(limit.is_none(), "{template}: {limit:?}");
        return None;
    };
    for (one, two) in small.iter().zip(&large) {
        assert!(*two as f64 <= MOST * *one as f64 + 1000.0, "{template}: {small:?}, then {large:?}");
    }
    if cases() <= Cases::Few {
        return Some(());
    }
    // Other programs may disturb a measurement, so one of several must hold.
    let fastest = |input: &Vec<_>| {
        let times = (0..3).map(|_| cost(template, input).map_or(f64::MAX, |(_, seconds)| seconds));
        times.fold(f64::MAX, f64::min)
    };
    let grows = || fastest(&inputs[1]) <= MOST * fastest(&inputs[0]) + 1e-3;
    assert!(
        (0..10).any(|_| grows()),
        "{template}: {} s, then {} s",
        fastest(&inputs[0]),
        fastest(&inputs[1])
    );
    Some(())
}

fn arguments(name: &str) -> &'static str {
    ARGUMENTS.iter().find(|(known, _)| *known == name).map_or("", |(_, arguments)| arguments)
}

#[test]
fn every_filter_grows_with_its_input() {
    let inputs = SIZES.map(input);
    for name in filters::NAMES {
        let of_filter = OF_FILTERS.iter().find(|(known, _)| *known == name);
        let call =
            format!("{name}({})", of_filter.map_or_else(|| arguments(name), |(_, arguments)| arguments));
        let applies = ["s", "l", "d", "j", "n", "i"].map(|value| {
            let template = format!("{{% set found = {value} | {call} %}}");
            check(&template, &inputs).is_some()
        });
        assert!(applies.contains(&true), "{call} works on nothing");
    }
}

#[test]
fn every_method_grows_with_its_input() {
    let inputs = SIZES.map(input);
    let of =
        |value: &'static str, names: &'static [&'static str]| names.iter().map(move |name| (value, *name));
    let all = of("s", &STR_METHODS).chain(of("l", &LIST_METHODS)).chain(of("d", &DICT_METHODS));
    for (value, name) in all {
        let of_list = OF_LISTS.iter().find(|(known, _)| value == "l" && *known == name);
        let arguments = of_list.map_or_else(|| arguments(name), |(_, arguments)| arguments);
        let template = format!("{{% set found = {value}.{name}({arguments}) %}}");
        assert!(check(&template, &inputs).is_some(), "{template} fails: {:?}", cost(&template, &inputs[0]));
    }
}

#[test]
fn every_operator_grows_with_its_input() {
    let inputs = SIZES.map(input);
    for expression in [
        "s + s",
        "s ~ s",
        "l + l",
        "s * 3",
        "l * 3",
        "s % ()",
        "s == s ~ ''",
        "s < s ~ ''",
        "l == l + []",
        "l < l + [1]",
        "d == dict(d)",
        "'zzz' in s",
        "'zzz' in l",
        "s in d",
        "s[1:]",
        "s[::-1]",
        "s[::2]",
        "l[::-1]",
        "s[-1]",
        "s | length",
        "s is upper",
        "s is string",
        "s is in [s ~ 'a']",
        "[s, s ~ 'a'] | unique | list",
        "[s ~ 'b', s] | sort",
        "[s ~ 'b', s] | max",
        "{s: 1}",
        "{(s, s): 1}",
        "[[s], [s]] | groupby(0)",
        "dict(**d)",
        "namespace(**d)",
        "'{0} {x}'.format(s, x=s)",
        "(s | replace('%', '') ~ '{0}').format(1)",
        "'%s' % s",
        "[s] | map('urlencode') | list",
        "range(s | length // 10) | list",
        "strftime_now(s)",
    ] {
        let template = format!("{{% set found = {expression} %}}");
        let works = check(&template, &inputs).is_some();
        assert!(works || expression.contains("s % ()"), "{template}: {:?}", cost(&template, &inputs[0]));
    }
    for template in [
        "{% for c in s %}{{ c }}{% endfor %}",
        "{% for w in l %}{{ w }}{% endfor %}",
        "{% for k, v in d.items() %}{{ k }}{{ v }}{% endfor %}",
        "{% macro m() %}{{ kwargs | length }}{% endmacro %}{{ m(**d) }}",
        "{% macro m() %}{{ varargs | length }}{% endmacro %}{{ m(*l) }}",
        "{% set n = namespace(t='') %}{% for w in l[:10] %}{% set n.t = n.t ~ s %}{% endfor %}",
        "{{ s }}{{ l }}{{ d }}{{ l | tojson(indent=2) }}{{ s | tojson }}",
    ] {
        assert!(check(template, &inputs).is_some(), "{template}: {:?}", cost(template, &inputs[0]));
    }
}

/// The seconds that a step may take at most, so that the clock is looked at often enough.
const STEP: f64 = 50e-6;

/// Checks that the time of an expression of one variable is paid by its steps.
fn check_steps(variable: &'static str, expression: &str, given: &[(&'static str, Json)]) {
    let given: Vec<_> = given.iter().filter(|(name, _)| *name == variable).cloned().collect();
    let unpaid = || {
        let (without, base) = cost("", &given).unwrap();
        let (with, seconds) = cost(&format!("{{% set found = {expression} %}}"), &given).ok()?;
        Some(seconds - base - STEP * (with[0] - without[0]) as f64)
    };
    // Other programs may disturb a measurement, so one of several must hold.
    let is_paid = || unpaid().is_none_or(|seconds| seconds < 1e-3);
    assert!((0..5).any(|_| is_paid()), "{expression}: {:?} s are not paid", unpaid());
}

#[test]
fn time_is_paid_by_steps() {
    let (texts, others) = (input(1 << 21), input(1 << 18));
    let of = |variable: &str| if variable == "s" { &texts } else { &others };
    for name in some_of(filters::NAMES, 6) {
        let of_filter = OF_FILTERS.iter().find(|(known, _)| *known == name);
        let arguments = of_filter.map_or_else(|| arguments(name), |(_, arguments)| arguments);
        for variable in ["s", "l", "d"] {
            check_steps(variable, &format!("{variable} | {name}({arguments})"), of(variable));
        }
    }
    for (variable, names) in [("s", &STR_METHODS[..]), ("l", &LIST_METHODS[..]), ("d", &DICT_METHODS[..])] {
        for name in some_of(names, 6) {
            let of_list = OF_LISTS.iter().find(|(known, _)| variable == "l" && known == name);
            let arguments = of_list.map_or_else(|| arguments(name), |(_, arguments)| arguments);
            check_steps(variable, &format!("{variable}.{name}({arguments})"), of(variable));
        }
    }
    for (variable, expression) in [
        ("s", "'ab cd' | truncate(1, true, s, 0)"),
        ("s", "'a'.center(0, s)"),
        ("s", "'a'.strip(s)"),
        ("s", "[1] | join(s)"),
        ("s", "{1: 2} | tojson(separators=[',', s])"),
        ("s", "'a' | replace('a', s)"),
        ("s", "'a'.startswith(s)"),
        ("s", "'%s' % s"),
        ("s", "'{}'.format(s)"),
        ("s", "s == s ~ 'a'"),
        ("s", "s * 2"),
        ("s", "s[5:]"),
        ("d", "namespace(d)"),
        ("d", "dict(d)"),
        ("d", "{}.update(d)"),
        ("l", "[].extend(l)"),
        ("l", "l + l"),
        ("l", "l * 2"),
        ("l", "l[::-1]"),
    ] {
        check_steps(variable, expression, of(variable));
    }
}

#[test]
fn copies_that_are_kept_are_charged() {
    let (text, tabs) = ("a b".repeat(1 << 20), "\t\u{1}".repeat(1 << 20));
    let entries: serde_json::Map<String, Json> = (0..200).map(|n| (n.to_string(), n.into())).collect();
    let variables = [("s", Json::from(text)), ("t", tabs.into()), ("d", entries.into())];
    let kept = |expression: &str| {
        format!(
            "{{% set l = [] %}}{{% for i in range(200) %}}{{% set _ = l.append({expression}) %}}{{% endfor %}}"
        )
    };
    let templates = [
        kept("'ab cd' | truncate(1, true, s, 0)"),
        kept("t | tojson"),
        kept("t.expandtabs()"),
        kept("[t] | string"),
        "{{ d | tojson(separators=[',', s]) }}".to_string(),
        "{% set n = namespace(k=(1, 2)) %}{% for i in range(25) %}{% set n.k = (n.k, n.k) %}{% endfor %}{{ {n.k: 1} }}"
            .to_string(),
    ];
    for template in templates.into_iter().step_by(fewest_or(2, 1, 1)) {
        let error = cost(&template, &variables).unwrap_err();
        assert!(matches!(error, JinjaError::Limit(_)), "{template}: {error:?}");
    }
}
