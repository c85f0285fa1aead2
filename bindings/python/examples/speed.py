"""The tokens per second of one sequence in Python, beside `akunu bench`: speed.py AKUNU MODEL [THREADS]

The programs run in turn. Python's rate is that of the wall clock: a text of 257 tokens without the time of a text of one.
"""

import json
import statistics
import subprocess
import sys
import time

import akunu

PROGRAM, FILE = sys.argv[1:3]
THREADS = int(sys.argv[3]) if len(sys.argv) > 3 else 1
TOKENS, ROUNDS = 128, 11
SETTINGS = {"temperature": 0, "ignore_eos": True}


def bench() -> float:
    """Tokens per second by `akunu bench`."""
    command = [PROGRAM, "bench", FILE, "-p", "0", "-n", str(TOKENS), "-r", "1", "-t", str(THREADS), "--json"]
    [result] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return result["tok_s"]


def timed(generate) -> float:
    began = time.perf_counter()
    generate(TOKENS + 1)
    long = time.perf_counter() - began
    began = time.perf_counter()
    generate(1)
    return TOKENS / (long - (time.perf_counter() - began))


with akunu.Model(FILE, threads=THREADS, device="cpu", parallel=1, context=1024) as model:
    ways = {
        "generate": lambda: timed(lambda count: model.generate([1], max_tokens=count, **SETTINGS)),
        "stream": lambda: timed(lambda count: sum(1 for _ in model.stream([1], max_tokens=count, **SETTINGS))),
        "chat_stream": lambda: timed(lambda count: sum(1 for _ in model.chat_stream("a", max_tokens=count, **SETTINGS))),
    }
    try:
        ways["chat_stream"]()
    except akunu.Error:
        del ways["chat_stream"]  # without a template
    rates: dict[str, list[float]] = {name: [] for name in ["bench", *ways]}
    for _ in range(ROUNDS):
        rates["bench"].append(bench())
        for name, way in ways.items():
            rates[name].append(way())
for name, values in rates.items():
    ratios = [value / other for value, other in zip(values, rates["bench"])]
    best = max(values) / max(rates["bench"])
    print(
        f"{name:12} {statistics.median(values):8.1f} tokens/s, of bench {statistics.median(ratios):.3f}; "
        f"best {max(values):8.1f}, of bench's best {best:.3f}"
    )
