"""Models for LlamaIndex, in this process: `pip install akunu[llamaindex]`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
    MessageRole,
)
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.custom import CustomLLM

from .model import Model


class Akunu(CustomLLM):
    """A model. `options` are those of `Model.chat` and `Model.generate`, such as `temperature` and `max_tokens`."""

    context_window: int = 4096
    options: dict[str, Any] = {}
    _model: Model = PrivateAttr()

    def __init__(self, model: Model, **kwargs: Any):
        super().__init__(**kwargs)
        self._model = model

    @classmethod
    def class_name(cls) -> str:
        return "Akunu"

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=self.context_window, is_chat_model=True, model_name="akunu")

    @staticmethod
    def _messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
        return [{"role": message.role.value, "content": message.content or ""} for message in messages]

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=self._model.generate(prompt, **self.options, **kwargs).text)

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        def pieces() -> CompletionResponseGen:
            text = ""
            for piece in self._model.stream(prompt, **self.options, **kwargs):
                text += piece
                yield CompletionResponse(text=text, delta=piece)

        return pieces()

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        answer = await self._model.agenerate(prompt, **self.options, **kwargs)
        return CompletionResponse(text=answer.text)

    @llm_completion_callback()
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseAsyncGen:
        async def pieces() -> CompletionResponseAsyncGen:
            text = ""
            async with self._model.stream(prompt, **self.options, **kwargs) as stream:
                async for piece in stream:
                    text += piece
                    yield CompletionResponse(text=text, delta=piece)

        return pieces()

    @staticmethod
    def _chat_response(text: str, delta: str | None = None) -> ChatResponse:
        return ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=text), delta=delta)

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        reply = self._model.chat(self._messages(messages), **self.options, **kwargs)
        return self._chat_response(reply.content)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        reply = await self._model.achat(self._messages(messages), **self.options, **kwargs)
        return self._chat_response(reply.content)

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        def deltas() -> ChatResponseGen:
            text = ""
            for delta in self._model.chat_stream(self._messages(messages), **self.options, **kwargs):
                piece = delta.get("content") or ""
                text += piece
                yield self._chat_response(text, piece)

        return deltas()

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        async def deltas() -> ChatResponseAsyncGen:
            text = ""
            async with self._model.chat_stream(self._messages(messages), **self.options, **kwargs) as stream:
                async for delta in stream:
                    piece = delta.get("content") or ""
                    text += piece
                    yield self._chat_response(text, piece)

        return deltas()


class AkunuEmbedding(BaseEmbedding):
    """Vectors of texts."""

    _model: Model = PrivateAttr()

    def __init__(self, model: Model, **kwargs: Any):
        super().__init__(**kwargs)
        self._model = model

    @classmethod
    def class_name(cls) -> str:
        return "AkunuEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._model.embed(query).tolist()

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return (await self._model.aembed(query)).tolist()

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_query_embedding(text)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await self._aget_query_embedding(text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return (await self._model.aembed(texts)).tolist() if texts else []

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._model.embed(texts).tolist() if texts else []
