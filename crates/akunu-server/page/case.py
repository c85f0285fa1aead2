"""What the tests of the page have in common."""

import atexit
import os
import unittest
from pathlib import Path

from browser import ENTER, Browser
from fake import Fake

MARKDOWN = """# A title

Some **bold**, *slanted* and `code_words`, see [the docs](https://example.org/a_b_c).

1. one
2. two
   - nested
   - again

> quoted

| name | value |
|------|------:|
| pi | 3.14159 |

```python
def f(x):
    return "<b>" + x * 0x1F   # {}
```

So $E = mc^2$, not $5 or $10, and

$$
\\frac{{-b \\pm \\sqrt{{b^2 - 4ac}}}}{{2a}}
= \\sum_{{i=0}}^\\infty x_i'
$$

The end.""".format("a long line " * 12)

ANSWER = "#talk .turn.assistant:last-child"


class Case(unittest.TestCase):
    """The page of a fake server in a browser, which all tests share."""

    @classmethod
    def setUpClass(cls):
        if not hasattr(Case, "browser"):
            Case.fake = Fake()
            Case.browser = Browser(os.environ.get("CHROMIUM", "chromium"), os.environ.get("CHROMEDRIVER", "chromedriver"))
            atexit.register(Case.browser.close)

    def setUp(self):
        self.fake.reset()
        self.browser.size(1000, 800)
        self.browser.open(self.fake.url)
        self.browser.run("localStorage.clear(); sessionStorage.clear()")
        self.load()

    def tearDown(self):
        self.assertEqual(self.browser.complaints(), [])
        self.assertLessEqual(set(self.fake.paths), {"/", "/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/audio/transcriptions", "/health", "/mcp/tools", "/mcp/call"})

    def load(self):
        self.browser.open(self.fake.url)
        self.browser.wait("the list of models", "document.querySelectorAll('#model option').length > 0")

    def begin(self, text):
        self.browser.type("#prompt", text + ENTER)
        self.browser.wait("an answer's beginning", "document.querySelector('#send').innerText === 'Stop'")

    def ended(self):
        self.browser.wait("the answer's end", "document.querySelector('#send').innerText === 'Send'")

    def say(self, text):
        before = len(self.fake.bodies)
        self.browser.type("#prompt", text + ENTER)
        self.browser.wait("a request", lambda: len(self.fake.bodies) > before)
        self.ended()

    def shown(self):
        return self.browser.text(f"{ANSWER} > .text")

    def shot(self, name):
        if folder := os.environ.get("PAGE_SHOTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.browser.screenshot(Path(folder) / f"{name}.png")

    def talks(self):
        self.browser.click("#list")
        return self.browser.texts("#kept .open b")

    def inside(self, title, label):
        """Presses a button of a conversation in the list."""
        self.browser.run("""
          const row = [...document.querySelectorAll('#kept li')].find(li => li.querySelector('b').innerText === arguments[0]);
          [...row.querySelectorAll('button')].find(b => b.innerText === arguments[1]).click();""", title, label)
