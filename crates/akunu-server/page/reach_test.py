"""Keyboard, screen readers, colours and narrow screens."""

import os
import re
import unittest
from pathlib import Path

from browser import ESCAPE, TAB
from case import ANSWER, MARKDOWN, Case
from fake import Refusal


class Reach(Case):
    def assert_accessible(self, state):
        """axe finds nothing, and nothing is wider than the screen."""
        found = self.browser.run("return axe.run().then(({violations}) => violations.map(v => `${v.id}: ${v.nodes.map(n => n.target)} ${v.nodes[0].failureSummary}`))")
        self.assertEqual(found, [], state)
        wide = "return ['html', 'body', 'main', 'footer', 'header', 'dialog[open]'].filter(s => { const e = document.querySelector(s); return e && e.scrollWidth > e.clientWidth })"
        self.assertEqual(self.browser.run(wide), [], state)

    @unittest.skipUnless(os.environ.get("AXE"), "AXE is the path of axe.min.js")
    def test_axe_finds_nothing(self):
        axe = Path(os.environ["AXE"]).read_text()
        code = "```js\nlet a = 'b'; // c\n```\n\n```\n" + "wide " * 99 + "\n```\n"
        answer = [{"reasoning_content": "Hm."}, MARKDOWN.replace("The end.", code + "$$" + "x+" * 99 + "x$$")]
        for width, scheme in [(1000, "light"), (1000, "dark"), (320, "light"), (320, "dark")]:
            self.browser.run("localStorage.clear(); sessionStorage.clear()")
            self.browser.size(width, 700, scheme)
            self.fake.models = ["talker", "a-model-with-a-name-that-is-much-longer-than-a-telephone-is-wide-q4_k_m"]
            self.fake.embedders, self.fake.listeners = ["measurer"], ["listener"]
            self.load()
            self.browser.run(axe)
            state = f"{width} {scheme}"
            self.assert_accessible(f"{state}: empty")
            self.fake.reply = lambda body: iter(answer)
            self.say("Hi " + "there " * 30)
            self.browser.click(f"{ANSWER} summary")
            self.assert_accessible(f"{state}: an answer")
            self.shot(f"answer-{width}-{scheme}")
            self.browser.run("attached.push({name: 'a.txt', text: 'a'}, {name: 'long'.repeat(40), text: 'b'}); showAttached(); document.querySelector('#attached-problem').innerText = 'x.png is not a text in UTF-8.'")
            self.assert_accessible(f"{state}: files")
            self.shot(f"files-{width}-{scheme}")
            self.say("Read")
            self.browser.run("document.querySelector('.file summary').click(); document.querySelectorAll('.turn.user .foot button')[0].click()")
            self.assert_accessible(f"{state}: editing")
            self.browser.press(ESCAPE)

            def failing(body):
                raise Refusal(429, "too many wait already")

            self.fake.reply = failing
            self.say("More")
            self.browser.run("vanished(); $('full').hidden = false; $('full-why').textContent = 'There is no space left.'")
            self.assert_accessible(f"{state}: problems")
            self.shot(f"problems-{width}-{scheme}")
            self.browser.wait("the server", "!document.querySelector('#gone').checkVisibility()")
            self.browser.click("#open")
            self.browser.type("#schema", "{")
            self.browser.run("tools = [{name: 'clock', server: 'small', description: 'Says the time. '.repeat(20)}, {name: 'long'.repeat(16), server: 'b', description: ''}]; $('tools').hidden = false; $('tool-list').replaceChildren(...tools.map(toolRow))")
            self.assert_accessible(f"{state}: settings")
            self.shot(f"settings-{width}-{scheme}")
            self.browser.press(ESCAPE)
            self.browser.run("talk.turns.push({role: 'assistant', content: '', calls: [{id: 'a', name: 'long'.repeat(16), arguments: '{}', state: 'done', result: 'wide '.repeat(200)}]}); showAll(); document.querySelector('.call summary').click()")
            self.assert_accessible(f"{state}: a call")
            self.browser.run("allows({name: 'long'.repeat(16), server: 'small'}, {text: 'word '.repeat(2000), long: 'x'.repeat(500)})")
            self.assert_accessible(f"{state}: a call that is asked for")
            self.shot(f"call-{width}-{scheme}")
            self.browser.press(ESCAPE)
            self.browser.run("talk.turns.pop(); showAll()")
            self.browser.run("keepTalk(); store({id: 'other', title: 'long'.repeat(40), changed: 5, turns: [{role: 'user', content: 'x'}]})")
            self.talks()
            self.assert_accessible(f"{state}: conversations")
            self.inside("long" * 40, "Delete")
            self.browser.run("[...document.querySelectorAll('#kept button')].find(b => b.innerText === 'Rename').click()")
            self.assert_accessible(f"{state}: a new name")
            self.shot(f"rename-{width}-{scheme}")
            self.browser.press(ESCAPE)
            self.browser.press(ESCAPE)
            self.browser.run("document.querySelector('#model').value = 'listener'; document.querySelector('#model').dispatchEvent(new Event('change'))")
            self.assert_accessible(f"{state}: a listener")

    def test_keyboard_and_screen_reader_find_everything(self):
        self.fake.reply = lambda body: iter(["One. ", "Two."])
        self.say("Hi")
        said = self.browser.run("return [said.innerText, said.ariaLive]")
        self.assertEqual(said, ["One. Two.", "polite"])
        for element in self.browser.find_all("header button, header select, #prompt, #send, .turn button"):
            role, label = self.browser.role_and_label(element)
            self.assertTrue(role in {"button", "combobox", "textbox"} and label, (role, label))
        self.browser.click("#open")
        for element in self.browser.find_all("dialog[open] :is(input:not(.hidden), textarea, button)"):
            self.assertTrue(self.browser.role_and_label(element)[1])
        self.assertEqual(self.browser.role_and_label(self.browser.find("dialog[open]")), ("dialog", "Settings"))
        self.browser.press(ESCAPE)
        # Tab visits all controls, with a visible focus.
        self.browser.run("document.activeElement.blur()")
        visited = set()
        for _ in range(14):
            self.browser.press(TAB)
            focus = "const e = document.activeElement; return [e.id || (e === document.body ? '' : e.innerText), getComputedStyle(e).outlineStyle]"
            name, outline = self.browser.run(focus)
            visited.add(name)
            self.assertTrue(outline != "none" or name in ["", "prompt"], name)  # the prompt's frame shows it
        self.assertLessEqual({"model", "new", "theme", "open", "prompt", "Regenerate", "Edit"}, visited, visited)

    def test_colours_follow_the_system_until_chosen(self):
        background = "return getComputedStyle(document.body).backgroundColor"
        self.fake.reply = lambda body: iter(re.findall(r"\s*\S+", MARKDOWN))
        self.say("Show me the colours")
        seen = {}
        for scheme in ["light", "dark"]:
            self.browser.size(1000, 800, scheme)
            seen[scheme] = self.browser.run(background)
            self.contrast()
            self.shot(scheme)
        self.assertNotEqual(seen["light"], seen["dark"])
        self.browser.click("#theme")
        self.assertEqual(self.browser.run(background), seen["light"])
        self.load()
        self.assertEqual(self.browser.run(background), seen["light"])

    def contrast(self):
        """A contrast of at least 4.5 (WCAG) for all text."""
        ratio = """
          const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
          const luminance = name => {
            const probe = document.body.appendChild(document.createElement('i'));
            probe.style.color = `var(--${name})`;
            canvas.fillStyle = getComputedStyle(probe).color;
            probe.remove();
            canvas.fillRect(0, 0, 1, 1);
            const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const [a, b] = [...arguments].map(luminance);
          return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);"""
        for text in ["word", "string", "number"]:
            self.assertGreaterEqual(self.browser.run(ratio, text, "raised"), 4.5, text)
        for text in ["ink", "faint", "accent", "bad"]:
            for ground in ["paper", "raised", "tint"]:
                self.assertGreaterEqual(self.browser.run(ratio, text, ground), 4.5, (text, ground))
        self.assertGreaterEqual(self.browser.run(ratio, "on-accent", "accent"), 4.5)

    def test_a_narrow_screen_scrolls_in_one_direction(self):
        self.fake.models = ["a-model-with-a-name-that-is-much-longer-than-a-telephone-is-wide-q4_k_m"]
        self.fake.reply = lambda body: iter(re.findall(r"\s*\S+", MARKDOWN) + [" " + "x" * 300])
        for scheme in ["light", "dark"]:
            self.browser.size(360, 640, scheme)
            self.load()
            self.say("A message that is long enough to take more than one line on a screen as narrow as this")
            wide = "return Math.max(...['html', 'body', 'main', 'footer', 'header'].map(s => { const e = document.querySelector(s); return e.scrollWidth - e.clientWidth }))"
            self.assertLessEqual(self.browser.run(wide), 0)
            tall = "const e = document.documentElement; return e.scrollHeight - e.clientHeight"
            self.assertLessEqual(self.browser.run(tall), 0, "the conversation scrolls, not the page")
            self.shot(f"narrow-{scheme}")
