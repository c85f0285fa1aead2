"""Ray Serve on two cores, with two replicas of the model inside the package."""

import concurrent.futures
import json
import time
import urllib.error
import urllib.request

import ray
from ray import serve

from akunu.serve.ray import build

URL = "http://127.0.0.1:8123"


def ask(path, body=None, headers=None, url=URL):
    request = urllib.request.Request(url + path, data=None if body is None else json.dumps(body).encode())
    for name, value in {"content-type": "application/json", **(headers or {})}.items():
        request.add_header(name, value)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def replicas():
    application = serve.status().applications["akunu"]
    return application.deployments["akunu"].replica_states.get("RUNNING", 0)


def until(what, condition, seconds=90):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.2)


ray.init(num_cpus=2, include_dashboard=False, configure_logging=False, log_to_driver=False)
serve.start(http_options={"host": "127.0.0.1", "port": 8123})
options = {"threads": 1, "context": 256, "device": "cpu", "num_cpus": 0.5, "parallel": 2}
serve.run(build(min_replicas=2, max_replicas=2, **options), name="akunu")
until("two replicas", lambda: replicas() == 2)

# Answers, streams and errors are those of the server.
status, text = ask("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0})
whole = json.loads(text)["choices"][0]["text"]
assert status == 200 and whole
status, text = ask("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "stream": True})
events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
assert "".join(event["choices"][0]["text"] for event in events) == whole and text.rstrip().endswith("data: [DONE]")
status, text = ask("/v1/completions", {"prompt": "Once", "temperature": -1})
assert status == 400 and json.loads(text)["error"]["param"] == "temperature", text
assert ask("/nothing")[0] == 404 and ask("/v1/models")[0] == 200


# Both replicas answer.
def who(_):
    return json.loads(ask("/v1/completions", {"prompt": "Who", "max_tokens": 30, "ignore_eos": True})[1])["id"]


with concurrent.futures.ThreadPoolExecutor(8) as threads:
    assert len(set(threads.map(who, range(24)))) == 24
counts = [sum(float(line.rsplit(" ", 1)[1]) for line in ask("/metrics")[1].splitlines()
              if line.startswith("akunu_requests_total") and 'route="/v1/completions"' in line) for _ in range(12)]
assert len(set(counts)) >= 2, counts

# A replica that ends is replaced, and requests go on.
actors = [actor for actor in ray.util.list_named_actors(all_namespaces=True) if "akunu#akunu#" in actor["name"]]
actor = ray.get_actor(actors[0]["name"], namespace=actors[0]["namespace"])
ray.kill(actor, no_restart=True)
answers = [ask("/v1/completions", {"prompt": "After", "max_tokens": 2})[0] for _ in range(6)]
assert answers.count(200) >= 5, answers
until("a new replica", lambda: replicas() == 2)
serve.delete("akunu")

# Replicas are added while requests wait.
serve.run(build(min_replicas=1, max_replicas=2, **options), name="akunu")
assert replicas() == 1
with concurrent.futures.ThreadPoolExecutor(12) as threads:
    running = []
    stop = time.monotonic() + 90
    while replicas() < 2 and time.monotonic() < stop:
        running = [future for future in running if not future.done()]
        while len(running) < 10:
            body = {"prompt": "Long", "max_tokens": 200, "ignore_eos": True}
            running.append(threads.submit(ask, "/v1/completions", body))
        time.sleep(0.2)
assert replicas() == 2
serve.delete("akunu")

# Several models in a replica, by the header.
serve.run(build({"tales": "", "stories": ""}, **options), name="akunu")
for model, expected in (("tales", 200), ("stories", 200), ("none", 404)):
    headers = {"serve_multiplexed_model_id": model}
    assert ask("/v1/completions", {"prompt": "Once", "max_tokens": 1}, headers)[0] == expected, model
serve.shutdown()
ray.shutdown()
