"""A model in this process."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np

from . import requests
from ._akunu import Engine
from .answers import Completion, Ranked, Reply, Stream, Transcript, call, call_async


def options_of(models: Iterable[str], given: dict[str, Any]) -> str:
    """Options as the native module reads them."""
    mmap = given.pop("mmap", True)
    options = {name: value for name, value in given.items() if value is not None}
    return json.dumps({"models": list(models), "no_mmap": not mmap, **options})


class Model:
    """A loaded model.

    `model` is a GGUF file, a folder in Hugging Face's form, `hf:OWNER/NAME` on the hub, or None for the small model inside
    the package. Which methods work depends on the model: those that generate, those that make vectors, those that rank,
    and those that transcribe.

    Options, as those of `akunu serve`: `context` tokens of a request, `threads`, `device` (`auto`, `cpu`, `cuda`,
    `metal`, or GPUs as `cuda:0,1`), `tensor_parallel` or `pipeline_parallel` (a number of devices), `gpu_layers`,
    `parallel` requests at once, `queue` waiting ones, `kv_memory`, `kv_host` and `max_memory` in MiB,
    `kv_type` (`f32`, `f16`, `q8_0`), `kv_disk` (a folder), `chunk` tokens in a pass, `pooling` (`mean`, `cls`, `last`),
    `rerank`, `beams`, `mmap`.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, **options: Any):
        name = "" if model is None else os.fspath(model)
        self._engine = Engine(options_of([name], options))

    def close(self) -> None:
        """Ends all requests and frees the memory."""
        self._engine.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Texts

    @overload
    def generate(self, prompt: str | Sequence[int], **options: Any) -> Completion: ...
    @overload
    def generate(self, prompt: Sequence[str], **options: Any) -> list[Completion]: ...

    def generate(self, prompt: Any, *, max_tokens: int = 256, schema: Any = None, **options: Any) -> Any:
        """Continues a text, token ids, or a list of texts, which then share passes.

        With `n`, it returns a list of as many continuations. `options` are fields of `/v1/completions`: `temperature`, `top_k`, `top_p`, `min_p`, `seed`, `stop`, `n`,
        `logprobs`, `logit_bias` and others. `schema` holds the text to a JSON Schema or a Pydantic model.
        """
        body = requests.completion_body(prompt, schema, {"max_tokens": max_tokens, **options})
        return self._completions(prompt, options, call(self._engine, "/v1/completions", body))

    @overload
    async def agenerate(self, prompt: str | Sequence[int], **options: Any) -> Completion: ...
    @overload
    async def agenerate(self, prompt: Sequence[str], **options: Any) -> list[Completion]: ...

    async def agenerate(self, prompt: Any, *, max_tokens: int = 256, schema: Any = None, **options: Any) -> Any:
        """As `generate`, for a task of an event loop. Cancelling the task ends the generation."""
        body = requests.completion_body(prompt, schema, {"max_tokens": max_tokens, **options})
        return self._completions(prompt, options, await call_async(self._engine, "/v1/completions", body))

    @staticmethod
    def _completions(prompt: Any, options: dict[str, Any], body: bytes) -> Any:
        all_of_it = requests.completions(body)
        is_one = isinstance(prompt, str) or not prompt or isinstance(prompt[0], int)
        return all_of_it[0] if is_one and options.get("n", 1) == 1 else all_of_it

    def stream(self, prompt: str | Sequence[int], *, max_tokens: int = 256, schema: Any = None, **options: Any) -> Stream[str]:
        """As `generate`, in pieces of text: `for piece in …` or `async for piece in …`."""
        body = requests.completion_body(prompt, schema, {"max_tokens": max_tokens, **options}, stream=True)
        return Stream(self._engine, "/v1/completions", body, lambda choice: choice["text"] or None)

    # Conversations

    def chat(
        self,
        messages: str | Sequence[dict[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        schema: Any = None,
        **options: Any,
    ) -> Reply:
        """Answers a conversation: a text of the user, or messages in OpenAI's form.

        `tools` are dictionaries in OpenAI's form or Pydantic models; `schema` holds the answer to a JSON Schema or a
        Pydantic model, of which `Reply.parsed` is then an object. `options` are fields of `/v1/chat/completions`.
        """
        body = requests.chat_body(messages, tools, schema, options)
        return requests.reply(call(self._engine, "/v1/chat/completions", body), schema)

    async def achat(
        self,
        messages: str | Sequence[dict[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        schema: Any = None,
        **options: Any,
    ) -> Reply:
        """As `chat`, for a task of an event loop."""
        body = requests.chat_body(messages, tools, schema, options)
        return requests.reply(await call_async(self._engine, "/v1/chat/completions", body), schema)

    def chat_stream(
        self,
        messages: str | Sequence[dict[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        schema: Any = None,
        **options: Any,
    ) -> Stream[dict[str, Any]]:
        """As `chat`, in deltas of the message: `content`, `reasoning_content`, `tool_calls`."""
        body = requests.chat_body(messages, tools, schema, options, stream=True)
        return Stream(self._engine, "/v1/chat/completions", body, lambda choice: choice["delta"] or None)

    # Vectors and rankings

    def embed(self, texts: str | Sequence[str], **options: Any) -> np.ndarray:
        """Vectors of texts, one in each row; of one text, one vector."""
        body = requests.embed_body(texts, options)
        vectors = requests.embeddings(call(self._engine, "/v1/embeddings", body))
        return vectors[0] if isinstance(texts, str) else vectors

    async def aembed(self, texts: str | Sequence[str], **options: Any) -> np.ndarray:
        """As `embed`, for a task of an event loop."""
        body = requests.embed_body(texts, options)
        vectors = requests.embeddings(await call_async(self._engine, "/v1/embeddings", body))
        return vectors[0] if isinstance(texts, str) else vectors

    def rerank(self, query: str, documents: Sequence[str], **options: Any) -> list[Ranked]:
        """The documents, those that answer the query best first."""
        body = requests.rerank_body(query, documents, options)
        return requests.ranked(call(self._engine, "/v1/rerank", body), documents)

    async def arerank(self, query: str, documents: Sequence[str], **options: Any) -> list[Ranked]:
        """As `rerank`, for a task of an event loop."""
        body = requests.rerank_body(query, documents, options)
        return requests.ranked(await call_async(self._engine, "/v1/rerank", body), documents)

    # Audio

    def transcribe(self, audio: str | os.PathLike[str] | bytes | np.ndarray, **options: Any) -> Transcript:
        """What is said in a file (WAV, MP3, FLAC, OGG, M4A), in its bytes, or in samples at 16,000 Hz.

        `options` are fields of `/v1/audio/transcriptions`: `language`, `prompt`, `temperature`; `words=True` adds the
        times of words.
        """
        body, kind = requests.transcription_body(audio, options)
        return requests.transcript(call(self._engine, "/v1/audio/transcriptions", body, kind))

    async def atranscribe(self, audio: str | os.PathLike[str] | bytes | np.ndarray, **options: Any) -> Transcript:
        """As `transcribe`, for a task of an event loop."""
        body, kind = requests.transcription_body(audio, options)
        return requests.transcript(await call_async(self._engine, "/v1/audio/transcriptions", body, kind))

    # Tokens

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """The ids of a text's tokens."""
        body = requests.encode({"content": text, "add_special": add_special, "parse_special": parse_special})
        return json.loads(call(self._engine, "/tokenize", body))["tokens"]

    async def atokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """As `tokenize`, for a task of an event loop."""
        body = requests.encode({"content": text, "add_special": add_special, "parse_special": parse_special})
        return json.loads(await call_async(self._engine, "/tokenize", body))["tokens"]

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of token ids."""
        body = requests.encode({"tokens": [int(token) for token in tokens]})
        return json.loads(call(self._engine, "/detokenize", body))["content"]

    def apply_template(self, messages: Sequence[dict[str, Any]], **options: Any) -> str:
        """The text that a conversation is for the model."""
        requests.check_names("/apply-template", options)
        body = requests.encode({"messages": list(messages), **options})
        return json.loads(call(self._engine, "/apply-template", body))["prompt"]

    def logits(self, prompt: str | Sequence[int], *, all: bool = True) -> np.ndarray:
        """The logits after each token, `[tokens, vocabulary]`, or only after the last one.

        They come from an engine of its own beside that of requests, which is loaded by the first call.
        """
        ids = self.tokenize(prompt, add_special=True) if isinstance(prompt, str) else [int(token) for token in prompt]
        data, vocabulary = self._engine.logits(ids, all)
        logits = np.frombuffer(data, np.float32).reshape(-1, vocabulary)
        return logits if all else logits[0]
