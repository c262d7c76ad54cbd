"""Writes the pages of the documentation site: those of ``docs/``, and a reference made from the code itself.

``python -m tools.site`` writes them below ``build/docs``, from where zensical builds the site (``make docs``).
"""
