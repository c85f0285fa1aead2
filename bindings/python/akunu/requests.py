"""Requests in the form of the server's API, and their answers as objects."""

from __future__ import annotations

import base64
import difflib
import functools
import inspect
import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ._akunu import field_names
from .answers import Completion, Ranked, Reply, ToolCall, Transcript


def encode(fields: dict[str, Any]) -> bytes:
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


def schema_of(schema: Any) -> tuple[dict[str, Any], str]:
    """A JSON Schema and its name, of a dictionary or a Pydantic model."""
    if isinstance(schema, dict):
        return schema, schema.get("title", "answer")
    if hasattr(schema, "model_json_schema"):
        return schema.model_json_schema(), schema.__name__
    if hasattr(schema, "json_schema"):  # pydantic.TypeAdapter
        return schema.json_schema(), "answer"
    raise TypeError(f"{schema!r} is no JSON Schema: give a dictionary or a Pydantic model")


def parsed(schema: Any, content: str) -> Any:
    """The object that an answer is."""
    if hasattr(schema, "model_validate_json"):
        return schema.model_validate_json(content)
    if hasattr(schema, "validate_json"):
        return schema.validate_json(content)
    return json.loads(content)


def tool_of(tool: Any) -> dict[str, Any]:
    """A tool as the API has it, of a dictionary or a Pydantic model, whose name and description are the tool's."""
    if isinstance(tool, dict):
        return tool if tool.get("type") == "function" else {"type": "function", "function": tool}
    parameters, name = schema_of(tool)
    description = inspect.getdoc(tool) or ""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


@functools.cache
def names(path: str) -> frozenset[str]:
    return frozenset(field_names(path))


def check_names(path: str, options: dict[str, Any]) -> None:
    """Refuses options that requests to a path do not have, such as misspelt ones."""
    for name in options:
        if name not in names(path):
            near = difflib.get_close_matches(name, names(path), 1)
            raise TypeError(f"there is no option {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def check(path: str, options: dict[str, Any], several: bool = False) -> None:
    """Refuses unknown options, and those that would change what a method returns."""
    if "stream" in options:
        raise TypeError("stream is no option: use the methods stream and chat_stream")
    if not several and options.get("n", 1) != 1:
        raise ValueError("n must be 1: only generate and agenerate return several answers")
    check_names(path, options)


def completion_body(prompt: Any, schema: Any, options: dict[str, Any], stream: bool = False) -> bytes:
    check("/v1/completions", options, several=not stream)
    fields = {"prompt": prompt, **options}
    if schema is not None:
        fields["structured_outputs"] = {"json": schema_of(schema)[0]}
    if stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    return encode(fields)


def completions(body: bytes) -> list[Completion]:
    answer = json.loads(body)
    return [
        Completion(
            choice["text"], choice["finish_reason"], answer["usage"], answer["timings"], choice.get("logprobs")
        )
        for choice in answer["choices"]
    ]


def chat_body(messages: Any, tools: Any, schema: Any, options: dict[str, Any], stream: bool = False) -> bytes:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    check("/v1/chat/completions", options)
    fields = {"messages": messages, **options}
    if tools:
        fields["tools"] = [tool_of(tool) for tool in tools]
    if schema is not None:
        json_schema, name = schema_of(schema)
        form = {"name": name[:64], "schema": json_schema, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": form}
    if stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    return encode(fields)


def reply(body: bytes, schema: Any) -> Reply:
    answer = json.loads(body)
    choice = answer["choices"][0]
    message = choice["message"]
    calls = [
        ToolCall(call["function"]["name"], json.loads(call["function"]["arguments"]), call["id"])
        for call in message.get("tool_calls") or ()
    ]
    content = message.get("content") or ""
    is_whole = schema is not None and not calls and choice["finish_reason"] == "stop"
    return Reply(
        content, message.get("reasoning_content") or "", calls, choice["finish_reason"], message,
        parsed(schema, content) if is_whole else None, answer["usage"], answer["timings"],
    )


def embed_body(texts: Any, options: dict[str, Any]) -> bytes:
    check_names("/v1/embeddings", options)
    return encode({"input": texts, "encoding_format": "base64", **options})


def rerank_body(query: str, documents: Sequence[str], options: dict[str, Any]) -> bytes:
    check_names("/v1/rerank", options)
    return encode({"query": query, "documents": list(documents), **options})


def embeddings(body: bytes) -> np.ndarray:
    data = json.loads(body)["data"]
    return np.stack([np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in data])


def ranked(body: bytes, documents: Sequence[str]) -> list[Ranked]:
    results = json.loads(body)["results"]
    return [Ranked(item["index"], item["relevance_score"], documents[item["index"]]) for item in results]


def transcription_body(audio: Any, options: dict[str, Any]) -> tuple[bytes, str]:
    options = dict(options)
    granularities = ["segment", "word"] if options.pop("words", False) else None
    check_names("/v1/audio/transcriptions", options)
    return audio_body(
        audio, {"response_format": "verbose_json", "timestamp_granularities[]": granularities, **options}
    )


def audio_body(audio: Any, fields: dict[str, Any]) -> tuple[bytes, str]:
    """A form with a file, of a path, of bytes, or of samples at 16,000 Hz."""
    if isinstance(audio, np.ndarray):
        data, name = wav(audio), "audio.wav"
    elif isinstance(audio, (bytes, bytearray, memoryview)):
        data, name = bytes(audio), "audio"
    else:
        data, name = Path(audio).read_bytes(), Path(audio).name
    boundary = uuid.uuid4().hex
    parts = []
    for key, value in fields.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is not None:
                parts.append(f'--{boundary}\r\ncontent-disposition: form-data; name="{key}"\r\n\r\n{one}\r\n'.encode())
    quoted = name.replace('"', "")
    head = f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="{quoted}"\r\n\r\n'
    parts += [head.encode(), data, f"\r\n--{boundary}--\r\n".encode()]
    return b"".join(parts), f"multipart/form-data; boundary={boundary}"


def wav(samples: np.ndarray) -> bytes:
    """A WAV file of samples from -1 to 1, one channel at 16,000 Hz, as 32-bit floats."""
    if samples.ndim != 1:
        raise ValueError("samples must be of one channel: an array of one dimension")
    data = samples.astype("<f4").tobytes()
    head = b"fmt " + (16).to_bytes(4, "little") + (3).to_bytes(2, "little") + (1).to_bytes(2, "little")
    head += (16_000).to_bytes(4, "little") + (64_000).to_bytes(4, "little") + b"\x04\x00\x20\x00"
    content = b"WAVE" + head + b"data" + len(data).to_bytes(4, "little") + data
    return b"RIFF" + len(content).to_bytes(4, "little") + content


def transcript(body: bytes) -> Transcript:
    said = json.loads(body)
    return Transcript(
        said["text"], said.get("language"), said.get("duration"), said.get("segments") or [], said.get("words") or []
    )
