"""Errors of requests, with the engine's words."""

from __future__ import annotations

import json
from typing import Any


class Error(Exception):
    """A request failed. `code`, `param` and `status` are those that the server's API has."""

    def __init__(self, message: str, status: int = 500, code: str | None = None, param: str | None = None):
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


class InvalidRequest(Error, ValueError):
    """The request cannot be answered as it is: a wrong value, a prompt that is too long, a schema that is not supported."""


class QueueFull(Error):
    """Too many requests wait already; try again later."""


def error_of(status: int, body: bytes | dict[str, Any]) -> Error:
    """The error of an answer."""
    try:
        said = body if isinstance(body, dict) else json.loads(body)
        about = said.get("error", said)  # errors of `/v1/rerank` have Cohere's form
        message, code, param = about["message"], about.get("code"), about.get("param")
    except (ValueError, KeyError, TypeError, AttributeError):
        message, code, param = str(body), None, None
    kind = QueueFull if status == 429 else InvalidRequest if 400 <= status < 500 else Error
    return kind(message, status, code, param)
