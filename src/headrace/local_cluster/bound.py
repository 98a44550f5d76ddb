"""Programs of others that end with the process that starts them, however that ends, where the system has a call for it.

`python -m headrace.local_cluster.bound PARENT WORDS...` becomes the program. What has to be done between fork and exec
is done there: done by `preexec_fn`, it might wait for ever for a lock that another thread held.
"""

import os
import signal
import sys
import threading
from collections.abc import Sequence

from headrace.platform import end_with_parent


def bound(command: Sequence[str]) -> list[str]:
    """What to start in the place of `command`. It keeps its process's number when it becomes the program."""
    # Linux takes the thread for the parent, and only the main one lives as long as its process.
    if threading.current_thread() is not threading.main_thread():
        return list(command)
    return [sys.executable, "-m", "headrace.local_cluster.bound", str(os.getpid()), *command]


def main(parent: int, command: list[str]) -> None:
    end_with_parent(signal.SIGKILL)
    if os.getppid() == parent:  # or it was gone before the system had been told
        os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
