"""A fake server with scripted replies, which also serves the page."""

import contextlib
import json
import re
import threading
import time
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER = Path(__file__).parent
LIST = FOLDER.with_name("src") / "page.rs"


def page():
    """The page as the server has it: the files that it lists, one after the other."""
    names = re.findall(r'include_str!\("\.\./page/([^"]+)"\)', LIST.read_text())
    return b"".join((FOLDER / name).read_bytes() for name in names)


class Refusal(Exception):
    def __init__(self, status, message, code=None):
        super().__init__(message)
        self.status, self.error = status, {"message": message, "code": code, "type": "invalid_request_error"}


class Fake:
    """`reply(body)` yields deltas for chat, texts for completions; `call(body)` returns a tool's result; both may raise a Refusal."""

    def __init__(self):
        self.reset()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                if not fake.gone:
                    fake.answer_get(self)

            def do_POST(self):
                if not fake.gone:
                    fake.answer_post(self)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def reset(self):
        self.reply = lambda body: iter(["Hello", " there", "!"])
        self.models, self.key = ["talker", "teller"], None
        self.listeners, self.embedders = [], []
        self.tools, self.call = [], lambda body: {"content": "done", "is_error": False}
        self.timings = None  # of the last chunk, beside the usage
        self.breaks = False  # answers end before their announced length, and the server is gone
        self.gone = False  # connections are closed without an answer
        self.paths, self.bodies, self.calls, self.keys = [], [], [], []
        self.hung_up = threading.Event()

    def send(self, handler, status, body, kind="application/json"):
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def refuse(self, handler, refusal):
        self.send(handler, refusal.status, json.dumps({"error": refusal.error}).encode())

    def locked(self, handler):
        key = handler.headers.get("Authorization")
        self.keys.append(key)
        if self.key and key != f"Bearer {self.key}":
            self.refuse(handler, Refusal(401, "a key is needed", "invalid_api_key"))
            return True
        return False

    def answer_get(self, handler):
        self.paths.append(handler.path)
        if handler.path == "/":
            self.send(handler, 200, page(), "text/html; charset=utf-8")
        elif handler.path == "/v1/models" and not self.locked(handler):
            models = [{"id": name, "object": "model", "capabilities": ["completion"], "context_length": 4096} for name in self.models]
            models += [{"id": name, "object": "model", "capabilities": ["embedding"]} for name in self.embedders]
            models += [{"id": name, "object": "model", "capabilities": ["transcription"]} for name in self.listeners]
            self.send(handler, 200, json.dumps({"object": "list", "data": models}).encode())
        elif handler.path == "/mcp/tools" and not self.locked(handler):
            self.send(handler, 200, json.dumps({"tools": self.tools}).encode())
        elif handler.path == "/health":
            self.send(handler, 200, b"{}")
        elif handler.path not in ["/v1/models", "/mcp/tools"]:
            self.send(handler, 404, b"{}")

    def answer_post(self, handler):
        self.paths.append(handler.path)
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        hears = handler.path == "/v1/audio/transcriptions"
        body = self.form(handler.headers["Content-Type"], body) if hears else json.loads(body)
        is_call = handler.path == "/mcp/call"
        (self.calls if is_call else self.bodies).append(body)
        if self.locked(handler):
            return
        try:
            reply = self.call(body) if is_call else self.reply(body)
        except Refusal as refusal:
            return self.refuse(handler, refusal)
        if is_call:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.send(handler, 200, json.dumps(reply).encode())
            return
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        if self.breaks:
            handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        try:
            if hears:
                self.transcript(handler.wfile, reply)
            else:
                self.stream(handler.wfile, reply, handler.path.endswith("/chat/completions"))
        except (BrokenPipeError, ConnectionResetError):
            self.hung_up.set()

    def form(self, kind, body):
        """The fields of a form by name; a file as its name and content."""
        fields = {}
        for part in BytesParser().parsebytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + body).get_payload():
            content, name = part.get_payload(decode=True), part.get_param("name", header="content-disposition")
            fields[name] = (part.get_filename(), content) if part.get_filename() else content.decode()
        return fields

    def transcript(self, out, reply):
        text = ""
        for piece in reply:
            text += piece
            out.write(f"data: {json.dumps({'type': 'transcript.text.delta', 'delta': piece})}\n\n".encode())
            out.flush()
        out.write(f"data: {json.dumps({'type': 'transcript.text.done', 'text': text})}\n\n".encode())

    def stream(self, out, reply, chat):
        def event(data):
            out.write(f"data: {data}\n\n".encode())
            out.flush()

        def choice(**more):
            event(json.dumps({"choices": [{"index": 0, **more}]}))

        count = 0
        self.gone = self.breaks
        for piece in reply:
            count += 1
            if piece is None:  # the connection ends before the answer does
                return
            if chat:
                choice(delta=piece if isinstance(piece, dict) else {"content": piece})
            else:
                choice(text=piece)
        choice(finish_reason="length" if count > 90 else "stop", **({"delta": {}} if chat else {"text": ""}))
        more = {"timings": self.timings} if self.timings else {}
        event(json.dumps({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": count}, **more}))
        event("[DONE]")


def slowly(*pieces):
    """A delay, so that the page receives them one by one."""
    for piece in pieces:
        yield piece
        time.sleep(0.05)


def endless():
    while True:
        yield "tick "
        time.sleep(0.01)
