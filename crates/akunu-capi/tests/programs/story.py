"""Prints the greedy text of the embedded model, through ctypes: story.py LIBRARY."""
import ctypes as c
import sys

akunu = c.CDLL(sys.argv[1])
akunu.akunu_get_error.restype = c.c_char_p


class LoadOptions(c.Structure):
    _fields_ = [("size", c.c_uint32), ("threads", c.c_uint32), ("device", c.c_char_p)] + [
        (name, c.c_uint32) for name in ("context", "sessions", "kv_type", "chunk", "chain", "chain_ms")
    ]


class GenerateOptions(c.Structure):
    _fields_ = [("size", c.c_uint32), ("max_tokens", c.c_uint32), ("stop_texts", c.c_void_p), ("stop_tokens", c.c_void_p)] + [
        (name, c.c_uint32)
        for name in ("stop_text_count", "stop_token_count", "overflow", "keep", "ignore_end", "reserved")
    ]


class Piece(c.Structure):
    _fields_ = [
        ("size", c.c_uint32),
        ("token_count", c.c_uint32),
        ("text", c.POINTER(c.c_char)),
        ("text_length", c.c_size_t),
        ("tokens", c.POINTER(c.c_uint32)),
    ]


OnPiece = c.CFUNCTYPE(c.c_int32, c.POINTER(Piece), c.c_void_p)


def ok(status):
    assert status == 0, akunu.akunu_get_error().decode()


model, session = c.c_void_p(), c.c_void_p()
ok(akunu.akunu_load_model(None, c.byref(LoadOptions(c.sizeof(LoadOptions), 0, b"cpu", 256)), c.byref(model)))
ok(akunu.akunu_create_session(model, c.byref(session)))
tokens, count = (c.c_uint32 * 64)(), c.c_size_t()
prompt = b"Once upon a time"
ok(akunu.akunu_encode(model, prompt, c.c_size_t(len(prompt)), 1, tokens, c.c_size_t(64), c.byref(count)))
story = b""


@OnPiece
def tell(piece, _):
    global story
    story += piece[0].text[: piece[0].text_length]
    return 0


options = GenerateOptions(c.sizeof(GenerateOptions), 24)
ok(akunu.akunu_generate(session, tokens, count, c.byref(options), tell, None, None))
ok(akunu.akunu_free_model(model))
assert akunu.akunu_free_session(session) == -2 and b"freed" in akunu.akunu_get_error()
sys.stdout.buffer.write(story)
