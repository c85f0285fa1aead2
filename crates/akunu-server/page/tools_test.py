"""Calls of tools: asked for, run, refused, and what goes wrong."""

import json
import threading

from browser import ENTER, ESCAPE
from case import ANSWER, Case
from fake import Refusal

CALL = ".turn.assistant .call"
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"


def tool(name, description="Says the time."):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {"type": "object"}}, "server": "small"}


def calling(*calls):
    """Deltas of calls: their arguments come in pieces."""
    for index, (name, text) in enumerate(calls):
        half = len(text) // 2
        yield {"tool_calls": [{"index": index, "id": f"call{index}", "type": "function", "function": {"name": name, "arguments": text[:half]}}]}
        yield {"tool_calls": [{"index": index, "function": {"arguments": text[half:]}}]}


class Tools(Case):
    def setUp(self):
        super().setUp()
        self.fake.tools = [tool("clock"), tool("add", HOSTILE)]
        self.fake.call = lambda body: {"content": f"Noon in {body['arguments']['zone']}.", "is_error": False}
        self.fake.reply = self.reply([("clock", '{"zone": "UTC"}')])
        self.load()
        self.browser.wait("the tools", "tools.length === 2")

    def reply(self, calls):
        """Calls until there is a result."""
        return lambda body: iter(["It is noon."]) if body["messages"][-1]["role"] == "tool" else calling(*calls)

    def asked(self, text="Time?"):
        self.browser.type("#prompt", text + ENTER)
        self.question()

    def question(self):
        self.browser.wait("the question", "document.querySelector('#call').open")

    def press(self, name):
        self.browser.wait("a button that can be pressed", f"!document.querySelector('#call-{name}').disabled")
        self.browser.click(f"#call-{name}")

    def answers(self, text="It is noon."):
        self.ended()
        self.assertEqual(self.shown(), text)

    def test_a_call_is_asked_for_run_and_answered(self):
        self.asked()
        self.assertEqual([self.browser.text(f"#call-{part}") for part in ["name", "server"]], ["clock", "small"])
        self.assertEqual(json.loads(self.browser.text("#call-arguments")), {"zone": "UTC"})
        self.assertEqual((self.fake.calls, self.browser.run("return document.activeElement.id")), ([], "call-deny"))
        self.shot("call")
        self.press("once")
        self.answers()
        self.assertEqual(self.fake.calls, [{"name": "clock", "arguments": {"zone": "UTC"}}])
        first, second = self.fake.bodies
        self.assertEqual([tool["function"]["name"] for tool in first["tools"]], ["clock", "add"])
        self.assertNotIn("server", first["tools"][0])
        call = {"id": "call0", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}
        expected = [{"role": "user", "content": "Time?"}, {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "call0", "content": "Noon in UTC."}]
        self.assertEqual(second["messages"], expected)
        self.assertEqual(self.browser.texts(f"{CALL} summary"), ["clock · done"])
        self.browser.click(f"{CALL} summary")
        self.assertEqual(self.browser.texts(f"{CALL} pre"), ['{"zone": "UTC"}', "Noon in UTC."])
        # It is kept, and so it is in files; what was allowed is not.
        self.load()
        self.browser.wait("the tools", "tools.length === 2")
        self.assertEqual(self.browser.texts(f"{CALL} summary"), ["clock · done"])
        self.assertIn("Call of clock:\n```\n{\"zone\": \"UTC\"}\n```\n\nResult:\n```\nNoon in UTC.\n```", self.browser.run("return asMarkdown(talk)"))
        self.asked("Again?")
        self.assertEqual(self.fake.bodies[-1]["messages"][:4], [*expected, {"role": "assistant", "content": "It is noon."}])
        self.press("deny")
        self.answers()
        self.assertEqual(self.fake.bodies[-1]["messages"][-1]["content"], "The user refused this call.")
        self.assertEqual((len(self.fake.calls), self.browser.texts(f"{CALL} summary")), (1, ["clock · done", "clock · refused"]))

    def test_only_what_is_allowed_is_run(self):
        self.fake.reply = self.reply([("clock", '{"zone": "A"}'), ("clock", '{"zone": "B"}'), ("add", '{"zone": "C"}')])
        self.asked()
        self.press("always")
        # The second call of the tool is run unasked, another tool's is not.
        self.browser.wait("the other tool's question", "document.querySelector('#call').open && document.querySelector('#call-name').innerText === 'add'")
        self.assertEqual([call["arguments"]["zone"] for call in self.fake.calls], ["A", "B"])
        self.assertTrue(self.browser.run("return document.querySelector('#call-once').disabled"), "keys that were meant for something else")
        self.browser.press(ESCAPE)
        self.answers()
        self.assertEqual(len(self.fake.calls), 2)
        # In another conversation it is asked again.
        self.browser.click("#new")
        self.asked()
        self.assertEqual(self.browser.text("#call-name"), "clock")
        for _ in range(3):
            self.question()
            self.browser.press(ENTER)  # on the button that denies
            self.browser.wait("the next", "!document.querySelector('#call').open || !document.querySelector('#call-once').disabled || document.querySelector('#call-name').innerText")
        self.browser.wait("the end", lambda: not self.browser.run("return document.querySelector('#call').open") or self.browser.press(ESCAPE))
        self.answers()
        self.assertEqual(len(self.fake.calls), 2)

    def test_tools_are_turned_off(self):
        self.browser.click("#open")
        self.assertEqual(self.browser.texts("#tool-list b"), ["clock", "add"])
        self.assertEqual(self.browser.run("return document.title"), "Akunu")
        self.shot("tools")
        self.browser.run("document.querySelectorAll('#tool-list input')[0].click()")
        self.browser.click("#settings .main")
        self.load()
        self.browser.wait("the tools", "tools.length === 2")
        # A call of it is not run, although the model knows of it.
        self.say("Time?")
        self.assertEqual([tool["function"]["name"] for tool in self.fake.bodies[0]["tools"]], ["add"])
        self.assertEqual((self.fake.calls, self.fake.bodies[-1]["messages"][-1]["content"]), ([], "There is no tool named clock."))
        self.browser.run("document.querySelectorAll('#tool-list input')[1].click()")
        self.say("And now?")
        self.assertNotIn("tools", self.fake.bodies[-1])

    def test_hostile_names_arguments_and_results_are_text(self):
        trick = {"zone": HOSTILE, "path": "/home/\u202etxt.exe\u200b", "\u2066k": 1}
        self.fake.reply = self.reply([("clock", json.dumps(trick))])
        self.fake.call = lambda body: {"content": HOSTILE + "`" * 3 + " `" * 200000, "is_error": False}
        self.asked()
        shown = self.browser.text("#call-arguments")
        self.assertEqual(json.loads(shown), trick)
        self.assertTrue(shown.isascii(), shown)
        self.press("once")
        self.answers()
        self.assertEqual(self.fake.calls[0]["arguments"], trick)
        self.browser.run("document.querySelectorAll('.call').forEach(call => call.open = true); return asMarkdown(talk).length")
        inside = self.browser.run("return [...document.querySelectorAll('.turn *, #call *')].map(e => e.localName)")
        self.assertFalse({"img", "script"} & set(inside))
        self.assertEqual(self.browser.run("return document.title"), "Akunu")

    def test_what_goes_wrong_is_said(self):
        def dead(body):
            raise Refusal(502, "the MCP server small has ended")

        self.fake.call = dead
        self.asked()
        self.press("once")
        self.ended()
        self.assertIn("the MCP server small has ended", self.browser.text(f"{ANSWER} .problem"))
        self.assertEqual(self.browser.texts(f"{CALL} summary"), ["clock · not run"])
        self.fake.call = lambda body: {"content": "No such zone.", "is_error": True}
        self.browser.run(f"[...document.querySelectorAll('{ANSWER} .foot button')].find(b => b.innerText === 'Regenerate').click()")
        self.question()
        self.press("once")
        self.answers()
        self.assertEqual(self.fake.bodies[-1]["messages"][-1]["content"], "Error: No such zone.")
        for name, text, why in [("none", "{}", "There is no tool named none."), ("clock", "[1]", "The arguments are not a JSON object."), ("clock", '{"zone"', "The arguments are not a JSON object.")]:
            self.fake.reply = self.reply([(name, text)])
            self.say("More")
            self.browser.wait("the answer", f"document.querySelector('{ANSWER} > .text').innerText === 'It is noon.'")
            self.assertEqual(self.fake.bodies[-1]["messages"][-1]["content"], why)
        # A model that calls without end.
        self.fake.reply = lambda body: calling(("none", "{}"))
        self.say("Loop")
        self.browser.wait("the end", f"document.querySelector('{ANSWER} .problem')?.innerText.includes('at most 32 rounds')")
        self.ended()

    def test_a_call_is_stopped(self):
        release = threading.Event()

        def slow(body):
            release.wait(30)
            return {"content": "late", "is_error": False}

        self.fake.call = slow
        self.asked()
        self.press("once")
        self.browser.wait("the call", lambda: len(self.fake.calls) == 1)
        self.browser.click("#send")
        self.ended()
        release.set()
        self.assertRegex(self.browser.text(f"{ANSWER} .numbers"), "stopped$")
        self.assertEqual(len(self.fake.bodies), 1)
        self.fake.reply = lambda body: iter(["Fine."])
        self.say("Never mind")
        self.assertEqual(self.fake.bodies[-1]["messages"][2], {"role": "tool", "tool_call_id": "call0", "content": "The call was not run."})

    def test_files_with_calls_are_checked(self):
        kept = self.browser.run("return conversation([{role: 'user', content: ''}, {role: 'assistant', content: '', calls: [{id: 'a', name: 'b', arguments: '{}', state: 'constructor', result: 'r', more: 1}]}]).turns[1].calls")
        self.assertEqual(kept[0] | {"state": None}, {"id": "a", "name": "b", "arguments": "{}", "result": "r", "state": None})
        saved = [{"role": "user", "content": "Time?"}, {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "clock", "arguments": {"zone": "UTC"}}}]}, {"role": "tool", "tool_call_id": "a", "content": "Noon."}, {"role": "assistant", "content": "Noon."}]
        turns = self.browser.run("return conversation({messages: arguments[0]}).turns", saved)
        self.assertEqual(turns[1], {"role": "assistant", "content": "", "calls": [{"id": "a", "name": "clock", "arguments": '{"zone":"UTC"}', "state": "done", "result": "Noon."}]})
        self.assertEqual([turn["role"] for turn in turns], ["user", "assistant", "assistant"])
        for calls in ["7", "[{}]", "[null]", "[{id: 'a', name: 'b', arguments: {}}]"]:
            problem = self.browser.run(f"try {{ conversation([{{role: 'assistant', content: '', calls: {calls}}}]); return '' }} catch (error) {{ return error.message }}")
            self.assertIn("message 1 has", problem, calls)
