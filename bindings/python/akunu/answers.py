"""What requests return, and the ways to wait for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ._akunu import Answer, Engine
from .errors import error_of

T = TypeVar("T")


@dataclass
class Completion:
    """The continuation of a prompt."""

    text: str
    #: `stop`: it ended by itself or by a stop string; `length`: by a limit
    finish_reason: str
    #: tokens: `prompt_tokens`, `completion_tokens`, and how many were in the cache
    usage: dict[str, Any] = field(default_factory=dict)
    #: the times that the engine measured
    timings: dict[str, Any] = field(default_factory=dict)
    logprobs: dict[str, Any] | None = None

    def __str__(self) -> str:
        return self.text


@dataclass
class ToolCall:
    """A call that the model asks for."""

    name: str
    arguments: dict[str, Any]
    id: str = ""


@dataclass
class Reply:
    """The answer to a conversation."""

    content: str
    #: what the model thought before it answered, if it shows that
    reasoning: str
    tool_calls: list[ToolCall]
    finish_reason: str
    #: the answer as a message, to append to the conversation
    message: dict[str, Any]
    #: the content as an object, if a schema was given
    parsed: Any = None
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.content


@dataclass
class Ranked:
    """A document and how well it answers the query."""

    index: int
    score: float
    document: str


@dataclass
class Transcript:
    """What is said in a recording."""

    text: str
    language: str | None = None
    duration: float | None = None
    segments: list[dict[str, Any]] = field(default_factory=list)
    words: list[dict[str, Any]] = field(default_factory=list)

    def __str__(self) -> str:
        return self.text


class Waker:
    """Wakes a task of an event loop from the engine's threads."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def __call__(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            pass  # The loop is closed.

    async def next(self, answer: Answer) -> int | bytes | None:
        while True:
            self._event.clear()
            part = answer.next(0)
            if part is not False:
                return part
            await self._event.wait()


CLOSED = "the model was closed while it answered"


def call(engine: Engine, path: str, body: bytes | None, kind: str = "application/json") -> bytes:
    """The body of an answer."""
    answer = engine.request(path, body, kind)
    try:
        status = answer.next()
        parts: list[Any] = []
        while (part := answer.next()) is not None:
            parts.append(part)
    finally:
        answer.close()
    return checked(status, b"".join(parts))


async def call_async(engine: Engine, path: str, body: bytes | None, kind: str = "application/json") -> bytes:
    """The same for a task of an event loop. If the task is cancelled, so is the request."""
    waker = Waker()
    answer = engine.request(path, body, kind, waker)
    try:
        status = await waker.next(answer)
        parts: list[Any] = []
        while (part := await waker.next(answer)) is not None:
            parts.append(part)
    finally:
        answer.close()
    return checked(status, b"".join(parts))


def checked(status: Any, body: bytes) -> bytes:
    if status is None:
        raise RuntimeError(CLOSED)
    if status != 200:
        raise error_of(status, body)
    return body


class Stream(Generic[T]):
    """Parts of an answer as they are generated: an iterator, and an asynchronous iterator.

    Leaving a loop early and closing the stream ends the generation, as does the end of a `with` block.
    """

    def __init__(self, engine: Engine, path: str, body: bytes, read: Callable[[dict[str, Any]], T | None]):
        self._engine, self._path, self._body, self._read = engine, path, body, read
        self._answer: Answer | None = None
        self._waker: Waker | None = None
        self._status: int | None = None
        self._buffer = b""
        self._items: list[T] = []
        self._is_over = self._is_whole = False
        #: tokens and times, after the end
        self.usage: dict[str, Any] = {}
        self.timings: dict[str, Any] = {}
        self.finish_reason: str | None = None

    def close(self) -> None:
        """Ends the generation."""
        self._is_over = True
        self._items.clear()
        if self._answer is not None:
            self._answer.close()

    def __enter__(self) -> Stream[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Stream[T]:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __iter__(self) -> Iterator[T]:
        return self

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    def __next__(self) -> T:
        try:
            while not self._items and not self._is_over:
                if self._answer is None:
                    self._answer = self._engine.request(self._path, self._body)
                self._take(self._answer.next())
        except BaseException:
            self.close()
            raise
        if self._items:
            return self._items.pop(0)
        raise StopIteration

    async def __anext__(self) -> T:
        try:
            while not self._items and not self._is_over:
                if self._answer is None:
                    self._waker = Waker()
                    self._answer = self._engine.request(self._path, self._body, notify=self._waker)
                if self._waker is None:
                    raise RuntimeError("the stream was begun outside of an event loop")
                self._take(await self._waker.next(self._answer))
        except BaseException:
            self.close()
            raise
        if self._items:
            return self._items.pop(0)
        raise StopAsyncIteration

    def _take(self, part: int | bytes | None) -> None:
        if part is None:
            if self._status not in (None, 200):
                raise error_of(self._status, self._buffer)
            if not self._is_whole:
                raise RuntimeError(CLOSED)
            self._is_over = True
        elif isinstance(part, int):
            self._status = part
        else:
            self._buffer += part
            if self._status == 200:
                *events, self._buffer = self._buffer.split(b"\n\n")
                for event in events:
                    self._event(event)

    def _event(self, event: bytes) -> None:
        data = event.removeprefix(b"data: ")
        if data == b"[DONE]":
            self._is_whole = True
            return
        chunk = json.loads(data)
        if "error" in chunk:
            raise error_of(500, chunk)
        if chunk.get("usage"):
            self.usage, self.timings = chunk["usage"], chunk.get("timings") or {}
        for choice in chunk.get("choices", ()):
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            item = self._read(choice)
            if item is not None:
                self._items.append(item)
