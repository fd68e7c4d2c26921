"""Draw the pictures of the page on concepts, ``docs/images/concepts``, in SVG.

``python tools/diagrams.py`` rewrites them; a test compares them. Colours are CSS variables: the style within a file is
for code hosts, which show it as a picture, and ``docs/_site/static/site.css`` has those of the site.
"""

from html import escape
from pathlib import Path

__all__ = ["FOLDER", "pictures"]

FOLDER = Path(__file__).parents[1] / "docs" / "images" / "concepts"
_NARROW = 140  # a box whose text is small
_LIGHT = {
    "ink": "#1f2328",
    "muted": "#59636e",
    "host": "#f4f5f7",
    "host-line": "#d0d5db",
    "spark": "#fdeadd",
    "spark-line": "#c8571b",
    "node": "#deedfb",
    "node-line": "#1f6fb5",
    "plain": "#ffffff",
    "plain-line": "#8a949e",
    "good": "#2c7a3f",
    "bad": "#c62f2f",
}
_DARK = {
    "ink": "#e6e9ec",
    "muted": "#a3adb8",
    "host": "#1c2026",
    "host-line": "#3a424c",
    "spark": "#3c2413",
    "spark-line": "#f08a4b",
    "node": "#12304b",
    "node-line": "#5aaef0",
    "plain": "#252b33",
    "plain-line": "#76818d",
    "good": "#6fcf83",
    "bad": "#ff7b72",
}


class _Picture:
    """An SVG picture: boxes, texts and arrows by coordinates."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size, self._title, self._parts = (width, height), title, [_MARKERS]

    def box(self, x: float, y: float, width: float, height: float, kind: str, *lines: str, top: bool = False) -> None:
        """Draw a box with lines of text, the first in bold: in its middle, or at its top left."""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="7" '
            f'fill="var(--d-{kind})" stroke="var(--d-{kind}-line)" stroke-width="1.4"/>'
        )
        for number, line in enumerate(lines):
            weight = "600" if number == 0 else "400"
            if top:
                self.text(x + 12, y + 21 + 17 * number, line, anchor="start", weight=weight)
            else:
                middle = y + height / 2 + 5 - 8.5 * (len(lines) - 1) + 17 * number
                size = 12 if number or width < _NARROW else 13
                self.text(x + width / 2, middle, line, weight="400" if width < _NARROW else weight, size=size)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        anchor: str = "middle",
        weight: str = "400",
        size: int = 13,
        colour: str = "ink",
    ) -> None:
        """Write a line of text."""
        self._parts.append(
            f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" '
            f'fill="var(--d-{colour})">{escape(text)}</text>'
        )

    def arrow(
        self, points: str, colour: str = "muted", *, width: float = 1.6, dashed: bool = False, both: bool = False
    ) -> None:
        """Draw an arrow along points."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        start = f' marker-start="url(#d-{colour})"' if both else ""
        self._parts.append(
            f'<polyline points="{points}" fill="none" stroke="var(--d-{colour})" stroke-width="{width}"{dash}'
            f'{start} marker-end="url(#d-{colour})"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = "host-line", dash: str = "") -> None:
        """Draw a line."""
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="var(--d-{colour})" stroke-width="1.4"{dashes}/>'
        )

    def __str__(self) -> str:
        width, height = self._size
        light, dark = (_variables(colours) for colours in (_LIGHT, _DARK))
        style = f"<style>svg{{{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">'
            f"<title>{escape(self._title)}</title>{style}\n" + "\n".join(self._parts) + "\n</svg>\n"
        )


_MARKERS = (
    "<defs>"
    + "".join(
        f'<marker id="d-{colour}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="var(--d-{colour})"/></marker>'
        for colour in ("muted", "spark-line", "node-line", "good", "bad")
    )
    + "</defs>"
)


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--d-{name}:{value};" for name, value in colours.items())


def _who_feeds_whom() -> _Picture:
    """Draw a driver, and two executors with a node each."""
    picture = _Picture(
        880, 470, "The driver controls, Spark's tasks feed the nodes beside them, and the nodes exchange gradients"
    )
    picture.box(270, 14, 340, 66, "spark", "Spark driver", "your program · Cluster(spark, train, num_workers=2)")
    for number, x in enumerate((20, 470)):
        middle = x + 195
        picture.box(x, 150, 390, 306, "host", f"host {number + 1}: an executor of Spark", top=True)
        picture.box(x + 18, 186, 160, 54, "spark", "executor (JVM)", "computes partitions")
        picture.box(x + 18, 276, 160, 54, "spark", "feeding task", "Python worker")
        picture.box(x + 212, 186, 160, 54, "plain", "supervisor", "starts, watches, ends")
        picture.box(
            x + 18,
            366,
            354,
            70,
            "node",
            f"node worker:{number}",
            "your function, TensorFlow, Keras · cache of its rows",
        )
        picture.arrow(f"{x + 98},240 {x + 98},275", "spark-line", width=2.4)
        picture.arrow(f"{x + 98},330 {x + 98},365", "spark-line", width=2.4)
        picture.text(x + 110, 352, "rows, as Arrow batches", anchor="start", size=12, colour="muted")
        picture.arrow(f"{x + 292},240 {x + 292},365", dashed=True, both=True)
        picture.text(x + 302, 300, "a pipe", anchor="start", size=12, colour="muted")
        end = middle + 97
        picture.arrow(
            f"{390 if number == 0 else 490},80 {390 if number == 0 else 490},116 {end},116 {end},185",
            dashed=True,
            both=True,
        )
    picture.text(510, 108, "control messages, metrics, results", anchor="start", size=12, colour="muted")
    picture.arrow("392,401 487,401", "node-line", width=2.6, both=True)
    picture.text(440, 392, "gradients", size=12, colour="muted")
    return picture


def _life() -> _Picture:
    """Draw the life of a cluster: four lanes over time."""
    picture = _Picture(880, 372, "A cluster's life: launch, feeding, training, end")
    left = 128
    for x, name in ((left, "start()"), (330, "train(df)"), (796, "shutdown()")):
        picture.line(x, 44, x, 330, dash="3 4")
        picture.text(x, 34, name, weight="600")
    lanes = [("your program", 56), ("task slot", 120), ("supervisor", 184), ("node", 248)]
    for name, y in lanes:
        picture.text(left - 14, y + 27, name, anchor="end", weight="600", size=12)
    picture.box(left, 56, 196, 44, "spark", "waits for all nodes")
    picture.box(330, 56, 176, 44, "spark", "waits for the rows")
    picture.box(512, 56, 278, 44, "spark", "waits for the function's end")
    picture.box(left, 120, 98, 44, "spark", "launch task")
    picture.box(330, 120, 176, 44, "spark", "feeding tasks")
    picture.text(276, 147, "free", size=12, colour="muted")
    picture.text(648, 147, "free for other jobs of the application", size=12, colour="muted")
    picture.box(left + 46, 184, 638, 44, "plain", "watches the node, sends heartbeats, forwards its output")
    picture.box(left + 58, 248, 138, 44, "node", "import TensorFlow")
    picture.box(330, 248, 176, 44, "node", "stores rows")
    picture.box(512, 248, 212, 44, "node", "fit: epochs over its rows")
    picture.box(730, 248, 60, 44, "node", "returns")
    picture.line(left, 330, 862, 330, "plain-line")
    picture.arrow("128,330 866,330")
    picture.text(866, 352, "time", anchor="end", size=12, colour="muted")
    picture.text(
        left, 352, 'with start="first_rows", fit begins while rows still come', anchor="start", size=12, colour="muted"
    )
    return picture


def _restart() -> _Picture:
    """Draw a training of five epochs that loses a worker in the fourth."""
    picture = _Picture(880, 352, "A worker dies in the fourth epoch; all nodes start again and resume after the third")
    left, wide = 110, 74
    for name, y in (("worker:0", 62), ("worker:1", 122)):
        picture.text(left - 14, y + 26, name, anchor="end", weight="600", size=12)
        for epoch in range(3):
            picture.box(left + epoch * wide, y, wide - 6, 42, "node", f"epoch {epoch + 1}")
        picture.box(left + 3 * wide, y, 34, 42, "node", "4")
        picture.box(486, y, 58, 42, "plain", "start")
        picture.box(550, y, 90, 42, "spark", "rows again")
        picture.box(646, y, wide - 6, 42, "node", "epoch 4")
        picture.box(646 + wide, y, wide - 6, 42, "node", "epoch 5")
    for epoch in range(3):
        x = left + (epoch + 1) * wide - 3
        picture.arrow(f"{x},106 {x},216", "good")
        picture.box(x - 33, 218, 66, 34, "plain", f"step {(epoch + 1) * 100}")
    picture.text(left - 14, 239, "checkpoints", anchor="end", weight="600", size=12)
    picture.line(380, 50, 380, 180, "bad", dash="3 4")
    picture.text(380, 151, "✕", weight="700", size=22, colour="bad")
    picture.text(380, 42, "killed", weight="600", colour="bad")
    picture.text(424, 88, "stopped", size=12, colour="muted")
    picture.arrow("329,252 329,284 643,284 643,168", "good")
    picture.text(500, 276, "restore: weights, optimizer, epoch, seeds", size=12, colour="muted")
    picture.text(457, 318, "ctx.attempt = 0", size=12, colour="muted", anchor="end")
    picture.text(485, 318, "ctx.attempt = 1", size=12, colour="muted", anchor="start")
    picture.line(471, 50, 471, 326, dash="3 4")
    picture.arrow("110,330 866,330")
    picture.text(866, 347, "time", anchor="end", size=12, colour="muted")
    return picture


def pictures() -> dict[str, str]:
    """Return the pictures in SVG, by the names of their files."""
    drawn = {"who-feeds-whom.svg": _who_feeds_whom(), "life.svg": _life(), "restart.svg": _restart()}
    return {name: str(picture) for name, picture in drawn.items()}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pictures().items():
        (FOLDER / name).write_text(text)
