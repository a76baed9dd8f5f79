"""The page of the server in a browser: it lists the models, sends a text, and shows the answer."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading

import pytest
from handmade import write_scaled

import graphkit as gk
from graphkit.report.page import filled
from graphkit.serving.repository import ModelRepository
from graphkit.serving.server import Server
from graphkit.serving.settings import Settings

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Sends "two words" to the first model when the page has listed the models.
SCRIPT = """<script>
const timer = setInterval(() => {
  if (document.getElementById("send").disabled) return;
  clearInterval(timer);
  document.getElementById("text").value = "<b>two words</b>";
  document.getElementById("send").click();
}, 20);
</script>"""


# The elements of a page, as far as its script uses them, for Node.
ELEMENTS = """
const revoked = [];
const element = () => ({
  addEventListener() {}, append() {}, replaceChildren() {}, insertRow: element, insertCell: element,
  set value(to) { if (to !== undefined && !Number.isFinite(to)) throw new TypeError("not finite: " + to); },
});
const images = [];
const created = tag => { const made = element(); if (tag === "img") images.push(made); return made; };
globalThis.document = {getElementById: element, createElement: created};
Object.assign(URL, {createObjectURL: () => "blob:1", revokeObjectURL: url => revoked.push(url)});
let reply = new Response("Invalid request", {status: 400});
globalThis.fetch = async () => reply.clone();
"""
CHECKS = """
(async () => {
  const message = await ask({}).catch(error => error.message);
  shown({classes: [{class: 0, name: null, probability: "nan"}], outputs: {}}, {name: "a.png"});
  images[0].onload();
  reply = new Response('{"error": "no"}', {status: 400});
  console.log(JSON.stringify([message, await ask({}).catch(error => error.message), revoked]));
})();
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node is installed")
def test_script_handles_errors_in_plain_text_and_nan():
    script = re.search(r"<script>(.*)</script>", filled("serve.html"), re.DOTALL)[1]
    done = subprocess.run(["node"], input=ELEMENTS + script + CHECKS, capture_output=True, text=True, timeout=300)
    assert done.stdout == '["Status 400: Invalid request","no",["blob:1"]]\n', done.stderr


@pytest.fixture
def document(tmp_path, monkeypatch):
    """Return the document of the page of a server with an echo of texts, after SCRIPT has run; and complaints."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no Chromium is installed")
    x = gk.input("x", ["N"], dtype=str)
    gk.Model({"y": gk.identity(x)}).save(tmp_path / "echo.onnx")
    repository = ModelRepository([tmp_path / "echo.onnx", write_scaled(tmp_path / "scaled.onnx")], Settings(threads=1))
    server = Server(repository, port=0, drain=0.0)
    routes = "graphkit.serving.sample_routes"
    monkeypatch.setattr(f"{routes}.HTMLResponse", _with_script())
    started = threading.Event()
    thread = threading.Thread(target=server.run, args=(started.set,))
    thread.start()
    assert started.wait(60)
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--enable-logging=stderr",
        "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
        f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=4000", "--dump-dom", server.url,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    finally:
        server.stop()
        thread.join(60)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def _with_script():
    from starlette.responses import HTMLResponse

    return lambda text, **options: HTMLResponse(text.replace("</html>", f"{SCRIPT}</html>"), **options)


@pytest.mark.full
def test_a_text_is_sent_and_its_answer_is_shown(document):
    page, complaints = document
    assert complaints == []
    assert re.findall(r"<option>(.*?)</option>", page) == ["echo", "scaled"]
    (answers,) = re.findall(r'<div id="answers".*?>(.*)</div>', page)
    assert "<td>y [1]</td><td>&lt;b&gt;two words&lt;/b&gt;</td>" in answers
    assert re.search(r'<p id="error" role="alert"></p>', page)
