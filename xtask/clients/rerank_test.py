"""Cohere's own Python client, in both of its versions. Jina has none."""

import json
import math
import unittest

import cohere

from common import JUDGE, KEY, LOCKED_URL, MODEL, TEXTS_URL, WORDS, fails, post

QUERY = "what do foxes eat"
DOCUMENTS = ["mice", "The sky is blue.", "Foxes eat mice, and birds.", "mice"]
LONG = "fox " * 100


def json_of(path, body):
    return json.loads(post(path, body, TEXTS_URL))


def v1(url=TEXTS_URL, key="none"):
    return cohere.Client(api_key=key, base_url=url)


def v2(url=TEXTS_URL, key="none"):
    return cohere.ClientV2(api_key=key, base_url=url)


class CohereClient(unittest.TestCase):
    def setUp(self):
        raw = {"model": JUDGE, "query": QUERY, "texts": DOCUMENTS, "raw_scores": True}
        self.raw = json_of("/rerank", raw)

    def test_both_versions_rank_as_the_other_api_does(self):
        expected = [(entry["index"], 1 / (1 + math.exp(-entry["score"]))) for entry in self.raw]
        self.assertEqual(sorted(index for index, _ in expected), [0, 1, 2, 3])
        for client in [v1(), v2()]:
            results = client.rerank(model=JUDGE, query=QUERY, documents=DOCUMENTS).results
            for result, (index, score) in zip(results, expected, strict=True):
                self.assertEqual(result.index, index)
                self.assertAlmostEqual(result.relevance_score, score, 6)
        self.assertEqual([entry["index"] for entry in json_of("/", {"model": JUDGE, "query": QUERY, "texts": DOCUMENTS})], [index for index, _ in expected])

    def test_the_best_few_come_with_their_documents(self):
        objects = [{"text": text} for text in DOCUMENTS]
        answer = v1().rerank(model=JUDGE, query=QUERY, documents=objects, top_n=2, return_documents=True, rank_fields=["text"], max_chunks_per_doc=1)
        best = [entry["index"] for entry in self.raw][:2]
        self.assertEqual([(result.index, result.document.text) for result in answer.results], [(index, DOCUMENTS[index]) for index in best])
        self.assertEqual(answer.meta.billed_units.search_units, 1)
        self.assertEqual(len(v2().rerank(model=JUDGE, query=QUERY, documents=DOCUMENTS, top_n=1).results), 1)

    def test_a_document_that_is_too_long_is_refused_or_cut(self):
        with self.assertRaises(cohere.BadRequestError) as caught:
            v2().rerank(model=JUDGE, query=QUERY, documents=["mice", LONG])
        for word in ["number 2", "107 tokens", "48"]:
            self.assertIn(word, caught.exception.body["message"])
        shorter = v2().rerank(model=JUDGE, query=QUERY, documents=["mice", LONG], max_tokens_per_doc=10)
        same = v2().rerank(model=JUDGE, query=QUERY, documents=["mice", "fox " * 10])
        self.assertEqual(shorter.results, same.results)

    def test_errors_are_the_client_s_own(self):
        for client in [v1(), v2()]:
            for wrong, word in [
                ({"query": ""}, "'query'"),
                ({"documents": []}, "'documents'"),
                ({"documents": ["mice", ""]}, "number 2 is empty"),
                ({"documents": ["mice"] * 10_000}, "10000"),
                ({"top_n": 0}, "'top_n'"),
                ({"model": WORDS}, "/v1/embeddings"),
            ]:
                with self.assertRaises(cohere.BadRequestError) as caught:
                    client.rerank(**{"model": JUDGE, "query": QUERY, "documents": DOCUMENTS, **wrong})
                self.assertIn(word, caught.exception.body["message"])
            with self.assertRaises(cohere.NotFoundError) as caught:
                client.rerank(model="none", query=QUERY, documents=DOCUMENTS)
            self.assertIn(JUDGE, caught.exception.body["message"])
        for open_with in [v1, v2]:
            with self.assertRaises(cohere.UnauthorizedError):
                open_with(LOCKED_URL, "wrong").rerank(model=MODEL, query=QUERY, documents=DOCUMENTS)
            with self.assertRaises(cohere.BadRequestError) as caught:
                open_with(LOCKED_URL, KEY).rerank(model=MODEL, query=QUERY, documents=DOCUMENTS)
            self.assertIn("generates text", caught.exception.body["message"])

    def test_what_is_wrong_is_said_by_every_api(self):
        for path, name in [("/v1/rerank", "documents"), ("/v2/rerank", "documents"), ("/rerank", "texts")]:
            fine = {"model": JUDGE, "query": QUERY, name: ["mice"]}
            for wrong, words in [
                ({"query": None}, ["'query' is missing"]),
                ({"query": 3}, ["'query'"]),
                ({name: None}, [f"'{name}' is missing"]),
                ({name: []}, [f"'{name}'"]),
                ({name: "mice"}, [f"'{name}'"]),
                ({name: [1]}, [f"'{name}'"]),
                ({name: ["mice"] * 10_000}, [f"'{name}'", "10000", "2048"]),
                ({"model": WORDS}, ["/v1/embeddings", "no classifier"]),
            ]:
                fails(self, path, {**fine, **wrong}, words, TEXTS_URL)
            fails(self, path, {**fine, "model": "none"}, [JUDGE], TEXTS_URL, 404)
            fails(self, path, {**fine, "model": MODEL}, ["generates text", "--rerank"])
            for body in [b"", b"{", b"[]", b"\xff"]:
                fails(self, path, body, ["body"], TEXTS_URL)


if __name__ == "__main__":
    unittest.main()
