"""A sheet to draw on: boxes, pills, arrows and text, as one SVG file that needs nothing else.

Colours are names of tones. The file has both a light and a dark value for each and the reader's own preference decides,
so that one picture is legible on either page.
"""

from html import escape
from typing import NamedTuple

FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
MARGIN = 24
LETTER_WIDTH = 0.56
"""Of the font's size: what a letter takes on average. Enough to cut long words; nothing is aligned by it."""
MONO_WIDTH = 0.62


class Tone(NamedTuple):
    """One meaning: its fill, its edge and its letters, on light and on dark."""

    light: tuple[str, str, str]
    dark: tuple[str, str, str]


TONES = {
    "page": Tone(("#ffffff", "#d7dee8", "#0f1b2d"), ("#0d1524", "#2a3850", "#e8eef8")),
    "plain": Tone(("#f3f6fa", "#c6d0de", "#26344a"), ("#172236", "#3a4a66", "#d5deec")),
    "quiet": Tone(("#ffffff", "#dbe2ec", "#64748b"), ("#111b2d", "#2c3a53", "#8fa1bb")),
    "leader": Tone(("#dbe9ff", "#3b76d6", "#12376f"), ("#16356b", "#6ea3f5", "#dfebff")),
    "follower": Tone(("#eef4ff", "#9dbdf0", "#2d4f86"), ("#14233f", "#47689e", "#b9cff2")),
    "good": Tone(("#dff5e7", "#2f9e62", "#0f5132"), ("#123a29", "#45b97c", "#c9f2da")),
    "wait": Tone(("#fff1d6", "#d08a1d", "#714705"), ("#412e0c", "#dba03c", "#ffe3b0")),
    "bad": Tone(("#fde3e3", "#d64545", "#7c1414"), ("#471919", "#ec7474", "#ffd6d6")),
    "other": Tone(("#efe7fd", "#8b5cf6", "#46218f"), ("#2c1d52", "#a98bfa", "#e6dcff")),
}


class Canvas:
    """Shapes in the order in which they are drawn. `svg` is the file; `height` may grow until then."""

    def __init__(self, width: int, height: int, title: str, subtitle: str = "") -> None:
        self.width = width
        self.height = height
        self.title = title
        self._parts: list[str] = []
        self.text(MARGIN, 38, title, size=18, bold=True)
        if subtitle:
            self.text(MARGIN, 60, subtitle, tone="quiet", size=12.5)

    # -- shapes

    def box(
        self, x: float, y: float, width: float, height: float, tone: str = "plain", *, radius: int = 8,
        dashed: bool = False,
    ) -> None:  # fmt: skip
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius}"'
            f' class="b {tone}"{dash}/>'
        )

    def text(
        self, x: float, y: float, words: str, *, tone: str = "page", size: float = 13, bold: bool = False,
        middle: bool = False, end: bool = False, mono: bool = False,
    ) -> None:  # fmt: skip
        anchor = ' text-anchor="middle"' if middle else ' text-anchor="end"' if end else ""
        weight = ' font-weight="600"' if bold else ""
        kind = "t m" if mono else "t"
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" class="{kind} {tone}-t"{anchor}{weight}>'
            f"{escape(words, quote=False)}</text>"
        )

    def label(
        self, x: float, y: float, width: float, height: float, words: str, tone: str = "plain", *, size: float = 13,
        bold: bool = False, mono: bool = False, dashed: bool = False, radius: int = 8,
    ) -> None:  # fmt: skip
        """A box with words in its middle, cut to what fits."""
        self.box(x, y, width, height, tone, radius=radius, dashed=dashed)
        shown = fitting(words, width - 8, size, mono=mono)
        self.text(
            x + width / 2, y + height / 2 + size * 0.36, shown, tone=tone, size=size, bold=bold, middle=True, mono=mono
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, tone: str = "plain", *, dashed: bool = False) -> None:
        dash = ' stroke-dasharray="4 4"' if dashed else ""
        self._parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="l {tone}-l"{dash}/>')

    def arrow(
        self, x1: float, y1: float, x2: float, y2: float, tone: str = "plain", *, dashed: bool = False
    ) -> None:  # fmt: skip
        dash = ' stroke-dasharray="4 4"' if dashed else ""
        # A curve that leaves and arrives along the longer way, so that several do not lie upon each other.
        if abs(x2 - x1) > abs(y2 - y1):
            half = (x1 + x2) / 2
            bend = f"C{half:.1f} {y1:.1f} {half:.1f} {y2:.1f}"
        else:
            half = (y1 + y2) / 2
            bend = f"C{x1:.1f} {half:.1f} {x2:.1f} {half:.1f}"
        self._parts.append(
            f'<path d="M{x1:.1f} {y1:.1f} {bend} {x2:.1f} {y2:.1f}" class="l {tone}-l" fill="none"'
            f' marker-end="url(#to-{tone})"{dash}/>'
        )

    # -- the file

    def svg(self) -> str:
        used = sorted({tone for tone in TONES if any(f"to-{tone})" in part for part in self._parts)})
        markers = "".join(
            f'<marker id="to-{tone}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
            f' orient="auto-start-reverse"><path d="M0 0.6 L8 4 L0 7.4 z" class="{tone}-h"/></marker>'
            for tone in used
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}"'
            f' height="{self.height}" role="img" aria-label="{escape(self.title)}">\n'
            f"<title>{escape(self.title, quote=False)}</title>\n<style>{_style()}</style>\n<defs>{markers}</defs>\n"
            f'<rect x="0.5" y="0.5" width="{self.width - 1}" height="{self.height - 1}" rx="12" class="b page"/>\n'
            + "\n".join(self._parts)
            + "\n</svg>\n"
        )


def fitting(words: str, width: float, size: float, *, mono: bool = False) -> str:
    """As many letters as the width holds, with an ellipsis where some are missing."""
    letters = max(1, int(width / (size * (MONO_WIDTH if mono else LETTER_WIDTH))))
    return words if len(words) <= letters else words[: letters - 1] + "…"


def _style() -> str:
    fixed = f".t{{font-family:{FONT}}}.m{{font-family:{MONO}}}.l{{stroke-width:1.6}}.b{{stroke-width:1.2}}"
    return (
        f"{fixed}{_tones(0)}@media (prefers-color-scheme: dark){{{_tones(1)}}}"
    )  # fmt: skip


def _tones(side: int) -> str:
    rules = []
    for name, tone in TONES.items():
        fill, edge, letters = tone[side]
        rules.append(
            f".{name}{{fill:{fill};stroke:{edge}}}.{name}-t{{fill:{letters}}}"
            f".{name}-l{{stroke:{edge}}}.{name}-h{{fill:{edge}}}"
        )
    return "".join(rules)
