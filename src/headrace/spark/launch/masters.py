"""Where Spark runs: addresses checked before any Java starts. Spark itself would try for minutes, or end without a
word."""

import os
import re
import socket
import xml.etree.ElementTree as xml
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

CONNECT_LIMIT_S = 5.0
PORTS = {"spark": 7077, "sc": 15002, "https": 443, "http": 80}
HADOOP_FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
RM_PORT = 8032
IMAGES = ("spark.kubernetes.container.image", "spark.kubernetes.executor.container.image")
FORMS = "local[*], spark://host:7077, yarn, k8s://https://host:443 or sc://host:15002"

Address = tuple[str, int]


class MasterUnusable(ValueError):
    """Spark cannot run there; the message says why, `fix` what to do."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message, fix)
        self.message, self.fix = message, fix

    def __str__(self) -> str:
        return f"{self.message}: {self.fix}"


def check_master(master: str, conf: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> None:
    """Raises MasterUnusable for an address that is none, or where nobody listens."""
    kind, _, rest = master.partition("://")
    if re.fullmatch(r"local(\[(\*|[1-9]\d*)(,\d+)?\])?|local-cluster\[.+\]", master):
        return
    if master == "yarn":
        _check_reachable(master, _resource_managers(environment), "check yarn-site.xml, and that YARN runs")
    elif kind == "k8s" and rest:
        _check_reachable(master, [_address(master, rest, "https")], "check the address: kubectl cluster-info shows it")
        if not any(conf.get(name) for name in IMAGES):
            raise MasterUnusable(
                f"{IMAGES[0]} is not set, so Kubernetes has nothing to start executors from",
                f"--conf {IMAGES[0]}=IMAGE, or the same under `conf` of the spec; the image needs headrace in its"
                " Python",
            )
    elif kind in ("spark", "sc") and rest:
        # Connect's options follow the address behind a slash.
        addresses = [_address(master, one, kind) for one in rest.partition("/")[0].split(",")]
        start = "sbin/start-master.sh" if kind == "spark" else "sbin/start-connect-server.sh"
        _check_reachable(master, addresses, f"start it ({start}), or correct the address")
    else:
        raise MasterUnusable(f"{master!r} is not a place where Spark could run", f"write {FORMS}")
    if kind != "sc":
        _check_python(conf)


def _check_python(conf: Mapping[str, str]) -> None:
    """Spark looks for format("headrace") on this machine by the path that executors run."""
    path = conf.get("spark.pyspark.python", "")
    if os.sep in path and not Path(path).is_file():
        raise MasterUnusable(
            f'spark.pyspark.python={path} is not on this machine, where Spark looks for format("headrace") with it',
            "use a path that is a Python with headrace both here and on executors; a link will do",
        )


def _address(master: str, text: str, scheme: str) -> Address:
    found = urlsplit(text if "://" in text else f"{scheme}://{text}")
    try:
        port = found.port
    except ValueError:
        raise MasterUnusable(f"{master!r} has no port between 0 and 65535", f"write {FORMS}") from None
    if not found.hostname or found.scheme not in PORTS:
        raise MasterUnusable(f"{master!r} names no host", f"write {FORMS}")
    return found.hostname, port or PORTS[found.scheme]


def _check_reachable(master: str, addresses: list[Address], fix: str) -> None:
    """One of them is enough: others may stand by."""
    reasons = []
    for host, port in addresses:
        try:
            socket.create_connection((host, port), CONNECT_LIMIT_S).close()
            return
        except OSError as error:
            reasons.append(f"{host}:{port}: {error.strerror or error}")
    raise MasterUnusable(f"{master} cannot be reached ({'; '.join(reasons)})", fix)


# -- YARN


def _resource_managers(environment: Mapping[str, str]) -> list[Address]:
    """The addresses that Hadoop's own settings have."""
    named = [name for name in HADOOP_FOLDERS if environment.get(name)]
    if not named:
        raise MasterUnusable(
            "yarn: neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set, so nobody knows where YARN is",
            "export HADOOP_CONF_DIR=/etc/hadoop/conf, or wherever the cluster's yarn-site.xml lies",
        )
    for name in named:
        path = Path(environment[name]) / "yarn-site.xml"
        if path.is_file():
            return _addresses(path, _properties(path))
    raise MasterUnusable(
        f"yarn: {' and '.join(f'{name}={environment[name]}' for name in named)} has no yarn-site.xml",
        "set it to the folder where the cluster's yarn-site.xml lies",
    )


def _properties(path: Path) -> dict[str, str]:
    try:
        root = xml.parse(path).getroot()
    except xml.ParseError as error:
        raise MasterUnusable(f"{path} is not XML ({error})", "take it from the cluster again") from None
    return {one.findtext("name", "").strip(): one.findtext("value", "").strip() for one in root.iter("property")}


def _addresses(path: Path, properties: Mapping[str, str]) -> list[Address]:
    key = "yarn.resourcemanager"
    ids = [one.strip() for one in properties.get(f"{key}.ha.rm-ids", "").split(",") if one.strip()]
    found = []
    for suffix in [f".{one}" for one in ids] or [""]:
        address = properties.get(f"{key}.address{suffix}") or properties.get(f"{key}.hostname{suffix}")
        if address and "${" not in address:
            host, _, port = address.partition(":")
            found.append((host, int(port) if port.isdecimal() else RM_PORT))
    if not found:
        raise MasterUnusable(f"{path} does not say where YARN's resource manager is", f"set {key}.hostname in it")
    return found
