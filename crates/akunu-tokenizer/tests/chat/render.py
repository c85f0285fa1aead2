"""Goldens of the real chat templates, by transformers' own renderer.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install transformers jinja2
    /tmp/venv/bin/python render.py FOLDER_OF_TEMPLATES [--full] > goldens.json

Writes, for each template and each conversation of conversations.json, what transformers made of it: LENGTH:HASH of the
text (FNV-1a, 64 bits; --full writes the text itself), or "error: …". The templates are not ours, and neither they nor
what they say are copied. Where transformers' sandbox forbids what a template does to a list ("append"), the same
environment without that rule renders it, marked with "mutable ".
"""

import datetime
import json
import pathlib
import sys

import jinja2
import transformers
import transformers.utils.chat_template_utils as utils
from jinja2.sandbox import SandboxedEnvironment

HERE = pathlib.Path(__file__).parent


class Clock(datetime.datetime):
    """2024-07-26 12:34:56, for good."""

    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26, 12, 34, 56)


utils.datetime = Clock


def render(source, case, bos, eos):
    arguments = dict(case.get("extra", {}), bos_token=bos, eos_token=eos)
    rendered = utils.render_jinja_template(
        conversations=[case["messages"]],
        tools=case.get("tools"),
        chat_template=source,
        add_generation_prompt=case["add_generation_prompt"],
        **arguments,
    )
    return (rendered[0] if isinstance(rendered, tuple) else rendered)[0]


def render_mutable(source, case, bos, eos):
    compiled = utils._cached_compile_jinja_template
    original = jinja2.sandbox.ImmutableSandboxedEnvironment
    jinja2.sandbox.ImmutableSandboxedEnvironment = SandboxedEnvironment
    utils.ImmutableSandboxedEnvironment = SandboxedEnvironment
    utils._compile_jinja_template.cache_clear()
    try:
        return render(source, case, bos, eos)
    finally:
        jinja2.sandbox.ImmutableSandboxedEnvironment = original
        utils.ImmutableSandboxedEnvironment = original
        utils._compile_jinja_template.cache_clear()


def fnv1a(data):
    digest = 0xCBF29CE484222325
    for byte in data:
        digest = (digest ^ byte) * 0x100000001B3 % 2**64
    return digest


def shown(text):
    if "--full" in sys.argv:
        return "text: " + text
    data = text.encode()
    return f"{len(data)}:{fnv1a(data):016x}"


def outcome(source, case):
    try:
        return shown(render(source, case, "<s>", "</s>"))
    except Exception as error:
        failed = f"error: {type(error).__name__}: {error}"
        if "is unsafe" not in str(error):
            return failed
    try:
        return "mutable " + shown(render_mutable(source, case, "<s>", "</s>"))
    except Exception as error:
        return f"error: {type(error).__name__}: {error}"


def main():
    cases = json.loads((HERE / "conversations.json").read_text())
    folder, templates = pathlib.Path(sys.argv[1]), {}
    for path in sorted(folder.rglob("*.jinja")):
        source = path.read_text()
        templates[path.relative_to(folder).as_posix()] = {name: outcome(source, case) for name, case in cases.items()}
    versions = {"transformers": transformers.__version__, "jinja2": jinja2.__version__}
    json.dump({"versions": versions, "templates": templates}, sys.stdout, ensure_ascii=False, indent=0)
    print()


main()
