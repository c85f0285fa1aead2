"""Answers: as they come, as they look, and what goes wrong."""

import json
import re
import threading
from pathlib import Path

from browser import ENTER, ESCAPE, SHIFT
from case import ANSWER, MARKDOWN, Case
from fake import Refusal, endless, slowly

HOSTILE = """<img src=x onerror="document.title='taken'"> <script>document.title='taken'</script>

[click](javascript:document.title='taken') [data](data:text/html,hello) **<b>bold</b>**

```<svg/onload=document.title='taken'>
</code></pre><script>document.title='taken'</script>
```
"""


class Chat(Case):
    def test_an_answer_streams_and_is_counted(self):
        self.fake.reply = lambda body: slowly("Hello", " there", "!")
        self.say("Hi")
        self.assertEqual(self.shown(), "Hello there!")
        self.assertEqual(self.browser.texts(".turn.user .text"), ["Hi"])
        # A burst of tokens says nothing about the rate: without the server's there is none.
        self.assertRegex(self.browser.text(f"{ANSWER} .numbers"), r"^3 tokens · first after [\d.]+ s$")
        self.assertEqual(self.browser.run("return [document.querySelector('#prompt').value, document.activeElement.id]"), ["", "prompt"])
        self.assertEqual(self.fake.bodies[-1]["messages"], [{"role": "user", "content": "Hi"}])
        self.assertEqual((self.fake.bodies[-1]["model"], self.fake.bodies[-1]["stream"]), ("talker", True))
        self.fake.timings = {"predicted_n": 3, "predicted_ms": 48.0, "predicted_per_second": 41.666}
        self.say("And now?")
        self.assertRegex(self.browser.text(f"{ANSWER} .numbers"), r"^3 tokens · 41\.7 tokens/s · first after [\d.]+ s$")
        roles = [message["role"] for message in self.fake.bodies[-1]["messages"]]
        self.assertEqual(roles, ["user", "assistant", "user"])
        # It is still there after the page is reloaded.
        self.load()
        self.assertEqual(len(self.browser.find_all(".turn")), 4)

    def test_a_model_s_markup_is_text(self):
        self.fake.reply = lambda body: iter([HOSTILE[i : i + 5] for i in range(0, len(HOSTILE), 5)])
        self.say("Do your worst")
        self.assertEqual(self.browser.run("return document.title"), "Akunu")
        inside = self.browser.run("return [...document.querySelectorAll('.turn *')].map(e => e.localName)")
        self.assertFalse({"img", "script", "svg", "b", "a"} & set(inside), inside)
        self.assertIn("<img src=x", self.shown())
        self.assertIn("[click](javascript:", self.shown())
        self.fake.reply = lambda body: iter([">" * 20000 + "deep", "\n\n" + "[" * 20000, "*" * 20000 + "`" * 20001])
        self.say("Deep")
        self.assertIn("deep", self.shown())
        sources = ["$" * 20001, "\\[" * 5000, "$$" + "{" * 5000 + "}" * 5000 + "$$", "$$" + "\\frac" * 900 + "$$", "$$" + "x^" * 900 + "$$", "```js\n" + "/*'\"`" * 9000, "```xml\n" + "<!--" * 9000]
        self.fake.reply = lambda body: iter(["\n\n".join(sources), "\n```\n\nstill deep"])
        self.say("Deeper")
        self.assertIn("still deep", self.shown())

    def test_markdown_becomes_elements(self):
        self.fake.reply = lambda body: iter(re.findall(r"\s*\S+", MARKDOWN))
        self.say("Write")
        count = lambda selector: len(self.browser.find_all(f"{ANSWER} .text {selector}"))
        for selector in ["h3", "strong", "em", "p > code", "ol > li > ul > li", "blockquote", "table td", "pre code"]:
            self.assertGreater(count(selector), 0, selector)
        self.assertEqual(count("ol > li"), 2)
        self.assertIn('    return "<b>" + x', self.browser.text(f"{ANSWER} pre"))
        link = self.browser.run(f"const a = document.querySelector('{ANSWER} a'); return [a.href, a.rel, a.target, a.text]")
        self.assertEqual(link, ["https://example.org/a_b_c", "noopener noreferrer", "_blank", "the docs"])
        spans = self.browser.run(f"return [...document.querySelectorAll('{ANSWER} pre span')].map(e => [e.className, e.innerText])")
        self.assertEqual(spans[:4], [["of-word", "def"], ["of-word", "return"], ["of-string", '"<b>"'], ["of-number", "0x1F"]])
        self.assertEqual(spans[4][0], "of-comment")
        maths = self.browser.run(f"return [...document.querySelectorAll('{ANSWER} math')].map(e => [e.getAttribute('display'), e.textContent])")
        self.assertEqual(maths, [[None, "E=mc2"], ["block", "−b±b2−4ac2a=∑i=0∞xi′"]])
        self.assertIn("not $5 or $10, and", self.shown())
        heights = self.browser.run(f"return ['mfrac', 'msqrt', 'munderover'].map(tag => document.querySelector('{ANSWER} ' + tag)?.getBoundingClientRect().height ?? 0)")
        self.assertTrue(all(height > 10 for height in heights), heights)

    def test_code_and_formulas(self):
        one = lambda language, body: self.browser.run("return coloured(arguments[1], arguments[0]).filter(n => n.className).map(n => `${n.className.slice(3)} ${n.textContent}`)", language, body)
        for language, body, expected in [
            ("rust", "fn f<'a>() -> u8 { 'x' } // \"no\"", ["word fn", "string 'x'", 'comment // "no"']),
            ("js", "let a = `b\n\\`c` /* d */;", ["word let", "string `b\n\\`c`", "comment /* d */"]),
            ("bash", "if test $# -eq 0; then # none", ["word if", "number 0", "word then", "comment # none"]),
            ("SQL", "Select 'it' from t -- all", ["word Select", "string 'it'", "word from", "comment -- all"]),
            ("html", '<a href="x">b</a><!-- c -->', ["word <a", 'string "x"', "word >", "word </a", "word >", "comment <!-- c -->"]),
            ("diff", "@@ 1 @@\n+a\n-b\n c", ["comment @@ 1 @@", "string +a", "number -b"]),
            ("json", '{"a": [1.5e3, null]}', ['string "a"', "number 1.5e3", "word null"]),
            ("python", 'a = """b\n"c" """ + if_', ['string """b\n"c" """']),
            ("brainfuck", "if 1", []),
        ]:
            self.assertEqual(one(language, body), expected, language)
        drawn = lambda text: self.browser.run("return formula(arguments[0], true).firstChild.innerHTML.replaceAll(' xmlns=\"http://www.w3.org/1998/Math/MathML\"', '')", text)
        for text, expected in [
            ("x_1^{2n}", "<msubsup><mi>x</mi><mn>1</mn><mrow><mn>2</mn><mi>n</mi></mrow></msubsup>"),
            (r"\sqrt[3]{a}", "<mroot><mi>a</mi><mn>3</mn></mroot>"),
            (r"\sum\limits_i", "<munder><mo>∑</mo><mi>i</mi></munder>"),
            (r"\mathbb{R}\text{ if } f''", '<mi mathvariant="normal">ℝ</mi><mtext> if </mtext><msup><mi>f</mi><mo>′′</mo></msup>'),
            (r"\vec{v} \le 1.5", '<mover accent="true"><mi>v</mi><mo stretchy="false">→</mo></mover><mo>≤</mo><mn>1.5</mn>'),
            (r"\begin{pmatrix}a & b \\ c & d\end{pmatrix}", '<mrow><mo stretchy="true" fence="true">(</mo><mtable><mtr><mtd><mi>a</mi></mtd><mtd><mi>b</mi></mtd></mtr><mtr><mtd><mi>c</mi></mtd><mtd><mi>d</mi></mtd></mtr></mtable><mo stretchy="true" fence="true">)</mo></mrow>'),
        ]:
            self.assertEqual(drawn(text), expected, text)
        # What is not known stays as it was written.
        for source in [r"$\unknown{x}$", r"$a_$", r"$\left( x$", r"$\begin{cases} x$", "$a}b$"]:
            node = self.browser.run("const [, made] = inline(arguments[0]); return [made.localName, made.textContent]", source)
            self.assertEqual(node, ["code", source])

    def test_enter_sends_shift_enter_does_not_and_escape_stops(self):
        self.fake.reply = lambda body: endless()
        self.browser.click("#prompt")
        self.browser.press("a")
        self.browser.press(SHIFT, ENTER)
        self.browser.press("b")
        self.browser.press(ENTER)
        self.browser.wait("text", f"document.querySelector('{ANSWER} > .text')?.innerText.includes('tick tick')")
        self.assertEqual(self.fake.bodies[-1]["messages"][-1]["content"], "a\nb")
        self.assertEqual(self.browser.run(f"return document.querySelector('{ANSWER}').ariaBusy"), "true")
        self.browser.press(ESCAPE)
        self.ended()
        self.assertTrue(self.fake.hung_up.wait(30), "the server saw the client go")
        self.assertRegex(self.browser.text(f"{ANSWER} .numbers"), r"tokens.*stopped$")
        # Retried, without the failed attempt in the conversation.
        self.fake.reply = lambda body: iter(["Better."])
        self.browser.run(f"[...document.querySelectorAll('{ANSWER} .foot button')].find(b => b.innerText === 'Regenerate').click()")
        self.browser.wait("another answer", f"document.querySelector('{ANSWER} > .text').innerText === 'Better.'")
        self.assertEqual(self.fake.bodies[-1]["messages"], self.fake.bodies[-2]["messages"])

    def test_the_button_stops_too(self):
        self.fake.reply = lambda body: endless()
        self.begin("Go")
        self.browser.click("#send")
        self.ended()
        self.assertTrue(self.fake.hung_up.wait(30))

    def test_what_was_written_can_be_changed(self):
        self.say("First")
        self.say("Second")
        self.browser.run("document.querySelector('.turn.user .foot button').click()")
        self.browser.type(".turn form textarea", " changed" + ENTER)
        self.browser.wait("the new answer", lambda: len(self.fake.bodies) == 3)
        self.ended()
        self.assertEqual(self.fake.bodies[-1]["messages"], [{"role": "user", "content": "First changed"}])
        self.assertEqual(len(self.browser.find_all(".turn")), 2)
        self.browser.run("document.querySelector('.turn.user .foot button').click()")
        self.browser.press(ESCAPE)
        self.assertEqual(self.browser.texts(".turn.user .text"), ["First changed"])

    def test_settings_are_sent_and_kept(self):
        self.say("Hi")
        names = {"temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "response_format"}
        self.assertFalse(names & set(self.fake.bodies[-1]))
        self.browser.click("#open")
        numbers = {"temperature": 0.25, "top_p": 0.5, "top_k": 7, "min_p": 0.125, "seed": 42, "max_tokens": 9}
        schema = {"type": "object", "properties": {"a": {"type": "string"}}}
        for field, value in [("system", "Be brief."), ("key", "secret"), ("schema", json.dumps(schema)), *numbers.items()]:
            value = str(value)
            self.browser.type(f"#{field}", value)
        self.shot("settings")
        self.browser.click("dialog[open] button.main")
        self.browser.run("document.querySelector('#model').value = 'teller'; document.querySelector('#model').dispatchEvent(new Event('change'))")
        self.load()
        self.say("Again")
        body = self.fake.bodies[-1]
        self.assertEqual({name: body[name] for name in numbers}, numbers)
        self.assertEqual(body["model"], "teller")
        self.assertEqual(body["response_format"], {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}})
        self.assertEqual(body["messages"][0], {"role": "system", "content": "Be brief."})
        self.assertEqual(self.fake.keys[-1], "Bearer secret")
        self.assertNotIn("secret", self.browser.run("return JSON.stringify(localStorage)"))
        self.browser.click("#open")
        self.browser.click("#defaults")
        self.browser.click("dialog[open] button.main")
        self.say("Once more")
        self.assertFalse(names & set(self.fake.bodies[-1]))

    def test_settings_that_are_wrong_are_not_sent(self):
        problem = lambda: self.browser.text("#schema-problem")
        for field, value, message in [("schema", '{"type": ', "not JSON"), ("schema", "[1]", "not a JSON object"), ("top_p", "2", None)]:
            self.browser.click("#open")
            self.browser.type(f"#{field}", value)
            if message:
                self.assertIn(message, problem())
            self.browser.click("dialog[open] button.main")
            self.assertTrue(self.browser.run("return document.querySelector('#settings').open"), value)
            # Closed all the same, they are asked for before a message is sent.
            self.browser.press(ESCAPE)
            self.browser.type("#prompt", "Hi" + ENTER)
            shown = f"document.querySelector('#settings').open && document.activeElement.id === '{field}'"
            self.browser.wait("the field", shown)
            self.assertEqual(self.fake.bodies, [])
            self.browser.run("document.querySelector('#defaults').click(); document.querySelector('#settings .main').click()")
            self.assertEqual(problem(), "")
            self.assertEqual(self.browser.run("const p = document.querySelector('#prompt'); const text = p.value; p.value = ''; return text"), "Hi")
        self.say("Hi")

    def test_models_are_listed(self):
        self.fake.embedders = ["measurer"]
        self.load()
        self.browser.click("#open")
        listed = ["talker completion, 4,096 tokens of context", "teller completion, 4,096 tokens of context", "measurer embedding"]
        self.assertEqual([text.replace("\n", " ") for text in self.browser.texts("#models li")], listed)
        self.assertEqual(self.browser.texts("#models [aria-current] b"), ["talker"])
        options = "return [...document.querySelectorAll('#model option')].map(o => [o.text, o.disabled])"
        self.assertEqual(self.browser.run(options), [["talker", False], ["teller", False], ["measurer (embedding)", True]])

    def test_a_model_without_a_template_continues_texts(self):
        def reply(body):
            if "messages" in body:
                raise Refusal(400, "the model has no chat template", "no_chat_template")
            return iter([", there", " was"])

        self.fake.reply = reply
        self.say("Once")
        self.say("a king.")
        self.assertEqual(self.fake.paths[-3:], ["/v1/chat/completions", "/v1/completions", "/v1/completions"])
        self.assertEqual([body["prompt"] for body in self.fake.bodies[1:]], ["Once", "Once, there was a king."])
        self.assertIn("no chat template", self.browser.text("#note"))

    def test_reasoning_is_folded(self):
        thoughts = [{"reasoning_content": "Let me "}, {"reasoning_content": "think."}]
        self.fake.reply = lambda body: iter([*thoughts, "Forty-two."])
        self.say("Why?")
        self.assertEqual(self.shown(), "Forty-two.")
        self.assertRegex(self.browser.text(f"{ANSWER} summary"), r"^Thought for [\d.]+ s$")
        folded = f"return document.querySelector('{ANSWER} details').open"
        self.assertFalse(self.browser.run(folded))
        self.browser.click(f"{ANSWER} summary")
        self.assertEqual(self.browser.text(f"{ANSWER} details .text"), "Let me think.")
        self.assertEqual(self.say("And?"), None)
        self.assertEqual(self.fake.bodies[-1]["messages"][1], {"role": "assistant", "content": "Forty-two."})

    def test_what_goes_wrong_is_said(self):
        def busy(body):
            raise Refusal(429, "too many wait already")

        self.fake.reply = busy
        self.say("Hi")
        self.assertIn("too many wait already", self.browser.text(f"{ANSWER} .problem"))
        self.fake.reply = lambda body: iter(["Half", None])
        self.say("Hi")
        self.assertIn("ended before the answer", self.browser.text(f"{ANSWER} .problem"))
        self.assertEqual(self.shown(), "Half")
        self.fake.key = "sesame"
        self.browser.open(self.fake.url)
        self.browser.wait("the question for a key", "document.querySelector('#settings').open && document.activeElement.id === 'key'")
        self.browser.type("#key", "sesame" + ENTER)
        self.browser.wait("the list of models", "document.querySelectorAll('#model option').length > 0")
        self.fake.reply = lambda body: iter(["Open."])
        self.say("Hi")
        self.assertEqual(self.shown(), "Open.")

    def test_a_server_that_is_gone_is_said_and_so_is_its_return(self):
        gone = "document.querySelector('#gone').checkVisibility()"
        self.fake.breaks = True
        seen = threading.Event()

        def reply(body):
            yield "Half"
            seen.wait(30)
            yield None

        self.fake.reply = reply
        self.begin("Hi")
        self.browser.wait("the half", f"document.querySelector('{ANSWER} > .text')?.innerText === 'Half'")
        seen.set()
        self.ended()
        self.assertEqual(self.shown(), "Half")
        self.assertIn("broke before the answer's end", self.browser.text(f"{ANSWER} .problem"))
        self.browser.wait("the message", gone)
        self.shot("gone")
        self.assertEqual(self.browser.text("#said"), "That did not work. The connection broke before the answer's end.")
        self.browser.type("#prompt", "Still there?" + ENTER)
        self.browser.wait("the answer", f"document.querySelector('{ANSWER} .problem')?.innerText.includes('does not answer')")
        self.assertNotIn("fetch", self.browser.text("body"))
        self.fake.breaks = self.fake.gone = False
        self.browser.wait("its return", f"!{gone}")
        self.browser.wait("the message", "document.querySelector('#note').innerText === 'The server is back.'")
        self.fake.reply = lambda body: iter(["Yes."])
        self.say("Now?")
        self.assertEqual(self.shown(), "Yes.")
        # It is seen too when nothing is asked of it.
        self.fake.gone = True
        self.browser.run("document.dispatchEvent(new Event('visibilitychange'))")
        self.browser.wait("the message", gone)
        self.fake.gone = False
        self.browser.wait("its return", f"!{gone}")

    def test_a_model_that_transcribes_takes_files_and_recordings(self):
        self.fake.models, self.fake.listeners = [], ["listener"]
        self.fake.reply = lambda body: slowly("He said:", " <b>Hello</b>")
        self.load()
        visible = "return ['prompt', 'record', 'choose', 'send'].filter(id => document.getElementById(id).checkVisibility())"
        self.assertEqual(self.browser.run(visible), ["record", "choose"])
        self.assertIn("Say something", self.browser.text("#empty"))
        self.shot("listener")
        speech = Path(__file__).parents[3] / "testdata/speech/short.flac"
        self.browser.type("#file", str(speech))
        self.browser.wait("a transcript", f"document.querySelector('{ANSWER} .numbers')?.innerText.startsWith('2 segments')")
        self.assertEqual(self.shown(), "He said: <b>Hello</b>")
        form = self.fake.bodies[-1]
        self.assertEqual((form["model"], form["stream"]), ("listener", "true"))
        self.assertEqual(form["file"], ("short.flac", speech.read_bytes()))
        self.assertEqual(self.browser.texts(".turn.user .text"), ["short.flac"])
        # The same file again.
        self.browser.run(f"[...document.querySelectorAll('{ANSWER} .foot button')].find(b => b.innerText === 'Regenerate').click()")
        self.browser.wait("a second request", lambda: len(self.fake.bodies) == 2)
        self.browser.wait("its end", "!document.querySelector('#send').checkVisibility()")
        self.browser.click("#record")
        self.browser.wait("a recording", "document.querySelector('#record').innerText === 'Stop recording'")
        self.shot("recording")
        self.browser.run("return new Promise(done => setTimeout(done, 700))")
        self.browser.click("#record")
        self.browser.wait("a third request", lambda: len(self.fake.bodies) == 3)
        name, wave = self.fake.bodies[-1]["file"]
        self.assertRegex(name, r"^recording of \d+ s\.wav$")
        self.assertEqual((wave[:4], wave[8:16], int.from_bytes(wave[24:28], "little")), (b"RIFF", b"WAVEfmt ", 16000))
        self.assertEqual((len(wave) - 8, len(wave) - 44), tuple(int.from_bytes(wave[at : at + 4], "little") for at in (4, 40)))
        self.assertGreater(len(wave), 2 * 16000 // 4)
        self.browser.wait("its end", "!document.querySelector('#send').checkVisibility()")
        for element in self.browser.find_all("#record, #choose"):
            self.assertEqual(self.browser.role_and_label(element)[0], "button")
        # What was recorded is gone with the page.
        self.load()
        self.browser.run(f"[...document.querySelectorAll('{ANSWER} .foot button')].find(b => b.innerText === 'Regenerate').click()")
        self.browser.wait("a problem", f"document.querySelector('{ANSWER} .problem')?.innerText.includes('record it again')")

    def test_an_empty_page(self):
        self.shot("empty")
        self.assertIn("Write something", self.browser.text("#empty"))
        self.assertTrue(self.browser.run("return document.querySelector('#send').disabled"))
