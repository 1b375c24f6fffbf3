#!/usr/bin/env python3
"""Opens a page of `gpumem view` in headless Chromium and says how fast it is; with --shot, also takes its picture.

    scripts/open-page.py job.html --pan 200
    scripts/open-page.py job.html --fragment 't=peak&by=tag&theme=dark' --shot job.png

Prints one JSON object: milliseconds until the page shows the recording and until it has read all of it, and frames a second while
a tenth of the recording is panned across the timeline. Needs Chromium and nothing else: it is driven through a pipe.
"""

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NAMES = ["chromium", "chromium-browser", "google-chrome"]
# What the page says of itself once it has read everything.
READY = """new Promise((done) => {
    const look = () => document.body?.dataset.ready === "all"
        ? done({first_ms: Number(document.body.dataset.firstMs), all_ms: Number(document.body.dataset.allMs)})
        : setTimeout(look, 20);
    look();
})"""
PAN = """new Promise((done) => {
    const {timeline, end} = viewer, frames = %d, times = [];
    timeline.show(0, end / 10);
    const step = (now) => {
        times.push(now);
        if (times.length > frames) {
            const gaps = times.slice(1).map((t, i) => t - times[i]).sort((a, b) => a - b);
            done({frames_per_second: Math.round(10000 * frames / (now - times[0])) / 10, slowest_frame_ms: gaps[gaps.length - 1]});
        } else {
            timeline.pan(0.9 * 9 / frames);
            requestAnimationFrame(step);
        }
    };
    requestAnimationFrame(step);
})"""


class Browser:
    """Chromium, spoken to through two pipes."""

    def __init__(self, width, height):
        name = next((n for n in NAMES if shutil.which(n)), None)
        if name is None:
            sys.exit("no Chromium is installed (apt install chromium)")
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()

        def prepare():
            # Chromium reads from 3 and writes to 4. The numbers above may be either.
            os.dup2(theirs_in, 10)
            os.dup2(theirs_out, 11)
            os.dup2(10, 3)
            os.dup2(11, 4)

        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        flags += [f"--window-size={width},{height}", f"--user-data-dir={self.profile.name}", "about:blank"]
        self.process = subprocess.Popen([name, *flags], preexec_fn=prepare, close_fds=False, stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self.to, self.of = os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb", buffering=0)
        self.number, self.rest = 0, b""
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(t["targetId"] for t in targets if t["type"] == "page")
        self.session = None
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        self.to.write(json.dumps(message).encode() + b"\0")
        self.to.flush()
        while True:
            while b"\0" not in self.rest:
                more = self.of.read(1 << 20)
                if not more:
                    sys.exit("Chromium has ended")
                self.rest += more
            text, self.rest = self.rest.split(b"\0", 1)
            said = json.loads(text)
            if said.get("id") == self.number:
                if "error" in said:
                    sys.exit(f"{method}: {said['error']}")
                return said["result"]

    def ask(self, expression):
        said = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in said:
            sys.exit(f"the page failed: {said['exceptionDetails']}")
        return said["result"].get("value")

    def close(self):
        self.process.terminate()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--fragment", default="", help="what follows # in the address: t, by, tab, theme, from, to")
    parser.add_argument("--pan", type=int, default=0, metavar="FRAMES", help="measure panning over so many frames")
    parser.add_argument("--shot", type=Path, help="the picture to write")
    parser.add_argument("--size", default="1280x900")
    args = parser.parse_args()
    if not args.page.is_file():
        sys.exit(f"there is no page {args.page}; gpumem view FILE --out {args.page} makes one")
    width, height = map(int, args.size.split("x"))
    browser = Browser(width, height)
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
    browser.call("Page.navigate", url=f"{args.page.resolve().as_uri()}#{args.fragment}")
    said = browser.ask(READY)
    if args.pan:
        said.update(browser.ask(PAN % args.pan))
    if args.shot:
        picture = browser.call("Page.captureScreenshot", format="png")["data"]
        args.shot.write_bytes(base64.b64decode(picture))
    browser.close()
    print(json.dumps(said))


if __name__ == "__main__":
    main()
