"""Random schemas with random values, and whether the package `jsonschema` finds them valid.

    python schemas.py COUNT SEED > schemas.jsonl

Needs `jsonschema` 4.26. Each line has a schema and its values, in the form of MaskBench.
"""

import json
import random
import sys

import jsonschema

NAMES = ["a", "b", "c", "ab"]
STRINGS = ["", "a", "b", "ab", "abc", "ba", "x1", "12", "é😀", "a\nb"]
NUMBERS = [0, 1, -1, 2, 3, 5, 10, 1.0, 0.5, -0.5, 2.5, 1e3, -7, 100]
PATTERNS = ["a", "^a", "b$", "^ab?$", "^[a-c]+$", "\\d", "^.{2,3}$", "^(a|x)", "^$"]


def value(r, depth=2):
    kind = r.randrange(7 if depth else 5)
    if kind == 0:
        return None
    if kind == 1:
        return r.random() < 0.5
    if kind in (2, 3):
        return r.choice(NUMBERS)
    if kind == 4:
        return r.choice(STRINGS)
    if kind == 5:
        return [value(r, depth - 1) for _ in range(r.randrange(4))]
    return {name: value(r, depth - 1) for name in r.sample(NAMES, r.randrange(4))}


def typed(r, kind, depth):
    s = {"type": kind} if r.random() < 0.8 else {}
    maybe = lambda share=0.35: r.random() < share
    if kind in ("number", "integer"):
        if maybe():
            s["minimum"] = r.choice([0, 1, -1, 0.5, -5, 3])
        if maybe():
            s["maximum"] = r.choice([0, 1, 3, 2.5, 10])
        if maybe(0.2):
            s["exclusiveMinimum"] = r.choice([0, 1, -1, 0.5, -5])
        if maybe(0.2):
            s["exclusiveMaximum"] = r.choice([0, 1, 5, 0.5, 10])
        if maybe(0.2):
            s["multipleOf"] = r.choice([1, 2, 0.5, 5, 3])
    if kind == "string":
        if maybe():
            s["minLength"] = r.randrange(3)
        if maybe():
            s["maxLength"] = r.randrange(4)
        if maybe():
            s["pattern"] = r.choice(PATTERNS)
    if kind == "array":
        if maybe():
            s["minItems"] = r.randrange(3)
        if maybe():
            s["maxItems"] = r.randrange(4)
        if maybe():
            s["prefixItems"] = [schema(r, depth - 1) for _ in range(1 + r.randrange(2))]
        if maybe():
            s["items"] = schema(r, depth - 1)
        if maybe(0.15):
            s["contains"] = schema(r, depth - 1)
            if maybe():
                s["minContains"] = r.randrange(3)
            if maybe():
                s["maxContains"] = 1 + r.randrange(2)
        if maybe(0.1):
            s["uniqueItems"] = True
    if kind == "object":
        if maybe(0.7):
            s["properties"] = {n: schema(r, depth - 1) for n in r.sample(NAMES, 1 + r.randrange(3))}
        if maybe():
            s["required"] = r.sample(NAMES, 1 + r.randrange(2))
        if maybe():
            s["additionalProperties"] = schema(r, depth - 1) if maybe(0.5) else False
        if maybe(0.2):
            s["patternProperties"] = {r.choice(["^a", "b$", "^c$"]): schema(r, depth - 1)}
        if maybe(0.15):
            names = [{"maxLength": 1}, {"pattern": "^a"}, {"enum": ["a", "c"]}, {"not": {"const": "b"}}]
            s["propertyNames"] = r.choice(names)
        if maybe(0.15):
            s["minProperties"] = r.randrange(3)
        if maybe(0.15):
            s["maxProperties"] = r.randrange(4)
        if maybe(0.1):
            s["dependentRequired"] = {r.choice(NAMES): [r.choice(NAMES)]}
        if maybe(0.1):
            s["dependentSchemas"] = {r.choice(NAMES): schema(r, depth - 1)}
    return s


def schema(r, depth=3):
    roll = r.random()
    if depth <= 0 or roll < 0.1:
        types = [{"type": "string"}, {"type": "integer"}, {"const": value(r, 0)}, {"type": ["null", "number"]}]
        return r.choice([True, False, {}, *types])
    if roll < 0.6:
        s = typed(r, r.choice(["number", "integer", "string", "array", "object", "object", "object"]), depth)
    elif roll < 0.7:
        s = {"enum": [value(r, 2) for _ in range(1 + r.randrange(4))]}
    else:
        s = {}
    roll = r.random()
    more = lambda: [schema(r, depth - 1) for _ in range(1 + r.randrange(3))]
    if roll < 0.12:
        s["oneOf"] = more()
    elif roll < 0.2:
        s["anyOf"] = more()
    elif roll < 0.26:
        s["allOf"] = more()
    elif roll < 0.34:
        s["not"] = schema(r, depth - 1)
    elif roll < 0.42:
        s["if"] = schema(r, depth - 1)
        if r.random() < 0.7:
            s["then"] = schema(r, depth - 1)
        if r.random() < 0.7:
            s["else"] = schema(r, depth - 1)
    elif roll < 0.46:
        s["$ref"] = "#/$defs/" + r.choice("xy")
    return s


def main():
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    r = random.Random(seed)
    done = 0
    while done < count:
        s = schema(r)
        if not isinstance(s, dict) or len(s) == 0:
            continue
        s["$defs"] = {name: schema(r, 2) for name in "xy"}
        validator = jsonschema.Draft202012Validator(s)
        tests = []
        try:
            for _ in range(40):
                v = value(r, 3)
                tests.append({"valid": validator.is_valid(v), "data": v})
        except RecursionError:
            continue
        right = [t for t in tests if t["valid"]]
        wrong = [t for t in tests if not t["valid"]]
        seen, kept = set(), []
        for t in right[:8] + wrong[:8]:
            key = json.dumps(t["data"])
            if key not in seen:
                seen.add(key)
                kept.append({"description": "random", **t})
        print(json.dumps({"id": f"{seed}-{done}", "schema": s, "tests": kept}, ensure_ascii=False))
        done += 1


main()
