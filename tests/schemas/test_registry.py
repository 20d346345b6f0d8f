"""Test the client of a schema registry: schemas, references, the cache directory, credentials, TLS and errors."""

from __future__ import annotations

import base64
import json
import pickle
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.errors import BadRequest, Corrupt, NotFound, SparklogError, Unavailable
from sparklog.schemas.registry import SchemaRegistry
from sparklog.schemas.rest_client import RestClient
from sparklog.storage.retries import Clock, RetryPolicy
from tests.support.servers.schema_registry import FakeRegistry, Response, error, running

INT, LONG = '"int"', '"long"'


def test_schemas_by_id_are_requested_once(server: FakeRegistry) -> None:
    number = server.register("t-value", INT)
    registry = SchemaRegistry(server.url)
    for _ in range(2):
        schema = registry.schema(number)
        assert (schema.id, schema.type, schema.text, schema.references) == (number, "AVRO", INT, ())
    assert server.requests == [f"GET /schemas/ids/{number}"]


def test_subjects_have_versions_and_the_latest_is_requested_again(server: FakeRegistry) -> None:
    first = server.register("a/b value", INT)
    registry = SchemaRegistry(f"{server.url}/")
    now = [100.0]
    registry._clock = Clock(now=lambda: now[0])
    subject = registry.subject("a/b value")
    assert subject.schema().text == subject.schema().text == INT
    assert len(server.requests) == 1
    second = server.register("a/b value", LONG)
    assert subject.schema().text == INT
    now[0] += 11
    assert (subject.schema().id, subject.schema(1).id, subject.versions()) == (second, first, [1, 2])
    assert (registry.subjects(), subject.schema(2).text) == (["a/b value"], LONG)
    with pytest.raises(NotFound, match=r"does not contain version 3 of the subject 'a/b value'$"):
        subject.schema(3)
    with pytest.raises(NotFound, match=r"does not contain subject 'b'$"):
        registry.subject("b").schema()
    with pytest.raises(NotFound, match=r"has no versions of the subject 'b'$"):
        registry.subject("b").versions()


def test_references_are_resolved_recursively(server: FakeRegistry) -> None:
    server.register("leaf", '{"leaf": 1}')
    server.register("middle", '{"middle": 1}', "JSON", [{"name": "leaf.json", "subject": "leaf", "version": 1}])
    references = [
        {"name": "middle.json", "subject": "middle", "version": 1},
        {"name": "leaf.json", "subject": "leaf", "version": 1},
    ]
    number = server.register("top", '{"top": 1}', "JSON", references)
    expected = (("leaf.json", '{"leaf": 1}'), ("middle.json", '{"middle": 1}'))
    assert SchemaRegistry(server.url).schema(number).references == expected
    assert SchemaRegistry(server.url).subject("top").schema().references == expected


def test_schema_is_registered_or_found(server: FakeRegistry) -> None:
    subject = SchemaRegistry(server.url).subject("t-value")
    with pytest.raises(NotFound, match=r"not have this schema in the subject 't-value' \(Subject.*: register it$"):
        subject.find(INT)
    registered = subject.register(INT)
    assert subject.register(INT) == registered == subject.find(INT) == subject.schema()
    referring = subject.register('{"$ref": "x"}', "JSON", references=[("x", "t-value", 1)])
    assert referring.references == (("x", INT),)
    assert subject.schema() == referring
    server.is_compatible = lambda schema: False
    with pytest.raises(BadRequest, match="rejected the request: Schema being registered is incompatible"):
        subject.register(LONG)


def test_cache_directory_is_read_without_the_registry(server: FakeRegistry, tmp_path: Path) -> None:
    leaf = server.register("leaf", INT)
    top = server.register("t/../value", LONG, references=[{"name": "leaf", "subject": "leaf", "version": 1}])
    registry = SchemaRegistry(server.url, cache_dir=tmp_path / "cache")
    expected = registry.subject("t/../value").schema()
    assert (expected.id, expected.references) == (top, (("leaf", INT),))
    requests = len(server.requests)
    # The registry was read by subject, and the directory has the schemas by id as well.
    assert SchemaRegistry(server.url, cache_dir=tmp_path / "cache").schema(top) == expected
    assert len(server.requests) == requests
    offline = SchemaRegistry(cache_dir=str(tmp_path / "cache"))
    assert offline.schema(top) == expected == offline.subject("t/../value").schema()
    assert offline.schema(leaf).text == INT
    with pytest.raises(NotFound, match=r"does not contain schema id 77: do this once with the URL"):
        offline.schema(77)
    with pytest.raises(BadRequest, match="subjects cannot be listed without the URL"):
        offline.subjects()
    with pytest.raises(BadRequest, match="cannot be registered or looked up without the URL"):
        offline.subject("leaf").register(LONG)
    with pytest.raises(BadRequest, match=rf"contains schemas of the registry {server.url}, not of http://other:1:"):
        SchemaRegistry("http://other:1", cache_dir=tmp_path / "cache").schema(top)
    assert not list(tmp_path.rglob("*.unfinished"))
    file = tmp_path / "cache" / "ids" / f"{top}.json"
    for content in ("{", "[]", "{}"):
        file.write_text(content)
        with pytest.raises(Corrupt, match="delete"):
            SchemaRegistry(cache_dir=tmp_path / "cache").schema(top)


def test_cache_directory_must_be_writable(server: FakeRegistry, tmp_path: Path) -> None:
    number = server.register("t", INT)
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match=r"file/registry.json cannot be read: Not a directory"):
        SchemaRegistry(server.url, cache_dir=tmp_path / "file").schema(number)


def test_unknown_id_is_requested_once_in_ten_seconds(server: FakeRegistry) -> None:
    registry = SchemaRegistry(server.url)
    now = [100.0]
    registry._clock = Clock(now=lambda: now[0])
    for _ in range(3):
        with pytest.raises(NotFound, match=r"^the schema registry http://.* does not contain schema id 1$"):
            registry.schema(1)
    assert len(server.requests) == 1
    number = server.register("t", INT)
    now[0] += 11
    assert registry.schema(number).text == INT


def test_credentials(server: FakeRegistry) -> None:
    number = server.register("t", INT)
    server.authorization = "Basic " + base64.b64encode(b"anna:p@ss/1").decode()
    host = server.url.removeprefix("http://")
    assert SchemaRegistry(server.url, basic_auth="anna:p@ss/1").schema(number).text == INT
    assert SchemaRegistry(f"http://anna:p%40ss%2F1@{host}").schema(number).text == INT
    with pytest.raises(
        Unavailable, match=r"denied access with status 401: Unauthorized; specify credentials$"
    ) as denied:
        SchemaRegistry(server.url).schema(number)
    assert denied.value.is_denied
    with pytest.raises(Unavailable, match="check the user and the password, or the token") as denied:
        SchemaRegistry(f"http://anna:secret@{host}").schema(number)
    assert "secret" not in str(denied.value) + repr(SchemaRegistry(f"http://anna:secret@{host}")._client)
    server.authorization = "Bearer abc"
    assert SchemaRegistry(server.url, token="abc").schema(number).text == INT
    with pytest.raises(BadRequest, match="either a user and a password, or a token"):
        SchemaRegistry(server.url, token="abc", basic_auth="a:b")


def test_registry_can_be_sent_to_other_processes(server: FakeRegistry, tmp_path: Path) -> None:
    number = server.register("t", INT)
    server.authorization = "Bearer abc"
    registry = SchemaRegistry(server.url, token="abc", cache_dir=tmp_path)
    assert registry.schema(number) == pickle.loads(pickle.dumps(registry)).schema(number)
    assert pickle.loads(pickle.dumps(registry.subject("t", message="x"))).schema().message == "x"


def test_tasks_of_a_process_request_each_schema_once(server: FakeRegistry) -> None:
    number = server.register("t", INT)
    sent = pickle.dumps(SchemaRegistry([server.url]))
    before = len(server.requests)
    assert {pickle.loads(sent).schema(number).text for _ in range(3)} == {INT}
    assert len(server.requests) == before + 1


def test_next_url_is_used_if_a_registry_cannot_be_reached(server: FakeRegistry) -> None:
    number = server.register("t", INT)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        unused = f"http://127.0.0.1:{closed.getsockname()[1]}"
        assert SchemaRegistry([unused, server.url]).schema(number).text == INT
        assert SchemaRegistry(f"{unused}, {server.url}").schema(number).text == INT
        with pytest.raises(Unavailable, match=rf"the schema registry {unused} cannot be reached: Connection refused$"):
            SchemaRegistry(unused).schema(number)


def test_busy_registry_is_requested_again(server: FakeRegistry) -> None:
    pauses: list[float] = []
    answers = [(503, b"<html>"), error(50001, "Error in the backend datastore")]
    server.fail = lambda request: answers.pop() if answers else None
    client = RestClient.of(server.url, retries=RetryPolicy(clock=Clock(sleep=pauses.append)))
    assert client.send("GET", "/subjects") == []
    assert len(pauses) == 2
    server.fail = lambda request: error(50001, "Error in the backend datastore")
    client = RestClient.of(server.url, retries=RetryPolicy(budget_s=0))
    with pytest.raises(Unavailable, match=r"failed with status 500: Error in the backend datastore; retry later$"):
        client.send("GET", "/subjects")


@pytest.mark.parametrize(
    ("response", "says"),
    [
        (
            (200, b"<html>"),
            r"http://\S+ is not a schema registry: its response to GET /schemas/ids/1 is not JSON; specify",
        ),
        ((200, {"x": 1}), "returned a response without schema id 1: specify the URL of Confluent's REST API"),
        ((404, b"not here"), r"is not a schema registry: GET /schemas/ids/1 returned status 404; specify the URL of"),
        ((404, {"error_code": 404, "message": "HTTP 404 Not Found"}), "is not a schema registry: GET"),
        ((302, b""), "is not a schema registry: GET /schemas/ids/1 returned status 302"),
        ((200, {"schema": "x", "references": [{"name": "a"}]}), "returned a response without valid references"),
    ],
)
def test_other_servers_are_one_clear_error(server: FakeRegistry, response: Response, says: str) -> None:
    server.fail = lambda request: response
    with pytest.raises(BadRequest, match=says) as failed:
        SchemaRegistry(server.url).schema(1)
    assert "\n" not in str(failed.value)


def test_versions_need_an_id_and_a_number(server: FakeRegistry) -> None:
    server.fail = lambda request: (200, {"schema": INT})
    with pytest.raises(BadRequest, match="without a version of the subject 't'"):
        SchemaRegistry(server.url).subject("t").schema()
    server.fail = lambda request: (200, {})
    for call in (SchemaRegistry(server.url).subjects, lambda: SchemaRegistry(server.url).subject("t").register(INT)):
        with pytest.raises(BadRequest, match="returned a response without"):
            call()


@pytest.mark.parametrize(
    ("create", "says"),
    [
        (lambda: SchemaRegistry(), "expected the URL of a schema registry or a cache directory, found none"),
        (lambda: SchemaRegistry("localhost:8081"), "such as http://host:8081, found 'localhost:8081'"),
        (lambda: SchemaRegistry("ftp://u:p@host"), "such as http://host:8081, found 'host'"),
        (lambda: SchemaRegistry("http://host:x"), "such as http://host:8081, found 'http://host:x'"),
        (lambda: SchemaRegistry("http://h", key_file="k"), "a key file requires the file of its client certificate"),
        (
            lambda: SchemaRegistry("https://h", ca_file="/no").schema(1),
            "file /no with CA certificates cannot be read: No",
        ),
    ],
)
def test_invalid_arguments_are_one_clear_error(create: Callable[[], object], says: str) -> None:
    with pytest.raises(BadRequest) as failed:
        create()
    assert says in str(failed.value)


def _certificate(folder: Path, name: str) -> tuple[Path, Path]:
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs openssl")
    return cert, key


def test_tls_with_a_ca_and_a_client_certificate(tmp_path: Path) -> None:
    cert, key = _certificate(tmp_path, "server")
    client_cert, client_key = _certificate(tmp_path, "client")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    context.load_verify_locations(client_cert)
    context.verify_mode = ssl.CERT_REQUIRED
    with running(context) as server:
        number = server.register("t", INT)
        files = {"ca_file": str(cert), "certificate_file": str(client_cert), "key_file": str(client_key)}
        assert SchemaRegistry(server.url, **files).schema(number).text == INT
        with pytest.raises(Unavailable, match=r"certificate of .* is not trusted: self.signed certificate; specify"):
            SchemaRegistry(server.url).schema(number)
        with pytest.raises(SparklogError, match="cannot be reached"):
            SchemaRegistry(server.url, ca_file=str(cert)).schema(number)
        with pytest.raises(BadRequest, match=r"server.key with the client certificate cannot be read"):
            SchemaRegistry(server.url, ca_file=str(cert), certificate_file=str(key)).schema(number)


def test_cache_files_are_the_responses_of_the_registry(server: FakeRegistry, tmp_path: Path) -> None:
    number = server.register(".hidden", INT)
    SchemaRegistry(server.url, cache_dir=tmp_path).schema(number)
    assert json.loads((tmp_path / "ids" / f"{number}.json").read_text()) == {"schema": INT}
    SchemaRegistry(server.url, cache_dir=tmp_path).subject(".hidden").schema()
    SchemaRegistry(server.url, cache_dir=tmp_path).subject("x" * 300)
    assert SchemaRegistry(cache_dir=tmp_path).subject(".hidden").schema().id == number
    assert all(not part.startswith(".") for file in tmp_path.rglob("*") for part in file.relative_to(tmp_path).parts)
