"""Files of Python: buffers of all kinds, copies, temporary files, an offset that a child shares."""
import os, shutil, sys, tempfile, random
random.seed(7)
os.chdir(sys.argv[1])
data = random.randbytes(3_000_001)
for buffering in (0, -1, 77, 1 << 20):
    with open("f", "wb", buffering) as out:
        for at in range(0, len(data), 65537): out.write(data[at:at + 65537])
    with open("f", "rb", buffering) as f:
        assert f.read() == data
        f.seek(-100, 2); assert f.read(1000) == data[-100:]
        f.seek(1234567); assert f.read(9) == data[1234567:1234576]
shutil.copyfile("f", "g"); shutil.copy2("f", "h")
assert open("g", "rb").read() == data and os.stat("h").st_mtime_ns == os.stat("f").st_mtime_ns
with tempfile.TemporaryFile(dir=".") as t:
    t.write(data); t.seek(0); assert t.read() == data
with open("f", "r+b") as f:
    f.truncate(1000); f.seek(0, 2); assert f.tell() == 1000
    pid = os.fork()
    if pid == 0:
        f.write(b"child"); f.flush(); os._exit(0)
    os.waitpid(pid, 0)
    assert f.seek(0, 1) == 1005 and os.fstat(f.fileno()).st_size == 1005
print(sorted((e.name, e.stat().st_size) for e in os.scandir(".")))
