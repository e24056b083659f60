"""Draws nested boxes with arrows as SVG; a click folds a box."""

from __future__ import annotations

import dataclasses
import html
import json
from collections.abc import Iterator, Sequence

# Ends of an edge at the top and the bottom of the enclosing box.
TOP, BOTTOM = -1, -2

_LINE, _CHAR, _PAD, _GAP, _LANE = 15, 6.7, 10, 26, 9

_STYLE = """
.invert text { font: 11px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #24292f }
.invert .name { font-weight: 600 }
.invert .more { fill: #57606a }
.invert rect { fill: #ddeeff; stroke: #5b8bc5 }
.invert .open > rect { fill: #f4f9ff }
.invert .ops > rect { fill: #f2f2f2; stroke: #999999 }
.invert .end > rect { fill: #e6f4e6; stroke: #5c9a5c }
.invert .foldable > rect { cursor: pointer }
.invert .foldable > text { pointer-events: none }
.invert path { fill: none; stroke: #777777 }
.invert .closed > .inside { display: none }
@media (prefers-color-scheme: dark) {
  .invert text { fill: #e6edf3 }
  .invert .more { fill: #9da7b1 }
  .invert rect { fill: #1d3a5f; stroke: #6a9fd8 }
  .invert .open > rect { fill: #14202f }
  .invert .ops > rect { fill: #33373d; stroke: #8b949e }
  .invert .end > rect { fill: #1f3d26; stroke: #6ab06a }
  .invert path { stroke: #a0a0a0 }
}
"""

# The layout in JavaScript, used after a click: `size` and `curve` are `_size` and `_curve` below.
_SCRIPT = """
(function (root, target) {
  var box = target.closest('.foldable');
  if (!box || target.parentNode !== box) return;
  box.classList.toggle('closed'); box.classList.toggle('open');
  var GAP = %(gap)s, PAD = %(pad)s, LANE = %(lane)s;
  function curve(from, a, b, lane) {
    if (lane === null) {
      var m = (a[1] + b[1]) / 2;
      return 'M' + from + ' L' + a + ' C' + a[0] + ',' + m + ' ' + b[0] + ',' + m + ' ' + b;
    }
    return 'M' + from + ' L' + a + ' C' + a[0] + ',' + (a[1] + 18) + ' ' + lane + ',' +
      (a[1] + 2) + ' ' + lane + ',' + (a[1] + 22) + ' L' + lane + ',' + (b[1] - 22) + ' C' + lane +
      ',' + (b[1] - 2) + ' ' + b[0] + ',' + (b[1] - 18) + ' ' + b;
  }
  function size(g) {
    var own = JSON.parse(g.dataset.size), w = own[0], h = own[2], rect = g.querySelector('rect');
    if (g.dataset.rows && !g.classList.contains('closed')) {
      var inside = g.querySelector('.inside'), rows = JSON.parse(g.dataset.rows), wide = 0;
      var boxes = Array.prototype.filter.call(inside.children, function (c) {
        return c.tagName === 'g';
      });
      var sizes = boxes.map(size), lanes = +g.dataset.lanes, places = [], ends = [], y = own[1];
      rows.forEach(function (row) {
        var sum = row.reduce(function (s, i) { return s + sizes[i][0] + PAD; }, -PAD);
        wide = Math.max(wide, sum);
      });
      w = Math.max(w, wide + 2 * PAD + 2 * LANE * lanes);
      rows.forEach(function (row) {
        var x = (w - row.reduce(function (s, i) { return s + sizes[i][0] + PAD; }, -PAD)) / 2;
        var tall = 0;
        row.forEach(function (i) {
          places[i] = [x, y]; x += sizes[i][0] + PAD; tall = Math.max(tall, sizes[i][1]);
          boxes[i].setAttribute('transform', 'translate(' + places[i] + ')');
        });
        row.forEach(function (i) { ends[i] = y + tall; });
        y += tall + GAP;
      });
      h = y;
      Array.prototype.forEach.call(inside.children, function (p) {
        if (p.tagName !== 'path') return;
        var e = JSON.parse(p.dataset.edge), s = e[0], t = e[1];
        var from = s < 0 ? [w / 2, own[1] - GAP + 8] : [places[s][0] + sizes[s][0] / 2,
          places[s][1] + sizes[s][1]];
        var a = [from[0], s < 0 ? from[1] : ends[s]];
        var b = t < 0 ? [w / 2, h] : [places[t][0] + sizes[t][0] / 2, places[t][1]];
        p.setAttribute('d', curve(from, a, b, e[2] === null ? null : w - PAD - LANE * e[2]));
      });
    }
    rect.setAttribute('width', w); rect.setAttribute('height', h);
    g.querySelectorAll(':scope > text').forEach(function (t) { t.setAttribute('x', w / 2); });
    return [w, h];
  }
  var all = size(root.querySelector('g'));
  root.setAttribute('width', all[0]); root.setAttribute('height', all[1]);
  root.setAttribute('viewBox', '0 0 ' + all[0] + ' ' + all[1]);
})(this, event.target)
"""


@dataclasses.dataclass(frozen=True)
class Edge:
    """An arrow between two boxes by their numbers, or `TOP` or `BOTTOM`."""

    source: int
    target: int


@dataclasses.dataclass(frozen=True)
class Box:
    """A box with lines of text.

    **Arguments:**

    - `kind`: `"layer"`, `"ops"` or `"end"`.
    - `rows`: the boxes inside, from top to bottom; `edges` number them in this order.
    - `title`: the tooltip.
    """

    kind: str
    lines: tuple[str, ...]
    rows: tuple[tuple[Box, ...], ...] = ()
    edges: tuple[Edge, ...] = ()
    title: str = ""

    def count(self, depth: int) -> int:
        """The number of visible boxes if boxes deeper than `depth` are folded."""
        inner = (box for row in self.rows for box in row) if depth else ()
        return 1 + sum(box.count(depth - 1) for box in inner)

    @property
    def depth(self) -> int:
        """The nesting depth of boxes, without the innermost."""
        return max((1 + box.depth for row in self.rows for box in row), default=0)


def draw(box: Box, depth: int) -> str:
    """The SVG of a box, with boxes deeper than `depth` folded."""
    drawn = _Drawn(box, depth)
    script = _SCRIPT % {"gap": _GAP, "pad": _PAD, "lane": _LANE}
    w, h = drawn.width, drawn.height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="invert" width="{w:g}" height="{h:g}" '
        f'viewBox="0 0 {w:g} {h:g}" onclick="{html.escape(" ".join(script.split()))}">\n'
        f'<style>{_STYLE}</style>\n<defs><marker id="invert-arrow" viewBox="0 0 6 6" refX="6" '
        'refY="3" markerWidth="7" markerHeight="7" orient="auto"><path d="M0,0 L6,3 L0,6" '
        "/></marker></defs>\n" + "\n".join(drawn.text(0, 0)) + "\n</svg>\n"
    )


class _Drawn:
    """A box with its size and the positions of inner boxes."""

    def __init__(self, box: Box, depth: int):
        self.box, self.open = box, bool(box.rows) and depth > 0
        numbers = iter(range(sum(map(len, box.rows))))
        self.rows = [[next(numbers) for _ in row] for row in box.rows]
        self.boxes = [_Drawn(inner, depth - 1) for row in box.rows for inner in row]
        self.lanes = self._lanes()
        self.head_width = max(map(len, box.lines)) * _CHAR + 2 * _PAD
        self.head = len(box.lines) * _LINE + _PAD + (_GAP if box.rows else 0)
        self.places: list[tuple[float, float]] = []
        self.row_ends: dict[int, float] = {}  # the end of each box's row
        self.closed = self.head - (_GAP if box.rows else 0)
        self.width, self.height = self.head_width, self.closed
        if self.open:
            self.width, self.height = self._size()

    def _lanes(self) -> list[int | None]:
        """Assign a lane on the right to each edge across rows, without overlaps."""
        row_of = {i: n for n, row in enumerate(self.rows) for i in row}
        row_of |= {TOP: -1, BOTTOM: len(self.rows)}
        ends: list[int] = []
        lanes: list[int | None] = []
        for edge in self.box.edges:
            begin, end = row_of[edge.source], row_of[edge.target]
            if end - begin <= 1:
                lanes.append(None)
                continue
            free = next((k for k, last in enumerate(ends) if last <= begin), len(ends))
            ends[free : free + 1] = [end]
            lanes.append(free)
        self.lane_count = len(ends)
        return lanes

    def _size(self) -> tuple[float, float]:
        sums = [sum(self.boxes[i].width + _PAD for i in row) - _PAD for row in self.rows]
        width = max(self.head_width, max(sums) + 2 * _PAD + 2 * _LANE * self.lane_count)
        y: float = self.head
        for row, total in zip(self.rows, sums, strict=True):
            x = (width - total) / 2
            for i in row:
                self.places.append((x, y))
                x += self.boxes[i].width + _PAD
            y += max(self.boxes[i].height for i in row)
            self.row_ends |= dict.fromkeys(row, y)
            y += _GAP
        return width, y

    def _curve(self, edge: Edge, lane: int | None) -> str:
        (ax, top), (bx, by) = self._ends(edge)
        ay = self.row_ends[edge.source] if edge.source >= 0 else top
        begin = f"M{ax:g},{top:g} L{ax:g},{ay:g}"
        if lane is None:
            m = (ay + by) / 2
            return f"{begin} C{ax:g},{m:g} {bx:g},{m:g} {bx:g},{by:g}"
        x = self.width - _PAD - _LANE * lane
        return (
            f"{begin} C{ax:g},{ay + 18:g} {x:g},{ay + 2:g} {x:g},{ay + 22:g} "
            f"L{x:g},{by - 22:g} C{x:g},{by - 2:g} {bx:g},{by - 18:g} {bx:g},{by:g}"
        )

    def _ends(self, edge: Edge) -> tuple[tuple[float, float], tuple[float, float]]:
        begin = (self.width / 2, self.head - _GAP + 8.0)
        end = (self.width / 2, self.height)
        if edge.source >= 0:
            (x, y), box = self.places[edge.source], self.boxes[edge.source]
            begin = (x + box.width / 2, y + box.height)
        if edge.target >= 0:
            (x, y), box = self.places[edge.target], self.boxes[edge.target]
            end = (x + box.width / 2, y)
        return begin, end

    def text(self, x: float, y: float) -> Iterator[str]:
        kinds = [self.box.kind]
        size = json.dumps([self.head_width, self.head, self.closed])
        data = f' data-size="{size}"'
        if self.box.rows:
            kinds += ["foldable", "open" if self.open else "closed"]
            data += f' data-rows="{json.dumps(self.rows)}" data-lanes="{self.lane_count}"'
        yield f'<g class="{" ".join(kinds)}" transform="translate({x:g},{y:g})"{data}>'
        if self.box.title:
            yield f"<title>{html.escape(self.box.title)}</title>"
        radius = 4 if self.box.kind == "layer" else 10
        yield f'<rect width="{self.width:g}" height="{self.height:g}" rx="{radius}"/>'
        for i, line in enumerate(self.box.lines):
            kind = "name" if i == 0 and self.box.kind != "ops" else "more"
            yield (
                f'<text class="{kind}" x="{self.width / 2:g}" y="{(i + 1) * _LINE:g}" '
                f'text-anchor="middle">{html.escape(line)}</text>'
            )
        if self.box.rows:
            yield '<g class="inside">'
            places: Sequence[tuple[float, float]] = self.places or [(0, 0)] * len(self.boxes)
            for box, place in zip(self.boxes, places, strict=True):
                yield from box.text(*place)
            for edge, lane in zip(self.box.edges, self.lanes, strict=True):
                path = self._curve(edge, lane) if self.open else ""
                ends = json.dumps([edge.source, edge.target, lane])
                yield f'<path data-edge="{ends}" d="{path}" marker-end="url(#invert-arrow)"/>'
            yield "</g>"
        yield "</g>"
