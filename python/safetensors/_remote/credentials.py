"""Finds the credentials for object stores that a user has set up for AWS, Google and Azure.

obstore reads most variables of the environment itself. This module adds what it does not do: files
and profiles of AWS, `http` endpoints, certificates, emulators, connection strings, and words for
errors that say which credentials were used.
"""

import configparser
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from . import errors
from .urls import HTTP, Url

Environment = Mapping[str, str]
Options = Mapping[str, str]

# The names in storage_options. All but those of _OURS are obstore's.
_AWS = frozenset(
    {
        "access_key_id",
        "secret_access_key",
        "session_token",
        "region",
        "request_payer",
        "virtual_hosted_style_request",
    }
)
_GOOGLE = frozenset({"service_account", "service_account_key"})
_AZURE = frozenset(
    {"account_name", "account_key", "sas_key", "client_id", "client_secret", "tenant_id"}
)
_OURS = frozenset({"anonymous", "endpoint"})
OPTIONS = {
    "aws": _AWS | _OURS | {"profile"},
    "google": _GOOGLE | _OURS,
    "azure": _AZURE | _OURS | {"connection_string"},
}


def checked(options: Mapping[str, Any]) -> dict[str, str]:
    """Returns the options as text.

    Raises:
        SafetensorError: a value is neither text nor a bool.
    """
    for name, value in options.items():
        if not isinstance(value, (str, bool)):
            raise errors.refused("", f"storage_options: {name!r} is neither a str nor a bool")
    return {name: str(value) for name, value in options.items()}


class Used(NamedTuple):
    """What errors say of credentials. Holds no secret."""

    words: str
    advice: str


@dataclass(frozen=True)
class Access:
    """How requests to one store are signed.

    Attributes:
        config: obstore's settings of the store, besides those of the environment.
        client: obstore's settings of the HTTP client.
        used: names the credentials in errors: "AWS_PROFILE research". Never holds a secret.
        provider: what obstore asks for credentials instead of looking for them itself.
        advice: where no credentials are set, how to set them, also for a user of the command line.
    """

    config: dict[str, Any]
    used: str
    client: dict[str, Any] = field(default_factory=dict)
    provider: Callable[[], Any] | None = None
    advice: str = ""


def _advice(sign: str, skip: str) -> str:
    """Returns how to sign requests, and which variable says that they are not signed."""
    return (
        f"set {sign}; for public objects set {skip}=true, or storage_options={{'anonymous': True}}"
    )


_AWS_SIGN = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE or a profile of ~/.aws"
_AWS_ADVICE = _advice(_AWS_SIGN, "AWS_SKIP_SIGNATURE")
_GOOGLE_ADVICE = _advice(
    "GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`",
    "GOOGLE_SKIP_SIGNATURE",
)
_AZURE_ACCOUNT_ADVICE = (
    "set AZURE_STORAGE_ACCOUNT_NAME, or account_name of storage_options, or name the account in "
    "the URL, abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/..."
)
_AZURE_ADVICE = _advice(
    "AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and one of "
    "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN and AZURE_CLIENT_SECRET",
    "AZURE_SKIP_SIGNATURE",
)


def _is_set(value: str | None) -> bool:
    return (value or "").strip().lower() in ("1", "true", "yes", "on")


def _client(endpoint: str | None, ca_file: str | None) -> dict[str, Any]:
    """Returns settings that allow http if the endpoint says so, and trust the certificates.

    Raises:
        SafetensorError: the endpoint is not a URL, or there are no such certificates.
    """
    client: dict[str, Any] = {}
    if endpoint:
        scheme = Url.parse(endpoint).scheme  # obstore panics if it is none
        if scheme not in HTTP:
            raise errors.refused("", f"an endpoint is a URL of http or https, not of {scheme}")
        if scheme == "http":
            client["allow_http"] = True
    if ca_file:
        client["root_certificate"] = read_certificates(ca_file)
    return client


def read_certificates(path: str) -> bytes:
    """Returns the certificates in a file.

    Raises:
        SafetensorError: the file cannot be read.
    """
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError as error:
        raise errors.refused(
            path, f"cannot be read for its certificates: {error.strerror}"
        ) from error


def _first(environ: Environment, *names: str) -> str | None:
    """Returns the first of the variables that is set and not empty."""
    return next((environ[name] for name in names if environ.get(name)), None)


# ---- AWS ----

# Keys of a profile that make boto3 find credentials in it.
_PROFILE_KEYS = (
    "aws_access_key_id",
    "credential_process",
    "credential_source",
    "login_session",
    "role_arn",
    "sso_session",
    "sso_start_url",
    "web_identity_token_file",
)


def _has_default_profile(environ: Environment) -> bool:
    """Returns whether the files of AWS hold credentials of the default profile."""
    home = environ.get("HOME") or os.path.expanduser("~")
    files = (
        environ.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.join(home, ".aws", "credentials"),
        environ.get("AWS_CONFIG_FILE") or os.path.join(home, ".aws", "config"),
    )
    for file in files:
        parser = configparser.RawConfigParser(strict=False, default_section="")
        try:
            parser.read(os.path.expanduser(file), encoding="utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue  # boto3 would not understand it either
        if parser.has_section("default") and any(
            parser.has_option("default", key) for key in _PROFILE_KEYS
        ):
            return True
    return False


def _profile(name: str | None, used: str) -> Access:
    """Returns what boto3 finds for a profile; None: the default one."""
    try:
        import boto3  # type: ignore[import-untyped, unused-ignore]
        import botocore.exceptions  # type: ignore[import-untyped, unused-ignore]
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise ImportError(
            f"{used} needs boto3, which is not installed: pip install boto3"
        ) from error
    try:
        provider = Boto3CredentialProvider(boto3.Session(profile_name=name))
    except (botocore.exceptions.BotoCoreError, ValueError) as error:
        raise errors.denied("", f"{used} gives no credentials: {error}") from error
    return Access(dict(provider.config), used, provider=provider)


def _aws_identity(environ: Environment, options: Options) -> Access:
    if _is_set(options.get("anonymous")) or _is_set(environ.get("AWS_SKIP_SIGNATURE")):
        return Access({"skip_signature": True}, "anonymous")
    if options.get("access_key_id"):
        return Access({}, "access_key_id of storage_options")
    if options.get("profile"):
        return _profile(options["profile"], f"profile {options['profile']!r} of storage_options")
    if environ.get("AWS_ACCESS_KEY_ID"):
        return Access({}, "AWS_ACCESS_KEY_ID")
    if environ.get("AWS_PROFILE"):
        return _profile(environ["AWS_PROFILE"], f"AWS_PROFILE {environ['AWS_PROFILE']!r}")
    if environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return Access({}, "AWS_WEB_IDENTITY_TOKEN_FILE")
    for name in ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        if environ.get(name):
            return Access({}, name)
    if _has_default_profile(environ):
        return _profile(None, "the default profile of ~/.aws")
    if _is_set(environ.get("AWS_EC2_METADATA_DISABLED")):
        used = "anonymous: no credentials are set"
        return Access({"skip_signature": True}, used, advice=f"set {_AWS_SIGN}")
    return Access({}, "the instance's role: no credentials are set", advice=_AWS_ADVICE)


def aws(environ: Environment, options: Options) -> Access:
    """Returns the access to buckets of S3 and of servers that speak its protocol.

    Raises:
        ImportError: a profile needs boto3.
        SafetensorError: a profile has no credentials.
    """
    found = _aws_identity(environ, options)
    config = found.config
    endpoint = options.get("endpoint") or _first(
        environ, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"
    )
    if endpoint:
        config["aws_endpoint_url_s3"] = endpoint  # takes precedence over all other names
    if _first(environ, "AWS_REGION", "AWS_DEFAULT_REGION"):
        config.pop("region", None)  # takes precedence over the profile's
    config.update((name, value) for name, value in options.items() if name in _AWS)
    client = _client(endpoint, environ.get("AWS_CA_BUNDLE"))
    return replace(found, client=client)


# ---- Google ----


def google(environ: Environment, options: Options) -> Access:
    """Returns the access to buckets of Google Cloud Storage, or of an emulator.

    Args:
        options: those of OPTIONS, and `token`.
    """
    config: dict[str, Any] = {name: options[name] for name in _GOOGLE if name in options}
    if "token" in options:
        config["bearer_token"] = options["token"]
    signer = next(iter(sorted(config)), None)
    emulator = environ.get("STORAGE_EMULATOR_HOST")
    endpoint = options.get("endpoint") or emulator or environ.get("GOOGLE_BASE_URL")
    if endpoint and "://" not in endpoint:
        endpoint = f"http://{endpoint}"
    if endpoint:
        config["base_url"] = endpoint
    client = _client(endpoint, None)
    anonymous = options.get("anonymous") or environ.get("GOOGLE_SKIP_SIGNATURE")
    if _is_set(anonymous) or (emulator and signer is None):
        return Access({**config, "skip_signature": True}, "anonymous", client)
    if signer is not None:
        return Access(config, f"{signer} of storage_options", client)
    used = next((name for name in _GOOGLE_SIGNERS if environ.get(name)), None)
    if used is not None:
        return Access(config, used, client)
    used = "gcloud's default login or the instance's account"
    return Access(config, used, client, advice=_GOOGLE_ADVICE)


_GOOGLE_SIGNERS = (
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_BEARER_TOKEN",
    "GOOGLE_APPLICATION_CREDENTIALS",
)


# ---- Azure ----

_CONNECTION_KEYS = {
    "accountname": "account_name",
    "accountkey": "account_key",
    "sharedaccesssignature": "sas_key",
    "blobendpoint": "endpoint",
}


def connection_string(text: str) -> dict[str, str]:
    """Returns the settings of a connection string of Azure: `AccountName=...;AccountKey=...`.

    Raises:
        SafetensorError: a part is not `name=value`. The error does not repeat it.
    """
    parts: dict[str, str] = {}
    for part in text.split(";"):
        if not part.strip():
            continue
        name, equals, value = part.strip().partition("=")
        if not equals:
            raise errors.refused("", "Azure's connection string has a part that is not name=value")
        parts[name.lower()] = value
    config = {_CONNECTION_KEYS[name]: parts[name] for name in _CONNECTION_KEYS if parts.get(name)}
    suffix = parts.get("endpointsuffix")
    if suffix and "endpoint" not in config and "account_name" in config:
        scheme = parts.get("defaultendpointsprotocol", "https")
        config["endpoint"] = f"{scheme}://{config['account_name']}.blob.{suffix}"
    return config


# obstore's setting that signs requests, and the variables that it is read from: by obstore, but
# for the names of the command line `az`.
_AZURE_SIGNERS = (
    ("account_key", ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_KEY")),
    ("sas_key", ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")),
    ("token", ("AZURE_STORAGE_TOKEN",)),
    ("client_secret", ("AZURE_CLIENT_SECRET", "AZURE_STORAGE_CLIENT_SECRET")),
    ("federated_token_file", ("AZURE_FEDERATED_TOKEN_FILE",)),
)


def azure_account(host: str, name: str) -> str:
    """Returns the account of `abfs://container@host`.

    Credentials are sent to the host, so only hosts of Azure are accepted. Other clouds need
    `endpoint` in storage_options.

    Raises:
        SafetensorError: the host is another one.
    """
    account, _, domain = host.lower().partition(".")
    if domain not in ("dfs.core.windows.net", "blob.core.windows.net") or not account.isalnum():
        raise errors.refused(name, "does not name an account of Azure after '@'")
    return account


def azure(environ: Environment, options: Options, account: str | None = None) -> Access:
    """Returns the access to containers of Azure.

    Args:
        options: those of OPTIONS, and `token`.
        account: the account that the URL names.

    Raises:
        SafetensorError: the connection string cannot be taken apart.
    """
    config: dict[str, Any] = {}
    string = options.get("connection_string") or environ.get("AZURE_STORAGE_CONNECTION_STRING")
    name = _first(environ, "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
    if name:
        config["account_name"] = name
    if environ.get("AZURE_STORAGE_KEY"):
        config["account_key"] = environ["AZURE_STORAGE_KEY"]
    if string:
        config.update(connection_string(string))
    given = {key: options[key] for key in _AZURE | {"endpoint", "token"} if key in options}
    config.update(given)
    if account is not None:
        config["account_name"] = account
    endpoint = config.get("endpoint") or environ.get("AZURE_STORAGE_ENDPOINT")
    client = _client(endpoint, None)
    account_advice = "" if "account_name" in config else _AZURE_ACCOUNT_ADVICE
    if _is_set(options.get("anonymous")) or _is_set(environ.get("AZURE_SKIP_SIGNATURE")):
        config["skip_signature"] = True
        return Access(config, "anonymous", client, advice=account_advice)
    for key, names in _AZURE_SIGNERS:
        used = next((variable for variable in names if environ.get(variable)), None)
        if key in options:
            used = f"{key} of storage_options"
        elif key in config and string:
            used = "the connection string"
        if used is not None:
            return Access(config, used, client, advice=account_advice)
    used = "the managed identity: no credentials are set"
    return Access(config, used, client, advice=_AZURE_ADVICE)
