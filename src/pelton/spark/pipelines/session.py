"""A Spark session for commands: local, quiet, and with a clear error if Java is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
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
    # A command's batches are small: Spark's default of two hundred tasks for each shuffle would dominate the run time.
    "spark.sql.shuffle.partitions": str(max(os.cpu_count() or 1, 2)),
}
_LOCAL: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


class NoJavaError(PeltonError):
    """Spark cannot run, because there is no Java, or it is too old."""


class PipelineError(PeltonError):
    """Spark failed; the message is the innermost cause that it reported."""


@contextmanager
def readable_errors() -> Iterator[None]:
    """Convert Spark's errors, which are pages long, to one line each. Raises PipelineError."""
    try:
        yield
    except PySparkException as error:
        raise PipelineError(cause(str(error))) from error


def cause(text: str) -> str:
    """Return the innermost cause of a long error: the last line that names an error, or else the first line."""
    named = _ERROR.findall(text)
    return str(named[-1]) if named else text.strip().partition("\n")[0]


def no_java() -> str | None:
    """Return why Spark would not start here, and what to do; None if it would."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java")
    how = "apt install openjdk-17-jre-headless, or brew install openjdk@17, or set JAVA_HOME"
    if java is None:
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "none was found"
        return f"Spark needs Java {_JAVA} or newer, and {where}: {how}"
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', output)
    if version is None or int(version[1]) < _JAVA:
        return f"Spark needs Java {_JAVA} or newer, and {java} is older: {how}"
    return None


def check_java() -> None:
    """Raise NoJavaError if Spark would not start."""
    reason = no_java()
    if reason is not None:
        raise NoJavaError(reason)


def clean_up(store: Mapping[str, str]) -> None:
    """Open and close a store file after Spark has stopped.

    Spark kills its worker processes. What they leave beside the file, an empty WAL and sockets, is removed when the
    file is next closed.
    """
    options, _ = store_options(store, ())
    if not options.is_cluster:
        StoreHandle(options, looks=True).close()


@contextmanager
def running(name: str, *, master: str = "local[*]", memory: str = "2g") -> Iterator[SparkSession]:
    """Yield the active session, or a new one that is stopped at the end. Raises NoJavaError.

    ``master`` can also be a Spark Connect server, ``sc://host:15002``, which needs no Java here.
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
    builder = SparkSession.builder.master(master).appName(name).config("spark.driver.memory", memory)
    for setting, value in {**_SETTINGS, **(_LOCAL if master.startswith("local") else {})}.items():
        builder = builder.config(setting, value)
    return builder.getOrCreate()
