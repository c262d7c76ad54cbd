"""What the pages show, on a file and on a cluster, and that nothing in a store becomes markup."""

from __future__ import annotations

import html
import re
from pathlib import Path
from urllib.parse import quote

import pytest

import pelton
from pelton import observe
from pelton.dashboard import view
from pelton.dashboard.view import payload_for_person
from tests.dashboard.conftest import HOSTILE, Client

PAGES = (
    "/", "/queues", "/streams", "/workers",
    "/queues/garage", "/jobs", "/dead", "/flows", "/schedules", "/limits", "/streams/orders", "/consumers", "/buckets",
    "/locks", "/elections",
)  # fmt: skip


_BARE_STATE = re.compile(
    r"<(td|dd)[^>]*>(pending|scheduled|held|running|retrying|waiting|enqueued|completed|failed|cancelled|expired)</"
)


async def test_every_page_is_shown_and_escapes_what_it_shows(
    client: Client, ids: list[str], flow: str, jet: pelton.Jet
) -> None:
    async with client() as browser, jet.lock("car1", ttl=30), jet.elect("boss", name=HOSTILE):
        asked = (*PAGES, f"/jobs?q={HOSTILE}", f"/queues/garage/jobs/{ids[1]}", "/streams/orders/messages/1",
                 f"/queues/garage/flows/{flow}", "/flows?queue=garage", "/queues/garage/keys",
                 f"/queues/garage/keys?key={quote(HOSTILE)}")  # fmt: skip
        for path in asked:
            page = await browser.get(path)
            assert page.status_code == 200, page.text
            assert "<script>alert" not in page.text
            assert "<b>x</b>" not in page.text
            assert "<img" not in page.text
            assert "{{" not in page.text.replace("{{7*7}}", "").replace("{{#*#}}", "")
            assert page.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
            assert page.headers["x-content-type-options"] == "nosniff"
            assert page.headers["cache-control"] == "no-store"
            assert not _BARE_STATE.search(page.text), "a state is a badge and a word"
            assert "http" not in re.sub(r"<pre.*?</pre>", "", page.text, flags=re.DOTALL), "content from elsewhere"
            for link in re.findall(r'(?:href|src)="([^"]*)"', page.text):
                assert link.startswith(("/", "#")), link
                if link.startswith("/") and "/queues/garage/" not in link:
                    assert (await browser.get(link)).status_code == 200 if link != "/events" else True, link


def test_what_the_pages_mark_the_style_knows() -> None:
    folder = Path(view.__file__).parent
    style = (folder / "style.css").read_text()
    pages = "".join(page.read_text() for page in folder.glob("templates/*.html"))
    marked = " ".join(re.findall(r'class="([^"]*)"', pages))
    # `filters`, `more` and `who` are for those who read the pages with programs.
    names = set(re.sub(r"{[{%].*?[%}]}", " ", marked).split()) - {"filters", "more", "who"}
    assert "danger" in names
    assert [name for name in sorted(names) if not re.search(rf"\.{name}\b", style)] == []


async def test_a_queue_a_job_and_a_search(client: Client, ids: list[str]) -> None:
    async with client() as browser:
        queue = (await browser.get("/queues/garage")).text
        for part in (
            "ValueError: &lt;script&gt;",
            "Traceback",
            "raise ValueError",
            "Not exclusive",
            'garage.pending">1<',
        ):
            assert part in queue, part
        assert "Redrive" not in queue
        failed = (await browser.get(f"/queues/garage/jobs/{ids[1]}")).text
        for part in ("Arguments", "Traceback", "failed", "Attempt 1 failed"):
            assert part in failed
        assert "Of the last jobs, by key" in queue
        waits = (await browser.get(f"/queues/garage/jobs/{ids[2]}")).text
        assert "Arguments" in waits
        assert "&#34;car&#34;: &#34;c&#34;" in waits
        assert f">{ids[0]}</a>" in (await browser.get(f"/jobs?q={ids[0]}")).text
        assert f">{ids[2]}</a>" in (await browser.get("/jobs", params={"q": HOSTILE, "queue": "garage"})).text
        by_argument = (await browser.get("/jobs", params={"q": '"car":"c"'})).text
        assert f">{ids[2]}</a>" in by_argument
        assert f">{ids[1]}</a>" not in by_argument
        assert "No jobs" in (await browser.get("/jobs?q=nothing")).text
        assert f">{ids[2]}</a>" in (await browser.get("/jobs")).text


async def test_a_search_that_stops_says_so(client: Client, ids: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    async def found(jet: object, queue: str, text: str, *, begin: int, limit: int, within: float) -> observe.JobSearch:
        asked.append(begin)
        return observe.JobSearch(queue=queue, jobs=(), looked_at=1000, next_begin=0 if begin else 77)

    monkeypatch.setattr(observe, "find_jobs", found)
    async with client() as browser:
        page = (await browser.get("/jobs?q=x%26y")).text
        assert "stopped after a second, when it had looked at 1,000 messages" in page
        (further,) = re.findall(r'href="([^"]*from=77)"', page)
        assert "stopped" not in (await browser.get(html.unescape(further))).text
    assert asked == [0, 77]


async def test_a_flow_a_schedule_limits_and_tenants(jet: pelton.Jet, client: Client, ids: list[str], flow: str) -> None:
    await (await jet.queue("garage")).options(tenant=HOSTILE).enqueue("paint", car="c")
    async with client() as browser:
        page = (await browser.get(f"/queues/garage/flows/{flow}")).text
        for part in ("failed", "cancelled", 'href="#node-0"', "Cancelled</dt><dd>1<", "ValueError: &lt;script&gt;"):
            assert part in page, part
        assert f"/queues/garage/flows/{flow}" in (await browser.get("/flows?queue=garage")).text
        assert "0 0 3 * * *" in (await browser.get("/schedules")).text
        limits = (await browser.get("/limits")).text
        for part in (", each key", "0 of 2 at the fullest of 0 keys", "10 in 60 s, 3 at once"):
            assert part in limits, part
        queue = (await browser.get("/queues/garage")).text
        for part in ("Flows that began last", "0 0 3 * * *", "10 in 60 s", "Tenants with the most jobs"):
            assert part in queue, part


async def test_jobs_by_key(client: Client, ids: list[str], jet: pelton.Jet) -> None:
    taxis = await jet.queue("taxis", exclusive=True)
    for number in range(30):
        await taxis.options(key="zoe/1" if number else "ant").enqueue("drive", number=number)
    async with client() as browser:
        assert "keys of the oldest 1 jobs" in (await browser.get("/queues/garage/keys")).text
        keys = (await browser.get("/queues/taxis/keys")).text
        assert keys.index("/queues/taxis/keys?key=zoe/1") < keys.index("/queues/taxis/keys?key=ant")
        first = (await browser.get("/queues/taxis/keys?key=zoe/1")).text
        assert ("29 jobs have not ended" in first, first.count("/queues/taxis/jobs/")) == (True, 25)
        further = re.findall(r'href="([^"]*from=[^"]*)"', first)
        rest = (await browser.get(html.unescape(further[0]))).text
        assert (rest.count("/queues/taxis/jobs/"), "Look further" in rest) == (4, False)
        assert "No jobs of this key" in (await browser.get("/queues/taxis/keys?key=none")).text
        assert (await browser.get("/queues/none/keys")).status_code == 404
        job = await taxis.options(tenant="acme").enqueue("drive", number=1)
        assert "<dt>Tenant</dt><dd>acme</dd>" in (await browser.get(f"/queues/taxis/jobs/{quote(job.id)}")).text


async def test_messages_by_sequence_and_subject(client: Client, ids: list[str]) -> None:
    async with client() as browser:
        page = (await browser.get("/streams/orders")).text
        for part in (f"text, {len(HOSTILE)} B", "JSON", "hex", "00000000  00 01 02", "X-Evil", "orders.json", "packer"):
            assert part in page, part
        assert "orders.json" not in (await browser.get("/streams/orders?subject=orders.hex")).text
        assert "X-Evil" not in (await browser.get("/streams/orders?seq=2")).text
        assert "No messages here" in (await browser.get("/streams/orders?seq=9")).text
        # What is no sequence is none, however long.
        assert "X-Evil" in (await browser.get(f"/streams/orders?seq={'9' * 40}")).text


@pytest.mark.parametrize(
    "path",
    ["/queues/none", "/queues/no%20queue", "/queues/garage/jobs/999", "/queues/garage/flows/9", "/streams/none",
     "/queues/garage/flows/no%20flow", "/other/garage/pause", "/streams/orders/publish", "/streams/orders/messages/99",
     "/streams/a%2Eb", "/nothing", "/static/../app.py", "/static/%2e%2e/app.py"],
)  # fmt: skip
async def test_what_is_not_there_is_told(client: Client, ids: list[str], path: str) -> None:
    async with client() as browser:
        answer = await browser.get(path)
    assert answer.status_code == 404
    assert '<nav aria-label="Pages">' in answer.text or path.startswith("/static/"), "the ways to what is there"


async def test_metrics_are_at_their_place(client: Client, ids: list[str]) -> None:
    async with client() as browser:
        answer = await browser.get("/metrics")
    assert 'pelton_queue_dead_letters{queue="garage"} 1.0' in answer.text
    assert answer.headers["content-type"].startswith("text/plain")


async def test_it_lives_below_a_prefix(client: Client, ids: list[str]) -> None:
    async with client(prefix="/ops", token="", actions=True) as browser:
        page = (await browser.get("/ops/queues/garage")).text
        (script,) = re.findall(r'src="(/ops/static/live.js[^"]*)"', page)
        answer = await browser.get(script)
        assert (answer.status_code, "immutable" in answer.headers["cache-control"]) == (200, True)
        assert 'href="/ops/queues/garage/pause"' in page
        assert (await browser.get("/other")).status_code == 404
    with pytest.raises(pelton.ConfigError, match="prefix"):
        client(prefix="ops/")


async def test_it_is_mounted_into_another_app(jet: pelton.Jet, ids: list[str]) -> None:
    import httpx2 as httpx
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from pelton import dashboard

    for prefix in ("", "/ops"):
        outer = Starlette(routes=[Mount("/ops", dashboard.app(jet, prefix=prefix))])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=outer), base_url="http://testserver") as browser:
            page = await browser.get("/ops/")
            assert page.status_code == 200
            assert 'href="/ops/queues/garage"' in page.text
            assert (await browser.get("/ops/queues/garage")).status_code == 200


async def test_a_store_that_is_opened_to_be_read_is_shown(tmp_path: Path, client: Client) -> None:
    path = tmp_path / "b.pelton"
    async with pelton.open(path) as writer:
        await writer.create_stream("orders", subjects=["orders"])
    async with pelton.open(path, read_only=True) as look, client(look, actions=True) as browser:
        assert "orders" in (await browser.get("/")).text


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (b"", "text", ""),
        (b'{"a":[1]}', "JSON", '{\n  "a": [\n    1\n  ]\n}'),
        (b'{"a":', "text", '{"a":'),
        (b"[" * 5000, "text", "[" * 5000),
        (b"\x1b[2J", "hex", "00000000  1b 5b 32 4a" + " " * 38 + ".[2J"),
        ("\u202etxt.exe".encode(), "text", "\\u202etxt.exe"),
        (b"From: a\r\nTo: b", "text", "From: a\nTo: b"),
        ('{"name":"M\u00fcller 2\u00a0000"}'.encode(), "JSON", '{\n  "name": "M\u00fcller 2\u00a0000"\n}'),
        ('{"to":"\u202eb"}'.encode(), "JSON", '{\n  "to": "\\u202eb"\n}'),
        ("\u0645\u06cc\u200c\u062e, 👨\u200d👩".encode(), "text", "\u0645\u06cc\u200c\u062e, 👨\u200d👩"),
        (b"\xff\xfe", "hex", None),
    ],
)
def test_a_payload_is_shown_for_what_it_is(data: bytes, kind: str, text: str | None) -> None:
    found = payload_for_person(data)
    assert (found.kind, found.is_whole) == (kind, True)
    assert text is None or found.text == text


async def test_marks_that_mislead_are_spelled_out_wherever_they_come_from(client: Client, jet: pelton.Jet) -> None:
    mark = "\u202egnp.exe"
    garage = await jet.queue("garage")

    @garage.job(max_attempts=1)
    async def repair(car: str) -> None:
        raise ValueError(mark)

    job = await repair.enqueue(mark, key=mark)
    await garage.work(until_empty=True, handle_signals=False)
    await repair.enqueue(mark, key=mark)
    async with client() as browser:
        for path in ("/queues/garage", f"/queues/garage/jobs/{job.id}", "/jobs", "/queues/garage/keys"):
            text = (await browser.get(path)).text
            assert "\u202e" not in text, path
            assert "\\u202egnp.exe" in text, path
        assert f'value="{mark}"' in (await browser.get("/jobs", params={"q": mark})).text, "what is sent again is exact"


def test_a_large_payload_is_cut() -> None:
    assert payload_for_person(b"ab" * 10, 5) == ("text", "ababa", False)
    assert payload_for_person("\u00e4\u00e4\u00e4".encode(), 5) == ("text", "\u00e4\u00e4", False)
    assert payload_for_person(bytes(100), 40).text.startswith("00000000  00 00 00 00 00 00 00 00 00 00 ")
    assert payload_for_person(bytes(100), 40).is_whole is False
