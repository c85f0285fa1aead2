"""Models for LangChain, in this process: `pip install akunu[langchain]`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.utils import convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import ConfigDict

from .answers import Reply
from .model import Model


def _usage(usage: dict[str, Any]) -> dict[str, int]:
    return {
        "input_tokens": usage["prompt_tokens"],
        "output_tokens": usage["completion_tokens"],
        "total_tokens": usage["total_tokens"],
    }


class ChatAkunu(BaseChatModel):
    """A chat model. `options` are those of `Model.chat`, such as `temperature` and `max_tokens`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    model: Model
    options: dict[str, Any] = {}

    @property
    def _llm_type(self) -> str:
        return "akunu"

    def bind_tools(self, tools: Sequence[Any], *, tool_choice: str | None = None, **kwargs: Any) -> Runnable:
        choice: Any = "required" if tool_choice == "any" else tool_choice
        if choice not in (None, "auto", "none", "required"):
            choice = {"type": "function", "function": {"name": choice}}
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], tool_choice=choice, **kwargs)

    def _request(self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {"messages": convert_to_openai_messages(messages), "stop": stop, **self.options, **kwargs}

    @staticmethod
    def _result(reply: Reply) -> ChatResult:
        calls = [{"name": call.name, "args": call.arguments, "id": call.id} for call in reply.tool_calls]
        extra = {"reasoning_content": reply.reasoning} if reply.reasoning else {}
        message = AIMessage(
            content=reply.content, tool_calls=calls, usage_metadata=_usage(reply.usage), additional_kwargs=extra
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _generate(self, messages, stop=None, run_manager=None, **kwargs) -> ChatResult:
        return self._result(self.model.chat(**self._request(messages, stop, kwargs)))

    async def _agenerate(self, messages, stop=None, run_manager=None, **kwargs) -> ChatResult:
        return self._result(await self.model.achat(**self._request(messages, stop, kwargs)))

    @staticmethod
    def _chunk(delta: dict[str, Any]) -> ChatGenerationChunk:
        calls: Any = [
            {
                "name": call["function"].get("name"), "args": call["function"].get("arguments"),
                "id": call.get("id"), "index": call["index"],
            }
            for call in delta.get("tool_calls") or ()
        ]
        return ChatGenerationChunk(message=AIMessageChunk(content=delta.get("content") or "", tool_call_chunks=calls))

    def _stream(self, messages, stop=None, run_manager=None, **kwargs) -> Iterator[ChatGenerationChunk]:
        with self.model.chat_stream(**self._request(messages, stop, kwargs)) as stream:
            for delta in stream:
                chunk = self._chunk(delta)
                if run_manager:
                    run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

    async def _astream(self, messages, stop=None, run_manager=None, **kwargs) -> AsyncIterator[ChatGenerationChunk]:
        async with self.model.chat_stream(**self._request(messages, stop, kwargs)) as stream:
            async for delta in stream:
                chunk = self._chunk(delta)
                if run_manager:
                    await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk


class AkunuEmbeddings(Embeddings):
    """Vectors of texts."""

    def __init__(self, model: Model):
        self.model = model

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.model.embed(texts).tolist() if texts else []

    def embed_query(self, text: str) -> list[float]:
        return self.model.embed(text).tolist()

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        return (await self.model.aembed(texts)).tolist() if texts else []

    async def aembed_query(self, text: str) -> list[float]:
        return (await self.model.aembed(text)).tolist()
