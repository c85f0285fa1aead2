"""Frameworks of agents: each calls a tool that the model asks for, and returns the model's answer to the result.

The model is the one of crates/akunu-server/examples/scripted_model.rs."""

import asyncio
import itertools
import os
import unittest
from typing import Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # Otherwise it is downloaded.

import instructor
import litellm
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.openai import OpenAIResponsesModel as PydanticResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

URL = os.environ["AKUNU_CALLER_URL"]
API = {"base_url": URL + "/v1", "api_key": "any"}
MODEL = "caller"
# Each calls the tool in the form of another family of models.
FAMILIES = [MODEL, "harmony", "mistral", "llama"]
QUESTION, ANSWER = "What time is it?", "It is noon."
zones = []


def clock(zone: str) -> str:
    """The time in a zone."""
    zones.append(zone)
    return "noon"


class Frameworks(unittest.TestCase):
    def setUp(self):
        zones.clear()

    def answered(self, text):
        self.assertEqual((text, zones), (ANSWER, ["UTC"]))
        zones.clear()

    def test_agents_sdk(self):
        set_tracing_disabled(True)

        async def run(agent, streamed):
            if not streamed:
                return await Runner.run(agent, QUESTION, max_turns=4)
            result = Runner.run_streamed(agent, QUESTION, max_turns=4)
            async for _ in result.stream_events():
                pass
            return result

        kinds = (OpenAIResponsesModel, OpenAIChatCompletionsModel)
        for name, kind, streamed in itertools.product(FAMILIES, kinds, (False, True)):
            with self.subTest(name, kind=kind.__name__, streamed=streamed):
                model = kind(name, AsyncOpenAI(**API))
                settings = ModelSettings(max_tokens=50)
                tools = [function_tool(clock)]
                agent = Agent(name="a", instructions="Be brief.", tools=tools, model=model, model_settings=settings)
                self.answered(asyncio.run(run(agent, streamed)).final_output)

    def test_langchain(self):
        for responses in (False, True):
            model = ChatOpenAI(model=MODEL, use_responses_api=responses, **API)
            result = create_agent(model, tools=[clock]).invoke({"messages": [{"role": "user", "content": QUESTION}]})
            self.answered(str(result["messages"][-1].text))

    def test_litellm(self):
        parameters = {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]}
        tool = {"type": "function", "function": {"name": "clock", "parameters": parameters}}
        messages = [{"role": "user", "content": QUESTION}]
        common = {"model": "openai/" + MODEL, "api_base": URL + "/v1", "api_key": "any", "tools": [tool]}
        message = litellm.completion(messages=messages, **common).choices[0].message
        call = message.tool_calls[0]
        self.assertEqual((call.function.name, call.function.arguments), ("clock", '{"zone": "UTC"}'))
        chunks = list(litellm.completion(messages=messages, stream=True, **common))
        joined = litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message.tool_calls[0]
        self.assertEqual((joined.function.name, joined.function.arguments), ("clock", '{"zone": "UTC"}'))
        for model in ({"model": "anthropic/" + MODEL, "max_tokens": 100}, {"model": "ollama_chat/" + MODEL}):
            other = {**common, "api_base": URL, **model}
            calls = litellm.completion(messages=messages, **other).choices[0].message.tool_calls
            self.assertEqual([call.function.name for call in calls], ["clock"])
        messages += [message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "noon"}]
        self.assertEqual(litellm.completion(messages=messages, **common).choices[0].message.content, ANSWER)

    def test_pydantic_ai(self):
        async def streamed(agent):
            async with agent.run_stream(QUESTION) as result:
                return await result.get_output()

        for kind in (OpenAIChatModel, PydanticResponsesModel):
            agent = PydanticAgent(kind(MODEL, provider=OpenAIProvider(**API)), tools=[clock])
            self.answered(agent.run_sync(QUESTION).output)
            self.answered(asyncio.run(streamed(agent)))

    def test_instructor(self):
        # Other properties would be random, without end.
        class Zone(BaseModel, extra="forbid"):
            name: Literal["UTC", "CET"]

        for mode in ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS"):
            client = instructor.from_openai(OpenAI(**API), mode=instructor.Mode[mode])
            limit = "max_output_tokens" if mode == "RESPONSES_TOOLS" else "max_tokens"
            messages = [{"role": "user", "content": "Which zone?"}]
            # Sampled, the model reasons beyond the limit in one of a thousand answers.
            settings = {"temperature": 0, "max_retries": 0, limit: 300}
            zone = client.chat.completions.create(
                model=MODEL, response_model=Zone, messages=messages, **settings
            )
            self.assertIn(zone.name, ("UTC", "CET"), mode)


unittest.main()
