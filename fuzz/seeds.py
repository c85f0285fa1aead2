"""Writes the seeds of the fuzz targets that are binary (GGUF, GGML, SafeTensors, calls, ZMTP), and those that begin with a byte that
selects something. Others are written by hand. Run it in this folder: python3 seeds.py"""

import json
import pathlib
import struct

HERE = pathlib.Path(__file__).parent
WIDTH, HIDDEN, WORDS = 8, 16, 8
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q", I64: "<q", F64: "<d"}


def write(target, name, data):
    folder = HERE / "seeds" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(kind, content):
    if kind == STRING:
        return text(content)
    if kind == ARRAY:
        inner, items = content
        return struct.pack("<IQ", inner, len(items)) + b"".join(value(inner, item) for item in items)
    return struct.pack(FORMATS[kind], content)


def gguf(metadata, tensors, alignment=32):
    """Tensors: name, GGML type, dimensions (the row's length first), bytes."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    for key, kind, content in metadata:
        head += text(key) + struct.pack("<I", kind) + value(kind, content)
    data = b""
    for name, kind, dimensions, content in tensors:
        data += b"\0" * (-len(data) % alignment)
        head += text(name) + struct.pack("<I", len(dimensions)) + struct.pack(f"<{len(dimensions)}Q", *dimensions)
        head += struct.pack("<IQ", kind, len(data))
        data += content
    return head + b"\0" * (-len(head) % alignment) + data + b"\0" * (-len(data) % alignment)


def llama_metadata():
    return [
        ("general.architecture", STRING, "llama"),
        ("llama.context_length", U32, 64),
        ("llama.embedding_length", U32, WIDTH),
        ("llama.block_count", U32, 1),
        ("llama.feed_forward_length", U32, HIDDEN),
        ("llama.attention.head_count", U32, 2),
        ("llama.attention.head_count_kv", U32, 1),
        ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        ("llama.rope.freq_base", F32, 10000.0),
        ("llama.rope.scaling.type", STRING, "yarn"),
        ("llama.rope.scaling.factor", F32, 2.0),
        ("general.sampling.top_k", I32, 40),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, [f"w{i}" for i in range(WORDS)])),
        ("tokenizer.ggml.eos_token_id", U32, 1),
    ]


def llama_tensors(kind=0):
    rows = {
        "token_embd": (WIDTH, WORDS), "output_norm": (WIDTH,), "output": (WIDTH, WORDS),
        "blk.0.attn_norm": (WIDTH,), "blk.0.ffn_norm": (WIDTH,),
        "blk.0.attn_q": (WIDTH, WIDTH), "blk.0.attn_k": (WIDTH, WIDTH // 2), "blk.0.attn_v": (WIDTH, WIDTH // 2),
        "blk.0.attn_output": (WIDTH, WIDTH), "blk.0.ffn_gate": (WIDTH, HIDDEN), "blk.0.ffn_up": (WIDTH, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, WIDTH),
    }
    size = {0: 4, 1: 2}[kind]
    for name, shape in rows.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        yield f"{name}.weight", kind, shape, b"\0" * (count * size)


def ggufs():
    write("gguf", "llama", gguf(llama_metadata(), list(llama_tensors())))
    write("gguf", "llama-f16", gguf(llama_metadata()[:8], list(llama_tensors(1))))
    every = [(f"k{kind}", kind, 1) for kind in FORMATS] + [("text", STRING, "é")]
    every += [(f"a{kind}", ARRAY, (kind, [1, 0])) for kind in FORMATS] + [("nested", ARRAY, (ARRAY, [(U8, [1]), (U8, [])]))]
    write("gguf", "every-type", gguf(every + [("general.alignment", U32, 8)], [("t", 0, (2,), b"\0" * 8)], 8))
    # Q4_0, Q8_0, IQ4_NL and MXFP4 have blocks of 32 values; Q6_K has 256.
    blocks = [("q4", 2, (32,), 18), ("q8", 8, (32, 2), 68), ("nl", 20, (32,), 18), ("fp4", 39, (32,), 17), ("q6", 14, (256,), 210)]
    write("gguf", "blocks", gguf([("general.architecture", STRING, "qwen3")], [(n, k, s, b"\1" * b) for n, k, s, b in blocks]))
    tensors = list(llama_tensors())

    def part(number, some):
        split = [("split.no", U16, number), ("split.count", U16, 2), ("split.tensors.count", I32, len(tensors))]
        return gguf(split + (llama_metadata() if number == 0 else []), some)

    first, second = part(0, tensors[:4]), part(1, tensors[4:])
    write("gguf_split", "two-parts", struct.pack("<H", len(first)) + first + second)
    whole = gguf([("split.count", U16, 1)], tensors[:1])
    write("gguf_split", "one-part", struct.pack("<H", len(whole)) + whole)


def ggml(rows, tokens, tensors, file_type=1):
    """Of 32 dimensions, with one layer in each tower and 3 bands. Tensors: name, GGML type, dimensions (the row's length first), bytes."""
    numbers = [rows, 5, WIDTH * 4, 1, 1, 4, WIDTH * 4, 1, 1, 3, file_type, 3, 1, 0, 0, 0, len(tokens)]
    data = b"lmgg" + struct.pack(f"<{len(numbers)}I", *numbers)
    data += b"".join(struct.pack("<I", len(token)) + token for token in tokens)
    for name, kind, dimensions, content in tensors:
        data += struct.pack(f"<{3 + len(dimensions)}I", len(dimensions), len(name), kind, *dimensions) + name.encode() + content
    return data


def ggmls():
    width, rows = WIDTH * 4, 12
    tokens = [b"a", b"b", b" ", b"ab", b" ab", b"\xe2\x99", b""] + [f"<|{name}|>".encode() for name in ("endoftext", "startoftranscript", "en", "notimestamps")]

    def tensors(kind, row):
        """`row`: bytes of `width` weights."""
        yield "decoder.token_embedding.weight", kind, (width, rows), b"\1" * row * rows
        yield "decoder.positional_embedding", 0, (width, 4), b"\0" * width * 16
        yield "encoder.conv1.weight", 1, (3, 3, width), b"\0" * width * 18
        yield "encoder.conv1.bias", 0, (1, width), b"\0" * width * 4
        for tower in ("encoder", "decoder"):
            yield f"{tower}.blocks.0.attn.query.weight", kind, (width, width), b"\1" * row * width
            yield f"{tower}.blocks.0.mlp.0.weight", kind, (width, 2), b"\1" * row * 2
            yield f"{tower}.blocks.0.mlp_ln.bias", 0, (width,), b"\0" * width * 4

    write("ggml", "f16", ggml(rows, tokens, list(tensors(1, 2 * width))))
    write("ggml", "q5_0", ggml(rows, tokens, list(tensors(6, 22)), 2008))
    write("ggml", "vocabulary", ggml(rows, tokens, []))


def safetensors(config, tensors):
    """Tensors: name, type, shape, bytes."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, kind, shape, size in tensors:
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(header, separators=(",", ":")).encode()
    config = json.dumps(config, separators=(",", ":")).encode() if config else b""
    return struct.pack("<H", len(config)) + config + struct.pack("<Q", len(head)) + head + b"\0" * at


def folders():
    llama = {"model_type": "llama", "hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2,
             "num_key_value_heads": 1, "intermediate_size": HIDDEN, "vocab_size": WORDS, "rms_norm_eps": 1e-5,
             "max_position_embeddings": 64, "tie_word_embeddings": True,
             "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                              "original_max_position_embeddings": 32}}
    layer = "model.layers.0."
    shapes = [("model.embed_tokens", [WORDS, WIDTH]), ("model.norm", [WIDTH]), (layer + "input_layernorm", [WIDTH]),
              (layer + "post_attention_layernorm", [WIDTH]), (layer + "self_attn.q_proj", [WIDTH, WIDTH]),
              (layer + "self_attn.k_proj", [WIDTH // 2, WIDTH]), (layer + "self_attn.v_proj", [WIDTH // 2, WIDTH]),
              (layer + "self_attn.o_proj", [WIDTH, WIDTH]), (layer + "mlp.gate_proj", [HIDDEN, WIDTH]),
              (layer + "mlp.up_proj", [HIDDEN, WIDTH]), (layer + "mlp.down_proj", [WIDTH, HIDDEN])]
    def sized(kind, bytes_each):
        return [(n + ".weight", kind, s, bytes_each * s[0] * (s[1] if len(s) > 1 else 1)) for n, s in shapes]
    write("safetensors", "llama", safetensors(llama, sized("BF16", 2)))
    write("safetensors", "no-config", safetensors(None, sized("F32", 4)[:3]))
    affine = {**llama, "quantization": {"group_size": 32, "bits": 4}}
    packed = [("model.embed_tokens.weight", "U32", [8, 4], 128), ("model.embed_tokens.scales", "F16", [8, 1], 16),
              ("model.embed_tokens.biases", "F16", [8, 1], 16)]
    write("safetensors", "mlx", safetensors(affine, packed))
    down, plain = layer + "mlp.down_proj.", ("model.embed_tokens.weight", "F16", [WORDS, WIDTH], 2 * WORDS * WIDTH)
    groups = {"bits": 4, "group_size": 32}
    parts = [(down + "qzeros", "I32", [2, 4], 32), (down + "scales", "F16", [2, 32], 128)]
    write("safetensors", "gptq", safetensors({**llama, "quantization_config": {"quant_method": "gptq", **groups}},
                                             [(down + "qweight", "I32", [8, 32], 1024), (down + "g_idx", "I32", [64], 256), *parts, plain]))
    write("safetensors", "awq", safetensors({**llama, "quantization_config": {"quant_method": "awq", **groups, "version": "gemm"}},
                                            [(down + "qweight", "I32", [64, 4], 1024), *parts, plain]))
    four = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False}
    settings = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": four}}}
    write("safetensors", "integers", safetensors({**llama, "quantization_config": settings},
                                                 [(down + "weight_packed", "I32", [32, 8], 1024), (down + "weight_scale", "BF16", [32, 2], 128),
                                                  (down + "weight_zero_point", "I32", [4, 2], 32), plain]))
    eight = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
    settings = {"quant_method": "compressed-tensors", "format": "float-quantized", "kv_cache_scheme": eight,
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": eight}}, "ignore": ["re:.*lm_head"]}
    write("safetensors", "fp8", safetensors({**llama, "quantization_config": settings},
                                            [(down + "weight", "F8_E4M3", [130, 8], 1040), (down + "weight_scale", "F32", [2, 1], 8), plain]))
    models = HERE.parent / "testdata"
    for name in ["models/phi3-hd64-longrope", "models/gemma3-hd128-pattern", "models/mistral3-wrapper",
                 "models/falcon-11b", "models/starcoder2-window", "encoders/modernbert-cls"]:
        config = json.loads((models / name / "config.json").read_text())
        write("safetensors", name.split("/")[1], safetensors(config, [("x", "F32", [1], 4)]))


def requests():
    chat = {"model": "m", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
    called = [{"role": "user", "content": "Hi"},
              {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}]},
              {"role": "tool", "tool_call_id": "a", "content": "2"}]
    blocks = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]},
              {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {"a": 1}}]},
              {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "2"}]}]
    bodies = {
        "chat": ("a", {**chat, "max_tokens": 4, "temperature": 0, "stop": ["x"], "n": 2, "seed": 1, "logprobs": True, "top_logprobs": 2}),
        "chat-stream": ("a", {**chat, "max_completion_tokens": 4, "stream": True, "stream_options": {"include_usage": True}}),
        "chat-tools": ("a", {**chat, "messages": called, "tools": [tool], "tool_choice": "auto", "parallel_tool_calls": False, "max_tokens": 3}),
        "chat-format": ("a", {**chat, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"enum": [1, 2]}}}, "max_tokens": 3}),
        "chat-guided": ("a", {**chat, "guided_choice": ["a", "b"], "logit_bias": {"5": -100}, "priority": 1, "cache_salt": "s", "max_tokens": 2}),
        "completion": ("b", {"model": "m", "prompt": ["Hi", "Yo"], "max_tokens": 3, "logprobs": 1, "presence_penalty": 0.5, "stop": "x"}),
        "completion-ids": ("b", {"prompt": [9, 10, 11], "max_tokens": 2, "stream": True, "grammar": "root ::= \"a\"+"}),
        "embeddings": ("c", {"model": "m", "input": ["a", "b"], "encoding_format": "base64", "dimensions": 8}),
        "messages": ("d", {"model": "m", "max_tokens": 4, "system": "Be brief.", "messages": blocks, "tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto"}}),
        "messages-stream": ("d", {"model": "m", "max_tokens": 4, "stream": True, "stop_sequences": ["x"], "top_k": 3, "thinking": {"type": "enabled", "budget_tokens": 1024}, "messages": chat["messages"][1:]}),
        "count": ("e", {"model": "m", "messages": blocks[:1], "system": [{"type": "text", "text": "Be brief."}]}),
        "ollama-chat": ("f", {**chat, "stream": False, "think": True, "format": "json", "options": {"num_predict": 3, "stop": ["x"], "seed": 1, "top_k": 2}}),
        "ollama-generate": ("g", {"model": "m", "prompt": "Hi", "raw": True, "options": {"num_predict": 3, "temperature": 0.5}, "keep_alive": "5m"}),
        "ollama-embed": ("h", {"model": "m", "input": ["a", "b"], "truncate": True}),
        "ollama-embeddings": ("i", {"model": "m", "prompt": "a"}),
        "show": ("j", {"model": "m", "verbose": True}),
        "rerank": ("k", {"model": "m", "query": "a", "documents": ["b", {"text": "c"}], "top_n": 1, "return_documents": True}),
        "rerank2": ("l", {"query": "a", "documents": ["b"], "max_tokens_per_doc": 10}),
        "tei-embed": ("m", {"inputs": ["a", "b"], "normalize": True, "truncate": True, "truncation_direction": "Right"}),
        "tei-rerank": ("n", {"query": "a", "texts": ["b", "c"], "raw_scores": True, "return_text": True}),
        "root": ("o", {"inputs": "a"}),
        "tokenize": ("p", {"content": "Hi", "add_special": True, "with_pieces": True}),
        "detokenize": ("q", {"tokens": [9, 10]}),
        "template": ("r", {**chat, "tools": [tool], "chat_template_kwargs": {"x": 1}}),
        "create": ("t", {"model": "n", "from": "m", "system": "Be brief.", "parameters": {"temperature": 0.5, "stop": ["x"], "num_predict": 3, "seed": 1},
                         "messages": [{"role": "user", "content": "Hi"}], "license": ["MIT"], "stream": False}),
        "create-file": ("t", {"name": "n", "modelfile": "FROM m\nSYSTEM \"\"\"Be brief.\"\"\"\nPARAMETER stop x\nMESSAGE user Hi\n", "stream": True}),
        "responses": ("u", {"model": "m", "instructions": "Be brief.", "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
                            "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                                      {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"a\":1}"},
                                      {"type": "function_call_output", "call_id": "c", "output": "2"}],
                            "tool_choice": "auto", "max_output_tokens": 4, "store": True, "truncation": "auto"}),
        "responses-stream": ("u", {"input": "Hi", "stream": True, "text": {"format": {"type": "json_schema", "name": "s", "schema": {"enum": [1, 2]}}},
                                   "reasoning": {"effort": "low"}, "previous_response_id": "resp_1",
                                   "include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 3}),
        "copy": ("y", {"source": "m", "destination": "n:latest"}),
        "delete": ("z", {"model": "n"}),
        "pull": ("A", {"model": "hf.co/a/b:Q4_0", "stream": True}),
        "mcp": ("7", {"name": "f", "arguments": {"a": 1}}),
    }
    bodies["chat-render"] = ("w", bodies["chat"][1])
    bodies["completion-render"] = ("x", bodies["completion"][1])
    for name, (path, body) in bodies.items():
        write("http", name, path + json.dumps(body))
    part = lambda head, content: f"--b\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n"
    form = part('name="model"', "m") + part('name="file"; filename="a.wav"\r\nContent-Type: audio/wav', "RIFF")
    audio = form + part('name="stream"', "true") + "--b--\r\n"
    write("http", "audio", "s" + audio)
    write("http", "translation", "v" + audio)
    for name, text in [("blob", "Csha256:0011\n"), ("model", "Im\n"), ("model-lm-studio", "Km\n"), ("response", "Lresp_1\n"), ("response-escape", "M%ff\n"),
                       ("response-items", "Oresp_1/input_items?limit=2&after=\n"), ("slot", 'P0?action=save\n{"filename": "a", "model": "m"}'),
                       ("props", "Rmodel=m\n"), ("info", "Umodel=m\n"), ("flush", "Z"), ("unknown", "9a%20b?c=d\n")]:
        write("http", name, text)


def calls():
    """See `Program::run` in fuzz_targets/capi.rs for the numbers. 15 picks the latest handle, 23 the one before it."""
    model, session = bytes([0, 0]), bytes([2, 15])
    prefill = lambda *tokens: bytes([4, len(tokens)]) + b"".join(bytes([token, 0]) for token in tokens) + b"\x0f"
    tokens = bytes([11, 40, 15])
    write("capi", "decode", model + session + prefill(70, 80, 90) + tokens + bytes([5, 9, 15]) + tokens + bytes([6, 50, 3, 8, 15]) + tokens)
    write("capi", "copy", model + session + session + prefill(70, 80) + bytes([10, 1, 15, 23]) + tokens + bytes([7, 1, 15]) + tokens + bytes([11, 9, 23]))
    write("capi", "freed", model + session + bytes([3, 15]) + tokens + session + bytes([1, 15]) + tokens + bytes([5, 9, 15, 2, 15]))
    write("capi", "generate", model + session + bytes([8, 2, 70, 0, 80, 0, 5, 2, 1, 0, 0, 15]) + tokens + bytes([9, 2]) + b"Hi\x0f" + tokens)
    write("capi", "encode", model + bytes([12, 6]) + "é \u2581a".encode()[:6] + b"\x0f" + bytes([12, 3]) + b"a\xffb\x0f")
    write("capi", "kinds", model + session + bytes([1, 2, 3, 2, 0, 3]) + tokens + bytes([0, 1, 1, 15, 1, 15]))


def grammars():
    for name, source in {
        "regex": r"r[a-c]+/\d{2,3}(x|é)?", "regex-class": r"r(?i)[^\sA-F0-9]{1,4}\.\p{L}+",
        "gbnf": 'groot ::= "x" [0-9]{2} # two\n  ("/" root)?',
        "gbnf-list": 'groot ::= list\nlist ::= "[" (item ("," item)*)? "]"\nitem ::= [^\\n\\]\\[,]+ | list',
        "gbnf-any": 'groot ::= . "\\u00e9" (a | b)+\na ::= [a-zA-Z_\\-]*\nb ::= "\\"" | "\\x41"',
        "lark": 'lstart: "a" other*\nother: "b" | "(" other ")"', "lark-terminals": 'lstart: WORD ("," WORD)~1..3\nWORD: /[a-z]+/ | "é"i\n%ignore / /',
        "lark-json": 'lstart: a b\na[lazy]: /.*x/\nb: %json { "type": "integer" }', "choice": "cYes.\nNo.\né\"\\/",
    }.items():
        write("grammar", name, source)


def zmtps():
    greeting = b"\xff" + bytes(8) + b"\x7f\3\0NULL" + bytes(48)

    def command(name, rest=b""):
        return bytes([4, 1 + len(name) + len(rest), len(name)]) + name + rest

    def ready(kind):
        return command(b"READY", b"\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind)

    subscriptions = b"\0\4\1kv@" + command(b"SUBSCRIBE", b"kv") + command(b"PING", b"\0\nhello")
    write("zmtp", "subscriber", greeting + ready(b"SUB") + subscriptions)
    write("zmtp", "replay", greeting + ready(b"DEALER") + b"\1\0\0\x08" + bytes(8))


def workers():
    """Frames of crates/akunu-fleet/src/hosts/message.rs."""
    number = lambda *numbers: b"".join(each.to_bytes(8, "little") for each in numbers)
    field = lambda part: number(len(part)) + part
    frame = lambda kind, body=b"": len(body).to_bytes(4, "little") + bytes([kind]) + body
    row = lambda *words: b"".join(word.to_bytes(4, "little") for word in words)
    options = number(64, 2, 8, 1, 8, 1, 1, 0, 0) + field(b"f16") + number(1, 4096, 0, 1, 0, 0, 0)
    load = options + field(number(7, 8)) + number(1) + field(b"decode") + number(9)
    work = number(0) + field(row(1, 0, 1, 0)) + field(row(0)) + field(row(2)) + number(4, 0)
    moves = number(1) + field(row(3, 0, 1)) + field(b"") + field(b"") + number(1, 1)
    write("worker", "load", frame(1, load) + frame(64))
    write("worker", "run", frame(2, number(3, 16, 1) + field(b"bytes")) + frame(5, number(0) + work) + frame(6, number(0) + moves) + frame(8) + frame(65, number(4)))
    write("worker", "strips", frame(3, number(1, 0, 2, 8, 2) + field(b"abcd")) + frame(4, number(1, 0, 2, 8, 2)) + frame(66, field(b"abcd")))
    write("worker", "rest", frame(7, number(1, 4)) + frame(9, number(0) + work + number(0, 2)) + frame(10, number(0) + moves + number(3)) + frame(67, number(1) + field(b"blk.0")) + frame(68, field(b"why")) + frame(11))


ggufs()
ggmls()
folders()
requests()
calls()
grammars()
zmtps()
workers()
