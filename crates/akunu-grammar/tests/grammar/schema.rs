//! Schemas, keyword by keyword: which values can be generated, what is narrowed and what is refused.

use akunu_grammar::schema::{self, SchemaError};
use llguidance::toktrie::ApproximateTokEnv;
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

fn matcher(schema: &Value) -> Matcher {
    let mut factory = ParserFactory::new_simple(&ApproximateTokEnv::single_byte_env()).expect("a vocabulary");
    factory.quiet();
    let grammar = schema::grammar(schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
    let mut matcher = Matcher::new(factory.create_parser(grammar));
    assert!(!matcher.is_error(), "{schema}: {:?}", matcher.get_error());
    matcher.compute_mask().expect("a mask");
    matcher
}

fn says(matcher: &Matcher, text: &str) -> bool {
    let mut matcher = matcher.deep_clone();
    let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
    matcher.try_consume_tokens(&tokens).unwrap_or(0) == tokens.len()
        && matcher.is_accepting().unwrap_or(false)
}

/// Each schema with texts that can be generated and texts that cannot.
fn check(table: &[(Value, &[&str], &[&str])]) {
    for (schema, yes, no) in table {
        let matcher = matcher(schema);
        for (texts, expected) in [(yes, true), (no, false)] {
            for text in *texts {
                assert_eq!(says(&matcher, text), expected, "{text} of {schema}");
            }
        }
    }
}

#[test]
fn numbers() {
    check(&[
        (json!({"type": "integer"}), &["0", "-5", "12345678901234567890"], &["1.5", "01", "\"1\""]),
        (json!({"type": "number"}), &["0", "1.5", "-2e10"], &["NaN", ".5"]),
        (json!({"type": "integer", "minimum": -3, "maximum": 12}), &["-3", "0", "12"], &["-4", "13"]),
        (json!({"type": "integer", "minimum": 1.5, "exclusiveMaximum": 4}), &["2", "3"], &["1", "4"]),
        (
            json!({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}),
            &["0.5", "0.1"],
            &["0", "0.0", "-0", "0.51"],
        ),
        (
            json!({"type": "number", "minimum": -0.5, "exclusiveMaximum": 0}),
            &["-0.5", "-0.1"],
            &["0", "-0", "-0.0", "-0.6"],
        ),
        (
            json!({"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 2}),
            &["1.5"],
            &["1", "1.0", "2"],
        ),
        (json!({"type": "integer", "multipleOf": 3}), &["3", "-6", "0"], &["4"]),
        (json!({"type": "number", "multipleOf": 0.01}), &["4.35", "1"], &["4.355"]),
        (
            json!({"type": "integer", "allOf": [{"multipleOf": 4}, {"multipleOf": 6}]}),
            &["12", "24"],
            &["4", "6", "8"],
        ),
        // Bounds of draft 4.
        (json!({"type": "integer", "minimum": 1, "exclusiveMinimum": true}), &["2"], &["1"]),
        (json!({"minimum": 3}), &["3", "\"x\"", "null", "[]", "{}"], &["2"]),
    ]);
}

#[test]
fn bounds_beyond_what_is_exact_only_narrow() {
    let largest = 9_007_199_254_740_993_i64;
    check(&[
        (
            json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}),
            &["0", "-9000000000000000000"],
            &["9223372036854775808", "-9223372036854775809"],
        ),
        (
            json!({"type": "integer", "minimum": 0, "maximum": u64::MAX}),
            &["0", "9000000000000000000"],
            &["-1", "18446744073709551616"],
        ),
        (
            json!({"type": "integer", "minimum": 1_000_000_000_000_000_000_i64}),
            &["1000000000000000000"],
            &["999999999999999999"],
        ),
        (json!({"type": "integer", "minimum": largest}), &["9007199254740994"], &["9007199254740992"]),
        (
            json!({"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308}),
            &["1.5"],
            &[],
        ),
        // Nothing that can be generated is larger.
        (
            json!({"anyOf": [{"type": "number", "exclusiveMinimum": 9e18}, {"type": "null"}]}),
            &["null"],
            &["9000000000000000000"],
        ),
        (
            json!({"type": ["number", "null"], "exclusiveMinimum": 1e17, "maximum": 1.0000000000000002e17}),
            &["null"],
            &["100000000000000000", "100000000000000000.0"],
        ),
        (json!({"enum": [largest, 1]}), &["1"], &["9007199254740992", "9007199254740993"]),
    ]);
}

#[test]
fn strings() {
    check(&[
        (
            json!({"type": "string", "minLength": 2, "maxLength": 3}),
            &["\"é😀\"", "\"abc\""],
            &["\"a\"", "\"abcd\""],
        ),
        (json!({"type": "string", "pattern": "^[a-c]+\\d$"}), &["\"ab1\""], &["\"ab\"", "\"xa1\""]),
        (json!({"type": "string", "pattern": "b"}), &["\"abc\"", "\"\\nb\""], &["\"ac\""]),
        (json!({"type": "string", "format": "date"}), &["\"2024-02-29\""], &["\"2023-02-29\"", "\"x\""]),
        (json!({"type": "string", "format": "a colour"}), &["\"red\""], &[]),
        (
            json!({"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "z$"}]}),
            &["\"az\""],
            &["\"a\"", "\"z\""],
        ),
        (json!({"enum": ["a", "b\n\"", "\u{1}"]}), &["\"a\"", "\"b\\n\\\"\""], &["\"\\u0001\"", "\"c\""]),
        (
            json!({"type": "string", "not": {"enum": ["a", "ab"]}}),
            &["\"\"", "\"abc\"", "\"b\""],
            &["\"a\"", "\"ab\""],
        ),
        (json!({"type": "string", "not": {"minLength": 2}}), &["\"a\""], &["\"ab\""]),
        (
            json!({"type": "string", "not": {"pattern": "\\d\\d"}, "minLength": 1}),
            &["\"1a2\"", "\"\\n\""],
            &["\"a12\"", "\"\""],
        ),
        (json!({"enum": ["a1", "b2"], "pattern": "^a"}), &["\"a1\""], &["\"b2\""]),
        (json!({"enum": ["a1", "b2"], "not": {"pattern": "^a"}}), &["\"b2\""], &["\"a1\""]),
    ]);
}

#[test]
fn arrays() {
    check(&[
        (
            json!({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}),
            &["[1]", "[1,2]"],
            &["[]", "[1,2,3]", "[\"a\"]"],
        ),
        (
            json!({"type": "array", "prefixItems": [{"type": "null"}], "items": false}),
            &["[]", "[null]"],
            &["[null,1]"],
        ),
        // Drafts up to 2019-09.
        (
            json!({"type": "array", "items": [{"type": "null"}], "additionalItems": {"type": "integer"}}),
            &["[null,1]"],
            &["[1]"],
        ),
        (
            json!({"type": "array", "contains": {"const": 7}, "items": {"type": "integer"}}),
            &["[7]", "[1,2,7,3]"],
            &["[]", "[1,2]"],
        ),
        // Narrowed: only the first element may be among those that are counted.
        (
            json!({"type": "array", "contains": {"const": 7}, "maxContains": 1}),
            &["[7,1]"],
            &["[7,7]", "[1,7,7]"],
        ),
        (json!({"type": "array", "uniqueItems": true, "maxItems": 1}), &["[1]"], &["[1,1]"]),
        (
            json!({"type": "array", "uniqueItems": true, "items": {"enum": ["a", "b"]}}),
            &["[\"b\",\"a\"]", "[]"],
            &["[\"a\",\"a\"]"],
        ),
        (
            json!({"not": {"type": "array", "items": {"type": "integer"}}}),
            &["[\"a\"]", "[1,\"a\"]", "1"],
            &["[1]", "[]"],
        ),
    ]);
}

#[test]
fn objects() {
    let a = json!({"a": {"type": "integer"}});
    check(&[
        (json!({"type": "object", "properties": {}}), &["{}", "{\"x\":1}"], &["[]"]),
        (
            json!({"type": "object", "properties": a, "required": ["a", "b"]}),
            &["{\"a\":1,\"b\":[]}"],
            &["{\"a\":1}"],
        ),
        (json!({"type": "object", "properties": a}), &["{}", "{\"a\":1,\"x\":\"y\"}"], &["{\"a\":\"y\"}"]),
        (
            json!({"type": "object", "properties": a, "additionalProperties": false}),
            &["{\"a\":1}"],
            &["{\"x\":1}"],
        ),
        (
            json!({"type": "object", "patternProperties": {"^x": {"type": "null"}}}),
            &["{\"x1\":null,\"y\":1}"],
            &["{\"x1\":1}"],
        ),
        (json!({"type": "object", "minProperties": 1}), &["{\"x\":1}"], &["{}"]),
        (
            json!({"type": "object", "required": ["a"], "patternProperties": {"^[ab]$": {"type": "null"}}, "maxProperties": 1}),
            &["{\"a\":null}"],
            &["{}", "{\"a\":1}", "{\"a\":null,\"b\":null}"],
        ),
        (json!({"type": "object", "maxProperties": 1}), &["{}", "{\"x\":1}"], &["{\"x\":1,\"y\":1}"]),
        (
            json!({"properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": false, "minProperties": 2}),
            &["{\"a\":1,\"c\":1}"],
            &["{\"a\":1}"],
        ),
        (
            json!({"properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": false, "maxProperties": 2}),
            &["{\"a\":1,\"c\":1}", "{}"],
            &["{\"a\":1,\"b\":1,\"c\":1}"],
        ),
        (json!({"type": "object", "propertyNames": {"pattern": "^[a-z]$"}}), &["{\"x\":1}"], &["{\"xy\":1}"]),
        (json!({"type": "object", "propertyNames": {"enum": ["a", "b"]}}), &["{\"a\":1}"], &["{\"c\":1}"]),
        (
            json!({"type": "object", "dependentRequired": {"a": ["b"]}}),
            &["{\"a\":1,\"b\":1}", "{\"b\":1}"],
            &["{\"a\":1}"],
        ),
        (
            json!({"type": "object", "dependencies": {"a": {"required": ["b"]}}}),
            &["{\"a\":1,\"b\":1}", "{}"],
            &["{\"a\":1}"],
        ),
        (json!({"properties": a, "unevaluatedProperties": false}), &["{\"a\":1}"], &["{\"x\":1}"]),
        (
            json!({"not": {"properties": a, "additionalProperties": false}, "type": "object"}),
            &["{\"x\":1}", "{\"a\":\"y\"}"],
            &["{}", "{\"a\":1}"],
        ),
    ]);
}

/// A property that is named could otherwise be written with an escape, and pass as an additional one.
#[test]
fn names_have_one_spelling() {
    check(&[(
        json!({"type": "object", "properties": {"a": {"type": "integer"}}}),
        &["{\"a\":1}", "{\"b\":\"x\"}"],
        &["{\"\\u0061\":\"x\"}", "{\"a\":1,\"\\u0061\":\"x\"}", "{\"a\":1,\"a\":\"x\"}"],
    )]);
}

/// At least two properties without names could be one that is written twice.
#[test]
fn a_property_that_is_written_twice_counts_once() {
    check(&[(
        json!({"type": "object", "required": ["a"], "minProperties": 2}),
        &["{\"a\":1,\"b\":1}"],
        &["{\"a\":1}"],
    )]);
    let error = schema::rewrite(&json!({"type": "object", "minProperties": 2})).unwrap_err();
    assert!(error.to_string().starts_with("minProperties at # is not supported"), "{error}");
}

#[test]
fn combinations() {
    check(&[
        (json!({"const": {"a": [1, null]}}), &["{\"a\":[1,null]}"], &["{\"a\":[1]}", "{}"]),
        (json!({"not": {"const": {"a": 1}}}), &["{}", "{\"a\":2}", "{\"b\":1}", "1"], &["{\"a\":1}"]),
        (json!({"not": {"type": ["string", "object"]}}), &["1", "null"], &["\"\"", "{}"]),
        (json!({"type": "integer", "not": {"const": 5}}), &["4", "6"], &["5"]),
        (json!({"type": "object", "not": {"required": ["a"]}}), &["{}", "{\"b\":1}"], &["{\"a\":1}"]),
        // Narrowed: that a number is no integer cannot be expressed, so 2.5 is left out.
        (json!({"oneOf": [{"type": "integer"}, {"minimum": 2}]}), &["1", "\"x\""], &["3", "1.5", "2.5"]),
        (
            json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"}),
            &["{\"a\":1}", "{\"b\":1}"],
            &["{}", "{\"a\":1,\"b\":1}"],
        ),
        (
            json!({"oneOf": [{"pattern": "^a$"}, {"pattern": "^b$"}], "type": "string"}),
            &["\"a\"", "\"b\""],
            &["\"c\""],
        ),
        (
            json!({"if": {"properties": {"k": {"const": 1}}, "required": ["k"]}, "then": {"required": ["x"]},
            "else": {"required": ["y"]}, "type": "object"}),
            &["{\"k\":1,\"x\":0}", "{\"y\":0}", "{\"k\":2,\"y\":0}"],
            &["{\"k\":1}", "{\"x\":0}"],
        ),
        (
            json!({"type": "object", "allOf": [{"properties": {"a": {"minimum": 1}}},
                {"properties": {"a": {"maximum": 2}}}]}),
            &["{\"a\":2}"],
            &["{\"a\":3}", "{\"a\":0}"],
        ),
        (json!({"not": {"not": {"type": "null"}}}), &["null"], &["1"]),
        // Keywords that JSON Schema does not know are ignored.
        (json!({"type": "string", "nullable": true, "x-kind": 1, "id": "x"}), &["\"a\""], &["null"]),
        (json!({"type": "string", "x-guidance": {"json_allowed_escapes": "q"}}), &["\"a\""], &["1"]),
        (json!(true), &["1", "{}"], &["x"]),
    ]);
}

#[test]
fn references() {
    let tree =
        json!({"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": false});
    check(&[
        (tree, &["{}", "{\"next\":{\"next\":{}}}"], &["{\"next\":1}"]),
        (
            json!({"$ref": "#/definitions/a~1b%25", "definitions": {"a/b%": {"type": "null"}}}),
            &["null"],
            &["1"],
        ),
        (
            json!({"$id": "http://a.example/x.json", "$ref": "y.json#z", "$defs": {
            "y": {"$id": "y.json", "$defs": {"z": {"$anchor": "z", "type": "null"}}}}}),
            &["null"],
            &["1"],
        ),
        // Up to draft 7, keywords beside a reference have no effect.
        (
            json!({"$schema": "http://json-schema.org/draft-07/schema#",
                "properties": {"a": {"$ref": "#/definitions/n", "maximum": 1}},
            "definitions": {"n": {"type": "integer"}}}),
            &["{\"a\":2}"],
            &["{\"a\":\"x\"}"],
        ),
        (
            json!({"properties": {"a": {"$ref": "#/$defs/n", "maximum": 1}}, "$defs": {"n": {"type": "integer"}}}),
            &["{\"a\":1}"],
            &["{\"a\":2}"],
        ),
        // Conjunctions of schemas that refer to each other.
        (
            json!({"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {
            "a": {"type": "object", "properties": {"x": {"$ref": "#/$defs/b"}, "n": {"type": "integer"}}},
            "b": {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}, "n": {"minimum": 1}}}}}),
            &["{\"x\":{\"x\":{},\"n\":5},\"n\":1}"],
            &["{\"n\":0}", "{\"x\":{\"x\":{\"n\":\"a\"}}}"],
        ),
    ]);
}

#[test]
fn refusals_name_the_keyword_and_its_place() {
    for (schema, message) in [
        (
            json!({"properties": {"a": {"type": "array", "uniqueItems": true}}}),
            "uniqueItems at #/properties/a is not supported: it is supported for at most one element, and for \
             elements of few values",
        ),
        (
            json!({"$ref": "http://a.example/"}),
            "$ref at # is not supported: http://a.example/ is not in this schema",
        ),
        (
            json!({"items": {"pattern": "a\\b"}}),
            "pattern at #/items is not supported: it has a word boundary",
        ),
        (json!({"type": "text"}), "type at # is invalid: there is no type \"text\""),
        (json!({"minLength": -1}), "minLength at # is invalid: it is not a count"),
        (json!({"properties": [1]}), "properties at # is invalid: it is not an object"),
        (json!({"anyOf": []}), "anyOf at # is invalid: it is not a list with elements"),
        (json!({"allOf": [{"$ref": "#"}]}), "$ref at # is invalid: the schema is defined by itself"),
        // Draft 4 does not know const, so that nothing violates it.
        (
            json!({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer", "not": {"const": 5}}),
            "const at #/not is not supported: that it is violated cannot be expressed, and no other value is left",
        ),
        (json!([1]), "a schema at # is invalid: it is neither an object nor a boolean"),
        (
            json!({"type": "string", "not": {"pattern": "^[ab]*a[ab]{10}$"}}),
            "pattern at #/not is not supported: the strings that do not match cannot be expressed shortly",
        ),
        (
            json!({"type": "string", "minLength": 2, "maxLength": 1}),
            "no value that can be generated satisfies the schema at #",
        ),
        (
            json!({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}),
            "no value that can be generated satisfies the schema at #",
        ),
    ] {
        assert_eq!(schema::rewrite(&schema).unwrap_err().to_string(), message, "{schema}");
    }
}

#[test]
fn what_is_too_large_is_named() {
    let choice = |name: String| json!({"anyOf": [{"required": [name]}, {"maxProperties": 3}]});
    let choices: Vec<Value> = (0..20).map(|index| choice(index.to_string())).collect();
    let error = schema::rewrite(&json!({"items": {"type": "object", "allOf": choices}})).unwrap_err();
    let message = "the schema is too complex: at #/items/allOf: ";
    assert!(error.to_string().starts_with(message), "{error}");
}

/// The schema with these alternatives.
struct AnyOf(Value);

impl FromIterator<Value> for AnyOf {
    fn from_iter<T: IntoIterator<Item = Value>>(schemas: T) -> AnyOf {
        AnyOf(json!({ "anyOf": schemas.into_iter().collect::<Vec<_>>() }))
    }
}

/// Schemas that take llguidance long, or for ever, if they are not refused: what is accepted compiles, and is small.
/// On a quarter of the stack that the pool's threads have, since llguidance recurses over references.
#[test]
fn attacks_are_refused_or_cheap() {
    let thread = std::thread::Builder::new().stack_size(16 << 20).spawn(try_attacks).unwrap();
    thread.join().unwrap();
}

fn try_attacks() {
    let names = |count: usize| (0..count).map(|index| format!("name{index}"));
    let objects =
        |count: usize| -> Value { names(count).map(|name| (name, json!({"type": "string"}))).collect() };
    let enumeration =
        |letter: &str| json!({"enum": names(45_000).map(|name| name + letter).collect::<Vec<_>>()});
    let chain = |count: usize| -> Value {
        let link = |index: usize| json!({"properties": {"x": {"$ref": format!("#/$defs/d{}", (index + 1) % count)}}});
        (0..count).map(|index| (format!("d{index}"), link(index))).collect()
    };
    let long = "a".repeat(1_000);
    for (name, schema, is_accepted) in [
        ("two enumerations", json!({"oneOf": [enumeration("a"), enumeration("b")]}), false),
        (
            "lengths",
            json!({"anyOf": (1..=290).map(|max| json!({"type": "string", "maxLength": max})).collect::<Vec<_>>()}),
            true,
        ),
        (
            "patterns",
            (1..=290).map(|max| json!({"pattern": format!("^[a-z]{{0,{max}}}$")})).collect::<AnyOf>().0,
            false,
        ),
        ("properties", json!({"properties": objects(5_000)}), false),
        ("properties, fewer", json!({"properties": objects(1_000)}), true),
        (
            "pattern properties",
            json!({"patternProperties": names(300).map(|name| (format!("^{name}$"), json!({"type": "null"})))
            .collect::<Value>()}),
            false,
        ),
        (
            "conjunction",
            json!({"allOf": names(30).map(|name| json!({"pattern": format!("{name}.*b")})).collect::<Vec<_>>()}),
            false,
        ),
        ("references", json!({"$ref": "#/$defs/d0", "$defs": chain(5_000)}), false),
        ("references, fewer", json!({"$ref": "#/$defs/d0", "$defs": chain(199)}), true),
        (
            "choices",
            json!({"allOf": names(20).map(|name| json!({"anyOf": [{"required": [name]}, {"maxProperties": 3}]}))
            .collect::<Vec<_>>()}),
            false,
        ),
        (
            "branches",
            json!({"oneOf": names(3_000).map(|name| json!({"required": [name]})).collect::<Vec<_>>()}),
            false,
        ),
        ("many objects", json!({"prefixItems": vec![json!({"properties": objects(900)}); 10]}), false),
        ("a multiple", json!({"multipleOf": 999_999_937}), false),
        (
            "multiples",
            json!({"anyOf": (90..95).map(|multiple| json!({"multipleOf": multiple})).collect::<Vec<_>>()}),
            false,
        ),
        (
            "references in place, at the end of others",
            json!({"$ref": "#/$defs/d0", "$defs": (0..=285).map(|index| {
                let next = json!({"$ref": format!("#/$defs/d{}", index + 1)});
                let schema = match index {
                    285 => json!({"type": "null"}),
                    190.. => json!({"allOf": [next]}),
                    _ => json!({"properties": {"x": next}}),
                };
                (format!("d{index}"), schema)
            }).collect::<Value>()}),
            true,
        ),
        ("repetition", json!({"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"}), true),
        ("long excluded string", json!({"type": "string", "not": {"const": long}}), true),
        ("excluded array", json!({"not": {"const": (0..3_000).collect::<Vec<_>>()}}), true),
        (
            "dependencies",
            json!({"dependencies": names(20).map(|name| (name.clone(), json!([name + "x"]))).collect::<Value>()}),
            false,
        ),
    ] {
        let start = std::time::Instant::now();
        let rewritten = schema::rewrite(&schema);
        match &rewritten {
            Ok(rewritten) => {
                assert!(is_accepted, "{name}");
                assert!(rewritten.to_string().len() < 1 << 20, "{name}");
                matcher(&schema);
            }
            Err(SchemaError::TooLarge { .. } | SchemaError::Unsupported { .. }) => {
                assert!(!is_accepted, "{name}: {rewritten:?}")
            }
            Err(error) => panic!("{name}: {error}"),
        }
        // Steps and sizes are what is limited; a machine that is busy takes far less than this.
        assert!(start.elapsed().as_secs() < 20, "{name}");
    }
}

#[test]
fn what_is_narrowed_is_not_taken_for_exclusive() {
    let large = 9_007_199_254_740_993_i64;
    check(&[
        // A name may match both patterns, but "ax" matches one.
        (
            json!({"oneOf": [
                {"type": "object", "required": ["ax"], "patternProperties": {"^a": {"type": "number"}}},
                {"type": "object", "required": ["c"], "patternProperties": {"b": {"type": "string"}}},
            ]}),
            &["{\"ax\":1}"],
            &["{\"ax\":1,\"c\":1}", "{\"c\":1,\"ax\":1}"],
        ),
        // Bounds that are no f64 are rounded.
        (
            json!({"oneOf": [{"not": {"const": large}}, {"enum": [large - 1, large + 3]}]}),
            &["5"],
            &["9007199254740992", "9007199254740996"],
        ),
        (
            json!({"oneOf": [
                {"type": "number", "minimum": large},
                {"type": "number", "minimum": large - 3, "exclusiveMaximum": large + 1},
            ]}),
            &[],
            &["9007199254740993"],
        ),
    ]);
}

/// `format` is asserted, so two formats exclude each other if no string has both.
#[test]
fn branches_of_one_of_are_told_apart_by_formats_that_exclude_each_other() {
    let branches = |a: &str, b: &str| json!({"oneOf": [{"type": "string", "format": a}, {"type": "string", "format": b}]});
    check(&[
        (branches("date", "date-time"), &["\"2024-02-29\"", "\"2024-02-29T12:00:00Z\""], &["\"a\""]),
        (branches("ipv4", "ipv6"), &["\"127.0.0.1\"", "\"::1\""], &["\"a\""]),
        (branches("uuid", "email"), &["\"a@b.de\""], &["\"a\""]),
        (branches("duration", "time"), &["\"PT1S\"", "\"12:00:00Z\""], &["\"12:00\""]),
    ]);
    // A host name may look like an address, a quoted address may begin like a URI, and unknown formats have all strings.
    let overlapping =
        [("ipv4", "hostname"), ("email", "uri"), ("uri", "uri-reference"), ("date-time", "regex")];
    for (a, b) in overlapping.into_iter().chain([("x", "y"), ("x", "date"), ("date", "date")]) {
        let refused = schema::rewrite(&branches(a, b)).unwrap_err();
        assert!(!matches!(refused, SchemaError::TooLarge { .. }), "{a} {b}: {refused}");
    }
}

#[test]
fn keywords_that_a_draft_does_not_know_allow_nothing_more() {
    let draft = "http://json-schema.org/draft-07/schema#";
    check(&[
        (
            json!({"$schema": draft, "prefixItems": [{"type": "string"}], "items": {"enum": [1, "a"]}}),
            &["[\"a\"]", "[\"a\",1]", "[]"],
            &["[1]", "[\"b\"]"],
        ),
        (
            json!({"$schema": draft, "type": "array", "contains": {"type": "null"}, "minContains": 0}),
            &["[null]"],
            &["[]", "[1]"],
        ),
    ]);
    let draft = "http://json-schema.org/draft-04/schema#";
    check(&[(
        json!({"$schema": draft, "oneOf": [
            {"type": "integer", "minimum": 2, "maximum": 9},
            {"type": "integer", "exclusiveMaximum": 0, "multipleOf": 3},
            {"type": "null"},
        ]}),
        &["null"],
        &["3", "6"],
    )]);
    let extends =
        json!({"$schema": "http://json-schema.org/draft-03/schema#", "extends": {"type": "string"}});
    assert!(matches!(schema::rewrite(&extends), Err(SchemaError::Unsupported { .. })));
}
