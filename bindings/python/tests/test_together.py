"""Many requests at once, from threads and tasks; signals; the interpreter's lock."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import akunu

GREEDY = {"temperature": 0, "max_tokens": 24}
PROMPTS = [f"The story number {number} is about" for number in range(8)]


@pytest.fixture(scope="module")
def alone(model):
    return [model.generate(prompt, **GREEDY).text for prompt in PROMPTS]


def test_threads(model, alone):
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda prompt: model.generate(prompt, **GREEDY).text, PROMPTS)) == alone


def test_tasks(model, alone):
    async def stream(prompt):
        return "".join([piece async for piece in model.stream(prompt, **GREEDY)])

    async def both():
        whole = await asyncio.gather(*(model.agenerate(prompt, **GREEDY) for prompt in PROMPTS))
        streamed = await asyncio.gather(*(stream(prompt) for prompt in PROMPTS))
        reply = await model.achat("Hello", max_tokens=4)
        assert reply.content is not None
        with pytest.raises(akunu.InvalidRequest, match="top_p"):
            await model.agenerate("Once", top_p=9)
        return [answer.text for answer in whole], streamed

    assert asyncio.run(both()) == (alone, alone)


def test_a_cancelled_task_ends_its_request(model):
    async def cancelled():
        task = asyncio.create_task(model.agenerate("Once", max_tokens=400, ignore_eos=True))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with model.stream("Once", max_tokens=400, ignore_eos=True) as stream:
            async for _ in stream:
                break

    asyncio.run(cancelled())
    assert model.generate("Once", max_tokens=1).text is not None


def test_other_threads_run_while_a_text_is_generated(model):
    counted, stop = 0, threading.Event()

    def count():
        nonlocal counted
        while not stop.is_set():
            counted += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    model.generate("Once upon a time", max_tokens=300, ignore_eos=True)
    stop.set()
    thread.join()
    assert counted > 5


def test_a_model_that_is_closed_ends_its_requests_with_an_error():
    loaded = akunu.Model(threads=1, device="cpu", context=100_000)
    stream = loaded.stream("Once", max_tokens=90_000, ignore_eos=True)
    assert next(stream)
    errors = []

    def generate():
        with pytest.raises(RuntimeError, match="closed") as error:
            loaded.generate("Once", max_tokens=90_000, ignore_eos=True)
        errors.append(error)

    thread = threading.Thread(target=generate)
    thread.start()
    time.sleep(0.2)
    loaded.close()
    thread.join()
    assert len(errors) == 1
    with pytest.raises(RuntimeError, match="closed"):
        list(stream)


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_ends_a_generation():
    program = textwrap.dedent("""
        import signal
        import akunu
        # A process in the background of a shell inherits that it ignores the signal.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with akunu.Model(threads=1, context=100_000, device="cpu") as model:
            print("ready", flush=True)
            try:
                model.generate("Once", max_tokens=90_000, ignore_eos=True)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            print(len(model.generate("Once", max_tokens=2, ignore_eos=True).text) > 0)
    """)
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    try:
        rest, _ = child.communicate(timeout=60)
    finally:
        child.kill()
    assert rest == "interrupted\nTrue\n" and child.returncode == 0
