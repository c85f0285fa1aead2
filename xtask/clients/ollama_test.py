"""Ollama's own Python client."""

import asyncio
import unittest

import ollama

from common import FOX, KEY, LOCKED_URL, MODEL, STORY, URL, answers, is_valid

GREEDY = {"temperature": 0, "num_predict": 24}


class OllamaClient(unittest.TestCase):
    def setUp(self):
        self.client = ollama.Client(host=URL, timeout=600)

    def test_chat(self):
        answer = self.client.chat(MODEL, STORY, options=GREEDY)
        self.assertEqual((answer.message.role, answer.done, answer.done_reason, answer.eval_count), ("assistant", True, "length", 24))
        self.assertGreater(len(answer.message.content), 20)
        self.assertGreater(answer.prompt_eval_count, 5)
        self.assertGreater(answer.total_duration, answer.eval_duration)
        self.assertGreater(answer.eval_duration, 1000, "durations are in nanoseconds")

    def test_a_stream_says_the_same(self):
        whole = self.client.chat(MODEL, STORY, options=GREEDY).message.content
        parts = list(self.client.chat(MODEL, STORY, options=GREEDY, stream=True))
        self.assertEqual("".join(part.message.content for part in parts), whole)
        self.assertEqual([part.done for part in parts], [False] * (len(parts) - 1) + [True])
        self.assertGreater(len(parts), 12)

    def test_generate(self):
        raw = {"model": MODEL, "prompt": "Once upon a time", "raw": True, "options": GREEDY}
        whole = self.client.generate(**raw)
        self.assertEqual((whole.done_reason, whole.eval_count), ("length", 24))
        streamed = "".join(part.response for part in self.client.generate(**raw, stream=True))
        self.assertEqual(streamed, whole.response)
        # Without raw, the prompt is a chat message.
        chat = self.client.chat(MODEL, [{"role": "system", "content": "Be brief."}, *STORY], options=GREEDY)
        asked = self.client.generate(MODEL, STORY[0]["content"], system="Be brief.", options=GREEDY)
        self.assertEqual(asked.response, chat.message.content)

    def test_async(self):
        async def both():
            client = ollama.AsyncClient(host=URL, timeout=600)
            return await asyncio.gather(*[client.chat(MODEL, STORY, options=GREEDY) for _ in range(2)])

        first, second = asyncio.run(both())
        self.assertEqual(first.message.content, second.message.content)

    def test_options(self):
        said = lambda **options: self.client.chat(MODEL, STORY, options={"num_predict": 12, **options}).message.content
        self.assertEqual(said(seed=3, temperature=1.0), said(seed=3, temperature=1.0))
        self.assertGreater(len({said(seed=seed, temperature=1.0) for seed in range(4)}), 1)
        whole = said(temperature=0)
        word = whole.split()[2]
        self.assertEqual(said(temperature=0, stop=[word]), whole[: whole.index(word)])

    def test_an_answer_has_its_format(self):
        options = {"temperature": 0, "num_predict": 100}
        is_valid(self, FOX, self.client.chat(MODEL, STORY, format=FOX, options=options).message.content)
        is_valid(self, FOX, self.client.generate(MODEL, "a fox", format=FOX, options=options).response)
        self.assertTrue(self.client.chat(MODEL, STORY, format="json", options=options).message.content.lstrip().startswith("{"))

    def test_log_probabilities(self):
        answer = self.client.chat(MODEL, STORY, options=GREEDY, logprobs=True, top_logprobs=2)
        self.assertEqual(len(answer.logprobs), 24)
        self.assertEqual("".join(entry.token for entry in answer.logprobs), answer.message.content)

    def test_models(self):
        self.assertIn(f"{MODEL}:latest", [model.model for model in self.client.list().models])
        shown = self.client.show(MODEL)
        self.assertEqual(shown.details.family, shown.modelinfo["general.architecture"])
        self.assertIn("completion", shown.capabilities)
        self.assertIn("messages", shown.template)

    def test_a_model_of_its_own(self):
        steps = self.client.create(model="short", from_=MODEL, parameters={"num_predict": 3}, stream=True)
        self.assertEqual([step.status for step in steps][-1], "success")
        self.client.copy("short", "shorter")
        answer = self.client.chat("shorter", STORY, options={"temperature": 0}, keep_alive="5m")
        self.assertEqual(answer.eval_count, 3)
        self.assertIn("num_predict", self.client.show("short").parameters)
        running = self.client.ps().models
        self.assertEqual([model.model for model in running], [f"{MODEL}:latest"])
        self.assertTrue(running[0].size > 0 and running[0].expires_at)
        for name in ["short", "shorter"]:
            self.assertEqual(self.client.delete(name).status, "success")

    def test_nothing_to_say_loads_the_model(self):
        answer = self.client.generate(f"{MODEL}:latest", "")
        self.assertEqual((answer.done, answer.done_reason, answer.response), (True, "load", ""))

    def test_errors_are_the_client_s_own(self):
        for status, call in [
            (404, lambda: self.client.chat("none", STORY)),
            (404, lambda: self.client.show("none")),
            (403, lambda: self.client.delete(MODEL)),
            (403, lambda: self.client.pull("qwen3:0.6b")),
            (400, lambda: self.client.push(MODEL)),
            (400, lambda: self.client.chat(MODEL, STORY, options={"temperature": -1})),
            (400, lambda: self.client.chat(MODEL, STORY, format={"not": {}})),
            (401, lambda: ollama.Client(host=LOCKED_URL).chat(MODEL, STORY)),
        ]:
            with self.assertRaises(ollama.ResponseError) as caught:
                call()
            self.assertEqual(caught.exception.status_code, status, caught.exception.error)
            self.assertNotIn("{", caught.exception.error)
        friend = ollama.Client(host=LOCKED_URL, headers={"Authorization": f"Bearer {KEY}"})
        self.assertTrue(friend.chat(MODEL, STORY, options=GREEDY).done)

    def test_a_client_that_hangs_up_mid_stream_leaves_a_server_that_answers(self):
        for _ in range(3):
            stream = self.client.chat(MODEL, STORY, options={"num_predict": 400}, stream=True)
            next(stream)
            stream.close()
        self.assertTrue(answers())


if __name__ == "__main__":
    unittest.main()
