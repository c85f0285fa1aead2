"""Routers of vLLM and SGLang before two servers: traffic spreads, prefixes find their server, a server that is killed is
routed around, and one that is stopped loses nothing."""

import json
import threading
import time

from fleet import MODEL, Router, Server, counts, get, more, request, until

STORY = "Tell me of the little dog who lived by the sea with number {}. " * 12


def spreads(router, servers):
    before = counts(servers)
    for index in range(8):
        status, text = router.complete(f"Story {index}")
        assert status == 200 and json.loads(text)["choices"][0]["text"], text
    assert min(more(servers, before)) >= 2, more(servers, before)


def has_affinity(router, servers):
    """Prompts that begin alike go to one server, where most of them is cached."""
    for number in range(3):
        prompt = STORY.replace("{}", str(number))
        assert router.complete(prompt)[0] == 200
        for turn in range(3):
            before = counts(servers)
            status, text = router.complete(f"{prompt} Part {turn}.")
            cached = json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert status == 200 and cached >= 64, text
            assert sorted(more(servers, before)) == [0, 1]


def routes_around(router, killed):
    killed.child.kill()
    killed.child.wait()
    # A router may need failed requests, or failed health checks, to notice.
    until("noticed", lambda: all(router.complete(f"After the end {index}")[0] == 200 for index in range(4)))
    statuses = [router.complete(f"Long after {index}")[0] for index in range(6)]
    assert statuses == [200] * 6, statuses


def drains(router, servers, stopped):
    """Streams of a server that is stopped go on to their ends, and new requests go to the other one."""
    ended = []

    def stream(index):
        status, text = router.complete(f"Long {index}", 400, stream=True, ignore_eos=True)
        ended.append((status, text.rstrip().endswith("data: [DONE]")))

    threads = [threading.Thread(target=stream, args=(index,)) for index in range(6)]
    [thread.start() for thread in threads]
    until("running", lambda: all(server.metric("vllm:num_requests_running") > 0 for server in servers))
    stopped.stop()
    statuses = [router.complete(f"Meanwhile {index}")[0] for index in range(4)]
    [thread.join() for thread in threads]
    assert statuses == [200] * 4 and ended == [(200, True)] * 6, (statuses, ended)
    assert stopped.child.wait(30) == 0


def vllm_by_events():
    """vLLM's router subscribes to events of the caches, and asks which tokens a request has. It finds a prefix that a
    server has, although no request of it went through the router."""
    with Server("pod-1", KV_EVENTS_FORM="map") as first, Server("pod-2", KV_EVENTS_FORM="map") as second:
        servers = [first, second]
        options = []
        for server in servers:
            options += ["--kv-event-source", f"{server.url}=tcp://127.0.0.1:{server.events}"]
            options += ["--kv-event-replay-source", f"{server.url}=tcp://127.0.0.1:{server.replay}"]
        options += ["--kv-event-block-size", "64", "--kv-event-model", MODEL]
        with Router("vllm-router", servers, "kv_aware", *options) as router:
            for server in servers:
                until("subscribed", lambda: server.metric("akunu_kv_event_subscribers") == 1)
            for number, server in [(1, first), (2, second), (3, second), (4, first)]:
                prompt = STORY.replace("{}", str(number))
                body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
                assert request(f"{server.url}/v1/completions", body)[0] == 200
                time.sleep(0.5)  # The router says nowhere what it has read.
                before = server.answered()
                status, text = router.complete(f"{prompt} And then", 1)
                assert status == 200 and server.answered() == before + 1, (number, text)
                assert json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64, text


def router_of(package):
    with Server("one") as one, Server("two") as two:
        servers = [one, two]
        with Router(package, servers, "round_robin") as router:
            spreads(router, servers)
            info = json.loads(get(f"{router.url}/v1/models"))
            assert MODEL in json.dumps(info), info
            if package == "sglang-router":
                # vLLM's router expects an answer that neither vLLM nor SGLang gives.
                loads = json.loads(get(f"{router.url}/get_loads"))
                assert [worker["load"] for worker in loads["workers"]] == [0, 0], loads
            status, text = request(f"{router.url}/flush_cache", {})
            assert status == 200, text
            drains(router, servers, two)
    with Server("three") as one, Server("four") as two:
        servers = [one, two]
        with Router(package, servers, "cache_aware") as router:
            has_affinity(router, servers)
            routes_around(router, two)


router_of("vllm-router")
router_of("sglang-router")
vllm_by_events()
