"""Conversations that are kept, and files."""

import json
import tempfile
from pathlib import Path

from browser import ENTER, ESCAPE
from case import Case
from fake import endless


class Talks(Case):
    def test_several_conversations_are_kept(self):
        for text in ["About apples", "Pears, and more"]:
            self.say(text)
            self.browser.click("#new")
        self.browser.run("sessionStorage.clear()")
        self.load()
        self.assertEqual(self.browser.find_all(".turn"), [])
        self.assertEqual(self.talks(), ["Pears, and more", "About apples"])
        self.shot("conversations")
        self.browser.run("document.querySelectorAll('#kept .open')[1].click()")
        self.assertEqual(self.browser.texts(".turn > .text"), ["About apples", "Hello there!"])
        self.say("And plums?")
        self.assertEqual([message["content"] for message in self.fake.bodies[-1]["messages"]], ["About apples", "Hello there!", "And plums?"])
        self.assertEqual(self.talks(), ["About apples", "Pears, and more"])
        for words, found in [("PLUMS", ["About apples"]), ("hello", ["About apples", "Pears, and more"]), ("more pears", ["Pears, and more"]), ("melons", [])]:
            self.browser.run("document.querySelector('#search').value = ''")
            self.browser.type("#search", words)
            self.assertEqual(self.browser.texts("#kept .open b"), found)
            self.assertEqual(self.browser.text("#kept-count"), f"{len(found)} of 2")
        self.browser.run("document.querySelector('#search').value = ''")
        self.browser.type("#search", "pears")
        self.inside("Pears, and more", "Rename")
        self.browser.press(ESCAPE)
        self.assertTrue(self.browser.run("return document.querySelector('#talks').open"))
        self.inside("Pears, and more", "Rename")
        self.browser.press("F")
        self.browser.press(ENTER)
        self.assertEqual(self.browser.texts("#kept .open b"), ["F"])
        self.assertEqual(self.browser.run("return document.activeElement.innerText.split('\\n')[0]"), "F")
        self.inside("F", "Delete")
        self.assertEqual(self.browser.texts("#kept .open b"), ["F"])
        self.inside("F", "Really delete?")
        self.assertEqual(self.browser.text("#kept-count"), "0 of 1")
        self.browser.click("#talks .main")
        self.assertEqual(self.talks(), ["About apples"])
        self.browser.run("const all = document.querySelector('#delete-all'); all.click(); all.click()")
        self.assertEqual(self.browser.text("#kept-count"), "No conversation is kept yet.")
        self.assertEqual(self.browser.run("return Object.keys(localStorage).filter(key => key.startsWith('akunu.talk.'))"), [])
        self.assertEqual(self.browser.find_all(".turn"), [])

    def test_conversations_are_saved_and_imported(self):
        folder = Path(tempfile.mkdtemp())
        self.browser.downloads(folder)
        self.fake.reply = lambda body: iter([{"reasoning_content": "Let me see.\n\nYes."}, "Blue **sky**"])
        self.say("Why: is/it <blue>?")
        self.talks()

        def saved(name):
            self.browser.wait(name, (folder / name).is_file)
            return (folder / name).read_text()

        self.inside("Why: is/it <blue>?", "Markdown")
        markdown = "# Why: is/it <blue>?\n\n## You\n\nWhy: is/it <blue>?\n\n## Answer\n\n> Let me see.\n>\n> Yes.\n\nBlue **sky**\n"
        self.assertEqual(saved("Why-is-it-blue.md"), markdown)
        self.inside("Why: is/it <blue>?", "JSON")
        one = json.loads(saved("Why-is-it-blue.json"))
        self.assertEqual([(turn["role"], turn["content"]) for turn in one["turns"]], [("user", "Why: is/it <blue>?"), ("assistant", "Blue **sky**")])
        self.browser.click("#save-all")
        self.assertEqual(json.loads(saved("conversations.json")), {"conversations": [one]})
        note = lambda: self.browser.text("#talks-note")

        def bring(name, text):
            self.browser.run("document.querySelector('#talks-note').innerText = ''")
            (folder / name).write_text(text)
            self.browser.type("#import-file", str(folder / name))
            return self.browser.wait("a note", note)

        self.assertEqual(bring("one.json", json.dumps(one)), "1 conversation was imported.")
        self.assertEqual(bring("all.json", json.dumps({"conversations": [one, {**one, "title": "Other"}]})), "2 conversations were imported.")
        messages = [{"role": "system", "content": "Rhyme."}, {"role": "user", "content": "From the terminal"}, {"role": "assistant", "content": "Yes"}]
        self.assertEqual(bring("chat.json", json.dumps(messages)), "1 conversation was imported.")
        for text, why in [("{", "it is not JSON"), ("[]x", "it is not JSON"), ("7", "it has no messages"), ("null", "it has no messages"), ('[{"role": "tool", "content": "x"}]', "message 1 has a role"), ('[{"role": "user", "content": 5}]', "message 1 has no text")]:
            self.assertIn(f"bad.json cannot be imported: {why}", bring("bad.json", text))
        self.assertEqual(sorted(self.browser.texts("#kept .open b")), ["From the terminal", "Other"] + ["Why: is/it <blue>?"] * 3)
        self.browser.run("[...document.querySelectorAll('#kept .open')].find(b => b.innerText.startsWith('From')).click()")
        self.browser.run("document.querySelector('#system').value = 'Be brief.'")
        self.say("More")
        self.assertEqual(self.fake.bodies[-1]["messages"], [*messages, {"role": "user", "content": "More"}])

    def test_a_full_store_is_said(self):
        self.browser.run("localStorage.setItem('akunu.talk.big', JSON.stringify({id: 'big', turns: [{role: 'user', content: 'x'.repeat(3999000)}]}))")
        self.fake.reply = lambda body: iter(["y" * 2000])
        self.say("Hi")
        self.assertIn("This conversation is not kept. There is no space left", self.browser.text("#full"))
        self.shot("full")
        self.browser.click("#make-space")
        self.inside("x" * 80, "Delete")
        self.inside("x" * 80, "Really delete?")
        self.browser.press(ESCAPE)
        self.browser.wait("the message's end", "!document.querySelector('#full').checkVisibility()")
        self.load()
        self.assertEqual(len(self.browser.find_all(".turn")), 2)
        # More than the page allows is refused by the browser itself, too.
        self.browser.run("localStorage.setItem('other', 'x'.repeat(5 * 1024 * 1024 - 4000))")
        self.fake.reply = lambda body: iter(["y" * 3000])
        self.say("More")
        self.assertIn("The browser keeps no more", self.browser.text("#full"))
        # The conversation is not left while it is answered.
        self.fake.reply = lambda body: endless()
        self.begin("Go on")
        disabled = "return ['list', 'make-space', 'new'].map(id => document.getElementById(id).disabled)"
        self.assertEqual(self.browser.run(disabled), [True] * 3)
        self.browser.press(ESCAPE)
        self.ended()
        self.assertEqual(self.browser.run(disabled), [False] * 3)

    def test_files_are_added_as_text(self):
        folder = Path(tempfile.mkdtemp())
        (folder / "notes.md").write_text("A `tick`\n```\nfenced\n```\n")
        (folder / "a b.py").write_text("print('é')")
        (folder / "large.txt").write_text("x" * 1_000_001)
        (folder / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x01")
        (folder / "zero.txt").write_bytes(b"a\0b")
        names = lambda: [text.split(" ×")[0].strip() for text in self.browser.texts("#attached li")]

        def choose(*names):
            self.browser.type("#text-file", "\n".join(str(folder / name) for name in names))

        choose("notes.md", "a b.py", "picture.png")
        self.browser.wait("files", "document.querySelectorAll('#attached li').length === 2")
        self.assertEqual([name.split("\n")[0].strip() for name in names()], ["notes.md", "a b.py"])
        problem = lambda: self.browser.text("#attached-problem")
        self.browser.wait("the refusal", lambda: problem() == "picture.png is not a text in UTF-8.")
        self.shot("files")
        for name, why in [("large.txt", "large.txt has 1.0 MB; at most 1.0 MB can be added."), ("zero.txt", "zero.txt is not a text in UTF-8.")]:
            choose(name)
            self.browser.wait(why, lambda: problem() == why)
        self.say("What is it?")
        expected = "notes.md:\n````\nA `tick`\n```\nfenced\n```\n````\n\na b.py:\n```\nprint('é')\n```\n\nWhat is it?"
        self.assertEqual(self.fake.bodies[-1]["messages"], [{"role": "user", "content": expected}])
        self.assertEqual(self.browser.texts(".turn.user summary"), ["notes.md · 24 B", "a b.py · 11 B"])
        self.assertEqual((self.browser.texts("#attached li"), problem()), ([], ""))
        # Alone, dropped on the page, and kept.
        self.browser.run("""
          const data = new DataTransfer();
          data.items.add(new File(['dropped'], 'drop.txt'));
          document.querySelector('main').dispatchEvent(new DragEvent('drop', {bubbles: true, cancelable: true, dataTransfer: data}));""")
        self.browser.wait("the file", "document.querySelectorAll('#attached li').length === 1")
        self.load()
        self.browser.run("""
          const data = new DataTransfer();
          data.items.add(new File(['one'], 'one.txt')); data.items.add(new File(['two'], 'two.txt'));
          document.querySelector('main').dispatchEvent(new DragEvent('drop', {bubbles: true, cancelable: true, dataTransfer: data}));""")
        self.browser.wait("the files", "document.querySelectorAll('#attached li').length === 2")
        self.browser.click("#attached li:last-child button")
        self.browser.click("#send")
        self.browser.wait("a request", lambda: len(self.fake.bodies) == 2)
        self.ended()
        texts = [message["content"] for message in self.fake.bodies[-1]["messages"]]
        self.assertEqual(texts, [expected, "Hello there!", "one.txt:\n```\none\n```"])
        self.browser.run("document.querySelector('.turn.user .foot button').click()")
        self.browser.type(".turn form textarea", " Really?" + ENTER)
        self.browser.wait("the new answer", lambda: len(self.fake.bodies) == 3)
        self.ended()
        self.assertEqual(self.fake.bodies[-1]["messages"], [{"role": "user", "content": expected + " Really?"}])
