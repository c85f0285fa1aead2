"""A deployment for Ray Serve: `pip install akunu[ray]`.

    from ray import serve
    from akunu.serve.ray import build

    serve.run(build("hf:Qwen/Qwen3-0.6B-GGUF", parallel=16, max_replicas=4))

Each replica has the model in its own process and answers the paths of OpenAI's API with the server's handlers, streams
included. Ray scales replicas by the requests that they have, and replaces one whose engine fails.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from .._akunu import Answer
from ..answers import Waker
from ..model import Model

#: What a replica answers.
PATHS = (
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/v1/responses", "/v1/messages",
    "/v1/audio/transcriptions", "/v1/models", "/tokenize", "/detokenize", "/metrics", "/get_load", "/health",
)


class Replica:
    """A replica: one model, or several by their names, of which the last used ones are loaded."""

    def __init__(self, models: dict[str, str], options: dict[str, Any]):
        self._models, self._options = models, options
        self._first = next(iter(models))
        self._model = self._load(self._first) if len(models) == 1 else None

    def _load(self, name: str) -> Model:
        return Model(self._models[name] or None, **self._options)

    @serve.multiplexed(max_num_models_per_replica=int(os.environ.get("AKUNU_RAY_MODELS", "2")))
    async def _multiplexed(self, name: str) -> Model:
        return await asyncio.to_thread(self._load, name)

    async def check_health(self) -> None:
        """Ray replaces a replica for which this raises."""
        if self._model is not None:
            await self._model.atokenize("a")

    async def __call__(self, request: Request) -> Response:
        path = request.url.path
        if path not in PATHS:
            return Response(f"unknown URL: {path}", 404)
        model = self._model
        if model is None:
            name = serve.get_multiplexed_model_id() or self._first
            if name not in self._models:
                return Response(f"unknown model: {name}", 404)
            model = await self._multiplexed(name)
        body = await request.body() if request.method == "POST" else None
        kind = request.headers.get("content-type", "application/json")
        waker = Waker()
        answer = model._engine.request(path, body, kind, waker)
        status = await waker.next(answer)
        first = await waker.next(answer)
        is_stream = isinstance(first, bytes) and first.startswith((b"data: ", b"event: ", b": "))
        kind = "text/event-stream" if is_stream else "text/plain" if path == "/metrics" else "application/json"
        return StreamingResponse(_parts(waker, answer, first), int(status or 500), media_type=kind)


async def _parts(waker: Waker, answer: Answer, first: int | bytes | None) -> AsyncIterator[bytes]:
    """The parts of an answer. If the client hangs up, the request ends."""
    try:
        part = first
        while isinstance(part, bytes):
            yield part
            part = await waker.next(answer)
    finally:
        answer.close()


def build(
    models: str | os.PathLike[str] | None | dict[str, str] = None,
    *,
    min_replicas: int = 1,
    max_replicas: int = 1,
    num_cpus: float = 1,
    num_gpus: float = 0,
    name: str = "akunu",
    parallel: int = 4,
    queue: int = 256,
    ray: dict[str, Any] | None = None,
    **options: Any,
) -> serve.Application:
    """An application of Ray Serve.

    `models` is a model as `Model` takes it, or a dictionary of several by name: a request chooses one by the header
    `serve_multiplexed_model_id`. `options` are those of `Model`. `ray` are further options of the deployment.
    Replicas are added while the existing ones have more than `parallel` requests on average.
    """
    of_names = models if isinstance(models, dict) else {"": "" if models is None else os.fspath(models)}
    scaling = {
        "min_replicas": min_replicas, "max_replicas": max_replicas, "target_ongoing_requests": parallel,
        "upscale_delay_s": 2, "downscale_delay_s": 60,
    }
    deployment = serve.deployment(
        name=name,
        autoscaling_config=scaling,
        max_ongoing_requests=parallel + queue,
        health_check_period_s=10,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=60,
        ray_actor_options={"num_cpus": num_cpus, "num_gpus": num_gpus},
    )(Replica)
    if ray:
        deployment = deployment.options(**ray)
    return deployment.bind(of_names, {"parallel": parallel, "queue": queue, **options})
