"""Real servers, one of each for a whole run, and what the tests store in them."""

import pytest

from support import real_servers


@pytest.fixture(scope="session")
def seaweedfs():
    """SeaweedFS with a bucket `models`: an S3."""
    with real_servers.seaweedfs() as s3:
        s3.make_bucket("models")
        yield s3


@pytest.fixture(scope="session")
def moto():
    """moto's server with a bucket `models`: an S3."""
    with real_servers.moto() as s3:
        s3.make_bucket("models")
        yield s3


@pytest.fixture(params=["seaweedfs", "moto"])
def s3(request):
    """Each of the S3 servers."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def web_folder(tmp_path_factory):
    """The folder that nginx serves. Tests put files there under names of their own."""
    return tmp_path_factory.mktemp("web")


@pytest.fixture(scope="session")
def nginx(web_folder):
    """nginx's URLs: an Nginx."""
    with real_servers.nginx(web_folder) as urls:
        yield urls


@pytest.fixture(scope="session")
def gcp_storage():
    """The URL of gcp-storage-emulator with a bucket `models`."""
    with real_servers.gcp_storage() as gcs:
        gcs.make_bucket("models")
        yield gcs
