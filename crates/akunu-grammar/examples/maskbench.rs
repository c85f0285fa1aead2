//! JSON schemas with valid and invalid values, from MaskBench and JSON-Schema-Test-Suite: which schemas are accepted,
//! which values are let through, and how long compiling and masks take.
//!
//! ```text
//! cargo run --release -p akunu-grammar --example maskbench -- [EVERY [ONLY [FILE]]]
//! ```
//!
//! `EVERY` takes only every n-th schema of MaskBench; `ONLY` takes schemas whose line contains it, and lists their
//! values; `FILE` is tried instead of both, in MaskBench's form.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use akunu_grammar::schema::{self, SchemaError};
use llguidance::api::ParserLimits;
use llguidance::toktrie::{ApproximateTokEnv, TokenId};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Map, Value};

/// Lower limits than llguidance's own on compiling.
const LIMITS: ParserLimits = ParserLimits {
    max_items_in_row: 2_000,
    initial_lexer_fuel: 300_000,
    step_lexer_fuel: 200_000,
    step_max_items: 50_000,
    max_lexer_states: 250_000,
    max_grammar_size: 100_000,
    precompute_large_lexemes: true,
    verbose_errors: false,
};

#[derive(Default)]
struct Tally {
    schemas: usize,
    accepted: usize,
    /// By keyword or message: how many, and an example.
    refused: BTreeMap<String, (usize, String)>,
    wrong: usize,
    wrong_let_through: Vec<String>,
    right: usize,
    right_said: usize,
    not_said: Vec<String>,
    rewritten: Vec<Duration>,
    compiled: Vec<(Duration, String)>,
    masks: Vec<Duration>,
}

struct Bench {
    factory: ParserFactory,
    is_listing: bool,
    /// Whether a mask is computed, and its time taken, before each byte of right values.
    takes_times: bool,
}

impl Bench {
    fn new() -> Bench {
        let mut factory =
            ParserFactory::new_simple(&ApproximateTokEnv::single_byte_env()).expect("a vocabulary");
        factory.quiet();
        *factory.limits_mut() = LIMITS;
        Bench { factory, is_listing: false, takes_times: false }
    }

    fn compile(&self, schema: &Value, name: &str, tally: &mut Tally) -> Result<(Matcher, Value), String> {
        let start = Instant::now();
        let rewritten = schema::rewrite(schema).map_err(|error| match &error {
            SchemaError::Unsupported { keyword, reason, .. } => {
                format!("{keyword} not supported: {reason:.60}")
            }
            SchemaError::Invalid { keyword, reason, .. } => format!("{keyword} invalid: {reason:.60}"),
            other => format!("{other:.80}"),
        });
        tally.rewritten.push(start.elapsed());
        let rewritten = rewritten?;
        let grammar = schema::rewritten_grammar(rewritten.clone());
        let parser = llguidance::panic_utils::catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.factory.create_parser(grammar)
        }));
        let mut matcher = Matcher::new(parser);
        let mask = matcher.compute_mask();
        tally.compiled.push((start.elapsed(), name.to_string()));
        match mask {
            Ok(_) => Ok((matcher, rewritten)),
            Err(error) => Err(format!("llguidance: {:.200}", error.to_string().replace('\n', " "))),
        }
    }

    /// Whether the value can be said, and with `masks`, how long each mask takes.
    fn says(&self, matcher: &Matcher, value: &Value, masks: Option<&mut Vec<Duration>>) -> bool {
        let text = value.to_string();
        let tokens: Vec<TokenId> = text.bytes().map(TokenId::from).collect();
        let mut matcher = matcher.deep_clone();
        if let Some(masks) = masks {
            for token in &tokens {
                let start = Instant::now();
                if matcher.compute_mask().is_err() {
                    return false;
                }
                masks.push(start.elapsed());
                if matcher.try_consume_tokens(&[*token]).unwrap_or(0) == 0 {
                    return false;
                }
            }
        } else if matcher.try_consume_tokens(&tokens).unwrap_or(0) < tokens.len() {
            return false;
        }
        matcher.is_accepting().unwrap_or(false)
    }

    fn case(&self, name: &str, schema: &Value, tests: &[Value], tally: &mut Tally) {
        tally.schemas += 1;
        let (matcher, rewritten) = match self.compile(schema, name, tally) {
            Ok(compiled) => compiled,
            Err(reason) => {
                if self.is_listing {
                    say(&format!("{name}: refused: {reason}"));
                }
                let entry = tally.refused.entry(reason).or_insert((0, name.to_string()));
                entry.0 += 1;
                return;
            }
        };
        tally.accepted += 1;
        if self.is_listing {
            say(&format!("{name}: {schema}\n  as {rewritten}"));
        }
        for test in tests {
            let is_valid = test["valid"] == true;
            let ordered = ordered(&test["data"], &[&rewritten], &rewritten, 0);
            let is_said =
                self.says(&matcher, &ordered, (is_valid && self.takes_times).then_some(&mut tally.masks));
            if self.is_listing {
                say(&format!("  valid {is_valid}, said {is_said}: {ordered}"));
            }
            match (is_valid, is_said) {
                (true, true) => (tally.right, tally.right_said) = (tally.right + 1, tally.right_said + 1),
                (true, false) => {
                    tally.right += 1;
                    tally.not_said.push(format!("{name}: {:.150}", test["description"].to_string()));
                }
                (false, false) => tally.wrong += 1,
                (false, true) => {
                    tally.wrong += 1;
                    tally.wrong_let_through.push(format!("{name}: {}: {ordered:.300}", test["description"]));
                }
            }
            // In its own order, too, a wrong value must not pass.
            if !is_valid && !is_said && ordered != test["data"] && self.says(&matcher, &test["data"], None) {
                tally.wrong_let_through.push(format!("{name}: {}", test["description"]));
            }
        }
    }

    fn maskbench(&self, path: &Path, every: usize, only: &str) -> Tally {
        let mut tally = Tally::default();
        // With -f, what is not compressed is copied.
        let mut unpacked =
            Command::new("gzip").arg("-dcf").arg(path).stdout(Stdio::piped()).spawn().expect("gzip");
        let lines = BufReader::new(unpacked.stdout.take().expect("its output")).lines();
        for (index, line) in lines.enumerate() {
            let line = line.expect("a line");
            if index % every != 0 || !line.contains(only) {
                continue;
            }
            let case: Value = serde_json::from_str(&line).expect("JSON");
            self.case(case["id"].as_str().unwrap_or(""), &case["schema"], list(&case["tests"]), &mut tally);
        }
        assert!(unpacked.wait().expect("gzip ends").success());
        tally
    }

    fn suite(&self, folder: &Path, only: &str) -> Tally {
        let mut tally = Tally::default();
        let mut files: Vec<_> = ["", "optional", "optional/format"]
            .iter()
            .flat_map(|inner| std::fs::read_dir(folder.join(inner)).expect("a folder"))
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.extension().is_some_and(|end| end == "json"))
            .collect();
        files.sort();
        for path in files {
            let groups: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("JSON");
            for group in list(&groups) {
                let name = format!(
                    "{}: {}",
                    path.strip_prefix(folder).expect("in it").display(),
                    group["description"]
                );
                if name.contains(only) {
                    self.case(&name, &group["schema"], list(&group["tests"]), &mut tally);
                }
            }
        }
        tally
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The value with its properties in the order of the schemas that it may have.
fn ordered(value: &Value, schemas: &[&Value], root: &Value, depth: usize) -> Value {
    let mut all: Vec<&Value> = Vec::new();
    let mut todo: Vec<&Value> = schemas.iter().rev().copied().collect();
    while let Some(schema) = todo.pop() {
        if all.len() > 1_000 || depth > 100 {
            break;
        }
        if let Some(target) = schema["$ref"].as_str() {
            todo.push(&root["$defs"][target.trim_start_matches("#/$defs/")]);
        } else if let Some(options) = schema["anyOf"].as_array() {
            todo.extend(options.iter().rev());
        } else {
            all.push(schema);
        }
    }
    match value {
        Value::Array(items) => {
            let schema = |index: usize| {
                all.iter().map(move |schema| schema["prefixItems"].get(index).unwrap_or(&schema["items"]))
            };
            let items = items.iter().enumerate();
            items
                .map(|(index, item)| ordered(item, &schema(index).collect::<Vec<_>>(), root, depth + 1))
                .collect()
        }
        Value::Object(map) => {
            // Names that only a later alternative has are put behind those that they follow there.
            let mut names: Vec<&String> = Vec::new();
            for properties in all.iter().filter_map(|schema| schema["properties"].as_object()) {
                let mut at = 0;
                let may = |name: &&String| map.contains_key(*name) && properties[*name] != false;
                for name in properties.keys().filter(may) {
                    match names.iter().position(|other| *other == name) {
                        Some(found) => at = at.max(found + 1),
                        None => {
                            names.insert(at, name);
                            at += 1;
                        }
                    }
                }
            }
            let mut out = Map::new();
            for name in names.into_iter().chain(map.keys()) {
                if !out.contains_key(name) {
                    let of_name = |schema: &&Value| match schema["properties"].get(name) {
                        Some(_) => vec![name.clone()],
                        None => Vec::new(),
                    };
                    let mut schemas: Vec<&Value> = Vec::new();
                    for schema in &all {
                        match of_name(schema).is_empty() {
                            false => schemas.push(&schema["properties"][name]),
                            true => {
                                schemas.extend(
                                    schema["patternProperties"].as_object().into_iter().flat_map(Map::values),
                                );
                                schemas.push(&schema["additionalProperties"]);
                            }
                        }
                    }
                    out.insert(name.clone(), ordered(&map[name], &schemas, root, depth + 1));
                }
            }
            Value::Object(out)
        }
        other => other.clone(),
    }
}

fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn millis(duration: Duration) -> String {
    format!("{:.3} ms", duration.as_secs_f64() * 1e3)
}

fn times(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let Some(most) = times.last() else { return };
    let mean = times.iter().sum::<Duration>() / times.len() as u32;
    let at = |share: f64| millis(times[((times.len() - 1) as f64 * share) as usize]);
    say(&format!(
        "  {name}: {}, mean {}, p50 {}, p99 {}, p99.9 {}, max {}",
        times.len(),
        millis(mean),
        at(0.5),
        at(0.99),
        at(0.999),
        millis(*most)
    ));
}

impl Tally {
    fn print(mut self, name: &str, lists_not_said: bool) {
        say(&format!(
            "{name}: {} of {} schemas accepted ({:.1}%); {} of {} wrong values let through; {} of {} right ones said",
            self.accepted,
            self.schemas,
            100.0 * self.accepted as f64 / self.schemas.max(1) as f64,
            self.wrong_let_through.len(),
            self.wrong,
            self.right_said,
            self.right
        ));
        times("rewriting", self.rewritten);
        self.compiled.sort();
        for (time, name) in self.compiled.iter().rev().take(5) {
            say(&format!("  slow: {} {name}", millis(*time)));
        }
        times("compiling with the first mask", self.compiled.into_iter().map(|(time, _)| time).collect());
        times("masks", self.masks);
        let mut refused: Vec<_> = self.refused.into_iter().collect();
        refused.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
        for (reason, (count, example)) in refused {
            say(&format!("  refused {count}: {reason} ({example})"));
        }
        for line in self.wrong_let_through {
            say(&format!("  WRONG {line}"));
        }
        let most = if lists_not_said { usize::MAX } else { 60 };
        for line in self.not_said.into_iter().take(most) {
            say(&format!("  not said: {line}"));
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let every = arguments.first().map_or(1, |every| every.parse().expect("EVERY is a count"));
    let only = arguments.get(1).map_or("", String::as_str);
    let mut bench = Bench::new();
    (bench.is_listing, bench.takes_times) = (!only.is_empty(), true);
    if let Some(file) = arguments.get(2) {
        return bench.maskbench(Path::new(file), every, only).print(file, true);
    }
    if let Some(folder) = akunu_testing::data("maskbench", "grammar/json-schema-draft2020-12") {
        bench.suite(&folder, only).print("JSON-Schema-Test-Suite", true);
    }
    if let Some(path) = akunu_testing::data("maskbench", "grammar/maskbench-shared.jsonl.gz") {
        bench.maskbench(&path, every, only).print("MaskBench", false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(tally: &Tally, name: &str) {
        assert!(tally.wrong_let_through.is_empty(), "{name}: {:#?}", tally.wrong_let_through);
        assert!(tally.wrong > 100, "{name}: {} wrong values", tally.wrong);
    }

    fn share(part: usize, whole: usize) -> f64 {
        part as f64 / whole as f64
    }

    /// All of it is run by the example itself.
    #[test]
    fn a_twentieth_of_maskbench() {
        let Some(path) = akunu_testing::data("maskbench", "grammar/maskbench-shared.jsonl.gz") else {
            return;
        };
        let tally = Bench::new().maskbench(&path, 20, "");
        holds(&tally, "MaskBench");
        assert!(share(tally.accepted, tally.schemas) > 0.95, "{:#?}", tally.refused);
        assert!(share(tally.right_said, tally.right) > 0.98, "{:#?}", tally.not_said);
    }

    #[test]
    fn json_schema_test_suite() {
        let Some(folder) = akunu_testing::data("maskbench", "grammar/json-schema-draft2020-12") else {
            return;
        };
        let tally = Bench::new().suite(&folder, "");
        holds(&tally, "JSON-Schema-Test-Suite");
        assert!(share(tally.accepted, tally.schemas) > 0.77, "{:#?}", tally.refused);
        // Of formats, the suite has the values that are narrowed away.
        assert!(tally.right_said >= 950, "{} {:#?}", tally.right_said, tally.not_said);
    }

    /// Written by `tests/golden/schemas.py`, where the package `jsonschema` says what is valid.
    #[test]
    fn random_schemas() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/schemas.jsonl");
        let tally = Bench::new().maskbench(&path, 1, "");
        holds(&tally, "random schemas");
        assert!(share(tally.accepted, tally.schemas) > 0.7, "{:#?}", tally.refused);
        assert!(share(tally.right_said, tally.right) > 0.95, "{:#?}", tally.not_said);
    }
}
