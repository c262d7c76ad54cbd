"""Build the site: ``python -m tools.site``; ``--serve`` shows it, ``--pages`` only writes the pages."""

from __future__ import annotations

import argparse
import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from pelton import __version__
from tools.site.pages import ROOT, copy_pages
from tools.site.reference import write_reference
from tools.site.site_map import llms_txt
from tools.site.versions import add_version

BUILD: Final = ROOT / "build" / "docs"
SITES: Final = ROOT / "build" / "site"
# How the theme names the code: the package, and where it would get it.
_MERMAID: Final = re.compile(r'"https://unpkg\.com/(mermaid@\d+)/dist/mermaid\.min\.js"')
VERSION: Final = ".".join(__version__.split(".")[:2])


def write_pages(folder: Path) -> None:
    """Write every page, and ``llms.txt``, to a new folder, from which the site is built."""
    shutil.rmtree(folder, ignore_errors=True)
    copy_pages(folder)
    write_reference(folder)
    (folder / "llms.txt").write_text(llms_txt(folder))


def build() -> Path:
    """Build the site strictly, and return its folder. A broken link or an unknown name ends the program."""
    write_pages(BUILD / "pages")
    zensical = Path(sys.executable).with_name("zensical")
    # The extension for docstrings is a module of this folder.
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    done = subprocess.run([zensical, "build", "--clean", "--strict"], cwd=ROOT, env=environment, check=False)
    if done.returncode:
        sys.exit("The site was not built: see the warnings above.")
    keep_diagrams(BUILD / "site")
    return add_version(BUILD / "site", SITES, VERSION)


def keep_diagrams(site: Path) -> None:
    """Put the code that draws diagrams beside the pages, so that they are drawn without a network, too.

    The theme loads it from elsewhere. Without npm it goes on to do so.
    """
    scripts = site / "assets" / "javascripts"
    (bundle,) = scripts.glob("bundle.*.min.js")
    text = bundle.read_text()
    found = _MERMAID.search(text)
    npm = shutil.which("npm")
    if found is None or npm is None:
        print("Diagrams need a network: there is no npm, or the theme draws them in another way.")  # noqa: T201
        return
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run([npm, "pack", "--silent", found[1]], cwd=folder, capture_output=True, check=False)
        if packed.returncode:
            print("Diagrams need a network: npm has not found their code.")  # noqa: T201
            return
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as files:
            code = files.extractfile("package/dist/mermaid.min.js")
            assert code is not None
            (scripts / "mermaid.min.js").write_bytes(code.read())
    bundle.write_text(text.replace(found[0], '(new URL("assets/javascripts/mermaid.min.js",__md_scope).href)'))


def serve(port: int) -> None:
    """Show the sites that were built, until interrupted."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=SITES)
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"http://127.0.0.1:{port}/")  # noqa: T201
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", action="store_true", help="write the pages, and build nothing")
    parser.add_argument("--serve", action="store_true", help="show the site when it is built")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    if options.pages:
        write_pages(BUILD / "pages")
        return
    build()
    if options.serve:
        serve(options.port)


if __name__ == "__main__":
    main()
