"""A server in this process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ._akunu import HttpServer
from .model import options_of


class Server:
    """Models over HTTP, with the APIs of OpenAI, Ollama and Anthropic, as `akunu serve` has them.

    Options are those of `Model`, and `host`, `port` (0: any free one), `api_keys`, `allow_hosts`, `preload` and `drain`
    seconds for running requests when it stops.

        with akunu.Server("model.gguf") as server:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
    """

    def __init__(self, models: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None, **options: Any):
        names = [""] if models is None else [models] if isinstance(models, (str, os.PathLike)) else list(models)
        self._server = HttpServer(options_of([os.fspath(name) for name in names], options))

    @property
    def url(self) -> str:
        """`http://HOST:PORT`"""
        return f"http://{self._server.address}"

    def stop(self) -> None:
        """Refuses new requests, and waits for those that run."""
        self._server.stop()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
