//! Measures how long a server takes to restore the memory of a killed server.
//!
//! ```text
//! restart_time DIR [GIB] [FILES] [KIB]
//! ```
//!
//! Makes a memory object of GIB GiB [4] in DIR, which is on a tmpfs. Adds FILES files [100,000]
//! of KIB KiB [16], half of them in directories of 1000. Then it leaves the object as a killed
//! server does, restores it, and removes it.

use std::{
    error::Error,
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use rfs_proto::{ROOT_INO, RegionRef, Reply, Request, VERSION, record};
use rfs_server::{
    ExportConfig,
    clock::SystemClock,
    dispatch::{Dispatcher, Outcome, RecoveredState, Root},
    memory_object::{Object, ObjectStore},
    sessions::Regions,
    space::Zeroing,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const ROOT: Root = Root { perm: 0o755, uid: 0, gid: 0 };

fn take_over(object: &Object) -> Result<Dispatcher> {
    let kept = RecoveredState::of(object)?;
    let memory = (Arc::clone(&object.arena), Arc::clone(&object.table));
    let dispatcher = Dispatcher::kept(memory, Zeroing::Background, ROOT, Arc::new(SystemClock), kept)?;
    object.begin();
    Ok(dispatcher)
}

fn ask(dispatcher: &Dispatcher, request: Request<'_>) -> Reply {
    match dispatcher.handle(1, request) {
        Outcome::Now(Reply::Error(errno)) => panic!("{request:?}: {errno}"),
        Outcome::Now(reply) => reply,
        Outcome::Deferred(_) => panic!("{request:?} waits"),
    }
}

fn fill(object: &Object, files: usize, len: u64) -> Result<()> {
    let dispatcher = take_over(object)?;
    let region = RegionRef { addr: 0, len: 0, rkey: 0 };
    dispatcher.attachments().began(1, Regions { arena: region, table: region, sums: None });
    ask(
        &dispatcher,
        Request::Attach { version: VERSION, client: "", export: "", keeps: false, alone: false, mount: None },
    );
    let (data, mut directory) = (vec![7; len as usize], ROOT_INO);
    for number in 0..files {
        let name = format!("file-{number}");
        if number % 1000 == 0 {
            let name = format!("directory-{number}");
            let made = Request::Mkdir {
                parent: ROOT_INO,
                name: name.as_bytes(),
                perm: 0o755,
                umask: 0,
                uid: 0,
                gid: 0,
            };
            if let Reply::Attr(attr) = ask(&dispatcher, made) {
                directory = attr.ino;
            }
        }
        let parent = if number % 2 == 0 { directory } else { ROOT_INO };
        let name = name.as_bytes();
        let made = Request::Create { parent, name, perm: 0o644, umask: 0, uid: 0, gid: 0, exclusive: true };
        let Reply::Opened(opened) = ask(&dispatcher, made) else { continue };
        let ino = opened.attr.ino;
        if let Reply::Layout(layout) = ask(&dispatcher, Request::Allocate { ino, offset: 0, len }) {
            for extent in layout.extents {
                let end = data.len().min(extent.file_end() as usize);
                object.arena.write(extent.arena as usize, &data[extent.file as usize..end]);
            }
        }
        object.table.write(opened.attr.slot as usize * record::LEN + record::SIZE, &len.to_le_bytes());
        ask(&dispatcher, Request::Close { ino });
        if dispatcher.log_upkeep().has_long_log() {
            dispatcher.log_upkeep().write_log_anew()?;
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let directory = args.next().ok_or("restart_time DIR [GIB] [FILES] [KIB]")?;
    let path = Path::new(&directory).join("restart_time");
    let mut number = |default: u64| args.next().map_or(Ok(default), |arg| arg.parse());
    let (gib, files, kib) = (number(4)?, number(100_000)?, number(16)?);
    let export = ExportConfig {
        name: "rfs".into(),
        memory: gib << 30,
        max: None,
        inodes: None,
        root: ROOT,
        eviction: Default::default(),
    };
    fill(&ObjectStore::open(&path)?.object(&export.name, export.shape(false))?, files as usize, kib << 10)?;
    let begin = Instant::now();
    let object = ObjectStore::open(&path)?.object(&export.name, export.shape(false))?;
    let dispatcher = take_over(&object)?;
    let taken: Duration = begin.elapsed();
    let statfs = dispatcher.statfs();
    println!(
        "{} inodes, {} blocks in use: {taken:?}",
        statfs.inodes - statfs.inodes_free,
        statfs.blocks - statfs.blocks_free
    );
    drop(dispatcher);
    fs::remove_dir_all(&path)?;
    Ok(())
}
