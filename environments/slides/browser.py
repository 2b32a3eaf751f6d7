"""A headless Chromium that renders documents of ours and prints what a script of ours measured.

A fresh profile in a temporary folder, no network (every name resolves to nothing and the proxy is a closed
port), one process group that is killed at the end. Chromium's own sandbox is on, except for root, for whom it
does not start.
"""

import asyncio
import html
import json
import os
import re
import secrets
import shutil
import signal
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import UserError

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1280, 720  # CSS pixels of a slide
SECONDS = 30.0  # for one start; a start with one page takes about one
FLAGS = (
    "--headless", "--dump-dom", "--disable-gpu", "--no-first-run", "--disable-extensions", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio", "--force-device-scale-factor=1",
    "--force-color-profile=srgb", "--font-render-hinting=none", f"--window-size={WIDTH},{HEIGHT}",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:9", "--proxy-bypass-list=<-loopback>",
)  # fmt: skip
# After the page's own rules, which have no importance left: nothing is cut off or moves.
FORCED = "<style>*{overflow:visible!important;animation:none!important;transition:none!important}</style>"
SCRIPT = (Path(__file__).parent / "measure.js").read_text()

_slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()


class RenderError(Exception):
    """The browser gave no measurement."""


def find_browser() -> str:
    """The path of a Chromium. Raises ``UserError`` where there is none."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise UserError("slides are judged in a browser and there is none: apt-get install chromium")
    return program


def document(pages: Sequence[str], nonce: str) -> str:
    """One document with a frame a page. Frames have no right to run scripts; the measuring script has a
    nonce, without which none runs at all, and nothing may be fetched.
    """
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'"
    frame = (
        f'<iframe sandbox="allow-same-origin" style="position:absolute;left:0;top:0;border:0" width="{WIDTH}"'
        f' height="{HEIGHT}" srcdoc="{{}}"></iframe>'
    )
    frames = "".join(frame.format(html.escape(page.replace("</head>", f"{FORCED}</head>"))) for page in pages)
    return (
        f'<!DOCTYPE html><html><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<script nonce="{nonce}">{SCRIPT}</script></head><body style="margin:0">{frames}</body></html>'
    )


async def measure(program: str, pages: Sequence[str]) -> list[dict]:
    """What ``measure.js`` says of each page, all in one start of the browser; as many starts at once as there
    are cores. Raises ``RenderError`` when it fails and ``TimeoutError`` when it takes too long.
    """
    slots = _slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(os.cpu_count() or 1))
    async with slots:
        with tempfile.TemporaryDirectory(prefix="slides-", ignore_cleanup_errors=True) as folder:
            source = Path(folder) / "pages.html"
            source.write_text(document(pages, secrets.token_hex(16)), encoding="utf-8")
            output = await _run(program, folder, source)
    found = re.search(r'<pre id="measured">(.*?)</pre>', output, re.DOTALL)
    if found is None:
        raise RenderError("the browser printed no measurement")
    return json.loads(html.unescape(found[1]))


async def _run(program: str, folder: str, source: Path) -> str:
    flags = [*FLAGS, f"--user-data-dir={folder}/profile", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    environment = {
        "HOME": folder,
        "TMPDIR": folder,
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
    }
    printed = Path(folder) / "printed.html"
    with printed.open("wb") as out:
        try:
            process = await asyncio.create_subprocess_exec(
                program, *flags, source.as_uri(), stdin=asyncio.subprocess.DEVNULL, stdout=out,
                stderr=asyncio.subprocess.DEVNULL, start_new_session=True, env=environment, cwd=folder,
            )  # fmt: skip
        except OSError as error:
            raise RenderError(f"the browser does not start: {error}") from error
    try:
        await asyncio.wait_for(process.wait(), SECONDS)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # helpers of the browser too
        except ProcessLookupError:
            pass
        await process.wait()
    if process.returncode:
        raise RenderError(f"the browser failed (exit status {process.returncode})")
    return printed.read_text(encoding="utf-8", errors="replace")
