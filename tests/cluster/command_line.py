"""The command line against a cluster."""

import subprocess
import sys

LIMIT_S = 60


def headrace(*words: str, code: int = 0, limit_s: float = LIMIT_S) -> str:
    command = [sys.executable, "-m", "headrace", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    assert done.returncode == code, (words, done.stdout, done.stderr)
    return done.stdout + done.stderr
