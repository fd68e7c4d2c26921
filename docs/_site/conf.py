"""Sphinx's configuration of the documentation site: ``make docs`` builds it from the repository's root."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "src")]

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0")  # the reference imports TensorFlow

import tensorflowonspark  # noqa: E402

project = "TensorFlowOnSpark"
copyright = "the authors of TensorFlowOnSpark. License: Apache-2.0"  # noqa: A001
release = tensorflowonspark.__version__
version = ".".join(release.split(".")[:2])

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "pages",
    "sources",
    "diagrams",
    "interface",
]
root_doc = "index"
source_suffix = {".md": "markdown"}
include_patterns = ["*.md", "docs/**.md", "examples/**.md"]
exclude_patterns = [".*", "artifacts", "build", "dist", "demo-output", "src", "tests", "benchmarks", "docs/_site"]

# Markdown. The anchors of headings are those that code hosts make.
myst_enable_extensions = ["colon_fence", "html_image"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 4

# The reference. Types stand in the docstrings, in words; a word in single backquotes is a link if it is a public name.
autodoc_class_signature = "mixed"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
default_role = "py:obj"
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
nitpicky = True
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"TensorFlowOnSpark {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {
        "color-brand-primary": "#b3420b",
        "color-brand-content": "#0f5e9c",
        "color-sidebar-link-text--top-level": "var(--color-foreground-primary)",
    },
    "dark_css_variables": {
        "color-brand-primary": "#ff9557",
        "color-brand-content": "#78b7f0",
        "color-sidebar-link-text--top-level": "var(--color-foreground-primary)",
    },
}
pygments_style = "friendly"
pygments_dark_style = "native"
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

linkcheck_anchors_ignore_for_url = [r"https://github\.com/.*"]
linkcheck_timeout = 20
linkcheck_workers = 5
