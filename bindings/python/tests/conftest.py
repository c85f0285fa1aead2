"""Models of the tests: the one inside the package, and small ones of the repository."""

import json
import os
import pathlib
import shutil

import pytest

import akunu

ROOT = pathlib.Path(os.environ.get("AKUNU_ROOT", pathlib.Path(__file__).parents[3]))


@pytest.fixture(scope="session")
def model():
    with akunu.Model(threads=1, device="cpu", parallel=8, context=512) as loaded:
        yield loaded


def encoder(tmp, name):
    """A small encoder with a vocabulary of words w0, w1, …."""
    folder = tmp / name
    shutil.copytree(ROOT / "testdata/encoders" / name, folder)
    shutil.copy(ROOT / "xtask/clients/words.json", folder / "tokenizer.json")
    return folder


@pytest.fixture(scope="session")
def embedder(tmp_path_factory):
    with akunu.Model(encoder(tmp_path_factory.mktemp("embedder"), "bert-mean"), threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def judge(tmp_path_factory):
    with akunu.Model(encoder(tmp_path_factory.mktemp("judge"), "bert-cross-encoder"), threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def listener():
    with akunu.Model(ROOT / "testdata/speech/akunu-speech-q8_0.gguf", threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def caller():
    """A model that calls a tool, made by the tests of the repository."""
    path = os.environ.get("AKUNU_CALLER")
    if not path:
        pytest.skip("AKUNU_CALLER names no model")
    with akunu.Model(path, threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def words():
    return json.loads((ROOT / "xtask/clients/words.json").read_text())
