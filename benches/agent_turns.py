#!/usr/bin/env python3
"""How many tokens of a coding agent's prompt are computed in each of its turns, over Anthropic's protocol.

    akunu serve MODEL.gguf --device cuda -c 100000 --port 8080
    python3 benches/agent_turns.py http://127.0.0.1:8080 --words 54000

The model needs a chat template; its answers do not matter. As Claude Code does, each request has another billing header
before its system prompt, followed by the date, which is another one in the last turn. `akunu serve --stable-prompts off`
shows what that costs where both are kept.
"""
import argparse
import json
import random
import time
import urllib.request

WORDS = "the of and to in is that it was for on are as with his they at be this from have or by one had not but what all were".split()
TURNS = 4


def text(count):
    return " ".join(random.choices(WORDS, k=count))


def tool(number):
    path = {"type": "string", "description": text(10)}
    schema = {"type": "object", "properties": {"path": path}, "required": ["path"]}
    return {"name": f"tool_{number}", "description": text(60), "input_schema": schema}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--words", type=int, default=54000, help="words of the system prompt")
    options = parser.parse_args()
    random.seed(1)
    prompt, tools = "You are a coding agent.\n" + text(options.words), [tool(number) for number in range(20)]
    messages = [{"role": "user", "content": text(300)}]
    with urllib.request.urlopen(options.url + "/v1/models") as response:
        model = json.load(response)["data"][0]["id"]
    for turn in range(1, TURNS + 1):
        header = f"x-anthropic-billing-header: cc_version=2.1.{turn}; cch={random.getrandbits(40):x};"
        date = f"Today's date: 2026-11-{28 + turn // TURNS}"
        system = [{"type": "text", "text": part} for part in (header, date, prompt)]
        body = {"model": model, "max_tokens": 60, "system": system, "messages": messages, "tools": tools}
        headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
        request = urllib.request.Request(options.url + "/v1/messages", json.dumps(body).encode(), headers)
        start = time.time()
        with urllib.request.urlopen(request) as response:
            answer = json.load(response)
        seconds, usage = time.time() - start, answer["usage"]
        computed = usage["input_tokens"]
        total = computed + usage["cache_read_input_tokens"]
        print(f"turn {turn}: prompt {total}, computed {computed} ({computed / total:.2%}), {seconds:.2f} s", flush=True)
        said = [block for block in answer["content"] if block["type"] == "text"]
        messages += [
            {"role": "assistant", "content": said or "ok"},
            {"role": "user", "content": text(150)},
        ]


if __name__ == "__main__":
    main()
