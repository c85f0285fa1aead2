"""The adapters of frameworks."""

import asyncio

import pytest

GREEDY = {"temperature": 0, "max_tokens": 12}


def test_langchain(model, caller, embedder):
    pytest.importorskip("langchain_core")
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    from akunu.langchain import AkunuEmbeddings, ChatAkunu

    chat = ChatAkunu(model=model, options=GREEDY)
    question = [HumanMessage("Tell me a story about a dog.")]
    expected = model.chat("Tell me a story about a dog.", **GREEDY).content
    answer = chat.invoke(question)
    assert answer.content == expected and answer.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.content for chunk in chat.stream(question)) == expected
    assert asyncio.run(chat.ainvoke(question)).content == expected

    async def streamed():
        return "".join([chunk.content async for chunk in chat.astream(question)])

    assert asyncio.run(streamed()) == expected

    @tool
    def clock(zone: str) -> str:
        """Says what time it is."""
        return f"noon in {zone}"

    with_tools = ChatAkunu(model=caller, options={"temperature": 0}).bind_tools([clock])
    conversation = [HumanMessage("Which time is it?")]
    called = with_tools.invoke(conversation)
    assert called.tool_calls[0]["name"] == "clock"
    result = clock.invoke(called.tool_calls[0])
    assert isinstance(result, ToolMessage) and result.content == "noon in UTC"
    assert with_tools.invoke([*conversation, called, result]).content == "It is noon."
    whole = None
    for chunk in with_tools.stream(conversation):
        whole = chunk if whole is None else whole + chunk
    assert whole.tool_calls[0]["args"] == {"zone": "UTC"}
    vectors = AkunuEmbeddings(embedder)
    assert vectors.embed_documents(["w5 w6", "w7"])[0] == vectors.embed_query("w5 w6")
    assert asyncio.run(vectors.aembed_query("w7")) == vectors.embed_query("w7")


def test_llamaindex(model, embedder):
    pytest.importorskip("llama_index.core")
    from llama_index.core.base.llms.types import ChatMessage

    from akunu.llamaindex import Akunu, AkunuEmbedding

    llm = Akunu(model, options=GREEDY)
    expected = model.generate("Once upon a time", **GREEDY).text
    assert llm.complete("Once upon a time").text == expected
    assert [part.text for part in llm.stream_complete("Once upon a time")][-1] == expected
    question = [ChatMessage(role="user", content="Tell me a story about a dog.")]
    expected = model.chat("Tell me a story about a dog.", **GREEDY).content
    assert llm.chat(question).message.content == expected
    assert "".join(part.delta for part in llm.stream_chat(question)) == expected

    async def in_tasks():
        async def streamed():
            return "".join([part.delta async for part in await llm.astream_chat(question)])

        assert await asyncio.gather(streamed(), streamed()) == [expected, expected]
        assert (await llm.achat(question)).message.content == expected
        text = (await llm.acomplete("Once upon a time")).text
        assert [part.text async for part in await llm.astream_complete("Once upon a time")][-1] == text
        turns = 0

        async def count():
            nonlocal turns
            while True:
                await asyncio.sleep(0.001)
                turns += 1

        counting = asyncio.create_task(count())
        await Akunu(model, options={"max_tokens": 300, "ignore_eos": True}).acomplete("Once upon a time")
        counting.cancel()
        assert turns > 5

    asyncio.run(in_tasks())
    vectors = AkunuEmbedding(embedder)
    assert asyncio.run(vectors.aget_text_embedding("w5")) == vectors.get_text_embedding("w5")
    assert asyncio.run(vectors.aget_text_embedding_batch(["w5", "w6"])) == vectors.get_text_embedding_batch(["w5", "w6"])
    assert vectors.get_text_embedding("w5") == vectors.get_query_embedding("w5")
    assert len(vectors.get_text_embedding_batch(["w5", "w6"])) == 2
