"""Rewrites tests/golden/records.json: `python -m tests.golden.generate`."""

import json
from pathlib import Path

from headrace.protocol.codec import CODECS
from tests.golden.generate import vectors
from tests.reference.apache import java, libs

KINDS = ("metadata", "coordinator-key", "coordinator-value", "data")

codecs = [codec for codec in CODECS.values() if codec.header.kind in KINDS]
# Nulls in tagged fields are rare and peculiar, so messages that can have them get more variants.
peculiar = [c for c in codecs if any(f.tag is not None for s in (c.root, *c.structs.values()) for f in s.fields)]
usual = [c for c in codecs if c not in peculiar]
rows = vectors(java(), libs(), usual, seed=1, variants=4) + vectors(java(), libs(), peculiar, seed=1, variants=9)
lines = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
Path(__file__).parents[1].joinpath("records.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
print(len(rows), "vectors of", len(codecs), "messages")
