"""How Sphinx builds the docs: offline, with warnings as errors (`make docs`)."""

import importlib.metadata
import re
from pathlib import Path
from typing import Any

from sphinx.errors import ExtensionError
from sphinx.util.nodes import make_refnode

project = "harness"
author = "the harness authors"
copyright = "2026, the harness authors"
release = importlib.metadata.version("trio-harness")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinxcontrib_trio",
]
exclude_patterns = ["_build", "changes"]

# Each page's sidebar would be made of all 2,000 names of the reference: a third of the build.
toc_object_entries = False

html_theme = "furo"
html_title = f"harness {release}"

# `name` in a docstring refers to a Python object where there is one of that name.
default_role = "py:obj"
# A name that leads nowhere is an error, but for those of other libraries, since a build without a
# network can't look them up, and what signatures name: type variables, aliases, private bases.
nitpicky = True
nitpick_ignore_regex = [
    (
        "py:.*",
        r"(asyncio|collections|contextlib|contextvars|datetime|functools|hypothesis|logging|math"
        r"|opentelemetry|os|outcome|pathlib|rich|trio)\..*",
    ),
    ("py:class", r"[\w.]+"),
    ("py:obj", r"harness\.errors\._ErrorT_co"),
    ("py:exc", "IncomparableError"),
]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
myst_heading_anchors = 3

# Where a docstring's `Name` is looked for, if its own module has no such name.
MODULES = (
    "harness",
    "harness.errors",
    "harness.runs",
    "harness.policies",
    "harness.fanout",
    "harness.limits",
    "harness.testing.provider",
)


def keep_as_text(
    app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Keep napoleon from reading an attribute's ``This: that`` as its type and a description.

    It looks at the first line only, so that one becomes an empty comment.
    """
    if what in ("attribute", "data", "property"):
        lines[:0] = ["..", ""]


def find_in_our_modules(app: Any, environment: Any, node: Any, content: Any) -> Any:
    """Link an unqualified name to the module that documents it."""
    domain = environment.get_domain("py")
    for module in MODULES:
        target = f"{module}.{node.get('reftarget')}"
        entry = domain.objects.get(target)
        if entry is not None and node.get("refdomain") == "py":
            return make_refnode(
                app.builder, node["refdoc"], entry.docname, entry.node_id, content, target
            )
    return None


def check_that_it_loads_nothing(app: Any, error: Exception | None) -> None:
    """Refuse a site that needs a network, or a server to be searched."""
    if error is not None or app.builder.format != "html":
        return
    site = Path(app.outdir)
    loads = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["'](?:https?:)?//""")
    for page in site.rglob("*.html"):
        found = loads.search(page.read_text(encoding="utf-8"))
        if found:
            raise ExtensionError(f"{page} loads something from a network: {found[0]}")
    if 'src="searchindex.js' not in (site / "search.html").read_text(encoding="utf-8"):
        raise ExtensionError("search.html doesn't load its index as a script, as file:// needs")


def setup(app: Any) -> None:
    """Connect the three, the first one before napoleon."""
    app.connect("autodoc-process-docstring", keep_as_text, priority=400)
    app.connect("missing-reference", find_in_our_modules)
    app.connect("build-finished", check_that_it_loads_nothing)
