"""The driver of the two hosts, a program: a line on stdin is a scene to run, a line on stdout is its result."""

import json
import sys
import traceback
from pathlib import Path

from tests.spark.hosts import scenes
from tests.spark.hosts.standalone import start

ANSWER = "scene: "


def main(home: Path) -> None:
    """Run scenes until stdin ends."""
    spark = start(home)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            told = {"value": getattr(scenes, asked["scene"])(spark, Path(asked["home"]), asked["place"])}
        except Exception:
            told = {"error": traceback.format_exc()}
        print(ANSWER + json.dumps(told), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
