"""The Dockerfile and the compose file fit the project, as far as that shows without an engine that builds them."""

import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.cli.format import format_folders, random_id
from tests.commands import unknown_options
from tests.documents import ROOT
from tests.unit.deploy.files import DEPLOY, compose, config_of, image_environment, of, stages, typed

BUILD, IMAGE = stages()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMPOSE = compose()
SERVICES = COMPOSE["services"]
LIMIT_S = 30.0


def command_of_the_image() -> list[str]:
    (entrypoint,), (command,) = of(IMAGE, "ENTRYPOINT"), of(IMAGE, "CMD")
    assert entrypoint.words == ["headrace"]
    return command.words


def volume() -> str:
    ((path,),) = (one.words for one in of(IMAGE, "VOLUME"))
    return path


class TestDockerfile:
    def test_it_installs_this_tree_and_all_that_its_build_needs(self) -> None:
        copied = {source: one.words[-1] for one in of(BUILD, "COPY") for source in one.words[:-1]}
        assert all((ROOT / source).exists() for source in copied)
        project, hatch = PROJECT["project"], PROJECT["tool"]["hatch"]
        read = ["pyproject.toml", project["readme"], *project["license-files"], hatch["version"]["path"]]
        needed = [*read, *hatch["build"]["targets"]["wheel"]["packages"]]
        assert {name for name in needed if name not in copied and name.split("/")[0] not in copied} == set()
        (top,) = {re.sub(f"/{source}$", "", where).rstrip("/") for source, where in copied.items()}
        (run,) = of(BUILD, "RUN")
        assert run.words[-1] == top and "install" in run.words

    def test_what_is_built_is_what_runs(self) -> None:
        bases = [of(stage, "FROM")[0].words for stage in (BUILD, IMAGE)]
        # A virtual environment works only beside the interpreter that it was made with.
        assert bases[0][0] == bases[1][0]
        version = re.fullmatch(r"python:(3\.\d+)-slim", bases[0][0])
        assert (
            version is not None
            and f"Programming Language :: Python :: {version[1]}" in PROJECT["project"]["classifiers"]
        )
        ((source, target),) = (one.words[1:] for one in of(IMAGE, "COPY") if one.words[0] == f"--from={bases[0][-1]}")
        assert source == target and f"venv --without-pip {target}" in of(BUILD, "RUN")[0].text
        assert any(f"PATH={target}/bin:$PATH" in one.words for one in of(IMAGE, "ENV"))
        assert "headrace" in PROJECT["project"]["scripts"]

    def test_it_does_not_run_as_root(self) -> None:
        ((user,),) = (one.words for one in of(IMAGE, "USER"))
        assert user.isdecimal() and int(user) > 0  # a number: an orchestrator can tell that it is not root
        made = of(IMAGE, "RUN")[0].text
        assert f"--uid {user} --no-create-home headrace" in made
        assert re.search(rf"install -d -o headrace -g headrace -m 750 {volume()}$", made)
        assert [one.name for one in IMAGE].index("USER") > [one.name for one in IMAGE].index("RUN")

    def test_options_are_the_brokers_and_fit_what_the_image_declares(self) -> None:
        config = config_of(command_of_the_image(), image_environment())
        assert config.log_dirs == [volume()]
        ports = {str(listener.port) for listener in config.broker_listeners} | {str(config["metrics.port"])}
        ((*exposed,),) = (one.words for one in of(IMAGE, "EXPOSE"))
        assert set(exposed) == ports
        assert unknown_options(command_of_the_image()) == []


@contextmanager
def answering(status: int, asked: list[str]) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join(LIMIT_S)


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_the_health_check_asks_whether_the_broker_is_ready(status: int, healthy: bool) -> None:
    ((_, command),) = (one.text.split("CMD ") for one in of(IMAGE, "HEALTHCHECK"))
    program = re.fullmatch(r'\["python", "-c", "(.+)"\]', command)
    assert program is not None
    port = config_of(command_of_the_image(), image_environment())["metrics.port"]
    asked: list[str] = []
    with answering(status, asked) as free:
        assert program[1].count(f"127.0.0.1:{port}/") == 1
        mine = program[1].replace(f":{port}/", f":{free}/")
        done = subprocess.run([sys.executable, "-c", mine], capture_output=True, timeout=LIMIT_S)
    assert asked == ["/ready"]
    assert (done.returncode == 0) == healthy


@pytest.mark.parametrize("name", SERVICES)
class TestCompose:
    def test_a_broker_is_found_where_it_says(self, name: str) -> None:
        config = config_of(command_of_the_image(), image_environment() | SERVICES[name]["environment"])
        assert "command" not in SERVICES[name] and "entrypoint" not in SERVICES[name]
        (listener,) = config.broker_listeners
        (advertised,) = config.advertised_listeners
        assert (advertised.name, advertised.host, advertised.port) == (listener.name, name, listener.port)
        assert config["metrics.port"] == config_of(command_of_the_image(), image_environment())["metrics.port"]

    def test_all_know_the_same_voters_and_each_is_one(self, name: str) -> None:
        config = config_of(command_of_the_image(), image_environment() | SERVICES[name]["environment"])
        assert {host for host, _ in config.quorum_voters.values()} == set(SERVICES)
        (controller,) = (one for one in config.listeners if one.name in config.controller_listener_names)
        assert config.quorum_voters[config.node_id] == (name, controller.port)
        assert config.roles == {"broker", "controller"}

    def test_records_survive_one_broker(self, name: str) -> None:
        config = config_of(command_of_the_image(), image_environment() | SERVICES[name]["environment"])
        assert config["default.replication.factor"] == config["offsets.topic.replication.factor"] == len(SERVICES) == 3
        assert config["min.insync.replicas"] == 2

    def test_data_is_in_a_volume_of_its_own(self, name: str) -> None:
        assert SERVICES[name]["volumes"] == [f"{name}:{volume()}"]
        assert set(COMPOSE["volumes"]) == set(SERVICES)

    def test_it_is_restarted_and_safe(self, name: str) -> None:
        service = SERVICES[name]
        assert service["restart"] == "unless-stopped"
        assert service["cap_drop"] == ["ALL"] and service["read_only"] is True
        # The image's user and health check hold, and nobody outside gets in.
        assert {"user", "privileged", "healthcheck", "ports", "network_mode"} & set(service) == set()

    def test_it_is_built_from_this_tree(self, name: str) -> None:
        build = SERVICES[name]["build"]
        assert (DEPLOY / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"

    def test_its_volume_can_be_formatted(self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for key, value in (image_environment() | SERVICES[name]["environment"]).items():
            monkeypatch.setenv(key, value)
        monkeypatch.setenv("HEADRACE_LOG_DIRS", str(tmp_path))
        done = format_folders([], random_id())
        assert done.formatted and f"broker-{done.node_id}" == name


def test_the_readme_types_commands_that_exist() -> None:
    prefix = ["docker", "compose", "-f", "deploy/compose.yaml"]
    formatted = []
    for words in typed():
        if words[:4] == prefix and words[4] in ("run", "exec"):
            rest = [word for word in words[5:] if word != "--rm"]
            assert rest.pop(0) in SERVICES
            if words[4] == "exec":
                assert rest.pop(0) == "headrace"
            assert unknown_options(rest) == [], words
            if "--cluster-id" in rest:
                formatted.append(words[6])
        if words[:2] == ["docker", "run"]:
            settings = dict(word.split("=", 1) for option, word in pairwise(words) if option == "-e")
            config = config_of(command_of_the_image(), image_environment() | settings)
            (reached,) = config.advertised_listeners
            assert words[words.index("-p") + 1] == f"127.0.0.1:{reached.port}:{config.broker_listeners[0].port}"
            assert words[words.index("-v") + 1].endswith(f":{volume()}")
    assert formatted == list(SERVICES)
