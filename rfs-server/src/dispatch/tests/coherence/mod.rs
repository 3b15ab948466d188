//! Tests of recalls, and of concurrent requests.

mod caching;
mod caching_model;
mod concurrent;
mod pages;
mod recall_waits;

use rfs_proto::{Recall, Recalls};

use super::*;

impl Client<'_> {
    fn keep(&self, request: Request<'_>) -> bool {
        let attr = match self.ask(request) {
            Reply::Attr(attr) => attr,
            Reply::Opened(opened) => opened.attr,
            other => panic!("{request:?}: {other:?}"),
        };
        attr.marks.contains(Marks::KEEP)
    }

    fn recalls(&self, done: u64) -> mpsc::Receiver<Reply> {
        self.start(Request::Recalls { done })
    }
}

fn ahead(name: &str) -> Request<'_> {
    Request::LookupAhead { parent: ROOT_INO, name: name.as_bytes(), max_entries: 9 }
}

fn told(receiver: &mpsc::Receiver<Reply>) -> Recalls {
    match receiver.try_recv() {
        Ok(Reply::Recalls(recalls)) => recalls,
        other => panic!("{other:?}"),
    }
}

fn name(parent: u64, name: &str) -> Recall {
    Recall::Name { parent, name: name.into() }
}

fn attr(ino: u64) -> Recall {
    Recall::Attr { ino }
}

fn owner(ino: u64) -> Recall {
    Recall::Owner { ino }
}

fn pages(ino: u64) -> Recall {
    Recall::Pages { ino }
}

fn names(ino: u64) -> Recall {
    Recall::Names { ino }
}

fn set(ino: u64, changes: SetAttr) -> Request<'static> {
    Request::SetAttr { ino, changes }
}
