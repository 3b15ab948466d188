"""The tests that fsspec has for every file system, and URLs."""

import fsspec
import fsspec.tests.abstract as abstract
import pytest

from rfs.filesystem import RfsFileSystem


class RfsFixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, server):
        return RfsFileSystem(server.socket)

    @pytest.fixture
    def fs_path(self, fs):
        fs.makedirs("/fsspec", exist_ok=True)
        yield "/fsspec"
        fs.rm("/fsspec", recursive=True)


class TestCopy(abstract.AbstractCopyTests, RfsFixtures):
    pass


class TestGet(abstract.AbstractGetTests, RfsFixtures):
    pass


class TestPut(abstract.AbstractPutTests, RfsFixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, RfsFixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, RfsFixtures):
    pass


def test_urls_name_server_and_path(server):
    url = f"rfs://{server.tcp}/urls/file"
    with fsspec.open(url, "wb") as file:
        file.write(b"bytes")
    with fsspec.open(url, "rt") as file:
        assert file.read() == "bytes"
    fs, path = fsspec.url_to_fs(url)
    assert path == "/urls/file" and fs.cat(path) == b"bytes" and fs.cat_file(path, 1, 3) == b"yt"
    assert fs.info(path)["size"] == 5 and fs.isdir("/urls")
    assert fs.find("/urls") == ["/urls/file"] and fs.glob("/urls/f*") == ["/urls/file"]
    fs.mv(path, "/urls/other")
    assert not fs.exists(path) and fs.size("/urls/other") == 5
    fs.rm("/urls", recursive=True)
    with pytest.raises(FileNotFoundError):
        fs.ls("/urls")
    with pytest.raises(ValueError):
        fsspec.filesystem("rfs")
