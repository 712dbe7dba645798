"""How hits look in a notebook: small pictures with their scores, and the line where matches end."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crow.search.query import Hit

SIDE = 160  # pixels of a thumbnail's height
MOST = 60  # pictures in one cell's output; each takes some 8 kB of the notebook
WALL = "display:flex;flex-wrap:wrap;gap:6px 8px;align-items:flex-end;font:13px/1.4 system-ui,sans-serif"
LINE = "flex:1 0 100%;border-top:1px solid currentColor;opacity:.6;padding-top:2px"


def results_html(hits: Sequence[Hit]) -> str:
    """The hits as a wall of photographs."""
    parts, matching = [], True
    for hit in hits[:MOST]:
        if matching and not hit.match:
            parts.append(f'<div style="{LINE}">matches end here</div>')
        matching = hit.match
        parts.append(hit_html(hit))
    rest = f"<p>and {len(hits) - MOST:,} more</p>" if len(hits) > MOST else ""
    return f'<div style="{WALL}">{"".join(parts)}</div>{rest}' if hits else "<p>nothing was found</p>"


def hit_html(hit: Hit) -> str:
    """One hit: the picture, its score, its name; the path as a tooltip."""
    path = hit.path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    name = escape(path.rpartition("/")[2] or path)
    faint = "" if hit.match else ";opacity:.6"
    words = f'<figcaption style="max-width:260px;overflow-wrap:anywhere"><b>{hit.score:.2f}</b> {name}</figcaption>'
    return f'<figure style="margin:0{faint}" title="{escape(path)}">{_picture(hit.path, name)}{words}</figure>'


def _picture(path: str, name: str) -> str:
    """A thumbnail with its bytes inside, or why there is none."""
    from PIL import Image

    from crow.extract.images import PictureError, load

    try:
        small = Image.fromarray(load(path).pixels)
    except PictureError as error:
        return f'<div style="width:{SIDE}px">{escape(error.reason)}</div>'
    small.thumbnail((2 * SIDE, SIDE), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    small.save(out, "JPEG", quality=80)
    code = base64.b64encode(out.getvalue()).decode()
    return f'<img alt="{name}" src="data:image/jpeg;base64,{code}" style="border-radius:3px">'
