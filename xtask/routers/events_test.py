"""A subscriber with ZeroMQ's own library: it knows which blocks a server's cache has, and what it has missed."""

import msgpack
import zmq

from fleet import MODEL, Server, request, until


def apply(index, payload):
    time, events, rank = msgpack.unpackb(payload)
    assert time > 1e9 and rank == 0
    for kind, *rest in events:
        if kind == "BlockStored":
            hashes, parent, tokens, size, lora, medium, name = rest
            assert (lora, medium, name) == (None, "GPU", None) and len(tokens) == size * len(hashes)
            for at, block in enumerate(hashes):
                assert parent is None or parent in index
                index[block] = (parent, tuple(tokens[at * size:(at + 1) * size]))
                parent = block
        elif kind == "BlockRemoved":
            for block in rest[0]:
                del index[block]
        else:
            assert (kind, rest) == ("AllBlocksCleared", [])
            index.clear()


def received(socket):
    assert socket.poll(30_000), "no message"
    return socket.recv_multipart()


with Server("pod", PARALLEL=2, CONTEXT=512, KV_EVENTS_TOPIC="kv@pod@{model}") as server:
    context = zmq.Context()
    subscriber = context.socket(zmq.SUB)
    subscriber.setsockopt(zmq.HEARTBEAT_IVL, 200)
    subscriber.connect(f"tcp://127.0.0.1:{server.events}")
    subscriber.setsockopt(zmq.SUBSCRIBE, b"kv@")
    until("subscribed", lambda: server.metric("akunu_kv_event_subscribers") == 1)
    for number in range(20):
        prompt = f"The story number {number}. " * 25
        assert request(f"{server.url}/v1/completions", {"prompt": prompt, "max_tokens": 4})[0] == 200
    batches = int(server.metric("akunu_kv_event_batches_total"))
    live = []
    while not live or int.from_bytes(live[-1][1], "big") < batches - 1:
        topic, number, payload = received(subscriber)
        assert topic == f"kv@pod@{MODEL}".encode()
        live.append((topic, number, payload))

    # What was published before we subscribed.
    replay = context.socket(zmq.DEALER)
    replay.connect(f"tcp://127.0.0.1:{server.replay}")
    replay.send_multipart([b"", (0).to_bytes(8, "big")])
    index, numbers = {}, []
    while True:
        empty, number, payload = received(replay)
        assert empty == b""
        if number == b"\xff" * 8:
            break
        numbers.append(int.from_bytes(number, "big"))
        apply(index, payload)
    assert numbers == list(range(batches)), numbers
    assert [(number, payload) for _, number, payload in live] == [
        (at.to_bytes(8, "big"), payload) for at, (_, _, payload) in zip(numbers[-len(live):], live)
    ]
    assert len(index) == server.metric("akunu_kv_known_blocks") > 2
    assert request(f"{server.url}/flush_cache", {})[0] == 200
    apply(index, received(subscriber)[2])
    assert index == {}
    # A client that asks by REQ gets the first of what it missed.
    asking = context.socket(zmq.REQ)
    asking.connect(f"tcp://127.0.0.1:{server.replay}")
    asking.send((batches - 1).to_bytes(8, "big"))
    number, payload = received(asking)
    assert int.from_bytes(number, "big") == batches - 1
    context.destroy(linger=0)
