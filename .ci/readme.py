"""Run what a Markdown file shows: every console and Python block, as a reader would paste it.

A `console` block has commands behind `$ `; a `python` block is run as one script. Each must exit
with 0 in a temporary folder that has the checkout's examples and results in it. Blocks of `make`
commands are run by `.ci/run` itself and left out here, as is what the block marks with
`# not run by CI`.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.M | re.S)


def scripts(text: str) -> list[tuple[str, list[str], int, str]]:
    """What to run, in order: as shown, the command, its exit status, and the output shown after it,
    if any. Output after commands is that of the last one."""
    found = []
    for language, body, output in BLOCK.findall(text):
        if language == "python":
            found.append((body, [sys.executable, "-c", body], 0, output))
            continue
        lines = [
            line
            for line in body.splitlines()
            if line.startswith("$ ") and "make " not in line and "# not run by CI" not in line
        ]
        for line in lines:
            status = re.search(r"# exits with (\d)$", line)
            last = output if line is lines[-1] else ""
            found.append((line, ["bash", "-ec", line[2:]], int(status[1]) if status else 0, last))
    return found


def as_shown(output: str, shown: str) -> bool:
    """Whether the lines shown stand in the output in this order; … stands for any lines."""
    at, lines = 0, [line.rstrip() for line in output.splitlines()]
    for line in shown.splitlines():
        if line.strip() not in ("", "…"):
            if line not in lines[at:]:
                return False
            at = lines.index(line, at) + 1
    return "…" in shown or output == shown


def main() -> None:
    text = Path(sys.argv[1]).read_text()
    bin_dir = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{bin_dir}:{os.environ['PATH']}", "COLUMNS": "100"}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("examples", "results"):  # copies: commands may write there
            shutil.copytree(Path(sys.argv[1]).resolve().parent / name, Path(folder) / name)
        for shown, command, status, output in scripts(text):
            start = time.monotonic()
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900
            )
            title = shown.strip().splitlines()[0]
            print(f"{time.monotonic() - start:6.1f} s  {title}", flush=True)
            if done.returncode != status:
                print(done.stdout[-3000:], done.stderr[-3000:], sep="\n")
                sys.exit(f"this command of {sys.argv[1]} exits with {done.returncode}: {title}")
            if output and not as_shown(done.stdout, output):
                sys.exit(f"{sys.argv[1]} shows other output than:\n{done.stdout}")


if __name__ == "__main__":
    main()
