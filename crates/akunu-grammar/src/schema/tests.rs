//! That the rewriting is not quadratic, counted in its own steps.

use serde_json::{Value, json};

use super::convert::Converter;
use super::plan::plan;

fn steps(schema: &Value) -> usize {
    let mut converter = Converter::new(schema).unwrap();
    let root = converter.root();
    let steps =
        plan(&mut converter, root).unwrap_or_else(|error| panic!("{error}: {schema:.200}")).budget.steps();
    assert!(steps > 0);
    steps
}

fn names(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|index| format!("name{index}"))
}

fn map(count: usize, value: impl Fn(usize) -> Value) -> Value {
    names(count).enumerate().map(|(index, name)| (name, value(index))).collect()
}

/// A keyword, sizes of half of what is allowed, and a schema of a size.
type Growth = (&'static str, usize, fn(usize) -> Value);

#[test]
fn twice_the_size_takes_at_most_two_and_a_half_times_the_steps() {
    let growths: [Growth; 18] = [
        ("enum of strings", 5_000, |n| json!({ "enum": names(n).collect::<Vec<_>>() })),
        ("enum of numbers", 5_000, |n| json!({ "enum": (0..n).collect::<Vec<_>>() })),
        (
            "enum twice",
            2_500,
            |n| json!({"enum": (0..n).collect::<Vec<_>>(), "allOf": [{"enum": (0..n).collect::<Vec<_>>()}]}),
        ),
        ("enum and pattern", 2_500, |n| json!({"enum": names(n).collect::<Vec<_>>(), "pattern": "^name"})),
        ("const object", 400, |n| json!({ "const": map(n, |index| index.into()) })),
        ("const array", 2_000, |n| json!({ "const": (0..n).collect::<Vec<_>>() })),
        ("properties", 400, |n| json!({ "properties": map(n, |_| json!({"type": "string"})) })),
        ("required", 400, |n| json!({"type": "object", "required": names(n).collect::<Vec<_>>()})),
        ("properties twice", 400, |n| {
            let properties = map(n, |_| json!({"type": "string"}));
            json!({"allOf": [{ "properties": properties }, { "properties": properties }]})
        }),
        (
            "properties and a pattern",
            400,
            |n| json!({"properties": map(n, |_| json!({})), "patternProperties": {"^n": {"type": "string"}}}),
        ),
        ("prefixItems", 400, |n| json!({ "prefixItems": vec![json!({"type": "null"}); n] })),
        (
            "anyOf",
            200,
            |n| json!({"anyOf": (0..n).map(|index| json!({"required": [index.to_string()]})).collect::<Vec<_>>()}),
        ),
        ("not enum", 120, |n| json!({"not": {"enum": names(n).collect::<Vec<_>>()}})),
        ("not const array", 10, |n| json!({"not": {"const": (0..n).collect::<Vec<_>>()}})),
        (
            "not properties",
            100,
            |n| json!({"type": "object", "not": {"properties": map(n, |_| json!({"type": "null"}))}}),
        ),
        ("nested", 40, |n| (0..n).fold(json!({}), |inner, _| json!({"type": "array", "items": inner}))),
        ("references", 90, |n| {
            json!({"$ref": "#/$defs/name0", "$defs": map(n, |index| {
                json!({"items": {"$ref": format!("#/$defs/name{}", (index + 1) % n)}})
            })})
        }),
        ("pattern", 4_000, |n| json!({"type": "string", "pattern": "a".repeat(n)})),
    ];
    for (keyword, size, schema) in growths {
        let (once, twice) = (steps(&schema(size)), steps(&schema(2 * size)));
        assert!(twice * 2 <= once * 5, "{keyword}: {once} steps for {size}, {twice} for twice as much");
    }
}

const GOLDEN: &str = include_str!("../../tests/golden/schemas.jsonl");

/// Replaces one value of a schema, which is chosen by `number`, by another one.
fn mutate(value: &mut Value, number: u64) {
    let parts: Vec<&mut Value> = match value {
        Value::Array(list) => list.iter_mut().collect(),
        Value::Object(map) => map.values_mut().collect(),
        _ => Vec::new(),
    };
    let count = parts.len() as u64;
    match parts.into_iter().nth((number % (count + 1)) as usize) {
        Some(part) => mutate(part, number / (count + 1)),
        None => {
            let others = [
                json!(null),
                json!(-1),
                json!(1e300),
                json!("a"),
                json!("#/$defs/x"),
                json!([]),
                json!({}),
                json!([1, "a"]),
                json!({"type": "string"}),
                json!(true),
                json!([{"not": {}}]),
                json!(u64::MAX),
            ];
            *value = others[(number % 12) as usize].clone();
        }
    }
}

#[test]
fn any_schema_is_rewritten_or_refused() {
    let (mut rewritten, mut number) = (0, 1_u64);
    for line in GOLDEN.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        for _ in 0..20 {
            let mut schema = case["schema"].clone();
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            mutate(&mut schema, number >> 20);
            rewritten += usize::from(super::rewrite(&schema).is_ok_and(|rewritten| rewritten.is_object()));
        }
    }
    assert!(rewritten > 500, "{rewritten}");
}

/// Of alternatives that are compared with each other, the number is limited by the steps.
#[test]
fn what_is_quadratic_ends_at_the_limit() {
    for schema in [
        json!({"oneOf": names(3_000).map(|name| json!({"required": [name]})).collect::<Vec<_>>()}),
        json!({"allOf": names(40).map(|name| json!({"not": {"enum": [[name]]}})).collect::<Vec<_>>()}),
        json!({"allOf": vec![json!({"patternProperties": map(32, |index| json!({"maximum": index}))}); 40]}),
    ] {
        let mut converter = Converter::new(&schema).unwrap();
        let root = converter.root();
        if let Err(error) = plan(&mut converter, root) {
            assert!(
                matches!(error, super::SchemaError::TooLarge { .. } | super::SchemaError::Unsupported { .. }),
                "{error}"
            );
        }
        assert!(converter.budget.steps() < 2_000_000);
    }
}
