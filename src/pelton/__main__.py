"""``python -m pelton``: the command ``pelton``, where its script is not on the path."""

import sys

from pelton.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
