"""docs/knobs.md from the code. In: the knob table, the options, the modes. Out: the page; run this file to write it.

python docs/make_knobs.py
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from interfuse.base.knobs import Knobs
from interfuse.driver.options import MODES, Options

PAGE = Path(__file__).with_name("knobs.md")

HEAD = """\
# Knobs

<!-- Made by docs/make_knobs.py from src/interfuse/base/knobs.py and driver/options.py: change those, then run it. -->

Every setting that there is. A knob comes from the environment; those with an option can also be given for one model,
as `interfuse.compile(model, race=False)` or `torch.compile(model, backend="interfuse", options={"race": False})`, which
goes before the environment. A value that means nothing is an error that lists what is allowed. Knobs are read once a
compile, and nothing but `base/knobs.py` reads the environment. In code, `base.knobs.override(race=False)` changes them
for a `with` block of one thread.

Yes and no are spelled 1 or 0, true or false, yes or no, on or off.
"""


def _default(field: dataclasses.Field[object]) -> str:
    if field.default is dataclasses.MISSING:
        return "`$XDG_CACHE_HOME/interfuse`, else `~/.cache/interfuse`"
    value = field.default
    return (
        {True: "1", False: "0", "": "nothing"}.get(value, str(value)) if isinstance(value, bool | str) else str(value)
    )


def _mode(options: Mapping[str, object]) -> str:
    return ", ".join(f"`{name}={value!r}`" for name, value in options.items()) or "the knobs as they are"


def page() -> str:
    """The text of docs/knobs.md."""
    options = {f.name for f in dataclasses.fields(Options)}
    lines = [HEAD, "| variable | option | type | default | what it does |", "|---|---|---|---|---|"]
    for f in dataclasses.fields(Knobs):
        option = f"`{f.name}`" if f.name in options else ""
        kind = {"bool": "yes or no", "int": "integer", "float": "number", "str": "text", "Path": "folder"}[str(f.type)]
        lines.append(f"| `{f.metadata['env']}` | {option} | {kind} | {_default(f)} | {f.metadata['doc']} |")
    lines += ["", "`torch.compile(..., mode=)` takes one of these names:", "", "| mode | options |", "|---|---|"]
    lines += [f"| `{name}` | {_mode(given)} |" for name, given in MODES.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
