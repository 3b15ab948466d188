//! Pages of files that several sessions have open.

use super::*;

/// Attaches two sessions that cache. The first has a file open to read, and both have asked for
/// recalls.
fn read_here_and_written_there(fixture: &Fixture) -> [Client<'_>; 2] {
    let [reader, writer] = [1, 2].map(|id| fixture.attached(id, true));
    assert_eq!(writer.create("file").attr.ino, FILE);
    writer.close(FILE);
    assert!(reader.keep(Request::Open { ino: FILE, write: false }));
    [reader, writer]
}

const FILE: u64 = 2;

fn written(ino: u64) -> Recall {
    Recall::Written { ino }
}

#[test]
fn a_write_waits_until_pages_that_others_hold_are_dropped() {
    let fixture = fixture(64, 16);
    let [reader, writer] = read_here_and_written_there(&fixture);
    let asked = reader.recalls(0);
    let opening = writer.start(Request::Open { ino: FILE, write: true });
    assert_eq!(told(&asked), Recalls { number: 1, recalls: vec![pages(FILE)] });
    let asked = reader.recalls(1);
    let Ok(Reply::Opened(opened)) = opening.try_recv() else { panic!("not opened") };
    assert!(opened.attr.marks.contains(Marks::SHARED | Marks::KEEP));
    // The reader holds no pages.
    assert!(writer.attr(Request::DropPages { ino: FILE }).marks.contains(Marks::SHARED));
    let mut asked = asked;
    for number in 2..4 {
        reader.done(Request::HoldPages { ino: FILE });
        let wrote = writer.start(Request::DropPages { ino: FILE });
        assert_eq!(told(&asked), Recalls { number, recalls: vec![written(FILE)] });
        assert!(wrote.try_recv().is_err(), "it waits");
        // The next write waits, too, although no session holds pages any more.
        let next = writer.start(Request::DropPages { ino: FILE });
        assert!(next.try_recv().is_err());
        asked = reader.recalls(number);
        assert!([wrote, next].iter().all(|reply| matches!(reply.try_recv(), Ok(Reply::Attr(_)))));
        writer.attr(Request::DropPages { ino: FILE });
    }
    reader.close(FILE);
    writer.close(FILE);
}

#[test]
fn pages_outlast_attributes_and_go_with_the_last_close() {
    let fixture = fixture(64, 16);
    let [reader, writer] = read_here_and_written_there(&fixture);
    let asked = reader.recalls(0);
    let perm = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    let changed = writer.start(Request::SetAttr { ino: FILE, changes: perm });
    assert_eq!(told(&asked), Recalls { number: 1, recalls: vec![attr(FILE)] });
    let asked = reader.recalls(1);
    assert!(matches!(changed.try_recv(), Ok(Reply::Attr(_))));
    let opening = writer.start(Request::Open { ino: FILE, write: true });
    assert_eq!(told(&asked), Recalls { number: 2, recalls: vec![pages(FILE)] });
    let asked = reader.recalls(2);
    assert!(matches!(opening.try_recv(), Ok(Reply::Opened(_))));
    reader.done(Request::HoldPages { ino: FILE });
    reader.close(FILE);
    writer.attr(Request::DropPages { ino: FILE });
    // Only a session that has the file open can hold pages.
    reader.done(Request::HoldPages { ino: FILE });
    writer.attr(Request::DropPages { ino: FILE });
    assert!(asked.try_recv().is_err());
}

#[test]
fn only_a_writer_has_pages_dropped_and_waits_for_no_other_recalls() {
    let fixture = fixture(64, 16);
    let [reader, writer] = read_here_and_written_there(&fixture);
    assert_eq!(reader.error(Request::DropPages { ino: FILE }), Errno::EBADF);
    assert_eq!(writer.error(Request::DropPages { ino: FILE }), Errno::EBADF);
    let asked = reader.recalls(0);
    drop(writer.start(Request::Open { ino: FILE, write: true }));
    assert_eq!(told(&asked).recalls, [pages(FILE)]);
    let asked = reader.recalls(1);
    // The reader caches the attributes of the directory.
    assert!(reader.keep(Request::GetAttr { ino: ROOT_INO }));
    let linked = writer.start(Request::Link { ino: FILE, parent: ROOT_INO, name: b"other" });
    assert!(!told(&asked).recalls.is_empty() && linked.try_recv().is_err());
    writer.attr(Request::DropPages { ino: FILE });
    drop(reader.recalls(2));
    assert!(linked.try_recv().is_ok());
}

#[test]
fn an_open_tells_whether_others_have_the_file_open() {
    let fixture = fixture(64, 16);
    let (one, two) = (fixture.attached(1, false), fixture.attached(2, true));
    let made = one.create("file");
    assert!(!made.attr.marks.contains(Marks::SHARED));
    let read = two.opened(Request::Open { ino: FILE, write: false });
    assert!(!read.attr.marks.intersects(Marks::SHARED | Marks::KEEP), "it only reads beside a writer");
    let wrote = two.opened(Request::Open { ino: FILE, write: true });
    assert!(wrote.attr.marks.contains(Marks::SHARED));
    two.close(FILE);
    two.close(FILE);
    one.close(FILE);
    assert!(!one.opened(Request::Open { ino: FILE, write: true }).attr.marks.contains(Marks::SHARED));
    // A session that has ended is not waited for.
    two.opened(Request::Open { ino: FILE, write: false });
    fixture.dispatcher.attachments().ended(2);
    assert!(!one.attr(Request::DropPages { ino: FILE }).marks.contains(Marks::SHARED));
}

/// Catches a writer that does not drop pages of another session, because the record says that there
/// are none.
#[test]
fn the_record_says_whether_sessions_may_cache_pages() {
    let fixture = fixture(64, 16);
    let [reader, writer, other] = [1, 2, 3].map(|id| fixture.attached(id, id < 3));
    assert_eq!(reader.create("file").attr.ino, FILE);
    let may_hold = || {
        let attr = other.attr(Request::GetAttr { ino: FILE });
        assert!(!attr.marks.contains(Marks::PAGES), "only the record has the mark");
        other.whole_record(&attr).expect("a valid record").marks.contains(Marks::PAGES)
    };
    let asked = reader.recalls(0);
    let opening = writer.start(Request::Open { ino: FILE, write: true });
    assert_eq!(told(&asked), Recalls { number: 1, recalls: vec![pages(FILE)] });
    assert!(may_hold(), "the recall is not acknowledged");
    let mut asked = reader.recalls(1);
    assert!(matches!(opening.try_recv(), Ok(Reply::Opened(_))));
    assert!(may_hold(), "no write has looked since");
    writer.attr(Request::DropPages { ino: FILE });
    assert!(!may_hold());
    for number in 2..4 {
        reader.done(Request::HoldPages { ino: FILE });
        assert!(may_hold());
        let wrote = writer.start(Request::DropPages { ino: FILE });
        assert_eq!(told(&asked), Recalls { number, recalls: vec![written(FILE)] });
        assert!(may_hold(), "the recall is not acknowledged");
        asked = reader.recalls(number);
        assert!(matches!(wrote.try_recv(), Ok(Reply::Attr(_))));
        writer.attr(Request::DropPages { ino: FILE });
        assert!(!may_hold());
    }
}
