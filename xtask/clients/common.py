"""Shared by the tests of all clients: server addresses, and OpenAI's schema of responses."""

import functools
import json
import os
import time
import urllib.error
import urllib.request
from pathlib import Path

URL = os.environ["AKUNU_URL"]
# Requires KEY; one request at a time, without a queue.
LOCKED_URL = os.environ["AKUNU_LOCKED_URL"]
# Has small models with random weights and a vocabulary of a few words, an embedding model and a reranker; and the model
# of testdata/speech.
TEXTS_URL = os.environ["AKUNU_TEXTS_URL"]
WORDS, JUDGE = "words", "judge"
KEY = os.environ["AKUNU_KEY"]
MODEL = os.environ["AKUNU_MODEL"]
STORY = [{"role": "user", "content": "tell me a story about a fox"}]
# Far more tokens than the tests wait for.
LONG = 100_000


def get(path):
    with urllib.request.urlopen(URL + path, timeout=60) as response:
        return json.load(response)


def post(path, body, url=URL):
    """Sends a request and returns the response body."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url + path, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        return response.read().decode()


def fails(test, path, body, words, url=URL, status=400):
    """Checks the status of an error, its form for the API of the path, and words in its message."""
    what = f"{path} {str(body)[:200]}"
    with test.assertRaises(urllib.error.HTTPError, msg=what) as caught:
        post(path, body, url)
    with caught.exception as error:
        text = error.read().decode()
        test.assertEqual((error.code, error.headers["Content-Type"]), (status, "application/json"), f"{what}: {text}")
    found = json.loads(text)
    match path:
        case "/v1/rerank" | "/v2/rerank":
            message = found["message"]
            test.assertEqual(found, {"message": message, "detail": message}, what)
        case "/" | "/embed" | "/rerank":
            message = found["error"]
            test.assertEqual(found, {"error": message, "error_type": "validation"}, what)
        case _ if path.startswith("/api/"):
            message = found["error"]
            test.assertEqual(found, {"error": message}, what)
        case _:
            message = found["error"]["message"]
            test.assertEqual(found["error"]["type"], "invalid_request_error", what)
    for word in words:
        test.assertIn(word, message, what)


def answers():
    """Checks that the server still answers a short request."""
    return json.loads(post("/v1/completions", {"model": MODEL, "prompt": "Once", "max_tokens": 1}))["choices"]


def is_free():
    """Waits until no request is running."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            request = {"model": MODEL, "prompt": "Once", "max_tokens": 1}
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
            urllib.request.urlopen(urllib.request.Request(LOCKED_URL + "/v1/completions", json.dumps(request).encode(), headers), timeout=60)
            return True
        except urllib.error.HTTPError as error:
            if error.code != 429:
                raise
            time.sleep(0.05)
    return False


def without_nullable(schema):
    """Converts OpenAPI 3.0's `nullable`, which the schema contains in addition to 3.1's types, to JSON Schema."""
    if isinstance(schema, list):
        return [without_nullable(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: without_nullable(value) for key, value in schema.items()}
    return {"anyOf": [schema, {"type": "null"}]} if schema.pop("nullable", False) is True else schema


@functools.cache
def description():
    path = os.environ.get("AKUNU_OPENAPI")
    if not path:
        return None
    whole = json.loads(Path(path).read_text())
    return {"$id": "urn:openai", "components": {"schemas": without_nullable(whole["components"]["schemas"])}}


@functools.cache
def validator(name):
    from jsonschema import Draft202012Validator
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT202012

    registry = Registry().with_resource("urn:openai", Resource(contents=description(), specification=DRAFT202012))
    return Draft202012Validator({"$ref": f"urn:openai#/components/schemas/{name}"}, registry=registry)


FOX = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def is_valid(test, schema, text):
    """Checks that a text is JSON and valid for its schema, with an independent validator."""
    from jsonschema import Draft202012Validator

    errors = [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(json.loads(text))]
    test.assertEqual(errors, [], f"{json.dumps(schema)}: {text}")


def random_schema(random, depth=0):
    """A random schema whose values are not too long."""
    kinds = ["integer", "number", "string", "boolean", "null", "enum", "anyOf"] + ["object", "array"] * (depth < 2)
    kind = random.choice(["object"] if depth == 0 else kinds)
    least = random.randint(-50, 50)
    if kind in ("integer", "number"):
        return {"type": kind, "minimum": least, random.choice(["maximum", "exclusiveMaximum"]): least + random.randint(1, 100)}
    if kind == "string":
        return {"type": kind, "minLength": random.randint(0, 3), "maxLength": random.randint(3, 12)}
    if kind == "enum":
        return {"enum": random.sample(["fox", "é", 1, 12, 0.5, None, True, {"a": []}], 3)}
    if kind == "anyOf":
        return {"anyOf": [random_schema(random, depth + 1) for _ in range(2)]}
    if kind == "array":
        return {"type": kind, "items": random_schema(random, depth + 1), "minItems": random.randint(0, 2), "maxItems": random.randint(2, 4)}
    if kind == "object":
        names = random.sample(["name", "age", "a b", "ü", 'say "hi"', "x"], random.randint(1, 3))
        required = [name for name in names if random.random() < 0.6]
        return {"type": kind, "properties": {name: random_schema(random, depth + 1) for name in names}, "required": required, "additionalProperties": False}
    return {"type": kind}


def conforms(test, name, value):
    """Validates a response with its schema, if OpenAI's schema is available."""
    if description() is not None:
        errors = [f"{error.json_path}: {error.message}" for error in validator(name).iter_errors(value)]
        test.assertEqual(errors, [], f"{name}: {json.dumps(value)[:2000]}")
