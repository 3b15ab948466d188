"""Files in the memory of an rfs-server: no FUSE, no mount point, no root.

    import rfs

    mount = rfs.connect("10.0.0.1:7440")
    with mount.open("greeting", "wb") as file:
        file.write(b"hello")
    print(mount.listdir("/"))

Each call releases the interpreter's lock while it waits. ``readinto`` fills a buffer without a copy
in between, and ``memoryview(file.view(0, 4096))`` has bytes of the server's memory in place.
"""

from ._rfs import __version__
from .files import DirEntry, Mount, RawFile, Stat, connect

__all__ = ["DirEntry", "Mount", "RawFile", "Stat", "connect", "__version__"]
