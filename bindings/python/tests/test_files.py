"""Mounts and files."""

import errno
import io
import json
import os
import pickle
import threading
import time

import pytest

import rfs


def test_files_are_those_of_open(mount):
    with mount.open("text", "w") as file:
        file.write("first\nsecond\n")
    with mount.open("text") as file:
        assert file.readlines() == ["first\n", "second\n"]
    with mount.open("text", "a") as file:
        file.write("third\n")
    with mount.open("text", "r+b") as file:
        file.seek(-6, os.SEEK_END)
        assert file.read() == b"third\n"
        file.seek(0)
        file.write(b"FIRST")
    assert mount.read_bytes("text") == b"FIRST\nsecond\nthird\n"
    with pytest.raises(FileExistsError):
        mount.open("text", "x")
    with pytest.raises(FileNotFoundError):
        mount.open("nothing")
    with pytest.raises(IsADirectoryError):
        mount.open("/")
    for mode in ["", "rw", "bt", "q", "r++"]:
        with pytest.raises(ValueError):
            mount.open("text", mode)
    with mount.open("text", "rb", buffering=0) as file, pytest.raises(io.UnsupportedOperation):
        file.write(b"x")
    with pytest.raises(ValueError):
        file.read()


def test_objects_go_through_files(mount):
    value = {"numbers": list(range(10_000)), "bytes": bytes(3 << 20)}
    with mount.open("pickle", "wb") as file:
        pickle.dump(value, file)
    with mount.open("pickle", "rb") as file:
        assert pickle.load(file) == value
    with mount.open("json", "w") as file:
        json.dump(value["numbers"], file)
    with mount.open("json") as file:
        assert json.load(file) == value["numbers"]


def test_buffers_are_filled_in_place(mount):
    data = bytes(range(256)) * 4096
    mount.write_bytes("f", data)
    with mount.open("f", "rb", buffering=0) as file:
        buffer = bytearray(len(data) + 10)
        assert file.readinto(buffer) == len(data) and buffer[: len(data)] == data
        part = memoryview(buffer)[100:200]
        assert file.file.pread_into(part, 5) == 100 and bytes(part) == data[5:105]
        with pytest.raises(BufferError):
            file.file.pread_into(data, 0)
        with pytest.raises(BufferError):
            file.file.pread_into(memoryview(buffer)[::2], 0)
        assert file.file.pread(1 << 40, len(data) - 3) == data[-3:]


def test_views_are_memory(server, mount):
    mount.write_bytes("f", bytes(range(256)) * 16)
    with mount.open("f", "r+b", buffering=0) as file:
        view = file.view(10, 100)
        with memoryview(view) as memory:
            assert memory.readonly and bytes(memory) == bytes(range(10, 110))
            with pytest.raises(BufferError):
                view.release()
            if mount.is_mapped:
                assert view.is_in_place
                file.file.pwrite(b"\xff", 10)
                assert memory[0] == 255
        view.release()
        with pytest.raises(BufferError):
            memoryview(view)
        file.truncate(5)
    assert mount.stat("f").st_size == 5


def test_calls_are_those_of_os(mount):
    mount.makedirs("a/b")
    mount.makedirs("a/b", exist_ok=True)
    with pytest.raises(FileExistsError):
        mount.makedirs("a/b")
    mount.write_bytes("a/f", b"12345")
    mount.symlink("f", "a/l")
    mount.link("a/f", "a/g")
    assert mount.readlink("a/l") == "f" and mount.stat("a/g").st_nlink == 2
    assert sorted(mount.listdir("a")) == ["b", "f", "g", "l"]
    kinds = {entry.name: (entry.is_dir(), entry.is_file(), entry.is_symlink()) for entry in mount.scandir("a")}
    assert kinds["b"] == (True, False, False) and kinds["l"] == (False, True, True)
    mount.chmod("a/f", 0o600)
    assert mount.stat("a/f").st_mode == 0o100600
    mount.utime("a/f", (1_000_000_000, 2_000_000_000))
    assert mount.stat("a/f").st_mtime == 2.0
    mount.truncate("a/f", 2)
    mount.rename("a/f", "h")
    assert mount.read_bytes("h") == b"12" and not mount.exists("a/f")
    mount.setxattr("h", "user.x", b"value")
    assert mount.getxattr("h", "user.x") == b"value" and mount.listxattr("h") == ["user.x"]
    with pytest.raises(OSError) as raised:
        mount.rmdir("a")
    assert raised.value.errno == errno.ENOTEMPTY and "a" in str(raised.value)
    mount.rmtree("a")
    assert mount.listdir() == ["h"]
    assert mount.space()[1] < mount.space()[0]


def test_queries_of_a_path_are_one_stat(mount, monkeypatch):
    mount.makedirs("d")
    mount.write_bytes("f", b"1")
    for link, target in (("dangling", "nothing"), ("circle", "circle"), ("through", "f/x")):
        mount.symlink(target, link)
    stats = []
    monkeypatch.setattr(rfs.Mount, "stat", counted(rfs.Mount.stat, stats))
    for path, kinds in {"d": (True, False), "f": (False, True), "nothing": (False, False)}.items():
        assert (mount.isdir(path), mount.isfile(path)) == kinds
    assert len(stats) == 6
    for link in ("dangling", "circle", "through"):
        assert not mount.exists(link) and not mount.isdir(link) and not mount.isfile(link)
    kinds = {entry.name: (entry.is_dir(), entry.is_file()) for entry in mount.scandir()}
    assert kinds["d"] == (True, False) and kinds["circle"] == kinds["dangling"] == (False, False)


def counted(call, calls):
    def count(*arguments, **options):
        calls.append(arguments)
        return call(*arguments, **options)

    return count


def test_locks_exclude_other_files(mount):
    with mount.open("f", "wb", buffering=0) as one, mount.open("f", "r+b", buffering=0) as two:
        assert one.file.lock()
        assert not two.file.lock(wait=False)
        one.file.unlock()
        assert two.file.lock(exclusive=False)


def test_the_interpreter_runs_while_a_call_waits(mount):
    with mount.open("f", "wb", buffering=0) as one, mount.open("f", "r+b", buffering=0) as two:
        assert one.file.lock()
        waits = threading.Thread(target=two.file.lock)
        waits.start()
        # This thread makes progress, although the other one is inside of a call.
        time.sleep(0.1)
        assert waits.is_alive()
        one.file.unlock()
        waits.join(60)
        assert not waits.is_alive()


def test_appends_of_threads_are_whole(mount):
    mount.write_bytes("log", b"")

    def append(byte):
        with mount.open("log", "ab", buffering=0) as file:
            for _ in range(50):
                file.write(bytes([byte]) * 1000)

    threads = [threading.Thread(target=append, args=(byte,)) for byte in b"123"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log = mount.read_bytes("log")
    assert len(log) == 150_000
    assert all(len(set(log[at : at + 1000])) == 1 for at in range(0, len(log), 1000))


def test_a_lost_server_is_an_exception(server):
    with pytest.raises(OSError) as raised:
        rfs.connect("127.0.0.1:1", connect_timeout=1)
    assert raised.value.errno == errno.EHOSTUNREACH
    mount = rfs.connect(server.socket)
    file = mount.open("f", "wb", buffering=0)
    mount.disconnect()
    for call in (lambda: file.write(b"x"), file.close):
        with pytest.raises(OSError) as raised:
            call()
        assert raised.value.errno == errno.EHOSTDOWN
    assert file.closed
