"""A folder that looks like a Java runtime."""

from pathlib import Path


def fake_java(home: Path, version: str, script: str = '#!/bin/sh\nfor w do echo "$w"; done\n') -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(script)
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home
