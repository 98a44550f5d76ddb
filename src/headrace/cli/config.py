"""`headrace config`: the options of brokers, topics and groups, as `kafka-configs.sh` shows and changes them.

They go through requests that Kafka serves to clients, so it works against Apache Kafka too.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import typer

from headrace.cli.completion import group_names, topic_names
from headrace.cli.output import BOOTSTRAP, JSON, changes_text, command_group, pairs, print_json, with_admin
from headrace.client.admin.admin import Admin, ConfigEntry, ConfigSource, Resource
from headrace.client.errors import ClientError
from headrace.config.topic import suggestion
from headrace.terminal import print_table

app = command_group("Show and change options of brokers, topics and groups.", no_args_is_help=True)

SOURCES: dict[int, str] = {
    ConfigSource.TOPIC: "this topic",
    ConfigSource.DYNAMIC_BROKER: "this broker, by command",
    ConfigSource.DYNAMIC_DEFAULT: "all brokers, by command",
    ConfigSource.STATIC_BROKER: "the broker's file or command line",
    ConfigSource.DEFAULT: "default",
    ConfigSource.GROUP: "this group",
}
PREFIXED = "listener.name."
"""Begins the names of options for one listener, which brokers do not list."""
DEFAULTS = (ConfigSource.DEFAULT, ConfigSource.UNKNOWN)

BROKER = typer.Option(None, "--broker", metavar="ID", min=0, help="The options of this broker.", show_default=False)
ALL_BROKERS = typer.Option(False, "--all-brokers", help="What is set for all brokers together.")
TOPIC = typer.Option(
    None, "--topic", metavar="TOPIC", help="The options of this topic.", show_default=False, autocompletion=topic_names
)
GROUP = typer.Option(
    None, "--group", metavar="GROUP", help="The options of this group.", show_default=False, autocompletion=group_names
)


class Entity(NamedTuple):
    """Whose options they are."""

    resource: Resource
    name: str

    def __str__(self) -> str:
        if self.resource is Resource.BROKER:
            return f"broker {self.name}" if self.name else "all brokers"
        return f"{self.resource.name.lower()} {self.name}"


def entity_of(broker: int | None, all_brokers: bool, topic: str | None, group: str | None) -> Entity:
    """The one that was named. Raises ClientError."""
    named = [
        Entity(resource, name)
        for resource, name in (
            (Resource.BROKER, None if broker is None else str(broker)),
            (Resource.BROKER, "" if all_brokers else None),
            (Resource.TOPIC, topic),
            (Resource.GROUP, group),
        )
        if name is not None
    ]
    if len(named) != 1:
        raise ClientError("say whose options: one of --broker ID, --all-brokers, --topic TOPIC, --group GROUP")
    return named[0]


@app.command("describe")
def describe(
    names: list[str] = typer.Argument(None, metavar="OPTION", help="Only these options.", show_default=False),
    broker: int | None = BROKER,
    all_brokers: bool = ALL_BROKERS,
    topic: str | None = TOPIC,
    group: str | None = GROUP,
    every: bool = typer.Option(False, "--all", help="Show options that have their defaults, too."),
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Show options, their values and where each comes from.

    Without names and --all, only what differs from the defaults.
    """
    entity = entity_of(broker, all_brokers, topic, group)

    async def work(admin: Admin) -> list[ConfigEntry]:
        entries = await admin.describe_configs(*entity)
        refuse_unknown(names or [], entries, entity)
        wanted = [entry for entry in entries if entry.name in names] if names else entries
        return wanted if names or every else [entry for entry in wanted if entry.source not in DEFAULTS]

    found = sorted(with_admin(bootstrap, work), key=lambda entry: entry.name)
    if as_json:
        print_json([_facts(entry) for entry in found])
    elif not found:
        print(f"{entity}: nothing differs from the defaults; --all shows every option")
    else:
        rows = [
            (entry.name, _value(entry), SOURCES.get(entry.source, "?"), "" if not entry.is_read_only else "fixed")
            for entry in found
        ]
        print_table(("OPTION", "VALUE", "FROM", ""), rows)


def _value(entry: ConfigEntry) -> str:
    return "(secret)" if entry.is_sensitive else "-" if entry.value is None else entry.value


def _facts(entry: ConfigEntry) -> dict[str, Any]:
    known = entry.source in ConfigSource._value2member_map_
    return {
        "name": entry.name,
        "value": entry.value,
        "source": ConfigSource(entry.source).name if known else str(entry.source),
        "read_only": entry.is_read_only,
        "sensitive": entry.is_sensitive,
    }


@app.command("alter")
def alter(
    broker: int | None = BROKER,
    all_brokers: bool = ALL_BROKERS,
    topic: str | None = TOPIC,
    group: str | None = GROUP,
    settings: list[str] = typer.Option([], "--set", metavar="NAME=VALUE", help="Set an option; may be repeated."),
    unset: list[str] = typer.Option([], "--unset", metavar="NAME", help="Take a setting back; may be repeated."),
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Set and unset options while brokers run.

    An option that needs a restart is refused: it belongs in the broker's file.
    """
    entity = entity_of(broker, all_brokers, topic, group)
    changes = pairs(settings)
    if not changes and not unset:
        raise ClientError("nothing to alter: give --set NAME=VALUE or --unset NAME")

    async def work(admin: Admin) -> None:
        if unset:
            await refuse_unknown_unset(admin, entity, unset)
        if entity.resource is Resource.BROKER:
            refuse_misspelt(changes, await admin.describe_configs(*await _describing(admin, entity)))
        await admin.alter_configs(*entity, set=changes, unset=unset)

    with_admin(bootstrap, work)
    if as_json:
        kind = entity.resource.name.lower()
        print_json({kind: entity.name or None, "set": changes, "unset": unset})
    else:
        print(f"{entity}: {changes_text(changes, unset)}")


async def refuse_unknown_unset(admin: Admin, entity: Entity, unset: list[str]) -> None:
    """A broker takes a name that it does not know for one that is not set. Raises ClientError."""
    refuse_unknown(unset, await admin.describe_configs(*await _describing(admin, entity)), entity, "--unset ")


async def _describing(admin: Admin, entity: Entity) -> Entity:
    """Who knows what there is to set."""
    if entity.resource is Resource.BROKER and not entity.name:
        # All brokers together have only what is set for them; what there is to set, any of them knows.
        return Entity(Resource.BROKER, str((await admin.describe_cluster()).brokers[0].node_id))
    return entity


def refuse_misspelt(changes: Iterable[str], entries: list[ConfigEntry]) -> None:
    """Brokers keep settings that they do not know, since a plugin of theirs may: nothing would come of a name with a
    letter missing. Raises ClientError."""
    known = {entry.name for entry in entries}
    for name in changes:
        meant = "" if name in known or name.startswith(PREFIXED) else suggestion(name, known)
        if meant:
            raise ClientError(f"--set {name}: there is no such broker option{meant}")


def refuse_unknown(names: list[str], entries: list[ConfigEntry], entity: Entity, before: str = "") -> None:
    """Raise ClientError for a name that is none of the options, with the one that was meant."""
    known = {entry.name for entry in entries}
    for name in names:
        if name not in known:
            kind = entity.resource.name.lower()
            raise ClientError(f"{before}{name}: there is no such {kind} option{suggestion(name, known)}")
