"""Pages: one HTML file each that needs nothing else, from a template beside the module it is of.

Enter a template and what it is to show; leaves the page's text. All of that is escaped.
"""

from pathlib import Path
from typing import Any


def page_of(template: Path, **shown: Any) -> str:
    from jinja2 import Environment

    made = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return made.from_string(template.read_text(encoding="utf-8")).render(**shown)
