"""Makes docs/api/command.md from the parsers: `python docs/build/command_page.py`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from lightning_audit.cli.main import _COMMANDS, _parser

PAGE = Path(__file__).parents[1] / "api" / "command.md"

_HEAD = """# The command

<!-- Made by `python docs/build/command_page.py` from the parsers; do not edit. -->

`lightning-audit COMMAND --help` prints what this page has; `python -m lightning_audit` is the same
command. The exit code is 2 if an argument is wrong.

| command | what it does |
|---|---|
"""


def markdown() -> str:
    """Return the page."""
    (commands,) = (one for one in _parser()._actions if isinstance(one.choices, dict))
    rows = "".join(f"| [`{name}`](#{name}) | {does} |\n" for name, does in _COMMANDS.items())
    return _HEAD + rows + "".join(_section(name, commands.choices[name]) for name in _COMMANDS)


def _section(name: str, parser: argparse.ArgumentParser) -> str:
    parser.declare()
    lines = "".join(f"- {one}\n" for one in _arguments(parser))
    return f"\n## {name}\n\n{parser.description or ''}\n\n{lines}"


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    formatter = argparse.HelpFormatter("lightning-audit")
    for action in parser._actions:
        if action.dest == "help" or action.help == argparse.SUPPRESS:
            continue
        named = action.dest.upper() if action.option_strings else action.dest
        values = [] if action.nargs == 0 else [formatter._format_args(action, named)]
        shown = " ".join([*action.option_strings[-1:], *values])
        needed = " (required)" if action.option_strings and action.required else ""
        yield f"`{shown}`{needed}: {formatter._expand_help(action)}"


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
