"""A streaming table of readings, and a flow of alarms back into a stream."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
store = spark.conf.get("garage.store")


@dp.table
def readings() -> DataFrame:
    source = spark.readStream.format("pelton").options(path=store, stream="readings")
    decoded = source.options(decode="json", valueSchema="sensor STRING, celsius DOUBLE").load()
    return decoded.select("sequence", "time", "value.*")


dp.create_sink("alarms", "pelton", {"path": store, "stream": "alarms"})


@dp.append_flow(target="alarms")
def hot() -> DataFrame:
    found = spark.readStream.table("readings").where("celsius > 100")
    return found.selectExpr("concat('alarms.', sensor) AS subject", "to_json(struct(*)) AS data")
