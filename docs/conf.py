"""How Sphinx builds the docs: offline, with warnings as errors (`make docs`)."""

import importlib.metadata

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

html_theme = "furo"
html_title = f"harness {release}"

# `name` in a docstring refers to a Python object where there is one of that name.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
myst_heading_anchors = 3
