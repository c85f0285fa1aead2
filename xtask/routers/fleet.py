"""Servers and routers as processes, and a small HTTP client."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

MODEL = "akunu-tales"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def request(url, body=None, headers=None, timeout=60):
    """The status and the text of an answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"} | (headers or {})
    asked = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(asked, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def get(url):
    status, text = request(url)
    assert status == 200, f"{url}: {status} {text}"
    return text


def until(what, condition, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"after {seconds} s: not {what}")


class Process:
    """A process with its output in a file. It ends with the block."""

    def __init__(self, name, command, variables=None):
        self.name = name
        self.log = open(f"{os.environ['AKUNU_LOGS']}/{name}.log", "w+")
        environment = {**os.environ, "NO_PROXY": "*", **(variables or {})}
        self.child = subprocess.Popen(
            command, stdout=self.log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment
        )

    def output(self):
        with open(self.log.name) as log:
            return log.read()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.child.kill()
        self.child.wait()
        if kind:
            print(f"--- {self.name}\n{self.output()[-3000:]}", file=sys.stderr)


class Server(Process):
    """`akunu serve` with events of its cache. Its options are variables, as in a container."""

    def __init__(self, name, **options):
        self.port, self.events, self.replay = free_port(), free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        variables = {
            "PORT": self.port, "DEVICE": "cpu", "THREADS": 1, "PRELOAD": "true", "PARALLEL": 4, "CONTEXT": 1024,
            "KV_EVENTS": f"tcp://127.0.0.1:{self.events}", "KV_EVENTS_REPLAY": f"tcp://127.0.0.1:{self.replay}",
            **options,
        }
        super().__init__(name, [os.environ["AKUNU"], "serve"], {f"AKUNU_{k}": str(v) for k, v in variables.items()})
        until(f"{name} ready", lambda: request(f"{self.url}/ready")[0] == 200)

    def metric(self, name):
        lines = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", get(f"{self.url}/metrics"), re.M)
        return sum(float(value) for value in lines)

    def answered(self):
        """Requests that generated something."""
        lines = re.findall(
            r'^akunu_requests_total\{route="/v1/(?:chat/)?completions",status="200"\} (\S+)$',
            get(f"{self.url}/metrics"), re.M,
        )
        return int(sum(float(value) for value in lines))

    def stop(self):
        """Ends as Kubernetes ends it."""
        self.child.send_signal(signal.SIGTERM)


class Router(Process):
    """A router of PyPI before servers."""

    def __init__(self, package, servers, policy, *more):
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        program = os.path.join(os.path.dirname(sys.executable), package)
        command = [program] + (["launch"] if package == "sglang-router" else [])
        command += ["--worker-urls", *(server.url for server in servers), "--port", str(port), "--policy", policy]
        command += ["--prometheus-port", str(free_port()), "--health-check-interval-secs", "1"]
        command += ["--health-failure-threshold", "1", "--worker-startup-check-interval", "1", *more]
        super().__init__(f"{package}-{policy}", command)
        until(f"{self.name} ready", lambda: self.complete("Once", 1)[0] == 200)

    def complete(self, prompt, tokens=4, **more):
        return request(
            f"{self.url}/v1/completions",
            {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0, **more},
        )


def counts(servers):
    return [server.answered() for server in servers]


def more(servers, before):
    return [now - then for now, then in zip(counts(servers), before)]
