"""Credentials that users have set: which are found, and what errors call them."""

import builtins
import sys

import pytest

from safetensors import SafetensorError
from safetensors._remote import credentials

SECRET = "CANARY1234567890"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIATESTS", "AWS_SECRET_ACCESS_KEY": SECRET}


@pytest.fixture
def home(tmp_path):
    """A home folder, and a function that writes files of ~/.aws."""
    folder = tmp_path / ".aws"

    def write(name, text):
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)

    write.environ = {"HOME": str(tmp_path)}
    return write


def aws(environ, home, **options):
    """Returns what is found for S3."""
    return credentials.aws({**home.environ, **environ}, options)


# AWS


@pytest.mark.parametrize(
    ("environ", "options", "used"),
    [
        ({}, {}, "the instance's role: no credentials are set"),
        (KEYS, {}, "AWS_ACCESS_KEY_ID"),
        (KEYS, {"access_key_id": "x"}, "access_key_id of storage_options"),
        (KEYS, {"anonymous": "True"}, "anonymous"),
        ({**KEYS, "AWS_SKIP_SIGNATURE": "true"}, {}, "anonymous"),
        ({"AWS_WEB_IDENTITY_TOKEN_FILE": "/t"}, {}, "AWS_WEB_IDENTITY_TOKEN_FILE"),
        (
            {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/x"},
            {},
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        ),
        ({"AWS_EC2_METADATA_DISABLED": "true"}, {}, "anonymous: no credentials are set"),
        ({**KEYS, "AWS_EC2_METADATA_DISABLED": "true"}, {}, "AWS_ACCESS_KEY_ID"),
        ({**KEYS, "AWS_PROFILE": "research"}, {}, "AWS_ACCESS_KEY_ID"),
    ],
)
def test_which_credentials_of_aws_are_used(environ, options, used, home):
    found = aws(environ, home, **options)
    assert found.used == used
    assert found.config.get("skip_signature", False) == used.startswith("anonymous")
    assert found.provider is None


@pytest.mark.parametrize(
    ("environ", "options", "endpoint", "is_http"),
    [
        ({}, {}, None, False),
        ({"AWS_ENDPOINT_URL": "http://a:1"}, {}, "http://a:1", True),
        ({"AWS_ENDPOINT_URL": "https://a"}, {}, "https://a", False),
        (
            {"AWS_ENDPOINT_URL": "http://a", "AWS_ENDPOINT_URL_S3": "https://b"},
            {},
            "https://b",
            False,
        ),
        ({"AWS_ENDPOINT_URL_S3": "https://b"}, {"endpoint": "http://c"}, "http://c", True),
    ],
)
def test_the_endpoint_of_aws(environ, options, endpoint, is_http, home):
    found = aws(environ, home, **options)
    assert found.config.get("aws_endpoint_url_s3") == endpoint
    assert found.client.get("allow_http", False) == is_http


def test_options_of_aws_go_to_obstore(home):
    options = {"access_key_id": "a", "secret_access_key": "b", "region": "eu-west-1"}
    assert aws({}, home, **options).config == options


def test_certificates_of_aws(home, tmp_path):
    path = tmp_path / "ca.pem"
    path.write_bytes(b"PEM")
    assert aws({"AWS_CA_BUNDLE": str(path)}, home).client == {"root_certificate": b"PEM"}
    with pytest.raises(SafetensorError, match=r"none\.pem.*No such file"):
        aws({"AWS_CA_BUNDLE": str(tmp_path / "none.pem")}, home)


@pytest.mark.parametrize(
    "text",
    [
        "[default]\naws_access_key_id = a\naws_secret_access_key = b\n",
        "[default]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = y\n",
        "[default]\nsso_session = x\n",
        "[default]\ncredential_process = /bin/x\n",
    ],
)
def test_the_default_profile_needs_boto3(text, home, monkeypatch):
    home("config", text)
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ImportError, match=r"~/\.aws needs boto3.*pip install boto3"):
        aws({}, home)
    assert aws(KEYS, home).used == "AWS_ACCESS_KEY_ID"
    assert aws({}, home, anonymous="True").used == "anonymous"


@pytest.mark.parametrize(
    "text", ["[default]\nregion = eu-west-1\n", "[x]\nrole_arn=y\n", "\0[", ""]
)
def test_files_without_credentials_need_nothing(text, home, monkeypatch):
    home("config", text)
    monkeypatch.setitem(sys.modules, "boto3", None)
    assert aws({}, home).used.startswith("the instance's role")


def test_a_profile_by_boto3(home, monkeypatch):
    pytest.importorskip("boto3", reason="boto3 is not installed")
    pytest.importorskip("obstore", reason="obstore is not installed")
    home("credentials", f"[research]\naws_access_key_id=AKIA\naws_secret_access_key={SECRET}\n")
    home("config", "[profile research]\nregion = eu-west-3\n")
    folder = f"{home.environ['HOME']}/.aws"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", f"{folder}/credentials")
    monkeypatch.setenv("AWS_CONFIG_FILE", f"{folder}/config")
    found = aws({"AWS_PROFILE": "research"}, home)
    assert found.used == "AWS_PROFILE 'research'"
    assert found.config == {"region": "eu-west-3"}
    assert found.provider()["secret_access_key"] == SECRET
    assert aws({"AWS_PROFILE": "research", "AWS_REGION": "us-west-2"}, home).config == {}
    assert aws({"AWS_PROFILE": "x"}, home, profile="research", region="r").config["region"] == "r"
    with pytest.raises(PermissionError, match="AWS_PROFILE 'none' gives no credentials") as raised:
        aws({"AWS_PROFILE": "none"}, home)
    assert isinstance(raised.value, SafetensorError)


# Google


@pytest.mark.parametrize(
    ("environ", "options", "used", "config"),
    [
        ({}, {}, "gcloud's default login or the instance's account", {}),
        ({"GOOGLE_APPLICATION_CREDENTIALS": "/x"}, {}, "GOOGLE_APPLICATION_CREDENTIALS", {}),
        ({}, {"anonymous": "True"}, "anonymous", {"skip_signature": True}),
        ({}, {"token": SECRET}, "bearer_token of storage_options", {"bearer_token": SECRET}),
        (
            {"GOOGLE_APPLICATION_CREDENTIALS": "/x"},
            {"service_account": "/y"},
            "service_account of storage_options",
            {"service_account": "/y"},
        ),
        (
            {"STORAGE_EMULATOR_HOST": "localhost:9"},
            {},
            "anonymous",
            {"base_url": "http://localhost:9", "skip_signature": True},
        ),
        (
            {"STORAGE_EMULATOR_HOST": "https://host"},
            {"token": SECRET},
            "bearer_token of storage_options",
            {"base_url": "https://host", "bearer_token": SECRET},
        ),
    ],
)
def test_which_credentials_of_google_are_used(environ, options, used, config):
    found = credentials.google(environ, options)
    assert (found.used, found.config) == (used, config)
    assert found.client.get("allow_http", False) == ("http://localhost:9" in config.values())


# Azure


@pytest.mark.parametrize(
    ("environ", "options", "used", "config"),
    [
        ({}, {}, "the managed identity: no credentials are set", {}),
        (
            {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_ACCOUNT_KEY": SECRET},
            {},
            "AZURE_STORAGE_ACCOUNT_KEY",
            {"account_name": "a"},
        ),
        (
            {"AZURE_STORAGE_ACCOUNT": "a", "AZURE_STORAGE_KEY": SECRET},
            {},
            "AZURE_STORAGE_KEY",
            {"account_name": "a", "account_key": SECRET},
        ),
        ({"AZURE_STORAGE_SAS_TOKEN": SECRET}, {}, "AZURE_STORAGE_SAS_TOKEN", {}),
        (
            {"AZURE_CLIENT_ID": "i", "AZURE_CLIENT_SECRET": SECRET, "AZURE_TENANT_ID": "t"},
            {},
            "AZURE_CLIENT_SECRET",
            {},
        ),
        ({"AZURE_FEDERATED_TOKEN_FILE": "/t"}, {}, "AZURE_FEDERATED_TOKEN_FILE", {}),
        ({}, {"sas_key": SECRET}, "sas_key of storage_options", {"sas_key": SECRET}),
        ({}, {"token": SECRET}, "token of storage_options", {"token": SECRET}),
        ({}, {"anonymous": "True"}, "anonymous", {"skip_signature": True}),
        (
            {"AZURE_STORAGE_CONNECTION_STRING": f"AccountName=a;AccountKey={SECRET}=="},
            {},
            "the connection string",
            {"account_name": "a", "account_key": f"{SECRET}=="},
        ),
    ],
)
def test_which_credentials_of_azure_are_used(environ, options, used, config):
    found = credentials.azure(environ, options)
    assert (found.used, found.config) == (used, config)


@pytest.mark.parametrize(
    ("text", "config"),
    [
        (
            "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=k==;"
            "EndpointSuffix=core.chinacloudapi.cn",
            {
                "account_name": "a",
                "account_key": "k==",
                "endpoint": "https://a.blob.core.chinacloudapi.cn",
            },
        ),
        (
            "BlobEndpoint=http://127.0.0.1:10000/a;SharedAccessSignature=sv=1&sig=x%3D;",
            {"endpoint": "http://127.0.0.1:10000/a", "sas_key": "sv=1&sig=x%3D"},
        ),
        ("", {}),
    ],
)
def test_a_connection_string_is_taken_apart(text, config):
    assert credentials.connection_string(text) == config


def test_a_connection_string_that_is_none_is_not_repeated():
    with pytest.raises(SafetensorError, match="connection string") as raised:
        credentials.connection_string(f"AccountName=a;{SECRET}")
    assert SECRET not in str(raised.value)


def test_the_url_names_the_account():
    environ = {"AZURE_STORAGE_ACCOUNT_NAME": "other"}
    assert credentials.azure(environ, {}, "mine").config["account_name"] == "mine"
    assert credentials.azure_account("mine.dfs.core.windows.net", "x") == "mine"
    assert credentials.azure_account("MINE.blob.core.windows.net", "x") == "mine"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example.com",
        "dfs.core.windows.net",
        "a.dfs.core.windows.net.evil.com",
        "a.b.dfs.core.windows.net",
        "a.evil.com/.dfs.core.windows.net",
        "",
    ],
)
def test_credentials_of_azure_go_to_its_hosts_only(host):
    with pytest.raises(SafetensorError, match="does not name an account of Azure"):
        credentials.azure_account(host, "abfs://x")


# All


@pytest.mark.parametrize(
    ("provider", "kind"), [("aws", "S3Store"), ("google", "GCSStore"), ("azure", "AzureStore")]
)
def test_every_option_is_obstores_or_ours(provider, kind):
    obstore = pytest.importorskip("obstore", reason="obstore is not installed")
    unknown = obstore.exceptions.UnknownConfigurationKeyError
    make = getattr(obstore.store, kind)
    with pytest.raises(unknown):
        make("bucket", config={"no_such_name": "x"})
    ours = {"anonymous", "endpoint", "profile", "connection_string"}
    for name in credentials.OPTIONS[provider] - ours:
        try:
            make("bucket", config={name: "x"})
        except unknown:
            pytest.fail(f"obstore does not know {name}")
        except Exception:
            continue  # the value is none


def test_options_are_text_or_flags():
    given = {"anonymous": True, "region": "x"}
    assert credentials.checked(given) == {"anonymous": "True", "region": "x"}
    for value in (None, 3, b"x", ["x"]):
        with pytest.raises(SafetensorError, match="'region' is neither a str nor a bool"):
            credentials.checked({"region": value})


def test_no_package_is_imported_without_a_profile(home, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        assert name.partition(".")[0] not in ("boto3", "botocore", "obstore")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    aws(KEYS, home)
    credentials.google({}, {})
    credentials.azure({}, {})
