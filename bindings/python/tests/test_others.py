"""Vectors, rankings, transcripts, and the server."""

import asyncio
import json
import pathlib
import urllib.request

import numpy as np
import pytest

import akunu

from conftest import ROOT


def test_vectors(embedder):
    both = embedder.embed(["w5 w6", "w7"])
    assert both.dtype == np.float32 and both.shape[0] == 2
    np.testing.assert_allclose(np.linalg.norm(both, axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(embedder.embed("w5 w6"), both[0])


def test_rankings(judge):
    documents = ["w5", "w6 w7", "w8"]
    ranked = judge.rerank("w5", documents)
    scores = [item.score for item in ranked]
    assert scores == sorted(scores, reverse=True) and {item.index for item in ranked} == {0, 1, 2}
    assert all(item.document == documents[item.index] for item in ranked)
    assert len(judge.rerank("w5", documents, top_n=1)) == 1
    assert asyncio.run(judge.arerank("w5", documents)) == ranked


def test_transcripts(listener):
    path = ROOT / "testdata/speech/short.flac"
    said = listener.transcribe(path, words=True)
    assert said.words
    assert said.text and str(said) == said.text and said.segments
    assert listener.transcribe(path.read_bytes()).text == said.text
    assert asyncio.run(listener.atranscribe(path, words=True)) == said
    with pytest.raises(akunu.InvalidRequest):
        listener.transcribe(b"no audio")
    with pytest.raises(ValueError, match="one channel"):
        listener.transcribe(np.zeros((2, 16_000), np.float32))
    silence = listener.transcribe(np.zeros(16_000, np.float32))
    assert silence.duration == pytest.approx(1, abs=0.1)


def test_a_server_in_this_process():
    with akunu.Server(threads=1, context=256, api_keys=["sesame"], preload=True) as server:
        def ask(path, body=None, key="sesame"):
            request = urllib.request.Request(server.url + path, data=body)
            request.add_header("content-type", "application/json")
            request.add_header("x-api-key", key)
            return json.load(urllib.request.urlopen(request))

        body = json.dumps({"prompt": "Once upon a time", "max_tokens": 4}).encode()
        assert ask("/v1/completions", body)["choices"][0]["text"]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask("/v1/models", key="wrong")
    with pytest.raises(OSError):
        urllib.request.urlopen(server.url + "/health")
    with pytest.raises(akunu.LoadError, match="cannot listen"):
        akunu.Server(host="192.0.2.1")


def test_types_are_declared():
    package = pathlib.Path(akunu.__file__).parent
    assert (package / "py.typed").exists() and (package / "_akunu.pyi").exists()
    assert all(getattr(akunu, name) for name in akunu.__all__)
