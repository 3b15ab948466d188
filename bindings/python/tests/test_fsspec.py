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


def test_listings_have_links_that_lead_nowhere(server):
    fs = RfsFileSystem(server.socket)
    fs.makedirs("/links/dir")
    fs.pipe_file("/links/file", b"12")
    targets = {"dangling": "nothing", "circle": "circle", "through": "file/x", "good": "file", "todir": "dir"}
    for name, target in targets.items():
        fs.mount.symlink(target, f"/links/{name}")
    listed = {entry["name"].rpartition("/")[2]: entry for entry in fs.ls("/links")}
    assert set(listed) == {"dir", "file", *targets}
    kinds = {name: listed[name]["type"] for name in targets}
    assert kinds == {"dangling": "link", "circle": "link", "through": "link", "good": "file", "todir": "directory"}
    assert listed["circle"]["destination"] == "circle" and listed["good"]["size"] == 2
    for name in ("dangling", "circle"):
        assert [entry["type"] for entry in fs.ls(f"/links/{name}")] == ["link"]
    assert fs.ls("/links/good", detail=False) == ["/links/good"]
    with pytest.raises(FileNotFoundError):
        fs.ls("/links/absent")
    with pytest.raises(FileExistsError):
        fs.mkdir("/links/dir")
    fs.rm("/links", recursive=True)


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
