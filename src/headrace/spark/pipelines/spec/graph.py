"""The pipeline as a graph: in which order to build it, what each sink needs, and pictures of it. Pure."""

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.spark.pipelines.spec.model import Pipeline, Source


def cycle_in(inputs: Mapping[str, Sequence[str]]) -> list[str]:
    """The names along one circle, or none."""
    done: set[str] = set()
    for start in inputs:
        path: list[str] = []
        stack = [(start, False)]
        while stack:
            name, leaving = stack.pop()
            if leaving:
                path.pop()
                done.add(name)
            elif name in path:
                return path[path.index(name) :]
            elif name not in done:
                path.append(name)
                stack.append((name, True))
                stack.extend((read, False) for read in reversed(inputs.get(name, ())))
    return []


def build_order(pipeline: Pipeline) -> list[str]:
    """Sources and transforms, each after what it reads."""
    order: dict[str, None] = dict.fromkeys(pipeline.sources)
    waiting = dict(pipeline.transforms)
    while waiting:
        ready = [name for name, transform in waiting.items() if all(read in order for read in transform.inputs)]
        assert ready, "the loader lets no circle pass"
        for name in ready:
            order[name] = None
            del waiting[name]
    return list(order)


def needed_for(pipeline: Pipeline, node: str) -> set[str]:
    """A node and everything above it."""
    found: set[str] = set()
    waiting = [node]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            if name in pipeline.transforms:
                waiting.extend(pipeline.transforms[name].inputs)
    return found


def source_text(source: Source) -> str:
    if source.topic:
        return f"topic {', '.join(source.topic)}"
    if source.pattern:
        return f"topics {source.pattern}"
    kind = "table" if source.table else f"{source.format} files"
    return f"{kind} {source.table or source.files}{' (static)' if source.static else ''}"


@dataclass(frozen=True, slots=True)
class Box:
    """One node of a picture: `name` is unique in it, `text` what is written, `kind` source, transform or sink."""

    name: str
    text: str
    kind: str
    reads: tuple[str, ...]


def boxes(pipeline: Pipeline) -> list[Box]:
    found = []
    for name in build_order(pipeline):
        node = pipeline.nodes[name]
        marks = [f"late by {node.watermark.delay_ms // 1000} s at most"] if node.watermark else []
        marks += [f"{len(node.expect)} expectation{'s' if len(node.expect) > 1 else ''}"] if node.expect else []
        if name in pipeline.sources:
            found.append(Box(name, "\n".join([source_text(pipeline.sources[name]), *marks]), "source", ()))
        else:
            transform = pipeline.transforms[name]
            how = "SQL" if transform.sql is not None else f"Python {transform.function}"
            found.append(Box(name, "\n".join([how, *marks]), "transform", transform.inputs))
    found.extend(Box(f"{sink.name}>", sink.target, "sink", (sink.input,)) for sink in pipeline.sinks.values())
    return found


def tree(pipeline: Pipeline) -> str:
    """For terminals: each sink, and below it what it reads."""
    all_boxes = {box.name: box for box in boxes(pipeline)}
    lines: list[str] = []
    for box in all_boxes.values():
        if box.kind == "sink":
            sink = pipeline.sinks[box.name[:-1]]
            lines.append(f"{sink.name} -> {box.text}{' (rejected rows)' if sink.takes_rejected else ''}")
            lines.extend(_branches(all_boxes, box.reads, ""))
    return "\n".join(lines)


def _branches(all_boxes: Mapping[str, Box], reads: Sequence[str], indent: str) -> Iterator[str]:
    for position, name in enumerate(reads):
        last = position == len(reads) - 1
        box = all_boxes[name]
        yield f"{indent}{'└─' if last else '├─'} {name}: {box.text.replace(chr(10), ', ')}"
        yield from _branches(all_boxes, box.reads, indent + ("   " if last else "│  "))


_MERMAID = {"source": ("[(", ")]"), "transform": ("[", "]"), "sink": ("([", "])")}


def mermaid(pipeline: Pipeline) -> str:
    """For Markdown pages."""
    lines = ["flowchart LR"]
    ids = {box.name: f"n{number}" for number, box in enumerate(boxes(pipeline))}
    for box in boxes(pipeline):
        left, right = _MERMAID[box.kind]
        label = "<br/>".join([f"<b>{_label(box.name.rstrip('>'))}</b>", *map(_label, box.text.split("\n"))])
        lines.append(f'    {ids[box.name]}{left}"{label}"{right}')
        lines.extend(f"    {ids[read]} --> {ids[box.name]}" for read in box.reads)
    return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return html.escape(text, quote=False).replace('"', "#quot;")


BOX_W, BOX_H, GAP_X, GAP_Y, MARGIN = 230, 64, 60, 18, 16
_FILL = {"source": "#dbeafe", "transform": "#f1f5f9", "sink": "#dcfce7"}


def svg(pipeline: Pipeline) -> str:
    """A picture that needs nothing to be shown: columns by depth, sources left, sinks right."""
    all_boxes = boxes(pipeline)
    depth: dict[str, int] = {}
    for box in all_boxes:
        depth[box.name] = 1 + max((depth[read] for read in box.reads), default=-1)
    last = max(depth.values())
    depth.update((box.name, last) for box in all_boxes if box.kind == "sink")
    rows: dict[int, int] = {}
    place: dict[str, tuple[int, int]] = {}
    for box in all_boxes:
        column = depth[box.name]
        place[box.name] = (MARGIN + column * (BOX_W + GAP_X), MARGIN + rows.get(column, 0) * (BOX_H + GAP_Y))
        rows[column] = rows.get(column, 0) + 1
    width = 2 * MARGIN + (last + 1) * (BOX_W + GAP_X) - GAP_X
    height = 2 * MARGIN + max(rows.values()) * (BOX_H + GAP_Y) - GAP_Y
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
            ' font-family="sans-serif" font-size="12">'
        ),
        f"<title>{html.escape(pipeline.name)}</title>",
    ]
    for box in all_boxes:
        x, y = place[box.name]
        for read in box.reads:
            from_x, from_y = place[read][0] + BOX_W, place[read][1] + BOX_H // 2
            to_y, bend = y + BOX_H // 2, (from_x + x) // 2
            parts.append(
                f'<path d="M{from_x},{from_y} C{bend},{from_y} {bend},{to_y} {x},{to_y}" fill="none" stroke="#64748b"'
                ' stroke-width="1.5"/>'
            )
    for box in all_boxes:
        x, y = place[box.name]
        parts.append(
            f'<rect x="{x}" y="{y}" width="{BOX_W}" height="{BOX_H}" rx="8" fill="{_FILL[box.kind]}" stroke="#475569"/>'
        )
        parts.append(
            f'<text x="{x + 10}" y="{y + 20}" font-weight="bold">{html.escape(_cut(box.name.rstrip(">")))}</text>'
        )
        for number, line in enumerate(box.text.split("\n")[:2]):
            parts.append(
                f'<text x="{x + 10}" y="{y + 38 + 16 * number}" fill="#334155">{html.escape(_cut(line))}</text>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _cut(text: str, longest: int = 34) -> str:
    """The end of a path tells more than its beginning."""
    return text if len(text) <= longest else f"{text[: longest // 3]}...{text[-(longest - longest // 3 - 3) :]}"
