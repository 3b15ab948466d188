"""Clients and servers of this tree with those of the last release.

Arguments: the directory with the programs of the release, and the one with those of this tree. For
each client and transport, a server of the release is killed and a server of this tree continues on
its memory directory, while a program uses files of the mount. Snapshots are read one version back,
too. A server of the release refuses files that the newer one has written.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

BLOCK = bytes(range(256)) * 4096
WAIT_LIMIT_S = 30
# Processes of the running part.
CHILDREN = []


def until(condition, what):
    """Waits until a condition holds."""
    end = time.monotonic() + WAIT_LIMIT_S
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"not within {WAIT_LIMIT_S} s: {what}")
        time.sleep(0.02)


def check(found, expected, what):
    """Exits if a value is not the expected one."""
    if found != expected:
        sys.exit(f"{what}: {found!r} instead of {expected!r}")


class Programs:
    """The programs of one version, with the versions that they print."""

    def __init__(self, directory):
        self.server = os.path.join(directory, "rfs-server")
        self.fuse = os.path.join(directory, "rfs-fuse")
        said = subprocess.check_output([self.server, "--version"], text=True)
        found = re.search(r"commit (\S+), protocol (\d+)", said)
        self.name, self.protocol = found[1], int(found[2])


class ServerProcess:
    """A server or a store in a scratch directory."""

    def __init__(self, programs, scratch, name, options):
        self.programs, self.scratch, self.name = programs, scratch, name
        self.log = os.path.join(scratch, f"{name}.log")
        command = [programs.server, "--memory", "64M", "--listen", self.tcp(), *options]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        CHILDREN.append(self.process)
        until(lambda: self.ended() or "ready" in self.said(), f"a {name} that is ready")

    def tcp(self):
        """Returns the TCP address. It stays when the server starts again."""
        path = os.path.join(self.scratch, f"{self.name}.port")
        if not os.path.exists(path):
            with socket.socket() as free, open(path, "w") as out:
                free.bind(("127.0.0.1", 0))
                out.write(str(free.getsockname()[1]))
        with open(path) as port:
            return f"tcp:127.0.0.1:{port.read()}"

    def ended(self):
        return self.process.poll() is not None

    def said(self):
        with open(self.log) as log:
            return log.read()

    def end(self, how):
        """Ends the server with a signal."""
        self.process.send_signal(how)
        self.process.wait()


class Server(ServerProcess):
    """A server of files."""

    def __init__(self, programs, scratch, options):
        self.socket = os.path.join(scratch, "socket")
        own = ["--listen", self.socket, "--inodes", "4096", "--allow-without-keys"]
        super().__init__(programs, scratch, "server", own + options)

    def refuses(self, words):
        """Checks that the server has not started, and says these words."""
        check(self.ended(), True, "a server of the release started with files of this tree")
        check(words in self.said(), True, f"{words!r} in {self.said()!r}")


class Mount:
    """A mount of a server."""

    def __init__(self, programs, server, over):
        self.programs, self.point = programs, os.path.join(server.scratch, "mount")
        os.makedirs(self.point, exist_ok=True)
        address = server.socket if over == "shm" else server.tcp()
        self.log = open(os.path.join(server.scratch, "mount.log"), "a")
        command = [programs.fuse, address, self.point]
        if programs.protocol > 18:
            command.append("--births")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        CHILDREN.append(self.process)
        until(lambda: os.path.ismount(self.point), "a mount")

    def end(self):
        subprocess.check_call(["umount", self.point])
        check(self.process.wait(), 0, "the status of the mount's process")
        self.log.close()

    def path(self, name):
        return os.path.join(self.point, name)


def birth(path):
    """Returns the time of birth in seconds; 0 if it is unknown."""
    said = subprocess.check_output(["stat", "-c", "%W", path], text=True)
    return int(said) if said.strip() != "-" else 0


def unnamed(directory):
    """Makes a file without a name."""
    return os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o600)


def name(file, path):
    """Names a file that was made without a name."""
    # Python follows the link only if it gets a directory, which an absolute path does not use.
    os.link(f"/proc/self/fd/{file}", path, src_dir_fd=file)


def is_locked(path):
    """Returns True if another process may not lock the file."""
    program = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    command = [sys.executable, "-c", program, path]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode != 0


def use(mount, directory, has_births):
    """Uses a mount in a new directory: files, names, locks, attributes."""
    top = mount.path(directory)
    os.mkdir(top)
    path = os.path.join(top, "file")
    began = int(time.time())
    with open(path, "wb") as file:
        file.write(BLOCK)
        file.write(b"end")
        os.fsync(file.fileno())
    with open(path, "r+b") as file:
        file.seek(len(BLOCK))
        check(file.read(), b"end", "bytes of a file")
        file.truncate(len(BLOCK))
        check(is_locked(path), False, "a lock without an owner")
        fcntl.lockf(file, fcntl.LOCK_EX)
        check(is_locked(path), True, "a lock")
    os.rename(path, path + ".renamed")
    os.link(path + ".renamed", path)
    os.symlink("file", os.path.join(top, "link"))
    os.setxattr(path, "user.a", b"value")
    file = unnamed(top)
    os.write(file, b"unnamed")
    name(file, os.path.join(top, "named"))
    os.close(file)
    found = birth(path)
    if has_births:
        check(began - 1 <= found <= time.time() + 1, True, f"the birth {found}, begun {began}")
    else:
        check(found, 0, "the birth")
    look(mount, directory)


def look(mount, directory):
    """Checks the files that `use` has made."""
    top = mount.path(directory)
    check(sorted(os.listdir(top)), ["file", "file.renamed", "link", "named"], "names")
    with open(os.path.join(top, "link"), "rb") as file:
        check(file.read() == BLOCK, True, "the bytes of the file are the same")
        check(os.fstat(file.fileno()).st_nlink, 2, "links")
    check(os.getxattr(os.path.join(top, "file"), "user.a"), b"value", "an extended attribute")
    with open(os.path.join(top, "named"), "rb") as file:
        check(file.read(), b"unnamed", "bytes of a file that had no name")


def check_status(all_programs, server, mount):
    """Asks server and mount for their status, with the commands of both versions."""
    for programs in all_programs:
        for command, asked in [
            ([programs.server, "status", server.socket], server.programs),
            ([programs.fuse, "status", mount.point], mount.programs),
        ]:
            found = json.loads(subprocess.check_output([*command, "--json"]))
            check(found["protocol"], asked.protocol, f"the protocol in {command}")
            subprocess.check_output(command)


def upgrade_server(old, new, client, over, scratch):
    """A server of the release is killed, and one of this tree continues."""
    memory = ["--memory-dir", os.path.join(scratch, "memory")]
    server = Server(old, scratch, memory)
    mount = Mount(client, server, over)
    use(mount, "before", False)
    check_status([old, new], server, mount)
    kept = open(mount.path("kept"), "w+b", buffering=0)
    kept.write(b"kept")
    fcntl.lockf(kept, fcntl.LOCK_EX)
    file = unnamed(mount.point)
    server.end(signal.SIGKILL)

    server = Server(new, scratch, memory)
    check(os.pread(kept.fileno(), 4, 0), b"kept", "an open file")
    kept.write(b" on")
    check(is_locked(mount.path("kept")), True, "a lock from before")
    name(file, mount.path("unnamed"))
    os.close(file)
    kept.close()
    check(is_locked(mount.path("kept")), False, "a lock after the close")
    look(mount, "before")
    check(birth(mount.path("before/file")), 0, "the birth of a file of the release")
    # The client attaches again, in a newer version if it has it.
    use(mount, "after", client is new)
    check_status([old, new], server, mount)
    mount.end()

    mount = Mount(client, server, over)
    look(mount, "after")
    use(mount, "again", client is new)
    mount.end()
    server.end(signal.SIGKILL)
    Server(old, scratch, memory).refuses("version 4 of the format")
    server = Server(new, scratch, memory)
    mount = Mount(client, server, over)
    look(mount, "before")
    check(birth(mount.path("again/file")) != 0, client is new, "the birth after a restart")
    mount.end()
    server.end(signal.SIGTERM)


def upgrade_snapshot(old, new, scratch):
    """A server of this tree begins with a snapshot of the release."""
    persist = ["--persist", os.path.join(scratch, "snapshots")]
    server = Server(old, scratch, persist)
    mount = Mount(old, server, "shm")
    use(mount, "before", False)
    mount.end()
    server.end(signal.SIGTERM)

    for directory in ["after", "again"]:
        server = Server(new, scratch, persist)
        mount = Mount(new, server, "shm")
        look(mount, "before")
        check(birth(mount.path("before/file")), 0, "the birth of a file of the release")
        use(mount, directory, True)
        mount.end()
        server.end(signal.SIGTERM)
    Server(old, scratch, persist).refuses("version 2 of the format")

    server = Server(new, scratch, persist)
    mount = Mount(new, server, "shm")
    check(birth(mount.path("after/file")) != 0, True, "the birth in a snapshot")
    mount.end()
    server.end(signal.SIGTERM)


def use_store(server, store, client, scratch):
    """A server of one version has a store of the other one."""
    key = os.path.join(scratch, "pool.key")
    subprocess.check_output([server.server, "--new-key", "pool", "--key-file", key])
    pool_store = ServerProcess(store, scratch, "store", ["--store", "--pool-key", key])
    taken = ["--store-at", pool_store.tcp(), "--pool-key", key, "--stripe-unit", "64k"]
    files = Server(server, scratch, taken)
    mount = Mount(client, files, "tcp")
    use(mount, "files", client.protocol > 18 and server.protocol > 18)
    mount.end()
    for process in [files, pool_store]:
        process.end(signal.SIGTERM)


def run(what, part):
    """Runs a part in a scratch directory of its own. Shows the logs if it fails."""
    began = time.monotonic()
    scratch = tempfile.mkdtemp(prefix="rfs-previous.", dir="/dev/shm")
    try:
        part(scratch)
        print(f"{what}: {time.monotonic() - began:.1f} s", flush=True)
    except BaseException:
        print(f"{what}: failed", flush=True)
        for log in ["server.log", "store.log", "mount.log"]:
            if os.path.exists(os.path.join(scratch, log)):
                with open(os.path.join(scratch, log)) as text:
                    print(f"{log}:\n{text.read()}")
        raise
    finally:
        subprocess.run(["umount", "--lazy", os.path.join(scratch, "mount")], stderr=subprocess.DEVNULL, check=False)
        for child in CHILDREN:
            if child.poll() is None:
                child.kill()
                child.wait()
        CHILDREN.clear()
        shutil.rmtree(scratch, ignore_errors=True)


def main():
    """Runs all parts."""
    old, new = (Programs(directory) for directory in sys.argv[1:3])
    if old.protocol == new.protocol:
        print(f"both have protocol {new.protocol}: nothing is negotiated")
    for over in ["shm", "tcp"]:
        for client in [old, new]:
            what = f"client {client.name}, server {old.name}, then {new.name}, over {over}"
            run(what, lambda scratch, c=client, o=over: upgrade_server(old, new, c, o, scratch))
    for server, store in [(old, new), (new, old)]:
        what = f"client and store {store.name}, server {server.name}"
        run(what, lambda scratch, a=server, b=store: use_store(a, b, b, scratch))
    run(f"snapshot of {old.name}", lambda scratch: upgrade_snapshot(old, new, scratch))


if __name__ == "__main__":
    main()
