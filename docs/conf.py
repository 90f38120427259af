"""The documentation as a site: make docs (Sphinx, MyST, pydata-sphinx-theme) writes it to docs/_build."""

import runner

project = "torch-mpi-runner"
author = "the contributors"
release = version = runner.__version__

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
nitpicky = True
smartquotes_action = "q"  # quotes and apostrophes only: -- begins an option
highlight_language = "text"  # of listings that name none: what a program prints

myst_heading_anchors = 4  # as GitHub makes them; a link to one that is not there is a warning, and so an error
myst_enable_extensions = ["deflist"]
suppress_warnings = ["misc.highlighting_failure"]  # an ellipsis in a listing is meant

html_theme = "pydata_sphinx_theme"
html_title = "torch-mpi-runner"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "show_toc_level": 2,
    "footer_start": [],
    "footer_end": [],
}
html_sidebars = {"index": []}
