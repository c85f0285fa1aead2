"""Clients that request embeddings: OpenAI's, Ollama's, Hugging Face's, and LangChain's of the first two."""

import asyncio
import base64
import json
import math
import os
import struct
import subprocess
import unittest
from pathlib import Path
from unittest import mock

import ollama
import tiktoken
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from langchain_ollama import OllamaEmbeddings
from langchain_openai import OpenAIEmbeddings
from openai import APITimeoutError, AsyncOpenAI, AuthenticationError, BadRequestError, NotFoundError, OpenAI

from common import JUDGE, KEY, LOCKED_URL, MODEL, STORY, TEXTS_URL, WORDS, conforms, fails, post

TEXTS = ["a fox", "where do foxes sleep", "The sky is blue!", "an old dog and a young cat"]
# Maximum text length and vocabulary size of the small encoder.
LONGEST, VOCABULARY = 48, 64
LONG = "fox " * 100
MANY = ["a fox"] * 10_000


def open_ai(url=TEXTS_URL, key="none", **more):
    return OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, **{"timeout": 600, **more})


def lang_chain(**more):
    return OpenAIEmbeddings(base_url=f"{TEXTS_URL}/v1", api_key="none", model=WORDS, max_retries=0, **more)


def hugging_face(path="", url=TEXTS_URL, **more):
    return InferenceClient(base_url=url + path, timeout=600, **more)


def as_f32(vectors):
    """Rounds to 32 bits, as some clients do."""
    return [list(struct.unpack(f"{len(vector)}f", struct.pack(f"{len(vector)}f", *vector))) for vector in vectors]


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


class EmbeddingClients(unittest.TestCase):
    def setUp(self):
        self.client = open_ai()
        self.ollama = ollama.Client(host=TEXTS_URL, timeout=600)

    def tearDown(self):
        self.client.close()

    def vectors(self, input=TEXTS, model=WORDS, **more):
        return as_f32(data.embedding for data in self.client.embeddings.create(model=model, input=input, **more).data)

    def test_openai_takes_texts_and_ids_one_or_many(self):
        expected = self.vectors()
        self.assertEqual(len({tuple(vector) for vector in expected}), len(TEXTS))
        ids = [json.loads(post("/tokenize", {"model": WORDS, "content": text, "add_special": True}, TEXTS_URL))["tokens"] for text in TEXTS]
        for input, found in [(ids, expected), (ids[1], expected[1:2]), (TEXTS[1], expected[1:2]), ([TEXTS[0], ids[1]], expected[:2])]:
            self.assertEqual(self.vectors(input), found)
        usage = self.client.embeddings.create(model=WORDS, input=TEXTS).usage
        self.assertEqual((usage.prompt_tokens, usage.total_tokens), (sum(map(len, ids)),) * 2)

    def test_base64_which_the_client_asks_for_by_itself_has_the_bits_of_floats(self):
        floats = self.vectors(encoding_format="float")
        self.assertEqual(self.vectors(), floats)
        raw = self.client.embeddings.create(model=WORDS, input=TEXTS, encoding_format="base64").data
        self.assertEqual([base64.b64decode(data.embedding) for data in raw], [struct.pack(f"<{len(vector)}f", *vector) for vector in floats])
        answer = json.loads(post("/v1/embeddings", {"model": WORDS, "input": TEXTS}, TEXTS_URL))
        conforms(self, "CreateEmbeddingResponse", answer)
        self.assertEqual(as_f32(data["embedding"] for data in answer["data"]), floats)

    def test_dimensions_are_the_first_ones(self):
        for whole, cut in zip(self.vectors(), self.vectors(dimensions=8)):
            self.assertAlmostEqual(math.hypot(*cut), 1, 6)
            self.assertGreater(cosine(whole[:8], cut), 0.999999)

    def test_many_at_once_get_what_each_gets_alone(self):
        async def all_of_them():
            async with AsyncOpenAI(base_url=f"{TEXTS_URL}/v1", api_key="none", max_retries=0, timeout=600) as client:
                return await asyncio.gather(*[client.embeddings.create(model=WORDS, input=text) for text in TEXTS * 4])

        self.assertEqual(as_f32(answer.data[0].embedding for answer in asyncio.run(all_of_them())), self.vectors() * 4)

    def test_ollama(self):
        expected = self.vectors()
        answer = self.ollama.embed(WORDS, TEXTS)
        self.assertEqual(as_f32(answer.embeddings), expected)
        self.assertEqual(answer.prompt_eval_count, self.client.embeddings.create(model=WORDS, input=TEXTS).usage.prompt_tokens)
        self.assertGreater(answer.total_duration, 1000, "durations are in nanoseconds")
        one = self.ollama.embed(f"{WORDS}:latest", TEXTS[0], options={"num_ctx": 32}, keep_alive="5m", dimensions=8)
        self.assertEqual(as_f32(one.embeddings), self.vectors(TEXTS[0], dimensions=8))
        self.assertEqual(as_f32([self.ollama.embeddings(WORDS, TEXTS[0]).embedding]), expected[:1])
        self.assertEqual(self.ollama.show(WORDS).capabilities, ["embedding"])
        # Ollama truncates long texts by default.
        cut = self.ollama.embed(WORDS, LONG)
        self.assertEqual((cut.prompt_eval_count, as_f32(cut.embeddings)), (LONGEST, self.vectors(LONG, extra_body={"truncate": True})))

    def test_hugging_face(self):
        expected = self.vectors()
        for path in ["", "/embed"]:
            client = hugging_face(path)
            self.assertEqual(as_f32(client.feature_extraction(TEXTS).tolist()), expected)
            cut = client.feature_extraction(LONG, truncate=True, truncation_direction="right", normalize=True)
            self.assertEqual(as_f32(cut.tolist()), self.vectors(LONG, extra_body={"truncate": True}))
            raw = client.feature_extraction(TEXTS[0], normalize=False).tolist()[0]
            self.assertGreater(abs(math.hypot(*raw) - 1), 1e-3)
            self.assertGreater(cosine(raw, expected[0]), 0.999999)
        one = asyncio.run(AsyncInferenceClient(base_url=TEXTS_URL).feature_extraction(TEXTS[0]))
        self.assertEqual(as_f32(one.tolist()), expected[:1])

    def test_lang_chain_of_openai(self):
        expected = self.vectors()
        as_texts = lang_chain(check_embedding_ctx_length=False)
        self.assertEqual(as_f32(as_texts.embed_documents(TEXTS)), expected)
        self.assertEqual(as_f32([as_texts.embed_query(TEXTS[0])]), expected[:1])
        few = lang_chain(check_embedding_ctx_length=False, chunk_size=3, dimensions=8)
        self.assertEqual(as_f32(few.embed_documents(TEXTS)), self.vectors(dimensions=8))

    def test_lang_chain_of_openai_sends_ids_unless_it_is_told_otherwise(self):
        def encoding(first):
            ranks = {letter.encode(): first + rank for rank, letter in enumerate("abc")}
            return tiktoken.Encoding("letters", pat_str=".", mergeable_ranks=ranks, special_tokens={})

        # Its default tokenizer would have to be downloaded.
        with mock.patch("tiktoken.get_encoding", lambda name: encoding(20)):
            self.assertEqual(as_f32(lang_chain().embed_documents(["abc", "b"])), self.vectors([[20, 21, 22], [21]]))
        with mock.patch("tiktoken.get_encoding", lambda name: encoding(64_000)), self.assertRaises(BadRequestError) as caught:
            lang_chain().embed_documents(["abc", "b"])
        self.assertIn("64000", caught.exception.message)
        self.assertIn("the text itself", caught.exception.message)

    def test_lang_chain_of_ollama(self):
        expected = self.vectors()
        client = OllamaEmbeddings(base_url=TEXTS_URL, model=WORDS, validate_model_on_init=True, num_ctx=32, keep_alive=60)
        self.assertEqual(as_f32(client.embed_documents(TEXTS)), expected)
        self.assertEqual(as_f32([client.embed_query(TEXTS[0])]), expected[:1])
        self.assertEqual(as_f32(asyncio.run(client.aembed_documents(TEXTS))), expected)

    def test_the_command_line_gives_the_same_bits(self):
        command = [os.environ["AKUNU"], "embed", os.environ["AKUNU_WORDS"], "--json", *TEXTS]
        found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        self.assertEqual(as_f32(found["embeddings"]), self.vectors())

    @unittest.skipUnless("AKUNU_MINILM" in os.environ, "all-MiniLM-L6-v2 is not there")
    def test_vectors_are_those_of_transformers(self):
        cases = json.loads(Path(os.environ["AKUNU_MINILM"]).read_text())["cases"]
        cases = [case for case in cases if case["text"]]
        texts, ids = [case["text"] for case in cases], [case["input_ids"] for case in cases]
        for found in [
            self.vectors(texts, "minilm", extra_body={"truncate": True}),
            self.vectors(ids, "minilm"),
            self.ollama.embed("minilm", texts).embeddings,
            [self.ollama.embeddings("minilm", text).embedding for text in texts],
            OllamaEmbeddings(base_url=TEXTS_URL, model="minilm").embed_documents(texts),
        ]:
            for vector, case in zip(found, cases, strict=True):
                self.assertGreater(cosine(vector, case["embedding"]), 0.999999, case["text"])

    def test_what_is_wrong_is_said_by_every_api(self):
        for input, words in [
            ("", ["'{}'"]),
            ([], ["'{}'"]),
            ([[]], ["'{}'"]),
            (["a fox", ""], ["'{}'"]),
            (MANY, ["'{}'", "10000", "2048"]),
            ([VOCABULARY], [str(VOCABULARY), "vocabulary"]),
            ([["a"]], ["'{}'"]),
            (True, ["'{}'"]),
            (None, ["'{}' is missing"]),
            (LONG, ["102 tokens", f"at most {LONGEST}", "truncate"]),
        ]:
            for path, name in [("/v1/embeddings", "input"), ("/api/embed", "input"), ("/embed", "inputs"), ("/", "inputs")]:
                fails(self, path, {"model": WORDS, name: input, "truncate": False}, [word.format(name) for word in words], TEXTS_URL)
        for path, name in [("/v1/embeddings", "input"), ("/api/embed", "input"), ("/api/embeddings", "prompt"), ("/embed", "inputs")]:
            fine = {"model": WORDS, name: "a fox"}
            for wrong, words in [({"dimensions": 0}, ["'dimensions'"]), ({"dimensions": 49}, ["49", "48"]), ({"truncate": "no"}, ["'truncate'"])]:
                fails(self, path, {**fine, **wrong}, words, TEXTS_URL)
            fails(self, path, {**fine, "model": "none"}, ["none", WORDS], TEXTS_URL, 404)
            fails(self, path, {**fine, "model": JUDGE}, ["/v1/rerank", "does not embed"], TEXTS_URL)
            fails(self, path, {**fine, "model": MODEL}, ["generates text", "--pooling"])
            for body in [b"", b"{", b"[]", b"\xff", b"[" * 10_000]:
                fails(self, path, body, ["body"], TEXTS_URL)
        for path, body in [
            ("/v1/chat/completions", {"messages": STORY}),
            ("/v1/completions", {"prompt": "Once"}),
            ("/v1/messages", {"messages": STORY, "max_tokens": 1}),
            ("/api/chat", {"messages": STORY}),
            ("/api/generate", {"prompt": "Once"}),
        ]:
            fails(self, path, {"model": WORDS, **body}, ["/v1/embeddings", "does not generate text"], TEXTS_URL)

    def test_errors_are_the_clients_own(self):
        for wrong in [{"input": ""}, {"input": LONG}, {"input": MANY}, {"input": [VOCABULARY]}, {"dimensions": 0}, {"dimensions": 49}]:
            with self.assertRaises(BadRequestError) as caught:
                self.client.embeddings.create(**{"model": WORDS, "input": TEXTS, **wrong})
            self.assertEqual(caught.exception.body["type"], "invalid_request_error")
        with self.assertRaises(NotFoundError):
            self.vectors(model="none")
        with self.assertRaises(BadRequestError) as caught:
            self.client.chat.completions.create(model=WORDS, messages=STORY)
        self.assertEqual((caught.exception.code, caught.exception.param), ("model_not_supported", "model"))
        for status, model, input in [(400, WORDS, ""), (400, WORDS, MANY), (400, JUDGE, "a fox"), (404, "none", "a fox")]:
            with self.assertRaises(ollama.ResponseError) as caught:
                self.ollama.embed(model, input)
            self.assertEqual(caught.exception.status_code, status)
            self.assertNotIn("{", caught.exception.error)
        for input in ["", LONG, MANY]:
            with self.assertRaises(HfHubHTTPError) as caught:
                hugging_face("/embed").feature_extraction(input)
            self.assertEqual((caught.exception.response.status_code, caught.exception.response.json()["error_type"]), (400, "validation"))

    def test_keys_are_wanted_as_for_anything_else(self):
        with open_ai(LOCKED_URL, "wrong") as stranger, self.assertRaises(AuthenticationError):
            stranger.embeddings.create(model=MODEL, input=TEXTS)
        for key, status in [("wrong", 401), (KEY, 400)]:
            for path in ["", "/embed"]:
                with self.assertRaises(HfHubHTTPError) as caught:
                    hugging_face(path, LOCKED_URL, token=key).feature_extraction("a fox")
                self.assertEqual(caught.exception.response.status_code, status)

    def test_a_client_that_hangs_up_leaves_a_server_that_answers(self):
        with open_ai(timeout=0.02) as hasty:
            for _ in range(3):
                with self.assertRaises(APITimeoutError):
                    hasty.embeddings.create(model=WORDS, input=[LONG] * 2048, extra_body={"truncate": True})
        self.assertEqual(len(self.vectors()), len(TEXTS))


if __name__ == "__main__":
    unittest.main()
