use super::*;

const SHAPE: Shape = Shape { arena: 1 << 20, inodes: 100, checked: false };

#[test]
fn an_object_is_made_once_and_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("memory");
    let identity = {
        let store = ObjectStore::open(&path).unwrap();
        let object = store.object("a/b", SHAPE).unwrap();
        assert!(matches!(ObjectStore::open(&path), Err(ObjectError::Busy { .. })));
        assert_eq!((object.header().starts, object.header().clean), (0, true));
        assert!(object.log().unwrap().1.is_none());
        object.begin();
        store.keep();
        object.arena.write(5, b"x");
        object.header().identity
    };
    // An unfinished object is ignored.
    fs::create_dir(path.join("c.new")).unwrap();
    fs::write(path.join("c.new/state"), b"junk").unwrap();
    let store = ObjectStore::open(&path).unwrap();
    let again = store.object("a/b", SHAPE).unwrap();
    let header = again.header();
    assert_eq!((header.identity, header.starts, header.clean), (identity, 1, false));
    let mut byte = [0];
    again.arena.read(5, &mut byte);
    assert_eq!(byte, *b"x");
    again.end();
    assert!(again.header().clean);
    assert_ne!(store.object("c", SHAPE).unwrap().header().identity, identity);
}

#[test]
fn an_object_of_another_shape_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let store = ObjectStore::open(directory.path()).unwrap();
    store.object("a", SHAPE).unwrap().begin();
    let open = |shape| store.object("a", shape).map(drop);
    let others =
        [Shape { arena: 2 << 20, ..SHAPE }, Shape { inodes: 101, ..SHAPE }, Shape { checked: true, ..SHAPE }];
    for shape in others {
        assert!(matches!(open(shape), Err(ObjectError::Shape { there: SHAPE, .. })));
    }
    let path = directory.path().join("a");
    let state = fs::read(path.join(STATE)).unwrap();
    let table = fs::OpenOptions::new().write(true).open(path.join(TABLE)).unwrap();
    table.set_len(128).unwrap();
    assert!(matches!(open(SHAPE), Err(ObjectError::Length { there: 128, expected: 12_800, .. })));
    let mut damaged = state.clone();
    damaged[20] ^= 1;
    damaged[PAGE / 2 + 20] ^= 1;
    fs::write(path.join(STATE), &damaged).unwrap();
    assert!(matches!(open(SHAPE), Err(ObjectError::Header { source: HeaderError::Damaged, .. })));
    assert_eq!(fs::read(path.join(STATE)).unwrap(), damaged);
    fs::write(path.join(STATE), b"short").unwrap();
    assert!(matches!(open(SHAPE), Err(ObjectError::Header { source: HeaderError::Foreign, .. })));
    fs::remove_file(path.join(STATE)).unwrap();
    let missing = open(SHAPE).unwrap_err();
    assert!(!matches!(missing, ObjectError::Shape { .. } | ObjectError::Length { .. }), "{missing}");
    assert!(path.join(TABLE).exists(), "what is there is left alone");
}

/// Catches an object of a refused start that blocks every start with other options.
#[test]
fn an_object_that_no_server_has_used_gives_way() {
    let directory = tempfile::tempdir().unwrap();
    let store = ObjectStore::open(directory.path()).unwrap();
    store.object("a", SHAPE).unwrap();
    store.object("used", SHAPE).unwrap().begin();
    // As at the root of a file system.
    fs::create_dir(directory.path().join("lost+found")).unwrap();
    assert_eq!(store.names().unwrap(), ["used"]);
    // As a killed server leaves it.
    store.keep();
    let other = Shape { inodes: 101, ..SHAPE };
    assert_eq!(store.object("a", other).unwrap().header().shape, other);
    store.object("used", other).unwrap_err();
    // The end of a refused start.
    drop(store);
    assert!(!directory.path().join("a").exists() && directory.path().join("used").exists());
}

#[test]
fn checksums_are_a_file_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let store = ObjectStore::open(directory.path()).unwrap();
    let checked = Shape { checked: true, ..SHAPE };
    let object = store.object("a", checked).unwrap();
    assert_eq!(object.sums.as_ref().unwrap().len() as u64, SHAPE.arena / 4096 * 8);
    object.begin();
    object.sums.as_ref().unwrap().write(8, b"x");
    drop(object);
    let mut byte = [0];
    store.object("a", checked).unwrap().sums.unwrap().read(8, &mut byte);
    assert_eq!(byte, *b"x");
    let refused = store.object("a", SHAPE).map(drop).unwrap_err().to_string();
    assert!(refused.contains("--inodes 100 --checksum as before"), "{refused}");
    assert!(store.object("b", SHAPE).unwrap().sums.is_none());
}

#[test]
fn names_of_exports_are_names_of_directories() {
    for (export, name) in [("rfs", "rfs"), ("a/b", "a%2fb"), ("..", "%2e%2e"), ("x.new", "x%2enew")] {
        assert_eq!(file_name(export), name);
    }
}
