"""The systemd unit and its configuration fit each other and the project."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.up import read_file
from headrace.config import BrokerConfig
from tests.commands import unknown_options
from tests.unit.deploy.files import DEPLOY, typed, unit

SERVICE = dict(unit()["Service"])
PROGRAM, *COMMAND = shlex.split(SERVICE["ExecStart"])
LIMIT_S = 60.0


def config() -> BrokerConfig:
    return BrokerConfig.load(read_file(str(DEPLOY / "server.properties")))


def test_it_starts_a_broker_with_the_file_that_the_readme_installs() -> None:
    assert COMMAND[0] == "up" and unknown_options(COMMAND) == []
    installed = {words[-2]: words[-1] for words in typed() if words[:2] == ["sudo", "install"]}
    assert installed["deploy/server.properties"] == COMMAND[COMMAND.index("--config") + 1]
    assert installed["deploy/headrace.service"] == "/etc/systemd/system/headrace.service"
    folder = PROGRAM.removesuffix("/bin/headrace")
    assert ["sudo", "python3", "-m", "venv", folder] in typed()
    assert ["sudo", f"{folder}/bin/pip", "install", "."] in typed()


def test_only_this_machine_reaches_it() -> None:
    assert {listener.host for listener in config().listeners} == {"127.0.0.1"} == {config()["metrics.host"]}
    assert ["curl", f"http://127.0.0.1:{config()['metrics.port']}/ready"] in typed()


def test_it_runs_without_root_and_may_write_only_its_data() -> None:
    assert SERVICE["User"] == SERVICE["Group"] == "headrace"
    assert ["sudo", "useradd", "--system", "--no-create-home", SERVICE["User"]] in typed()
    assert SERVICE["ProtectSystem"] == "strict" and SERVICE["NoNewPrivileges"] == "yes"
    assert config().log_dirs == [f"/var/lib/{SERVICE['StateDirectory']}"] == [unit()["Unit"]["RequiresMountsFor"]]


def test_it_comes_back_and_gives_up_on_what_cannot_start() -> None:
    assert SERVICE["Restart"] == "on-failure"
    assert float(SERVICE["RestartSec"]) * int(unit()["Unit"]["StartLimitBurst"]) < int(
        unit()["Unit"]["StartLimitIntervalSec"]
    )
    assert unit()["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_it(tmp_path: Path) -> None:
    here = tmp_path / "headrace.service"
    here.write_text((DEPLOY / "headrace.service").read_text().replace(PROGRAM, sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(here)], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "headrace.service" in line] == []
