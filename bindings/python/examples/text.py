"""A text, a stream and a conversation with the model inside the package, or with that of the first argument."""

import sys

import akunu

with akunu.Model(sys.argv[1] if len(sys.argv) > 1 else None) as model:
    print(model.generate("Once upon a time", max_tokens=30, seed=1))
    for piece in model.stream("The little dog", max_tokens=30, seed=1):
        print(piece, end="", flush=True)
    print()
    reply = model.chat("Tell me a story about the sea.", max_tokens=60, seed=1)
    print(reply.content, reply.usage)
