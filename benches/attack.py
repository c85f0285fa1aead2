#!/usr/bin/env python3
"""Measures a server under attack: honest streams alone, and then beside a crowd of attackers.

    cargo build --release
    python3 benches/attack.py target/release/akunu --streams 64 --seconds 600

Needs Python 3.9 and Linux, where attackers connect from other loopback addresses than the honest clients. Every
honest answer must be the one that the same request gets alone. Printed are the times between an answer's events, the
server's resident memory, and what the attackers were answered. The exit status is 1 if an answer differs, if the 99th
percentile of the times is more than twice that without attackers, or if the memory grows in the second half of the
attack by more than a tenth. Other work on the machine falsifies the times, so its load is printed, too.
"""
import argparse
import collections
import json
import multiprocessing
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time

REQUESTS = 16


def honest_body(number):
    beginnings = ["Once upon a time", "The little fox", "One day, a boy named Tom", "Mia found a"]
    body = {
        "prompt": beginnings[number % 4] * (1 + number % 7),
        "max_tokens": 20 + number * 37 % 60,
        "seed": number,
        "temperature": [0.0, 0.7, 1.0][number % 3],
        "ignore_eos": True,
        "stream": True,
    }
    if number % 4 == 3:
        properties = {"a": {"type": "string", "maxLength": 10}, "b": {"type": "integer"}}
        body["guided_json"] = {
            "type": "object",
            "properties": properties,
            "required": ["a", "b"],
            "additionalProperties": False,
        }
    return body


def http(path, body, headers=""):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}{headers}Content-Length: {len(data)}\r\n\r\n".encode() + data


def connect(port, source="127.0.0.1"):
    return socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(source, 0))


def text_of(answer):
    events = [line[6:] for line in answer.decode().splitlines() if line.startswith("data: {")]
    texts = []
    for event in map(json.loads, events):
        texts += [choice["text"] for choice in event.get("choices", [])] or [json.dumps(event.get("error"))]
    return "".join(texts) if events else answer.decode()[:200]


def alone(port, number):
    stream = connect(port)
    stream.sendall(http("/v1/completions", honest_body(number)))
    parts = []
    while part := stream.recv(1 << 16):
        parts.append(part)
    return text_of(b"".join(parts))


def honest(port, streams, seconds, expected):
    """Keeps so many streams running. Returns the times to the first event, those between events, and the wrong answers."""
    selector, first, gaps, wrong, done = selectors.DefaultSelector(), [], [], [], 0
    until, number = time.monotonic() + seconds, 0

    def start():
        nonlocal number
        stream = connect(port)
        stream.sendall(http("/v1/completions", honest_body(number % REQUESTS)))
        stream.setblocking(False)
        selector.register(stream, selectors.EVENT_READ, [number % REQUESTS, [], time.monotonic(), True])
        number += 1

    for _ in range(streams):
        start()
    while selector.get_map():
        for key, _ in selector.select(30) or sys.exit("no event in 30 s"):
            now = time.monotonic()
            part = key.fileobj.recv(1 << 16)
            if part:
                key.data[1].append(part)
                is_event = b"data: " in part
                if is_event:
                    (first if key.data[3] else gaps).append(now - key.data[2])
                    key.data[2:] = now, False
                continue
            selector.unregister(key.fileobj)
            key.fileobj.close()
            done += 1
            text = text_of(b"".join(key.data[1]))
            if text != expected[key.data[0]]:
                wrong.append((key.data[0], text))
            if now < until:
                start()
    return first, gaps, wrong, done


def attacks():
    """Requests by name, each in two parts between which come nine digits. They are built before they are sent, as
    attackers on other machines would take no time of this one."""
    schema = lambda schema: {"prompt": "a", "max_tokens": 40, "title": 123456789, "guided_json": schema}
    numbers = lambda first: {"enum": list(range(first, first + 20_000))}
    strings = lambda key, first: {"anyOf": [{"type": "string", key: first + n} for n in range(900)]}
    and_ = " & ".join(f"/(.*a.{{{n}}})/" for n in range(1, 60))
    completions = {
        "stop strings": {"prompt": "a", "n": 128, "stop": ["x"] * 100_000},
        "enums": schema({"oneOf": [numbers(0), numbers(20_000)]}),
        "lengths": schema({"allOf": [strings("minLength", 1), strings("maxLength", 2_000)]}),
        "masks": {**schema(strings("maxLength", 1)["anyOf"][60]), "n": 4},
        "ambiguous": {"prompt": "a", "max_tokens": 200, "n": 4, "grammar": "start: e\ne: e e e | e e | T\nT: /[a-z ]/"},
        "intersections": {"prompt": "a", "grammar": "start: T\nT: " + and_},
        "no JSON": b"{" * 100_000,
    }
    requests = {name: http("/v1/completions", body) for name, body in completions.items()}
    requests["long text"] = http("/tokenize", {"content": "ab " * 3_000_000, "with_pieces": True})
    requests["stranger"] = http("/v1/completions", {"prompt": "a"}, "Origin: https://evil.example\r\n")
    return {name: request.partition(b"123456789")[::2] for name, request in requests.items()}


def attacker(port, number, until, requests, counts):
    random_, source = random.Random(number), f"127.0.0.{2 + number % 8}"
    while time.monotonic() < until:
        try:
            stream = connect(port, source)
            if number % 4 == 0:  # Sends a byte from time to time.
                stream.sendall(http("/v1/completions", b" " * 1000)[:-1000])
                for _ in range(20):
                    time.sleep(0.5)
                    stream.sendall(b" ")
                name = "drip"
            elif number % 4 == 1:  # Reads nothing, and hangs up.
                stream.sendall(http("/v1/completions", {"prompt": "a", "max_tokens": 400, "stream": True}))
                time.sleep(random_.random() * 3)
                name = "hang-up"
            else:
                name, (before, after) = random_.choice(list(requests.items()))
                stream.sendall(before)
                if after:
                    stream.sendall(b"%09d" % random_.randrange(100_000_000, 1_000_000_000) + after)
                name += " " + (stream.recv(12)[9:].decode() or "closed") if random_.random() < 0.5 else " left"
            stream.close()
        except OSError as error:
            name = f"{type(error).__name__}"
        counts[name] += 1
        time.sleep(0.05)


def crowd(port, attackers, seconds, niceness, results):
    os.nice(niceness)
    until, counts, requests = time.monotonic() + seconds, collections.Counter(), attacks()
    threads = [threading.Thread(target=attacker, args=(port, n, until, requests, counts)) for n in range(attackers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put(dict(sorted(counts.items())))


def resident(process):
    """MiB."""
    with open(f"/proc/{process.pid}/status") as status:
        return int(next(line for line in status if line.startswith("VmRSS")).split()[1]) / 1024


def percentile(gaps, share):
    """ms."""
    gaps = sorted(gaps)
    return 1000 * gaps[min(len(gaps) - 1, int(len(gaps) * share))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--attackers", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=600, help="of all attacks; without them, a quarter of that")
    parser.add_argument("--rounds", type=int, default=5, help="of a time without attackers and one with them")
    parser.add_argument("--nice", type=int, default=19, help="niceness of the attackers, above that of the others")
    args = parser.parse_args()
    command = [args.binary, "serve", "--device", "cpu", "--port", "0", "--parallel", str(args.streams), "--drain", "2"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    line = next(line for line in server.stdout if "http://" in line)
    port = int(line.split("http://", 1)[1].split(":", 1)[1].split("/")[0].split()[0])
    threading.Thread(target=lambda: [None for _ in server.stdout], daemon=True).start()
    expected = [alone(port, number) for number in range(REQUESTS)]

    failed, samples, counts = False, [], collections.Counter()
    all_gaps, all_first = {"alone": [], "attacked": []}, {"alone": [], "attacked": []}
    for number in range(2 * args.rounds):
        name, seconds = [("alone", args.seconds / 4), ("attacked", args.seconds)][number % 2]
        seconds /= args.rounds
        stop = threading.Event()
        if name == "attacked":
            results = multiprocessing.Queue()
            enemy = multiprocessing.Process(target=crowd, args=(port, args.attackers, seconds, args.nice, results))
            enemy.start()
            sampler = threading.Thread(
                target=lambda: [samples.append(resident(server)) for _ in iter(lambda: stop.wait(1), True)]
            )
            sampler.start()
        first, gaps, wrong, done = honest(port, args.streams, seconds, expected)
        if name == "attacked":
            stop.set()
            sampler.join()
            counts.update(results.get(timeout=60))
            enemy.join()
        all_gaps[name] += gaps
        all_first[name] += first
        print(
            f"{name}: {done} answers, {len(wrong)} wrong, {len(gaps) / seconds:.0f} events a second; ms between them: "
            f"median {percentile(gaps, 0.5):.1f}, 99% {percentile(gaps, 0.99):.1f}, largest {1000 * max(gaps):.0f}; to "
            f"the first: median {percentile(first, 0.5):.0f}, 99% {percentile(first, 0.99):.0f}; MiB resident: "
            f"{resident(server):.0f}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors",
            flush=True,
        )
        for number, text in wrong[:3]:
            print(f"request {number}: {text!r} instead of {expected[number]!r}")
        failed |= bool(wrong)
    print("attackers:", dict(sorted(counts.items())))
    start = time.monotonic()
    server.send_signal(signal.SIGTERM)
    print(f"the server ended {server.wait(60)} after {time.monotonic() - start:.2f} s")
    half = samples[len(samples) // 2 :]
    growth = min(half[-5:]) / max(half[:5])
    for what, times in [("to the first event", all_first), ("between events", all_gaps)]:
        p99 = {name: percentile(times, 0.99) for name, times in times.items()}
        ratio = p99["attacked"] / p99["alone"]
        print(f"99% {what}: {p99['alone']:.1f} ms without attackers, {p99['attacked']:.1f} with them, {ratio:.2f} times")
    print(
        f"MiB resident: first {samples[0]:.0f}, middle {half[0]:.0f}, last {samples[-1]:.0f}, largest "
        f"{max(samples):.0f}, {growth:.2f} times in the second half"
    )
    sys.exit(failed or ratio > 2 or growth > 1.1)


if __name__ == "__main__":
    main()
