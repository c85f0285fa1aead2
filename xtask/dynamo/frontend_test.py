"""Workers with the embedded model behind Dynamo's frontend, which find each other by files: answers are those that the
engine gives, refusals reach clients, prompts find the worker that has their beginning, and a worker that is stopped
finishes its answers."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from fleet import MODEL, Process, free_port, request, until

STORY = "Once upon a time, there was a"
QUESTION = "Tell me a story about a dog."
LONG = "Number {}: Tom had a red ball, and the ball was very big. "


def expected(asked):
    """What the engine answers without Dynamo."""
    lines = "".join(json.dumps(one) + "\n" for one in asked)
    done = subprocess.run([os.environ["AKUNU_EXPECTED"]], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def streamed(url, body):
    """The text of a stream, its last reason to end, and how many parts it had."""
    data = json.dumps({**body, "stream": True}).encode()
    asked = urllib.request.Request(url, data, {"content-type": "application/json"})
    text, reason, parts = "", None, 0
    with urllib.request.urlopen(asked, timeout=60) as answer:
        for line in answer:
            line = line.decode().strip()
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            for choice in json.loads(line[6:])["choices"]:
                part = choice["text"] if "text" in choice else choice["delta"].get("content")
                text, parts = text + (part or ""), parts + 1
                reason = choice.get("finish_reason") or reason
    return text, reason, parts


class Worker(Process):
    def __init__(self, name, variables, *args):
        command = [os.environ["AKUNU_DYNAMO"], "--device", "cpu", "--threads", "1", "--context", "2048", *args]
        super().__init__(name, command, variables)
        until(f"{name} serves", lambda: "Serving akunu-tales" in self.output(), 60)

    def stop(self):
        self.child.send_signal(signal.SIGTERM)


class Frontend(Process):
    def __init__(self, variables, *args):
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        command = [sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port)]
        super().__init__("frontend", [*command, *args], variables)

    def has_model(self):
        status, text = request(f"{self.url}/v1/models")
        return status == 200 and [model["id"] for model in json.loads(text)["data"]] == [MODEL]

    def complete(self, prompt, **more):
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "temperature": 0, **more}
        return request(f"{self.url}/v1/completions", body)


def answers_are_the_engines(url):
    prompts = [{"prompt": STORY, "max_tokens": 40}, {"prompt": "naïve €5 🚀 and", "max_tokens": 12}]
    asked = [*prompts, {"message": QUESTION, "max_tokens": 40}, {"message": "Hello", "max_tokens": 400}]
    for one, wanted in zip(asked, expected(asked)):
        body = {"model": MODEL, "max_tokens": one["max_tokens"], "temperature": 0}
        if "prompt" in one:
            path, body = "/v1/completions", {**body, "prompt": one["prompt"]}
        else:
            path, body = "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": one["message"]}]}
        status, text = request(url + path, body)
        assert status == 200, text
        answer = json.loads(text)
        choice = answer["choices"][0]
        got = choice["text"] if "text" in choice else choice["message"]["content"]
        assert got == wanted["text"], (got, wanted)
        assert answer["usage"]["completion_tokens"] == wanted["tokens"], (answer, wanted)
        reason = "length" if wanted["tokens"] == one["max_tokens"] else "stop"
        assert choice["finish_reason"] == reason, answer
        parts = streamed(url + path, body)
        assert parts[:2] == (wanted["text"], reason) and parts[2] > wanted["tokens"] // 2, (parts, wanted)


def settings_have_effect(frontend):
    def text(**more):
        status, answer = frontend.complete(STORY, max_tokens=30, **more)
        assert status == 200, answer
        return json.loads(answer)["choices"][0]

    hot = {"temperature": 1.5, "seed": 3}
    assert text(**hot)["text"] == text(**hot)["text"] != text(**{**hot, "seed": 4})["text"]
    whole = text()["text"]
    word = whole.split()[5]
    stopped = text(stop=[word])
    assert stopped["text"] == whole[: whole.index(word)] and stopped["finish_reason"] == "stop", stopped
    assert len(text(logprobs=2)["logprobs"]["token_logprobs"]) == 30
    digits = text(guided_regex="[0-9]{5}")["text"]
    assert len(digits) == 5 and digits.isdigit(), digits


def many_at_once_get_the_same(frontend):
    """More than there are slots."""
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: frontend.complete(STORY, max_tokens=60), range(32)))
    assert {status for status, _ in answers} == {200}, answers
    texts = {json.loads(text)["choices"][0]["text"] for _, text in answers}
    assert len(texts) == 1, texts


def refusals_reach_clients(frontend):
    several = {"n": 2, "temperature": 1}
    for refused, reason in [(several, "'n' is not supported"), ({"min_tokens": 2}, "'min_tokens' is not supported")]:
        status, text = frontend.complete(STORY, **refused)
        assert status == 400 and reason in text, (refused, status, text)


def stops_cleanly(frontend, worker):
    """A worker that gets SIGTERM finishes its answer, leaves, and ends."""
    got = []
    body = {"model": MODEL, "prompt": STORY, "max_tokens": 600, "temperature": 0, "ignore_eos": True}
    thread = threading.Thread(target=lambda: got.append(streamed(f"{frontend.url}/v1/completions", body)))
    thread.start()
    time.sleep(0.1)
    worker.stop()
    thread.join(60)
    assert got and got[0][1] == "length", got
    assert worker.child.wait(30) == 0, worker.output()[-2000:]
    until("the model is gone", lambda: not frontend.has_model())


@contextlib.contextmanager
def fleet():
    """The variables of processes that find each other by files."""
    with tempfile.TemporaryDirectory() as folder:
        yield {
            "DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": f"{folder}/store", "DYN_EVENT_PLANE": "zmq",
            "DYN_REQUEST_PLANE": "tcp", "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "0.5",
            "DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT": "30", "HOME": folder, "TMPDIR": folder,
        }


with fleet() as variables, Worker("worker", variables, "--parallel", "2") as worker, Frontend(variables) as frontend:
    until("the frontend knows the model", frontend.has_model, 60)
    answers_are_the_engines(frontend.url)
    settings_have_effect(frontend)
    many_at_once_get_the_same(frontend)
    refusals_reach_clients(frontend)
    stops_cleanly(frontend, worker)
print("dynamo: answers are the engine's")

with fleet() as variables, contextlib.ExitStack() as stack:
    workers = [stack.enter_context(Worker(f"worker-{number}", variables)) for number in range(2)]
    frontend = stack.enter_context(Frontend(variables, "--router-mode", "kv"))
    until("the frontend knows the model", frontend.has_model, 60)
    prompts = [(LONG * 10).replace("{}", str(number)) for number in range(7)]

    def cached(prompt):
        status, text = frontend.complete(prompt)
        assert status == 200, text
        return (json.loads(text)["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0

    def answered():
        return [worker.output().count("request completed") for worker in workers]

    until("both workers answer", lambda: [cached("Hello") for _ in range(4)] and min(answered()) > 0)
    before = answered()
    first = [cached(prompt) for prompt in prompts]
    # Events take a moment.
    time.sleep(1)
    again = [cached(prompt) for prompt in prompts]
    assert max(first) == 0 and min(again) >= 64, (first, again)
    assert min(now - then for now, then in zip(answered(), before)) > 0, (before, answered())
print("dynamo: prompts find their worker")
