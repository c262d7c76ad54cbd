"""A Spark declarative pipeline that reads from a stream and writes to a stream.

    pip install 'pelton[spark]' 'pyspark[pipelines]'
    python run.py work

Publishes a few readings to a store in the folder ``work``, runs the pipeline (``transformations/``), and shows the
alarms. Run it again: the pipeline continues with new readings, and each alarm is stored once.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark

import pelton

HERE = Path(__file__).resolve().parent
HOT = 100.0


def publish(store: Path) -> int:
    """Put ten more readings into the stream, three of them hot; return how many there are now."""
    with pelton.sync.open(store) as jet:
        there = list(jet.stream_names())
        for name in ("readings", "alarms"):
            if name not in there:
                jet.create_stream(name, subjects=[f"{name}.>"])
        for n in range(10):
            reading = {"sensor": f"s{n % 5}", "celsius": HOT + 5 if n in (2, 5, 8) else 20.0 + n}
            jet.publish(f"readings.{reading['sensor']}", json.dumps(reading).encode())
        return int(jet.stream("readings").info().state.messages)


def specification(folder: Path) -> Path:
    """Write the pipeline's specification beside its parts: Spark needs paths that are absolute or relative to it."""
    shutil.copytree(HERE / "transformations", folder / "transformations", dirs_exist_ok=True)
    path = folder / "spark-pipeline.yml"
    path.write_text(
        "name: garage\n"
        f"storage: {(folder / 'storage').as_uri()}\n"
        "libraries:\n"
        "  - glob:\n"
        "      include: transformations/**\n"
        "configuration:\n"
        f"  garage.store: {folder / 'garage.pelton'}\n"
    )
    return path


def run(folder: Path) -> None:
    """Run the pipeline once: it reads new messages, and ends."""
    settings = {
        # Without a persistent catalogue, the second run would find folders of unknown tables.
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder / 'catalogue'};create=true",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
    }
    confs = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-pipelines"), "run", *confs, "--spec", str(specification(folder))]
    subprocess.run(command, check=True, cwd=folder, env={**os.environ, "PYSPARK_PYTHON": sys.executable})


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "work").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    readings = publish(folder / "garage.pelton")
    run(folder)
    with pelton.sync.open(folder / "garage.pelton") as jet:
        alarms = jet.stream("alarms").info().state.messages
    print(f"{readings} readings, {alarms} alarms")


if __name__ == "__main__":
    main()
