"""The JSON interface: what it answers, and what it refuses."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))
from serving import Colours, encoded, index_of, paint, running, wait_for

from crow.app.serve.decode import Decoder
from crow.app.serve.guard import Limits
from crow.app.serve.metrics import resident
from crow.app.serve.run import Settings
from crow.search.index import Index


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("serve")


@pytest.fixture(scope="module")
def index(folder: Path) -> Iterator[Index]:
    with index_of(folder) as made:
        yield made


@pytest.fixture(scope="module")
def client(index: Index, folder: Path) -> Iterator[httpx.Client]:
    with running(index, folder) as address, httpx.Client(base_url=address, timeout=60) as client:
        yield client


def id_of(index: Index, name: str) -> int:
    return next(s.id for path, s in index.store.stamps().items() if path.endswith(name))


def found(client: httpx.Client, **params: Any) -> list[dict[str, Any]]:
    answer = client.get("/api/v1/search", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()["hits"]


def send(client: httpx.Client, data: bytes, path: str = "/api/v1/uploads", **params: Any) -> httpx.Response:
    return client.post(path, files={"picture": ("p.jpg", data)}, params=params)


def is_problem(answer: httpx.Response, status: int) -> bool:
    kind = answer.headers["content-type"] == "application/problem+json"
    return answer.status_code == status and kind and answer.json()["status"] == status


# what it answers


def test_a_search_by_a_member_is_the_indexs_own_without_the_member(client: httpx.Client, index: Index) -> None:
    path = next(p for p in index.store.stamps() if p.endswith("003.jpg"))
    hits = found(client, q=id_of(index, "003.jpg"), k=10)
    own = [hit for hit in index.search(path, k=11) if hit.path != path]
    assert [hit["path"] for hit in hits] == [hit.path for hit in own]
    np.testing.assert_allclose([hit["score"] for hit in hits], [hit.score for hit in own], atol=1e-6)


def test_an_upload_finds_what_the_file_finds(client: httpx.Client, index: Index, tmp_path: Path) -> None:
    file = paint(tmp_path / "query.png", 5)
    upload = send(client, file.read_bytes())
    assert upload.status_code == 201 and upload.json()["width"] == 96
    own = [hit.path for hit in index.search(file, k=7)]
    assert [hit["path"] for hit in found(client, q=upload.json()["id"], k=7)] == own
    direct = send(client, file.read_bytes(), "/api/v1/search", k=7).json()
    assert [hit["path"] for hit in direct["hits"]] == own and direct["upload"] == upload.json()
    assert client.get(f"/api/v1/uploads/{upload.json()['id']}").json() == upload.json()
    shown = Image.open(io.BytesIO(client.get(f"/api/v1/uploads/{upload.json()['id']}/image").content))
    assert shown.format == "JPEG" and shown.size == (96, 64)


def test_a_box_is_the_describers_box(client: httpx.Client, index: Index) -> None:
    path = next(p for p in index.store.stamps() if p.endswith("004.jpg"))
    own = index.search(path, k=8, box=(10, 5, 70, 40))
    for q in (id_of(index, "004.jpg"), send(client, Path(path).read_bytes()).json()["id"]):
        hits = found(client, q=q, box="10,5,70,40", k=8)
        assert [hit["path"] for hit in hits] == [hit.path for hit in own]
        np.testing.assert_allclose([hit["score"] for hit in hits], [hit.score for hit in own], atol=1e-6)


def test_several_queries_expansion_and_filters_are_the_indexs(client: httpx.Client, index: Index) -> None:
    ids = [id_of(index, name) for name in ("006.jpg", "009.jpg")]
    vectors = np.stack([row.vector for row in index.store.rows(ids, vectors=True) if row is not None])
    under = str(next(iter(index.store.settings()["folders"]))) + "/a"
    for params in ({}, {"expand": 10}, {"under": under}, {"after": "2014", "before": "2016-02"}, {"min_score": 0.2}):
        hits = found(client, q=ids, k=200, **params)
        own = [h.path for h in index.search(vectors, k=202, **params) if h.path[-7:] not in ("006.jpg", "009.jpg")]
        assert [hit["path"] for hit in hits] == own
    assert all(hit["path"].startswith(under + "/") for hit in found(client, q=ids, under=under))
    assert all("2014" <= hit["taken"] < "2016-02" for hit in found(client, q=ids, after="2014", before="2016-02"))


def test_pages_are_parts_of_the_whole(client: httpx.Client, index: Index) -> None:
    whole = client.get("/api/v1/search", params={"q": 1, "k": 100}).json()
    assert len(whole["hits"]) == whole["total"] == len(index) - 1 and not whole["more"]
    parts = [client.get("/api/v1/search", params={"q": 1, "k": 15, "offset": offset}).json() for offset in (0, 15, 30)]
    assert [hit for part in parts for hit in part["hits"]] == whole["hits"]
    assert [part["more"] for part in parts] == [True, True, False]
    assert client.get("/api/v1/pictures/1/neighbours").json()["hits"] == whole["hits"][:10]


def test_browsing_shows_every_picture_once(client: httpx.Client, index: Index) -> None:
    pages = [client.get("/api/v1/pictures", params={"k": 30, "offset": offset}).json() for offset in (0, 30)]
    ids = [hit["id"] for page in pages for hit in page["hits"]]
    assert sorted(ids, reverse=True) == ids and set(ids) == set(index.store.ids().tolist())
    assert client.get(f"/api/v1/pictures/{ids[0]}").json()["path"] == index.store.rows([ids[0]])[0].path


def test_thumbnails_are_upright_small_and_cached(client: httpx.Client, index: Index, folder: Path) -> None:
    number = id_of(index, "001.jpg")  # lies on its side on disk
    for _ in range(2):
        answer = client.get(f"/api/v1/pictures/{number}/thumbnail")
        assert "immutable" in answer.headers["cache-control"] and answer.headers["content-type"] == "image/jpeg"
        assert Image.open(io.BytesIO(answer.content)).size == (64, 96)
    assert Image.open(io.BytesIO(client.get(f"/api/v1/pictures/{number}/image").content)).size == (64, 96)
    assert (folder / "thumbnails" / f"{number % 256:02x}" / f"{number}.jpg").read_bytes() == answer.content


def test_an_explanation_adds_up_to_the_score(client: httpx.Client, index: Index) -> None:
    told = client.get("/api/v1/explain", params={"q": 3, "result": 8}).json()
    assert told["linear"] and told["query"]["weights"]
    for side in ("query", "result"):
        assert abs(np.sum(told[side]["cells"]) + told[side]["constant"] - told["score"]) < 1e-5
    hit = next(hit for hit in found(client, q=3, k=100) if hit["id"] == 8)
    assert abs(hit["score"] - told["score"]) < 2e-3  # the matrix holds float16
    boxed = client.get("/api/v1/explain", params={"q": 3, "result": 8, "box": "10,5,70,40"}).json()
    assert boxed["query"]["extent"][:2] == [10, 5] and boxed["query"]["extent"][2] <= 70
    left, top, right, bottom = boxed["query"]["region"]
    assert 10 <= left < right <= 70 and 5 <= top < bottom <= 40


def test_info_folders_and_metrics(client: httpx.Client, index: Index) -> None:
    info = client.get("/api/v1/info").json()
    assert (info["recipe"], info["pictures"], info["whitened"]) == ("crow", len(index), True)
    folders = client.get("/api/v1/folders").json()["folders"]
    assert [f["pictures"] for f in folders] == [20, 20]
    client.get("/api/v1/pictures/999999")
    text = client.get("/metrics").text
    assert 'crow_requests_total{method="GET",route="/api/v1/info",status="200"}' in text
    assert 'route="/api/v1/pictures/{id}",status="404"' in text and f"crow_index_pictures {len(index)}" in text
    for line in text.splitlines():
        assert line.startswith("# ") or float(line.rsplit(" ", 1)[1]) >= 0


def test_the_page_follows_a_sync_and_tells_failures(tmp_path: Path) -> None:
    with index_of(tmp_path, 6) as index, running(index, tmp_path) as address:
        client = httpx.Client(base_url=address)
        before = client.get("/api/v1/status").json()
        assert (before["pictures"], before["failed"], before["growing"]) == (6, 0, False)
        assert len(found(client, q=1)) == 5
        paint(tmp_path / "photos" / "new.png", 99)
        (tmp_path / "photos" / "broken.jpg").write_bytes(b"\xff\xd8\xff no picture")
        with Index.open(index.store.address, Colours()) as other:  # as another process would
            other.sync()
        wait_for(lambda: client.get("/api/v1/status").json()["pictures"] == 7)
        after = client.get("/api/v1/status").json()
        assert after["failed"] == 1 and after["growing"] and after["generation"] > before["generation"]
        assert len(found(client, q=1)) == 6
        failures = client.get("/api/v1/failures").json()
        assert failures["total"] == 1 and failures["failures"][0]["path"].endswith("broken.jpg")
        assert failures["failures"][0]["reason"]


# what it refuses


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/nothing", 404),
        ("/api/v1/pictures/12345678", 404),
        ("/api/v1/pictures/0", 422),
        ("/api/v1/pictures/x", 422),
        (f"/api/v1/pictures/{2**63}", 422),
        ("/api/v1/search", 422),
        ("/api/v1/search?q=-1", 422),
        ("/api/v1/search?q=1&box=1,2,3", 422),
        ("/api/v1/search?q=1&box=1,2,3,1e99", 422),
        ("/api/v1/search?q=1&box=50,5,20,8", 422),
        ("/api/v1/search?q=1&box=500,500,600,600", 422),
        ("/api/v1/search?q=1&after=yesterday", 422),
        ("/api/v1/search?q=1&k=0", 422),
        ("/api/v1/search?q=u" + "0" * 32, 404),
        ("/api/v1/uploads/u" + "0" * 32, 404),
        ("/api/v1/explain?q=1&result=12345678", 404),
        ("/web/nothing.js", 404),
        ("/web/login.html", 404),
    ],
)
def test_problems_are_told_in_words(client: httpx.Client, path: str, status: int) -> None:
    answer = client.get(path)
    assert is_problem(answer, status), (answer.status_code, answer.text)
    assert "Traceback" not in answer.text and "site-packages" not in answer.text


@pytest.mark.parametrize(
    "path",
    ["/", "/health", "/web/page.js", "/api/v1/info", "/api/v1/pictures/1/image", "/api/v1/search?k=0", "/nowhere"],
)
def test_head_is_get_without_the_body(client: httpx.Client, path: str) -> None:
    whole, head = client.get(path), client.head(path)
    assert (head.status_code, head.content) == (whole.status_code, b"")
    assert {**head.headers, "date": ""} == {**whole.headers, "date": ""}
    assert client.get("/health").json() == {"status": "ok"}  # the connection is still in step


def test_head_is_counted_by_its_own_name(client: httpx.Client) -> None:
    client.head("/ready")
    assert 'method="HEAD",route="/ready",status="200"' in client.get("/metrics").text


def test_methods_that_do_not_exist_are_refused(client: httpx.Client) -> None:
    assert is_problem(client.delete("/api/v1/pictures/1"), 405)
    assert client.delete("/api/v1/pictures/1").headers["allow"] == "GET, HEAD"
    assert client.head("/session").headers["allow"] == "POST"
    assert is_problem(client.put("/api/v1/search"), 405)
    assert client.put("/api/v1/search").headers["allow"] == "GET, HEAD, POST"


def tricks(secret: Path) -> list[str]:
    """A hundred ways to ask for a file that is none of the index's."""
    targets = [
        str(secret),
        "etc/passwd",
        "../" * 12 + "etc/passwd",
        "..\\..\\windows\\win.ini",
        "test.crow/index.sqlite",
    ]
    places = [
        "/api/v1/pictures/{}/image",
        "/api/v1/pictures/{}/thumbnail",
        "/web/{}",
        "/{}",
        "/api/v1/uploads/{}/image",
    ]
    ways = [
        lambda t: t,
        lambda t: quote(t, safe=""),
        lambda t: quote(quote(t, safe=""), safe=""),
        lambda t: t.replace("../", "%c0%ae%c0%ae/").replace("/", "%2f"),
        lambda t: "1%00" + quote(t),
        lambda t: "....//" * 8 + t,
    ]
    return [place.format(way(target)) for place in places for target in targets for way in ways]


def test_no_path_leads_out_of_the_index(client: httpx.Client, folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.jpg"
    secret.write_bytes(encoded(1) + b"SECRET")
    asked = tricks(secret)
    assert len(asked) >= 100
    host, port = client.base_url.host, client.base_url.port
    for path in asked:  # raw, since a client's library would tidy the path up
        with socket.create_connection((host, port)) as link:
            link.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
            answer = b"".join(iter(lambda link=link: link.recv(65536), b""))
        status = int(answer.split(b" ")[1])
        assert status in (400, 404, 405, 422, 307), (path, answer[:200])
        assert b"SECRET" not in answer and b"root:" not in answer and b"SQLite" not in answer


def test_a_link_put_in_the_place_of_a_picture_leads_nowhere(tmp_path: Path) -> None:
    with index_of(tmp_path, 4) as index, running(index, tmp_path) as address:
        secret = paint(tmp_path / "elsewhere" / "secret.png", 77)
        path = Path(index.store.rows([2])[0].path)  # type: ignore[union-attr]
        path.unlink()
        path.symlink_to(secret)
        for what in ("image", "thumbnail"):
            assert is_problem(httpx.get(f"{address}/api/v1/pictures/2/{what}"), 404)
        assert is_problem(httpx.get(f"{address}/api/v1/search?q=2&box=1,1,30,30"), 404)
        path.unlink()
        assert is_problem(httpx.get(f"{address}/api/v1/pictures/2/image"), 404)
        touched = Path(index.store.rows([3])[0].path)  # type: ignore[union-attr]
        os.utime(touched, (1, 1))  # the same bytes with another time are still the picture
        assert httpx.get(f"{address}/api/v1/pictures/3/image").status_code == 200


def malformed() -> list[bytes]:
    """Fifty uploads that are no pictures, or broken ones, or bombs."""
    random = np.random.default_rng(0)
    whole = {kind: encoded(3, kind) for kind in ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WebP")}
    bad = [
        b"",
        b"\0",
        b"GIF89a",
        b"\xff\xd8\xff",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.7\n",
        b"MZ" * 400,
    ]
    bad += [data[: len(data) // 3] for data in whole.values()]
    bad += [data[:20] + random.bytes(200) for data in whole.values()]
    bad += [random.bytes(n) for n in (1, 16, 1000, 100_000)]
    bad += [
        whole["PNG"][:16] + size + whole["PNG"][24:] for size in (b"\0" * 8, b"\x7f\xff\xff\xff" * 2, b"\0\1\0\0" * 2)
    ]
    bad += [b"\0\0\0\x18ftyp" + brand + random.bytes(64) for brand in (b"avif", b"heic", b"mif1", b"msf1")]
    bad += [b"RIFF\xff\xff\xff\x7fWEBP" + random.bytes(64), b"II*\0" + b"\xff" * 64, b"BM" + b"\xff" * 64]
    while len(bad) < 52:  # bits turned over within the header
        data = bytearray(whole[list(whole)[len(bad) % 6]])
        for at in random.integers(2, min(60, len(data)), 12):
            data[at] ^= 255
        bad.append(bytes(data[: len(data) // 2]))
    return bad


def test_malformed_uploads_are_told_so_and_leave_nothing_behind(client: httpx.Client) -> None:
    for data in malformed()[:5]:
        send(client, data)
    before = resident()
    uploads = malformed()
    assert len(uploads) >= 50
    for data in uploads:
        answer = send(client, data)
        assert answer.status_code in (201, 413, 422), (answer.status_code, answer.text, data[:40])
        assert answer.status_code == 201 or is_problem(answer, answer.status_code)
    assert resident() < before + 50e6
    assert send(client, encoded(3)).status_code == 201


def test_uploads_may_be_too_large_too_many_or_no_form(index: Index, folder: Path) -> None:
    limits = Limits(upload_bytes=200_000, upload_pixels=1_000_000)
    with running(index, folder, limits=limits) as address, httpx.Client(base_url=address) as client:
        assert is_problem(send(client, b"x" * 300_000), 413)
        head = b'--b\r\nContent-Disposition: form-data; name="picture"; filename="x"\r\n\r\n'
        chunks = iter([head, *[b"x" * 50_000] * 10])
        kind = {"Content-Type": "multipart/form-data; boundary=b"}
        with suppress(httpx.TransportError):  # refused while it was still sending
            assert is_problem(client.post("/api/v1/uploads", content=chunks, headers=kind), 413)
        assert is_problem(send(client, encoded(1, "PNG", (1200, 1000))), 413)
        assert is_problem(client.post("/api/v1/uploads", content=b"raw"), 422)
        assert is_problem(client.post("/api/v1/uploads", data={"picture": "text"}, files={"other": b"x"}), 422)
        many = [(f"f{i}", (f"{i}.jpg", b"x")) for i in range(1000)]
        assert is_problem(client.post("/api/v1/uploads", files=many), 413)
        fields = {f"f{i}": "x" for i in range(3000)}
        assert is_problem(client.post("/api/v1/uploads", data=fields, files={"picture": b"x"}), 413)
        assert send(client, encoded(1)).status_code == 201


def test_a_body_that_does_not_come_is_given_up(index: Index, folder: Path) -> None:
    with running(index, folder, limits=Limits(body_seconds=0.3)) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as link:
            head = f"POST /api/v1/uploads HTTP/1.1\r\nHost: {host}\r\nContent-Length: 999\r\n"
            link.sendall(f"{head}Content-Type: multipart/form-data; boundary=b\r\n\r\n--b".encode())
            answer = b"".join(iter(lambda: link.recv(65536), b""))
        assert b" 408 " in answer and b"problem+json" in answer


def test_headers_that_do_not_come_are_given_up(index: Index, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crow.app.serve.run.HEADER_SECONDS", 0.2)
    with running(index, folder) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as link:
            link.sendall(b"GET / HTTP/1.1\r\nHost: loc")
            assert link.recv(100) == b""


def test_a_full_line_says_when_to_come_back(tmp_path: Path) -> None:
    describer = Colours()
    with (
        index_of(tmp_path, 4, describer) as index,
        running(index, tmp_path, limits=Limits(waiting=2)) as address,
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        describer.slow = threading.Event()
        answers: list[httpx.Response] = []
        threads = [
            threading.Thread(target=lambda i=i: answers.append(send(client, encoded(i), "/api/v1/search")))
            for i in range(2)
        ]
        for thread in threads:
            thread.start()
        wait_for(lambda: "crow_line_waiting 2" in client.get("/metrics").text)
        refused = send(client, encoded(9), "/api/v1/search")
        assert is_problem(refused, 503) and int(refused.headers["retry-after"]) >= 1
        assert len(found(client, q=1)) == 3  # members need no network and do not wait
        describer.slow.set()
        for thread in threads:
            thread.join()
        assert [answer.status_code for answer in answers] == [200, 200]


def test_a_picture_that_takes_too_long_is_given_up_and_the_next_one_is_read() -> None:
    import asyncio

    from crow.app.serve.problems import Problem

    async def check() -> None:
        decoder = Decoder(1, seconds=30)
        job = {"do": "shown", "side": 100, "name": "p", "pixels": 10**8}
        await decoder(job, encoded(1))
        decoder.seconds = 0.0
        with pytest.raises(Problem, match="seconds"):
            await decoder(job, encoded(1, "PNG", (3000, 3000)))
        decoder.seconds = 30
        facts, _ = await decoder(job, encoded(2))
        assert facts["width"] == 96
        await decoder.close()
        starved = Decoder(1, memory=400 << 20)
        with pytest.raises(Problem, match=r"memory|decoded"):
            await starved({**job, "pixels": 10**9}, encoded(1, "PNG", (10000, 10000)))
        await starved.close()

    asyncio.run(check())


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WebP", "AVIF", "HEIF"])
def test_every_format_is_decoded_without_opening_a_file(client: httpx.Client, kind: str) -> None:
    import pillow_heif

    pillow_heif.register_heif_opener()
    answer = send(client, encoded(4, kind))
    assert answer.status_code == 201, answer.text
    assert (answer.json()["width"], answer.json()["height"]) == (96, 64)


def test_strange_hosts_and_foreign_pages_are_refused(client: httpx.Client) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", ""):
        assert client.get("/api/v1/info", headers={"Host": host}).status_code in (400, 421)
    for host in ("localhost", "LOCALHOST:1234", "127.0.0.1:9", "[::1]:80", "192.168.1.7"):
        assert client.get("/api/v1/info", headers={"Host": host}).status_code == 200
    assert is_problem(client.get("/api/v1/info", headers={"Sec-Fetch-Site": "cross-site"}), 403)
    assert is_problem(client.post("/api/v1/uploads", headers={"Origin": "http://evil.example"}), 403)
    answer = client.get("/", headers={"Origin": "http://evil.example"})
    assert "access-control-allow-origin" not in answer.headers
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy and "*" not in policy
    assert "<script>" not in answer.text and "style=" not in answer.text and "http:" not in answer.text
    assert " onclick=" not in answer.text and "https:" not in answer.text


def test_a_token_is_asked_for(index: Index, folder: Path) -> None:
    with running(index, folder, token="right horse") as address, httpx.Client(base_url=address) as client:
        for path in ("/api/v1/info", "/api/v1/pictures/1/image", "/metrics", "/api/v1/openapi.json", "/web/page.js"):
            assert is_problem(client.get(path), 401)
            assert is_problem(client.get(path, headers={"Authorization": "Bearer wrong"}), 401)
            assert is_problem(client.get(path, headers={"Cookie": "crow_session=\u00fc".encode("latin-1")}), 401)
            assert client.get(path, headers={"Authorization": "Bearer right horse"}).status_code == 200
        assert client.get("/health").status_code == client.get("/ready").status_code == 200
        asks = client.get("/", headers={"Accept": "text/html"})
        assert asks.status_code == 401 and "Token" in asks.text and client.get("/web/login.css").status_code == 200
        assert client.post("/session", data={"token": "wrong"}).status_code == 401
        assert client.get("/api/v1/info").status_code == 401
        opened = client.post("/session", data={"token": "right horse"})
        assert opened.status_code == 303 and "HttpOnly" in opened.headers["set-cookie"]
        assert client.get("/api/v1/info").status_code == 200 and "page.js" in client.get("/").text
        assert "right" not in opened.headers["set-cookie"]


def test_others_are_served_only_when_that_was_said() -> None:
    with pytest.raises(ValueError, match="--token"):
        Settings(host="0.0.0.0").checked()
    assert Settings(host="0.0.0.0", token="x").checked() and Settings(host="0.0.0.0", no_auth=True).checked()
    with pytest.raises(ValueError, match="root path"):
        Settings(root_path="crow/").checked()


def test_a_proxy_may_show_it_by_another_name(index: Index, folder: Path) -> None:
    with running(index, folder, names=("photos.example",)) as address:
        for host in ("photos.example", "localhost:8000"):
            headers = {"Host": host, "Origin": "https://photos.example"}
            files = {"picture": encoded(1)}
            assert httpx.post(f"{address}/api/v1/uploads", files=files, headers=headers).status_code == 201
        assert httpx.get(f"{address}/", headers={"Host": "other.example"}).status_code == 421


def test_a_thumbnail_that_a_power_cut_left_half_is_made_again(tmp_path: Path) -> None:
    with index_of(tmp_path, 2) as index:
        file = tmp_path / "thumbnails" / "01" / "1.jpg"
        for left in (None, b"", b"\xff\xd8\xff half of one"):
            if left is not None:
                file.write_bytes(left)
            with running(index, tmp_path) as address:
                answer = httpx.get(f"{address}/api/v1/pictures/1/thumbnail")
            assert answer.status_code == 200 and Image.open(io.BytesIO(answer.content)).load()
            assert file.read_bytes() == answer.content


def test_thumbnails_of_pictures_that_left_the_index_are_forgotten(tmp_path: Path) -> None:
    with index_of(tmp_path, 3) as index:
        with running(index, tmp_path) as address:
            for i in (1, 2):
                httpx.get(f"{address}/api/v1/pictures/{i}/thumbnail")
        gone = index.store.rows([1])[0]
        index.store.remove([gone.path])  # type: ignore[union-attr]
        with running(index, tmp_path):
            assert [file.name for file in (tmp_path / "thumbnails").rglob("*.jpg")] == ["2.jpg"]


@pytest.mark.parametrize("stripped", [True, False])
def test_it_works_below_a_path(index: Index, folder: Path, stripped: bool) -> None:
    with running(index, folder, root_path="/photos/crow") as address:
        base = address if stripped else f"{address}/photos/crow"
        assert "page.js" in httpx.get(f"{base}/").text
        assert httpx.get(f"{base}/web/page.js").status_code == 200
        assert httpx.get(f"{base}/api/v1/search?q=1").status_code == 200
        servers = httpx.get(f"{base}/api/v1/openapi.json").json()["servers"]
        assert servers == [{"url": "/photos/crow"}]


def test_sigterm_finishes_what_was_begun(tmp_path: Path) -> None:
    index_of(tmp_path, 4).close()
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "serving.py"), str(tmp_path / "test.crow")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "CROW_CACHE": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )
    assert process.stdout and process.stderr
    address = process.stderr.readline().decode().split()[2].rstrip("/")
    assert process.stdout.readline() == b"begun\n"  # the warming up
    answers: list[httpx.Response] = []
    thread = threading.Thread(
        target=lambda: answers.append(send(httpx.Client(base_url=address), encoded(1), "/api/v1/search"))
    )
    thread.start()
    assert process.stdout.readline() == b"begun\n"
    process.send_signal(signal.SIGTERM)
    thread.join()
    assert answers[0].status_code == 200 and len(answers[0].json()["hits"]) == 4
    log = process.communicate(timeout=30)[1].decode()
    assert process.returncode in (0, -signal.SIGTERM), log
    assert "Traceback" not in log
    records = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert [r["status"] for r in records if r["path"] == "/api/v1/search"] == [200]


def test_openapi_is_what_it_does(client: httpx.Client, index: Index) -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    import hypothesis
    from schemathesis.specs.openapi.checks import positive_data_acceptance  # a box may lie outside: no schema can tell

    schema = schemathesis.openapi.from_dict(client.get("/api/v1/openapi.json").json())
    schema.config.update(base_url=str(client.base_url))
    tried = 0
    for result in schema.get_all_operations():
        operation = result.ok()

        @hypothesis.settings(
            max_examples=12, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
        )
        @hypothesis.seed(1)
        @hypothesis.given(case=operation.as_strategy())
        def check(case: Any) -> None:
            nonlocal tried
            case.call_and_validate(excluded_checks=[positive_data_acceptance])
            tried += 1

        check()
    assert tried > 100
