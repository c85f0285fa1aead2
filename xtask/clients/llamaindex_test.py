"""LlamaIndex's agent calls a tool that the model asks for: see frameworks_test.py. Its packages need another version of
OpenAI's client."""

import asyncio
import os
import unittest

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

URL = os.environ["AKUNU_CALLER_URL"]


class LlamaIndex(unittest.TestCase):
    def test_agent(self):
        zones = []

        def clock(zone: str) -> str:
            """The time in a zone."""
            zones.append(zone)
            return "noon"

        async def run():
            agent = FunctionAgent(tools=[FunctionTool.from_defaults(clock)], llm=llm)
            return await agent.run("What time is it?")

        kind = {"is_chat_model": True, "is_function_calling_model": True}
        llm = OpenAILike(model="caller", api_base=URL + "/v1", api_key="any", **kind)
        self.assertEqual((str(asyncio.run(run())), zones), ("It is noon.", ["UTC"]))


unittest.main()
