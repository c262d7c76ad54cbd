"""Clusters that require a login: executors log in, errors name what to check, and Spark shows no secret."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import pelton
from tests.cluster.people import Certificates, Company
from tests.kit.nats_server import nats_server

SECRET = "0pen5e5ame"


@pytest.fixture(scope="module")
def company() -> Company:
    return Company()


@pytest.fixture(scope="module", params=["user", "credentials"])
def login(
    request: pytest.FixtureRequest, company: Company, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """A server that requires TLS and a password, or credentials; and the options for it."""
    home: Path = tmp_path_factory.mktemp("nats")
    certificates = Certificates(home / "ca")
    who = f"authorization {{ user: ann, password: {SECRET} }}"
    if request.param == "credentials":
        who = company.configuration()
        (home / "ann.creds").write_text(company.credentials())
    with nats_server(home / "server", extra=f"{who}\n{certificates.configuration()}") as server:
        place = {"servers": server.url.replace("nats:", "tls:"), "tlsCa": str(certificates.ca)}
        if request.param == "user":
            yield {**place, "user": "ann", "password": SECRET}
        else:
            yield {**place, "credentials": str(home / "ann.creds")}


def test_executors_read_and_write_where_one_has_to_log_in(spark: SparkSession, login: dict[str, str]) -> None:
    given: dict[str, Any] = {"tls_ca" if name == "tlsCa" else name: value for name, value in login.items()}
    with pelton.sync.open(given.pop("servers"), **given) as jet:
        jet.create_stream("orders", subjects=["orders.>"], allow_direct=True)
    rows = spark.range(100).selectExpr("concat('orders.', id) AS subject", "string(id) AS data")
    rows.write.format("pelton").mode("append").options(**login, stream="orders").save()
    read = spark.read.format("pelton").options(**login, stream="orders", minPartitions=2).load()
    assert sorted(int(bytes(row.data)) for row in read.select("data").collect()) == list(range(100))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"password": "wrong"}, "refuses the connection.*check user, password, token, credentials and certificates"),
        ({"password": None}, "user and password .* belong together"),
        ({"tlsCa": None}, "refuses the connection.*certificate"),
        ({"tlsCa": "/none.pem"}, "tls_ca: the file '/none.pem' cannot be read"),
        ({"credentials": "/none.creds"}, "credentials: the file '/none.creds' cannot be read"),
    ],
    ids=["wrong password", "no password", "no authority", "no file of it", "no credentials"],
)
def test_who_is_not_let_in_is_told_why(
    spark: SparkSession, login: dict[str, str], change: dict[str, Any], told: str
) -> None:
    if not set(change) - {"tlsCa"} <= set(login):
        pytest.skip("the other server asks for it")
    options = {name: value for name, value in {**login, **change}.items() if value is not None}
    with pytest.raises(PySparkException, match=told) as failed:
        spark.read.format("pelton").options(**options, stream="orders").load().collect()
    assert SECRET not in str(failed.value)


# --- secrets


def shown(spark: SparkSession) -> str:
    """Return what Spark's pages, and its event log, show of all queries."""
    store: Any = spark._jsparkSession.sharedState().statusStore()
    found = store.executionsList()
    return "\n".join(found.apply(n).physicalPlanDescription() for n in range(found.size()))


def test_spark_shows_no_key_of_a_store(spark: SparkSession, tmp_path: Path) -> None:
    place = {"path": str(tmp_path / "s.pelton"), "secretKey": SECRET}
    with pelton.sync.open(place["path"], key=SECRET) as jet:
        jet.create_stream("orders", subjects=["orders.>"])
        jet.publish_batch([("orders.a", b"x")] * 3)
    spark.conf.set("spark.sql.ui.explainMode", "extended")
    try:
        read = spark.read.format("pelton").options(**place, stream="orders").load()
        copy = read.selectExpr("subject", "data")
        copy.write.format("pelton").mode("append").options(**place, stream="orders").save()
        told = shown(spark) + read._jdf.queryExecution().toString()
    finally:
        spark.conf.unset("spark.sql.ui.explainMode")
    assert "AppendData" in told
    assert SECRET not in told
