"""OpenAI's own Python client."""

import asyncio
import json
import math
import random
import unittest

from openai import APIStatusError, AsyncOpenAI, AuthenticationError, BadRequestError, LengthFinishReasonError, NotFoundError, OpenAI, RateLimitError

from common import FOX, KEY, LOCKED_URL, LONG, MODEL, STORY, URL, answers, conforms, get, is_free, is_valid, post, random_schema

SCHEMAS = {"chat": "CreateChatCompletionResponse", "chunk": "CreateChatCompletionStreamResponse", "text": "CreateCompletionResponse"}


def client(url=URL, key="none"):
    return OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=600)


class OpenAIClient(unittest.TestCase):
    def setUp(self):
        self.client = client()
        self.greedy = {"model": MODEL, "messages": STORY, "max_tokens": 24, "temperature": 0}

    def tearDown(self):
        self.client.close()

    def text(self, **more):
        return self.client.chat.completions.create(**{**self.greedy, **more}).choices[0].message.content

    def test_chat(self):
        answer = self.client.chat.completions.create(**self.greedy)
        choice = answer.choices[0]
        self.assertEqual((choice.message.role, choice.finish_reason, answer.usage.completion_tokens), ("assistant", "length", 24))
        self.assertGreater(len(choice.message.content), 20)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + 24)

    def test_a_stream_says_the_same(self):
        stream = self.client.chat.completions.create(**self.greedy, stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        self.assertEqual(said, self.text())
        self.assertEqual(chunks[-1].usage.completion_tokens, 24)
        self.assertGreater(len(chunks), 12)
        self.assertEqual({chunk.id for chunk in chunks}, {chunks[0].id})

    def test_many_at_once_say_what_each_says_alone(self):
        async def all_of_them():
            async with AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=600) as client:
                ask = lambda seed: client.chat.completions.create(**{**self.greedy, "temperature": 1, "seed": seed})
                return await asyncio.gather(*[ask(seed) for seed in range(6)])

        together = [answer.choices[0].message.content for answer in asyncio.run(all_of_them())]
        alone = [self.text(temperature=1, seed=seed) for seed in range(6)]
        self.assertEqual(together, alone)
        self.assertGreater(len(set(alone)), 1)

    def test_stop(self):
        whole = self.text()
        word = whole.split()[3]
        answer = self.client.chat.completions.create(**self.greedy, stop=[word])
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertEqual(answer.choices[0].message.content, whole[: whole.index(word)])

    def test_seed_and_temperature(self):
        self.assertEqual(self.text(temperature=1.0, seed=5), self.text(temperature=1.0, seed=5))
        self.assertGreater(len({self.text(temperature=1.0, seed=seed) for seed in range(4)}), 1)

    def test_several_answers(self):
        answer = self.client.chat.completions.create(**{**self.greedy, "temperature": 1.0, "seed": 1}, n=3)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2])
        self.assertGreater(len({choice.message.content for choice in answer.choices}), 1)
        self.assertEqual(answer.usage.completion_tokens, 72)

    def test_logprobs(self):
        answer = self.client.chat.completions.create(**self.greedy, logprobs=True, top_logprobs=3)
        content = answer.choices[0].logprobs.content
        self.assertEqual(len(content), 24)
        said = b"".join(bytes(token.bytes) for token in content).decode()
        self.assertEqual(said, answer.choices[0].message.content)
        for token in content:
            best = [top.logprob for top in token.top_logprobs]
            self.assertEqual((len(best), best), (3, sorted(best, reverse=True)))
            self.assertLessEqual(sum(map(math.exp, best)), 1.0 + 1e-4)
            # Greedy: the generated tokens are the most likely ones.
            self.assertAlmostEqual(token.logprob, best[0], places=5)

    def test_logit_bias_forbids(self):
        first = self.client.chat.completions.create(**{**self.greedy, "max_tokens": 1}).choices[0].message.content
        ids = json.loads(post("/tokenize", {"model": MODEL, "content": first}))["tokens"]
        other = self.client.chat.completions.create(**{**self.greedy, "max_tokens": 1}, logit_bias={str(id): -100 for id in ids})
        self.assertNotEqual(other.choices[0].message.content, first)

    def test_what_is_cached_is_told(self):
        prompt = "Once upon a time there was a very small fox who lived in a very big wood. " * 3
        ask = lambda: self.client.completions.create(model=MODEL, prompt=prompt, max_tokens=2, temperature=0).usage
        first, second = ask(), ask()
        self.assertEqual(second.prompt_tokens, first.prompt_tokens)
        self.assertGreater(second.prompt_tokens_details.cached_tokens, first.prompt_tokens // 2)

    def test_an_answer_is_a_value_of_its_schema(self):
        held = lambda schema: {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}}
        for seed in range(40):
            schema = random_schema(random.Random(seed))
            answer = self.client.chat.completions.create(**{**self.greedy, "max_tokens": 400, "temperature": 2.0, "seed": seed}, **held(schema))
            # These values are short enough to be completed.
            self.assertEqual(answer.choices[0].finish_reason, "stop", answer.choices[0].message.content)
            is_valid(self, schema, answer.choices[0].message.content)
        whole = self.text(max_tokens=100, **held(FOX))
        is_valid(self, FOX, whole)
        stream = self.client.chat.completions.create(**{**self.greedy, "max_tokens": 100}, **held(FOX), stream=True)
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in stream), whole)
        self.assertTrue(self.text(response_format={"type": "json_object"}).lstrip().startswith("{"))

    def test_a_schema_may_come_from_a_class(self):
        from pydantic import BaseModel

        class Cub(BaseModel):
            name: str
            spots: list[bool]

        class Fox(BaseModel):
            age: int | None
            cubs: list[Cub]

        for seed in range(20):
            try:
                answer = self.client.chat.completions.parse(model=MODEL, messages=STORY, max_tokens=600, seed=seed, temperature=1.5, response_format=Fox)
            except LengthFinishReasonError:
                continue
            self.assertIsInstance(answer.choices[0].message.parsed, Fox)
            return
        self.fail("no answer came to its end")

    def test_a_tool_is_called_where_that_is_asked_for(self):
        tool = {"type": "function", "function": {"name": "meet", "description": "Meets a fox", "parameters": FOX}}
        other = {"type": "function", "function": {"name": "leave", "parameters": {"type": "object", "properties": {}}}}
        ask = lambda **more: self.client.chat.completions.create(**{**self.greedy, "max_tokens": 300, "tools": [tool, other], "parallel_tool_calls": False, **more})
        for choice, names in [("required", {"meet", "leave"}), ({"type": "function", "function": {"name": "meet"}}, {"meet"})]:
            answer = ask(tool_choice=choice)
            [call] = answer.choices[0].message.tool_calls
            self.assertIn(call.function.name, names)
            is_valid(self, FOX if call.function.name == "meet" else {"maxProperties": 0}, call.function.arguments)
            self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
            deltas = [chunk.choices[0].delta for chunk in ask(tool_choice=choice, stream=True)]
            parts = [part.function for delta in deltas for part in delta.tool_calls or []]
            streamed = json.loads("".join(part.arguments for part in parts))
            self.assertEqual((parts[0].name, streamed), (call.function.name, json.loads(call.function.arguments)))
            # Send the result of the tool call.
            messages = [*STORY, answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "Hello!"}]
            self.assertTrue(ask(messages=messages, tool_choice="none").choices[0].message.content)

    def test_completions(self):
        answer = self.client.completions.create(model=MODEL, prompt=["Once upon", "The dog"], max_tokens=8, temperature=0, echo=True)
        self.assertTrue(answer.choices[0].text.startswith("Once upon") and answer.choices[1].text.startswith("The dog"))
        stream = self.client.completions.create(model=MODEL, prompt="Once upon", max_tokens=8, temperature=0, stream=True)
        said = "".join(chunk.choices[0].text for chunk in stream)
        self.assertEqual("Once upon" + said, answer.choices[0].text)

    def test_models(self):
        self.assertIn(MODEL, [model.id for model in self.client.models.list()])
        self.assertEqual(self.client.models.retrieve(MODEL).id, MODEL)

    def test_errors_are_the_client_s_own(self):
        create = self.client.chat.completions.create
        for wrong in [{"temperature": 9}, {"messages": []}, {"messages": [{"role": "king", "content": ""}]}, {"n": 0}, {"max_tokens": -1}, {"top_logprobs": 2}, {"tool_choice": "required"}, {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}}]:
            with self.assertRaises(BadRequestError) as caught:
                create(**{**self.greedy, **wrong})
            self.assertTrue(caught.exception.message and caught.exception.type == "invalid_request_error", wrong)
        with self.assertRaises(BadRequestError) as caught:
            create(**{**self.greedy, "messages": [{"role": "user", "content": "word " * 20000}]})
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(NotFoundError) as caught:
            create(**{**self.greedy, "model": "gpt-none"})
        self.assertEqual((caught.exception.code, caught.exception.param), ("model_not_found", "model"))
        with self.assertRaises(NotFoundError):
            self.client.models.retrieve("gpt-none")
        with client(LOCKED_URL, "wrong") as stranger, self.assertRaises(AuthenticationError):
            stranger.chat.completions.create(**self.greedy)
        with client(LOCKED_URL, KEY) as friend:
            self.assertTrue(friend.chat.completions.create(**self.greedy).choices)

    def test_too_many_are_turned_away_and_hanging_up_makes_room(self):
        # A request runs until its client disconnects.
        with client(LOCKED_URL, KEY) as friend:
            endless = {"model": MODEL, "prompt": "Once", "max_tokens": LONG, "stream": True, "extra_body": {"ignore_eos": True}}
            streams, refused = [], None
            for _ in range(8):
                try:
                    streams.append(friend.completions.create(**endless))
                except RateLimitError as error:
                    refused = error
                    break
            self.assertIsNotNone(refused, "the queue has an end")
            self.assertGreater(int(refused.response.headers["retry-after"]), 0)
            for stream in streams:
                stream.close()
        self.assertTrue(is_free())

    def test_a_client_that_hangs_up_mid_stream_leaves_a_server_that_answers(self):
        for _ in range(5):
            stream = self.client.chat.completions.create(**{**self.greedy, "max_tokens": 400, "stream": True})
            next(iter(stream))
            stream.close()
        self.assertTrue(answers())

    def test_an_error_tells_its_status(self):
        with self.assertRaises(APIStatusError) as caught:
            self.client.post("/chat/completions", body={"messages": "none"}, cast_to=object)
        self.assertEqual(caught.exception.status_code, 400)

    def test_responses(self):
        asked = {"model": MODEL, "input": STORY, "max_output_tokens": 24, "temperature": 0}
        whole = self.client.responses.create(**asked)
        self.assertEqual((whole.status, whole.output_text), ("incomplete", self.text()))
        events = list(self.client.responses.create(**asked, stream=True))
        self.assertEqual("".join(event.delta for event in events if event.type == "response.output_text.delta"), whole.output_text)
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        self.assertEqual(self.client.responses.retrieve(whole.id).output_text, whole.output_text)
        more = self.client.responses.create(**{**asked, "input": "And then?"}, previous_response_id=whole.id)
        self.assertGreater(more.usage.input_tokens, whole.usage.input_tokens)
        self.client.responses.delete(whole.id)
        with self.assertRaises(NotFoundError):
            self.client.responses.retrieve(whole.id)
        with self.assertRaises(BadRequestError):
            self.client.responses.create(**asked, background=True)

    def test_answers_are_what_openai_describes(self):
        chat = {**self.greedy, "max_tokens": 6}
        for more in [{}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}, {"stop": ["a"]}]:
            conforms(self, SCHEMAS["chat"], json.loads(post("/v1/chat/completions", {**chat, **more})))
            streamed = {**chat, **more, "stream": True, "stream_options": {"include_usage": True}}
            for line in post("/v1/chat/completions", streamed).splitlines():
                if line and line != "data: [DONE]":
                    conforms(self, SCHEMAS["chunk"], json.loads(line.removeprefix("data: ")))
        for more in [{}, {"n": 2}, {"logprobs": 2}, {"echo": True}]:
            text = {"model": MODEL, "prompt": "Once", "max_tokens": 6, **more}
            conforms(self, SCHEMAS["text"], json.loads(post("/v1/completions", text)))
        asked = {"model": MODEL, "input": STORY, "max_output_tokens": 6, "temperature": 0}
        conforms(self, "Response", json.loads(post("/v1/responses", asked)))
        for line in post("/v1/responses", {**asked, "stream": True}).splitlines():
            if line.startswith("data: "):
                conforms(self, "ResponseStreamEvent", json.loads(line.removeprefix("data: ")))
        conforms(self, "ListModelsResponse", get("/v1/models"))
        conforms(self, "Model", get(f"/v1/models/{MODEL}"))


if __name__ == "__main__":
    unittest.main()
