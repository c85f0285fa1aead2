"""Manifests of packaging/kubernetes: they conform to the schemas of Kubernetes, and the program does what they count on,
under their arguments, variables, probes and signals."""

import json
import os
import pathlib
import re
import shutil
import tempfile
import threading
import time

import kubernetes_validate
import yaml

from fleet import Process, free_port, request, until

ROOT = pathlib.Path(os.environ["AKUNU_ROOT"])
VERSION = "1.30"


def documents(name):
    return list(yaml.safe_load_all((ROOT / "packaging/kubernetes" / name).read_text()))


def pod_of(document):
    """The specification of a pod in a document, if there is one."""
    spec = document.get("spec", {})
    if document["kind"] == "Deployment":
        return spec["template"]["spec"]
    return {"containers": spec["containers"]} if document["kind"] == "ServingRuntime" else None


def validate(document):
    """Kinds of other projects have no schema here; their pods do."""
    if document["apiVersion"].split("/")[0] in ("v1", "apps", "networking.k8s.io"):
        kubernetes_validate.validate(document, VERSION, strict=True)
    elif pod := pod_of(document):
        kind = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": pod}
        kubernetes_validate.validate(kind, VERSION, strict=True)


def environment(container, folder, port):
    """The variables of a container, with places of this machine."""
    values = {"POD_IP": "127.0.0.1"}
    for variable in container["env"]:
        value = variable.get("value", values.get(variable["name"], ""))
        values[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], value)
    for name, value in values.items():
        if value.startswith("/"):
            values[name] = str(folder / value.strip("/"))
        elif value.startswith("tcp://*"):
            values[name] = f"tcp://127.0.0.1:{free_port()}"
    # The model inside the program instead of one of the hub.
    values.pop("AKUNU_MODEL", None)
    return {**values, "AKUNU_HOST": "127.0.0.1", "AKUNU_PORT": str(port), "AKUNU_THREADS": "1", "AKUNU_DEVICE": "cpu"}


def works(name, document, folder):
    pod = pod_of(document)
    [container] = pod["containers"]
    port = free_port()
    declared = {str(item["containerPort"]) for item in container["ports"]}
    variables = {item["name"]: item.get("value") for item in container["env"]}
    assert variables["AKUNU_PORT"] in declared
    arguments = [str(folder / word.strip("/")) if word.startswith("/") else word for word in container["args"]]
    url = f"http://127.0.0.1:{port}"
    probe = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    with Process(f"kubernetes-{name}", [os.environ["AKUNU"], *arguments], environment(container, folder, port)) as server:
        until("started", lambda: request(url + probe["startup"])[0] == 200)
        assert request(url + probe["readiness"])[0] == request(url + probe["liveness"])[0] == 200
        key = {"x-api-key": "sesame"} if "AKUNU_API_KEYS" in variables else {}
        if key:
            assert request(url + "/v1/models")[0] == 401
        status, metrics = request(url + "/metrics", headers=key)
        assert status == 200 and "vllm:num_requests_waiting" in metrics and "vllm:cache_config_info" in metrics
        if topic := variables.get("AKUNU_KV_EVENTS_TOPIC"):
            assert re.fullmatch(r"kv@\$\(POD_IP\)@\w+", topic)
            model = json.loads(request(url + "/v1/models")[1])["data"][1]["id"]
            assert model == topic.rsplit("@", 1)[1] == variables["AKUNU_ALIAS"]
        ended = []

        def stream():
            body = {"prompt": "Once upon a time", "max_tokens": 10_000, "stream": True, "ignore_eos": True}
            status, text = request(url + "/v1/completions", body, key)
            ended.append((status, text.rstrip().endswith("data: [DONE]")))

        thread = threading.Thread(target=stream)
        thread.start()
        until("running", lambda: "vllm:num_requests_running" in (text := request(url + "/metrics", headers=key)[1])
              and not re.search(r"^vllm:num_requests_running\{.*\} 0$", text, re.M))
        began = time.monotonic()
        server.child.terminate()
        thread.join()
        assert ended == [(200, True)], ended
        assert server.child.wait(60) == 0
        if "terminationGracePeriodSeconds" in pod:
            hook = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
            grace = pod["terminationGracePeriodSeconds"]
            assert time.monotonic() - began < grace
            # A request that takes as long as it may still ends in time.
            assert int(variables["AKUNU_DRAIN"]) + hook + 5 <= grace
            # Otherwise a service of this name would break the program.
            assert pod["enableServiceLinks"] is False


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    (folder / "etc/akunu").mkdir(parents=True)
    (folder / "etc/akunu/keys").write_text("sesame\n")
    (folder / "mnt/models").mkdir(parents=True)
    shutil.copy(os.environ["AKUNU_CALLER"], folder / "mnt/models/model.gguf")
    for manifest in ("deployment.yaml", "kserve.yaml", "llm-d.yaml"):
        for document in documents(manifest):
            validate(document)
            if pod_of(document):
                works(manifest.removesuffix(".yaml"), document, folder)
    broken = documents("deployment.yaml")[2]
    broken["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    try:
        validate(broken)
    except Exception:
        pass
    else:
        raise AssertionError("the schema takes anything")
