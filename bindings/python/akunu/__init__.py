"""Akunu runs transformer models on the local machine.

    import akunu

    model = akunu.Model("model.gguf")              # or "hf:Qwen/Qwen3-0.6B-GGUF", or nothing: a small one inside
    print(model.generate("Once upon a time", max_tokens=50))
    for piece in model.stream("Once upon a time"):
        print(piece, end="")
    print(model.chat("Why is the sky blue?").content)

Calls may come from any thread and any event loop; those that run at the same time share passes through the model.
"""

from ._akunu import LoadError, __version__
from .answers import Completion, Ranked, Reply, Stream, ToolCall, Transcript
from .errors import Error, InvalidRequest, QueueFull
from .model import Model
from .server import Server

__all__ = [
    "Completion", "Error", "InvalidRequest", "LoadError", "Model", "QueueFull", "Ranked", "Reply", "Server", "Stream",
    "ToolCall", "Transcript", "__version__",
]
