"""The Python that Spark starts its workers with: this one, with the installed PySpark and not Spark's copy of it.

Spark puts zip files first on the module path of every Python it starts, PySpark's source among them, and starts four of
them before a first query has rows. Each would compile what is installed in compiled form: 0.7 s, one after the other.
Those that plan are forked from Spark's own daemon, whatever is set: here they come from `daemon`, like tasks. And where
a session runs a `fork_server`, all of them are forked from that.
"""

import hashlib
import sys
from pathlib import Path

from headrace.spark.launch.fork_client import SERVER
from headrace.spark.launch.java import JavaMissing, cache_folder, put_script, quoted

FORK_CLIENT = Path(__file__).with_name("fork_client.py")


def worker_python(cache: Path | None = None) -> str:
    """A launcher of this Python that leaves those files out, written if it is not there; this Python if it cannot
    be."""
    import py4j
    import pyspark

    package = Path(pyspark.__file__).parent
    if package in Path(py4j.__file__).parents:
        return sys.executable
    key = hashlib.sha256(f"{sys.executable}\n{package}".encode()).hexdigest()[:12]
    try:
        launcher = (cache_folder() if cache is None else cache) / f"python-{key}"
        put_script(launcher, _script(Path(sys.executable), package))
    except (OSError, JavaMissing):
        return sys.executable
    return str(launcher)


def _script(python: Path, package: Path) -> str:
    return f"""#!/bin/sh
# Headrace's launcher of Python for Spark's workers; written anew when it is missing.
# Left out: Spark's zip files of what is installed here in compiled form, and a jar. Replaced: Spark's daemon by ours.
package='{quoted(package)}'
real='{quoted(package.resolve())}'
kept=
set -f
IFS=:
for place in $PYTHONPATH; do
  case "$place" in "$package"/* | "$real"/*) ;; *) kept="$kept:$place" ;; esac
done
unset IFS
export PYTHONPATH="${{kept#:}}"
if [ "$1 $2" = "-m pyspark.daemon" ]; then
  shift 2
  set -- -m headrace.spark.launch.daemon "$@"
fi
if [ -S "${SERVER}" ]; then exec '{quoted(python)}' -I -S '{quoted(FORK_CLIENT)}' '{quoted(python)}' "$@"; fi
exec '{quoted(python)}' "$@"
"""
