"""A standalone Spark cluster of two hosts on this machine: an executor on 127.0.0.1, and one on 127.0.0.2.

Two addresses, because Spark never starts a speculative attempt on a host that runs another one of the same task:
neither ``local[n]`` nor ``local-cluster`` can speculate. Master and workers live in the driver's JVM; executors have
their own.
"""

from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from tests.spark.session import SETTINGS, prepare

HOSTS = ("127.0.0.1", "127.0.0.2")
_MEMORY = 512
_SETTINGS = {
    "spark.executor.memory": f"{_MEMORY}m",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.efficiency.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
}


def start(home: Path) -> SparkSession:
    """Start the cluster, with its files below ``home``, and a session on it that speculates as soon as it may."""
    prepare()
    settings = {**SETTINGS, **_SETTINGS, "spark.sql.warehouse.dir": str(home / "warehouse")}
    conf = SparkConf().setAll(list(settings.items())).setAppName("hosts")
    SparkContext._ensure_initialized(conf=conf)  # type: ignore[attr-defined]  # the JVM has to be there before the cluster
    jvm: Any = SparkContext._jvm
    given = jvm.org.apache.spark.SparkConf()
    deploy = jvm.org.apache.spark.deploy
    master = deploy.master.Master.startRpcEnvAndEndpoint(HOSTS[0], 0, 0, given)._1().address().hostPort()
    masters = SparkContext._gateway.new_array(jvm.java.lang.String, 1)  # type: ignore[union-attr]  # it is there
    masters[0] = f"spark://{master}"
    for number, host in enumerate(HOSTS):
        nothing, folder = jvm.scala.Option.apply(None), str(home / f"worker{number}")
        number_of = jvm.scala.Option.apply(number)
        start_worker = deploy.worker.Worker.startRpcEnvAndEndpoint
        # Host, port, port of its web page, cores, memory.
        start_worker(host, 0, 0, 1, 2 * _MEMORY, masters, folder, number_of, given, nothing)
    conf.setMaster(masters[0])
    return SparkSession.builder.config(conf=conf).getOrCreate()
