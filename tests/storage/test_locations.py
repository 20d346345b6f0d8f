"""Locations: the normal form of URLs, settings in URLs, and rejected locations, which are not reported in full."""

from __future__ import annotations

import pytest

from sparklog.errors import BadRequest
from sparklog.storage import open_store
from sparklog.storage.cloud_settings import plain_http, profile_keys
from sparklog.storage.locations import is_url, join, normal_location, parse_url, split, with_settings

SECRET = "wJalrXUtnFEMI"


@pytest.mark.parametrize(
    ("location", "normal"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3a://bucket/a/b/", "s3://bucket/a/b"),
        ("S3://bucket/A b%20ü", "s3://bucket/A b%20ü"),
        ("s3://b/x?region=eu-central-1&endpoint=http://h:9000/", "s3://b/x?endpoint=http://h:9000&region=eu-central-1"),
        ("s3://b/x?fs.s3a.endpoint=minio:9000", "s3://b/x?endpoint=https://minio:9000"),
        ("s3://b/x?fs.s3a.path.style.access=true", "s3://b/x?virtual_hosted_style_request=false"),
        ("gs://bucket/log", "gs://bucket/log"),
        ("az://container/log?account_name=abc", "az://container/log?account_name=abc"),
        ("abfss://c@abc.dfs.core.windows.net/log", "az://c/log?account_name=abc"),
        (
            "abfss://c@abc.dfs.core.chinacloudapi.cn/log",
            "az://c/log?account_name=abc&endpoint=https://abc.blob.core.chinacloudapi.cn",
        ),
        ("hdfs://namenode:8020/log", "hdfs://namenode:8020/log"),
    ],
)
def test_normal_form(location: str, normal: str) -> None:
    assert is_url(location)
    assert normal_location(location) == normal
    assert normal_location(normal) == normal


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("s3:/b/x", "s3:/b/x is missing a slash: expected two after s3:, as in s3://bucket/log"),
        ("hdfs:/x", "is missing a slash: expected two after hdfs:, as in hdfs://namenode:8020/log"),
        ("dbfs:/mnt/log", "dbfs: locations are not supported (dbfs:/mnt/log); use the URL of the underlying bucket"),
        ("wasbs://c@a.blob.core.windows.net/x", "use abfss://container@account.dfs.core.windows.net/log"),
        ("https://bucket.s3.amazonaws.com/x", "use s3://bucket/log?endpoint=<server>"),
        (
            "s4://bucket/x",
            "s4: locations are not supported (s4://bucket/x); expected a path, or a URL such as s3://bucket",
        ),
        ("s3:///x", "is not a valid location; expected s3://bucket/log"),
        ("s3://bucket/a/../b", "is not a valid location"),
        ("s3://bucket/a//b", "is not a valid location"),
        ("abfss://container/x", "has no valid container; expected abfss://container@account"),
        ("s3://b/x?regoin=a", "a s3:// URL has no setting regoin for s3://; did you mean 'region'?"),
        ("gs://b/x?region=a", "a gs:// URL has no setting region for gs://"),
        ("s3://b/x?allow_http=maybe", "allow_http must be true or false"),
        ("s3://b/x?endpoint=http://user:pw@host", "endpoint must be a URL such as https://storage.example.com"),
    ],
)
def test_invalid_locations_are_rejected(location: str, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        open_store(location)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "location",
    [
        f"s3://AKIA:{SECRET}@bucket/log",
        f"s3://b/x?secret_access_key={SECRET}",
        f"s3://b/x?AWS_SECRET_ACCESS_KEY={SECRET}",
        f"s3://b/x?fs.s3a.secret.key={SECRET}",
        f"s3://b/x?session_token={SECRET}",
        f"az://c/x?sas_key={SECRET}",
        f"az://c/x?account_key={SECRET}",
        f"az://c/x?sv=2020&sig={SECRET}",
        f"gs://c/x?service_account_key={SECRET}",
        f"s4://AKIA:{SECRET}@bucket/log?token={SECRET}",
        f"s3:/AKIA:{SECRET}@bucket/log?token={SECRET}",
        f"s3://b/x?endpoint=http://user:{SECRET}@host",
    ],
)
def test_secrets_are_rejected_and_not_reported(location: str) -> None:
    with pytest.raises(BadRequest) as caught:
        open_store(location)
    assert SECRET not in str(caught.value)


def test_folders_above_and_below() -> None:
    assert join("s3://b?region=x", "log") == "s3://b/log?region=x"
    assert join("s3://b/log?region=x", "orders/_log") == "s3://b/log/orders/_log?region=x"
    assert join("/data", "log") == "/data/log"
    assert split("s3://b/data/log?region=x") == ("s3://b/data?region=x", "log")
    assert split("s3://b/log") == ("s3://b", "log")
    assert split("s3://b") == ("s3://b", "")
    assert split("/data/log") == ("/data", "log")


def test_options_become_settings_of_the_url() -> None:
    options = {"subscribe": "orders", "fs.s3a.endpoint": "http://minio:9000", "region": "r"}
    assert with_settings("s3://b/log", options) == "s3://b/log?endpoint=http://minio:9000&region=r"
    assert with_settings("/data/log", {"subscribe": "orders"}) == "/data/log"
    with pytest.raises(BadRequest, match="region are settings of object stores, but /data/log is a path"):
        with_settings("/data/log", {"region": "r"})
    with pytest.raises(BadRequest, match="the URL sets region=a, but the options set b: set only one of them"):
        with_settings("s3://b/log?region=a", {"region": "b"})
    with pytest.raises(BadRequest, match="the options must not contain the secret fs") as caught:
        with_settings("s3://b/log", {"fs.s3a.secret.key": SECRET})
    assert SECRET not in str(caught.value)


def test_an_http_endpoint_allows_plain_http() -> None:
    def plain(location: str, **environ: str) -> bool:
        url = parse_url(location)
        return plain_http(url.scheme, dict(url.settings), environ)

    assert plain("s3://b?endpoint=http://h")
    assert not plain("s3://b?endpoint=https://h")
    assert not plain("s3://b")
    assert plain("s3://b", AWS_ENDPOINT_URL="http://h")
    assert plain("s3://b?allow_http=true&endpoint=h")


def test_keys_of_a_profile(tmp_path: object) -> None:
    file = tmp_path / "credentials"  # type: ignore[operator]
    file.write_text(
        "[default]\naws_access_key_id = A\naws_secret_access_key = B\n"
        "[team]\naws_access_key_id = C\naws_secret_access_key = D\naws_session_token = E\n[sso]\nsso_session = x\n"
    )
    environ = {"AWS_SHARED_CREDENTIALS_FILE": str(file)}
    default = {"access_key_id": "A", "secret_access_key": "B", "token": None, "expires_at": None}
    assert profile_keys("s3", {}, environ) == default
    team = {"access_key_id": "C", "secret_access_key": "D", "token": "E", "expires_at": None}
    assert profile_keys("s3", {"profile": "team"}, environ) == team
    assert profile_keys("s3", {}, {**environ, "AWS_PROFILE": "team"}) == team
    assert profile_keys("s3", {}, {**environ, "AWS_ACCESS_KEY_ID": "Z"}) == {}
    assert profile_keys("s3", {}, {**environ, "AWS_ACCESS_KEY_ID": "Z", "AWS_PROFILE": "team"}) == {}
    assert profile_keys("s3", {"profile": "team"}, {**environ, "AWS_ACCESS_KEY_ID": "Z"}) == team
    assert profile_keys("s3", {"skip_signature": "true"}, environ) == {}
    for profile in ("sso", "none"):
        with pytest.raises(BadRequest, match=f"no keys for the profile {profile}"):
            profile_keys("s3", {"profile": profile}, {**environ, "AWS_ACCESS_KEY_ID": "Z"})
    file.write_text("no sections")
    with pytest.raises(BadRequest, match="is not an AWS credentials file"):
        profile_keys("s3", {}, environ)
