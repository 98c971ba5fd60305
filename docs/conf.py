"""Configuration of the documentation site: ``sphinx-build -W --keep-going docs build/site``."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "site"))

import tdx

project = "tdx"
author = "tdx developers"
project_copyright = "tdx developers"
version = release = tdx.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "docstrings",
    "reference",
    "examples",
    "notebooks",
]
exclude_patterns = ["site"]

# Headings have the anchors that GitHub gives them, so that a page reads the same in both places.
myst_heading_anchors = 4
# Dashes only: examples have straight quotes.
smartquotes_action = "D"

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
napoleon_use_rtype = False
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"tdx {version}"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
# GitHub Actions sets both. A build on another machine does not know the address of the repository.
# Furo's edit buttons are not used: the pages of the reference are not in the repository.
server, repository = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
icons = []
if server and repository:
    icons = [
        {"name": "Repository", "url": f"{server}/{repository}", "html": "Repository", "class": ""}
    ]
html_theme_options = {
    "footer_icons": icons,
    "light_css_variables": {
        "color-brand-primary": "#0b6e6e",
        "color-brand-content": "#0b6e6e",
    },
    "dark_css_variables": {
        "color-brand-primary": "#5cc8c2",
        "color-brand-content": "#5cc8c2",
    },
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"

# A copied example is the commands without their output.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .go"
