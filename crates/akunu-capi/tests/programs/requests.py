"""Prints a text of the embedded model, generated as a request beside others, through ctypes: requests.py LIBRARY."""
import ctypes as c
import sys

akunu = c.CDLL(sys.argv[1])
akunu.akunu_get_error.restype = c.c_char_p
OnProgress = c.CFUNCTYPE(c.c_int32, c.c_uint64, c.c_uint64, c.c_void_p)
OnLog = c.CFUNCTYPE(None, c.c_uint32, c.c_char_p, c.c_void_p)
FOREVER = 0xFFFFFFFF


def numbers(names):
    return [(name, c.c_uint32) for name in names.split()]


class LoadOptions(c.Structure):
    _fields_ = (
        numbers("size threads")
        + [("device", c.c_char_p)]
        + numbers("context sessions kv_type chunk chain chain_ms")
        + [("on_progress", OnProgress), ("progress_user", c.c_void_p)]
        + numbers("batch queue")
    )


class GenerateOptions(c.Structure):
    _fields_ = (
        numbers("size max_tokens")
        + [("stop_texts", c.c_void_p), ("stop_tokens", c.c_void_p)]
        + numbers("stop_text_count stop_token_count overflow keep ignore_end format")
        + [("schema", c.c_char_p)]
        + numbers("logprobs top_logprobs")
    )


class Logprob(c.Structure):
    _fields_ = [("token", c.c_uint32), ("logprob", c.c_float)]


class Piece(c.Structure):
    _fields_ = (
        numbers("size token_count")
        + [("text", c.POINTER(c.c_char)), ("text_length", c.c_size_t), ("tokens", c.POINTER(c.c_uint32))]
        + [("logprobs", c.POINTER(Logprob))]
        + numbers("logprob_count reserved")
    )


def ok(status):
    assert status == 0, akunu.akunu_get_error().decode()


lines, reports = [], []
on_log = OnLog(lambda level, message, _: lines.append((level, message.decode())))
on_progress = OnProgress(lambda done, total, _: reports.append((done, total)) or 0)
ok(akunu.akunu_set_log(on_log, None, 3))
model = c.c_void_p()
options = LoadOptions(c.sizeof(LoadOptions), 0, b"cpu", 256, 3, on_progress=on_progress, batch=1)
ok(akunu.akunu_load_model(None, c.byref(options), c.byref(model)))
assert any(level == 3 and "loaded embedded" in line for level, line in lines), lines
assert reports[0] == (0, 0) and reports[-1][0] == reports[-1][1] > 0, reports
ok(akunu.akunu_set_log(OnLog(), None, 0))

tokens, count = (c.c_uint32 * 64)(), c.c_size_t()
prompt = b"Once upon a time"
ok(akunu.akunu_encode(model, prompt, c.c_size_t(len(prompt)), 1, tokens, c.c_size_t(64), c.byref(count)))


def submit(**settings):
    request = c.c_void_p()
    options = GenerateOptions(c.sizeof(GenerateOptions), 24, **settings)
    ok(akunu.akunu_submit(model, tokens, count, c.byref(options), None, c.byref(request)))
    return request.value


story, held = submit(logprobs=1), submit(format=4, schema=b"a{3}b")
others = [submit() for _ in range(4)]
texts = {request: b"" for request in [story, held, *others]}
ready = c.c_void_p()
while True:
    ok(akunu.akunu_ready_request(model, FOREVER, c.byref(ready)))
    if not ready:
        break
    piece, is_over = c.POINTER(Piece)(), c.c_uint32()
    ok(akunu.akunu_next_piece(ready, 0, c.byref(piece), c.byref(is_over)))
    if piece:
        found = piece[0]
        texts[ready.value] += found.text[: found.text_length]
        if ready.value == story and found.token_count:
            assert found.logprob_count == 1 and found.logprobs[0].token == found.tokens[0]
            assert found.logprobs[0].logprob <= 0
assert texts[held] == b"aaab"
assert all(texts[other] == texts[story] for other in others)
ok(akunu.akunu_free_model(model))
assert akunu.akunu_free_request(c.c_void_p(story)) == -2 and b"freed" in akunu.akunu_get_error()
sys.stdout.buffer.write(texts[story])
