"""A minimal WebDriver client, with the standard library only."""

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
ENTER, ESCAPE, TAB, SHIFT = "\ue007", "\ue00c", "\ue004", "\ue008"
PATIENCE_S = 30


class Browser:
    """Headless Chromium under chromedriver."""

    def __init__(self, chromium, chromedriver):
        self.driver = subprocess.Popen([chromedriver, "--port=0"], stdout=subprocess.PIPE, text=True)
        for line in self.driver.stdout:
            if found := re.search(r"successfully on port (\d+)", line):
                break
        else:
            raise RuntimeError(f"{chromedriver} did not start")
        self.root = f"http://127.0.0.1:{found[1]}"
        options = {"binary": shutil.which(chromium) or chromium, "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"]}
        always = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        try:
            session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": always}})
        except BaseException:
            self.driver.kill()
            raise
        self.session = f"/session/{session['sessionId']}"

    def close(self):
        try:
            self._call("DELETE", self.session)
        finally:
            self.driver.terminate()
            self.driver.wait()

    def _call(self, method, path, body=None):
        data = None if method != "POST" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.root + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path}: {json.load(error)['value']['message']}") from None

    def post(self, path, **body):
        return self._call("POST", self.session + path, body)

    def get(self, path):
        return self._call("GET", self.session + path)

    def open(self, url):
        self.post("/url", url=url)

    def run(self, script, *arguments):
        """The result of a function body that is run in the page."""
        return self.post("/execute/sync", script=script, args=list(arguments))

    def cdp(self, command, **parameters):
        return self.post("/goog/cdp/execute", cmd=command, params=parameters)

    def find(self, selector):
        return self.post("/element", using="css selector", value=selector)[ELEMENT]

    def find_all(self, selector):
        return [found[ELEMENT] for found in self.post("/elements", using="css selector", value=selector)]

    def click(self, selector):
        self.post(f"/element/{self.find(selector)}/click")

    def type(self, selector, text):
        self.post(f"/element/{self.find(selector)}/value", text=text)

    def press(self, *keys):
        """Presses keys on the focused element; the last one while the others are held."""
        steps = [{"type": "keyDown", "value": key} for key in keys]
        steps += [{"type": "keyUp", "value": key} for key in reversed(keys)]
        self.post("/actions", actions=[{"type": "key", "id": "keyboard", "actions": steps}])

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0])?.innerText ?? null", selector)

    def texts(self, selector):
        return self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)", selector)

    def role_and_label(self, element):
        return self.get(f"/element/{element}/computedrole"), self.get(f"/element/{element}/computedlabel")

    def wait(self, what, condition):
        """Waits until the condition, a function or a script, is true."""
        holds = condition if callable(condition) else lambda: self.run(f"return {condition}")
        end = time.monotonic() + PATIENCE_S
        while not (value := holds()):
            if time.monotonic() > end:
                raise AssertionError(f"{what} did not come: {self.text('body')}")
            time.sleep(0.02)
        return value

    def size(self, width, height, scheme="light"):
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def downloads(self, folder):
        """Files that the page saves are put there."""
        self.cdp("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.get("/screenshot")))

    def complaints(self):
        """Errors of the page's scripts, without responses with status 4xx."""
        entries = self.post("/se/log", type="browser")
        return [e["message"] for e in entries if e["level"] == "SEVERE" and e.get("source") != "network"]
