"""Make one page of a trace, or of a journal, that needs nothing else: no network, no server.

The page has its style, its script and its data in it. A content policy in the page allows that one
script by its hash and nothing else, so nothing that the data says can run, or fetch anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from string import Template
from typing import Any

from harness._is_journal import is_journal
from harness.observe._assets import asset
from harness.observe._files import refuse_same, replacing
from harness.observe._report_data import data_of_trace
from harness.observe._report_journal import data_of_journal


def write_report(source: str | os.PathLike[str], output: str | os.PathLike[str]) -> None:
    """Write a page that shows what a trace recorded, or what a journal has.

    It has the tree of runs, a timeline, where the time went, stragglers, failures by kind, messages
    of agents if they were recorded, limits over time, and how much faster it could be. Of a journal
    it has what that knows: items, how long they took, and failures.

    Args:
      source: A trace, as `record` writes it, or the file or address of a journal.
      output: The HTML file to write; one that is there is replaced once the new one is whole.

    Raises:
      OSError: if the source can't be read, or the page can't be written.
      ValueError: if the source is no trace, or an empty one, or ``output`` is the same file.
      JournalError: if it is a journal that can't be read.
    """
    refuse_same(source, output)
    data = data_of_journal(source) if is_journal(source) else data_of_trace(source)
    with replacing(output) as file:
        file.write(page(data))


def page(data: dict[str, Any]) -> str:
    """Return the page that shows ``data``; see `harness.observe._report_data`."""
    style, script = asset("page.css"), asset("rows.js") + asset("report.js")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return Template(asset("report.html")).substitute(
        policy=policy,
        style=style,
        script=script,
        # The only thing that could end the element, or begin a comment in it.
        data=text.replace("<", "\\u003c"),
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
