#!/usr/bin/env python3
"""Makes page.png: the chat page in headless Chromium, with answers of the model inside the program.

    python3 docs/pictures/page.py target/release/akunu
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent / "crates/akunu-server/page"))
from browser import ENTER, Browser

QUESTIONS = ["Tell me a story about a fox", "What is the capital of France?"]

server = subprocess.Popen([sys.argv[1], "serve", "--port", "0"], stderr=subprocess.PIPE, text=True)
browser = Browser(os.environ.get("CHROMIUM", "chromium"), os.environ.get("CHROMEDRIVER", "chromedriver"))
try:
    address = next(line.split()[-1] for line in server.stderr if "http://" in line)
    browser.size(900, 700)
    browser.open(address)
    browser.wait("the list of models", "document.querySelectorAll('#model option').length > 0")
    for number, question in enumerate(QUESTIONS, 1):
        browser.type("#prompt", question + ENTER)
        numbers = "document.querySelectorAll('#talk .turn.assistant .numbers').length"
        browser.wait("an answer", f"{numbers} == {number} && document.querySelector('#send').innerText === 'Send'")
    browser.screenshot(HERE / "page.png")
finally:
    browser.close()
    server.terminate()
