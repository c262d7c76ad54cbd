"""A Spark session for commands: on this machine, quiet, and with a clear word where Java is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pelton.api import PeltonError
from pelton.spark.options import store_options
from pelton.spark.store_handle import StoreHandle

_JAVA: Final = 17
_ERROR: Final = re.compile(r"^(?:\w+\.)*(\w*Error: .+)$", re.MULTILINE)
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}",
    "spark.sql.session.timeZone": "UTC",
    # Batches of a command are small beside those of a cluster: two hundred tasks a shuffle would be all there is.
    "spark.sql.shuffle.partitions": str(max(os.cpu_count() or 1, 2)),
}
_LOCAL: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


class NoJavaError(PeltonError):
    """Spark cannot run, because there is no Java that is new enough."""


class PipelineError(PeltonError):
    """Spark gave up; the message is the last that it said of the cause."""


@contextmanager
def told() -> Iterator[None]:
    """Turn an error of Spark's, which is pages long, into one that says what happened. Raises PipelineError."""
    try:
        yield
    except PySparkException as error:
        raise PipelineError(cause(str(error))) from error


def cause(text: str) -> str:
    """Return what is at the bottom of a long error: the last line that names an error, or else the first line."""
    named = _ERROR.findall(text)
    return str(named[-1]) if named else text.strip().partition("\n")[0]


def no_java() -> str | None:
    """Return why Spark would not start here, and what to do; None where it would."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java")
    how = "apt install openjdk-17-jre-headless, or brew install openjdk@17, or set JAVA_HOME"
    if java is None:
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "none was found"
        return f"Spark needs Java {_JAVA} or newer, and {where}: {how}"
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version[1]) < _JAVA:
        return f"Spark needs Java {_JAVA} or newer, and {java} is older: {how}"
    return None


def check_java() -> None:
    """Raise NoJavaError where Spark would not start."""
    reason = no_java()
    if reason is not None:
        raise NoJavaError(reason)


def leave(store: Mapping[str, str]) -> None:
    """Visit a store file for the last time, after Spark.

    Spark kills its processes when it is done with them. What they leave beside the file, an empty log and sockets, goes
    with the next that opens and closes it.
    """
    options, _ = store_options(store, ())
    if not options.is_cluster:
        StoreHandle(options).close()


@contextmanager
def running(name: str, *, master: str = "local[*]", memory: str = "2g") -> Iterator[SparkSession]:
    """Lend a session: one that runs already, or a new one that is stopped at the end. Raises NoJavaError.

    ``master`` may be a Spark Connect server too, ``sc://host:15002``, which needs no Java here.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    session = _start(name, master, memory)
    try:
        yield session
    finally:
        session.stop()


def _start(name: str, master: str, memory: str) -> SparkSession:
    if master.startswith("sc://"):
        return SparkSession.builder.remote(master).config("spark.sql.session.timeZone", "UTC").getOrCreate()
    check_java()
    # The workers' Python must be this one, whatever is found on their path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(name).config("spark.driver.memory", memory)
    for setting, value in {**_SETTINGS, **(_LOCAL if master.startswith("local") else {})}.items():
        builder = builder.config(setting, value)
    return builder.getOrCreate()
