#!/bin/sh
# The steps of docs/first-hour.md after the build, each with its time: sh first-hour.sh AKUNU MODEL.gguf EMBEDDER
# AKUNU is the program, MODEL.gguf a model that generates text, EMBEDDER a folder with an embedding model.
set -eu
akunu=$1 model=$2 embedder=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"; [ -z "${server:-}" ] || kill "$server" 2>/dev/null || true' EXIT
server=''

# Runs a command, and prints the first lines of what it says, and how long it took.
step() {
    printf '\n$ %s\n' "$(printf '%s' "$*" | head -n 1)"
    start=$(date +%s%N)
    "$@" >"$folder/said" 2>&1 || { cat "$folder/said"; exit 1; }
    end=$(date +%s%N)
    head -n "${lines:-8}" "$folder/said" | cut -c 1-110
    printf '(%d lines, %d ms)\n' "$(wc -l <"$folder/said")" $(((end - start) / 1000000))
}

step "$akunu" version
step "$akunu" run "Once upon a time" --seed 3 -n 40
lines=30 step "$akunu" doctor
step "$akunu" inspect "$model"
lines=25 step "$akunu" plan "$model"
step "$akunu" run "$model" "Once upon a time" -n 40 --temp 0
step "$akunu" chat -p "Tell me a story about a fox" --seed 3
"$akunu" serve --port 8090 2>"$folder/log" &
server=$!
while ! grep -q 'http://' "$folder/log"; do sleep 0.1; done
cat "$folder/log"
if command -v curl >/dev/null; then
    step curl -s http://127.0.0.1:8090/v1/chat/completions --json \
        '{"messages": [{"role": "user", "content": "Hello"}], "seed": 1}'
fi
# A client: OpenAI's package for Python, where it is installed.
if python3 -c 'import openai' 2>/dev/null; then
    step python3 -c '
from openai import OpenAI
client = OpenAI(base_url="http://127.0.0.1:8090/v1", api_key="none")
print([model.id for model in client.models.list()])
messages = [{"role": "user", "content": "Tell me a story about a fox"}]
for piece in client.chat.completions.create(model="akunu-tales", messages=messages, seed=1, stream=True):
    print(piece.choices[0].delta.content or "" if piece.choices else "", end="")
print()'
fi
step "$akunu" bench-serve http://127.0.0.1:8090 --streams 4 -n 40
kill "$server"
wait "$server" || true
server=''
step "$akunu" embed "$embedder" "a fox" "a house"
lines=30 step "$akunu" profile --html "$folder/profile.html"
wc -c "$folder/profile.html" | sed "s|$folder/||"
step "$akunu" bench -p 128 -n 64 -r 3
lines=3 step "$akunu" verify
step "$akunu" completions bash
