//! Keys of a server: a file of lines `NAME SECRET EXPORT ro|rw [squash=root|all] [uid=N] [gid=N]`.
//!
//! # Concurrency
//! Any thread; [`Keys::replace`] exchanges the keys under a write lock.

use std::{collections::HashMap, path::Path};

use parking_lot::RwLock;
use rdmabox::{Domain, Grant, Key, KeyFile, KeyFileError, KeyId, Keyring, Secret};
use seeded_faults::seeded;

use crate::session::{
    access_mode::AccessMode,
    squash::{Squash, SquashWords},
};

/// Permissions of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opens {
    secret: Secret,
    /// Index of the export.
    pub export: usize,
    /// Access rights.
    pub rights: AccessMode,
    /// Mapping of the key's users.
    pub squash: Squash,
}

impl Opens {
    /// Returns the access to memory of a session with this key. With a mapping, only the server
    /// writes.
    pub fn reach(&self) -> AccessMode {
        if self.squash.is_none() { self.rights } else { AccessMode::Read }
    }
}

/// The keys of a file.
pub type KeyTable = HashMap<KeyId, Opens>;

/// Reads the keys of a server that lends `exports`.
///
/// # Errors
/// Another user may read the file, a line is invalid, a key occurs twice, or there are no keys.
pub fn read(path: &Path, exports: &[&str]) -> Result<KeyTable, KeyFileError> {
    let file = KeyFile::read(path)?;
    let mut table = KeyTable::new();
    for (number, line) in file.lines() {
        let (id, opens) = parse(line, exports).map_err(|why| file.wrong(number, why))?;
        if table.insert(id, opens).is_some() {
            return Err(file.wrong(number, format!("the key {id} is there twice")));
        }
    }
    match table.is_empty() {
        true => Err(KeyFileError::Empty { path: path.to_owned() }),
        false => Ok(table),
    }
}

/// Parses a line. The error message never contains the secret.
fn parse(line: &str, exports: &[&str]) -> Result<(KeyId, Opens), String> {
    let mut words = line.split_whitespace();
    let Key { id, secret } = Key::from_words(&mut words).map_err(|e| e.to_string())?;
    let form = || "a line is a name, a secret, an export, and ro or rw".to_owned();
    let (Some(name), Some(rights)) = (words.next(), words.next()) else { return Err(form()) };
    let mut squash = SquashWords::default();
    for word in words {
        if !squash.take(word)? {
            return Err(format!("{}, with squash=root or squash=all, uid=N and gid=N if need be", form()));
        }
    }
    let export = exports.iter().position(|export| *export == name);
    let export = export.ok_or_else(|| format!("there is no export named {}", rdmabox::shown(name)))?;
    Ok((id, Opens { secret, export, rights: rights.parse()?, squash: squash.squash()? }))
}

/// The current keys.
#[derive(Debug)]
pub struct Keys {
    table: RwLock<KeyTable>,
    domains: HashMap<(usize, AccessMode), Domain>,
}

impl Keys {
    /// Returns these keys with the domains of their sessions: one for each export and access right.
    pub fn new(table: KeyTable, domains: HashMap<(usize, AccessMode), Domain>) -> Keys {
        Keys { table: RwLock::new(table), domains }
    }

    /// Returns the permissions of a key; `None` if the key does not exist any more.
    pub fn opens(&self, id: &KeyId) -> Option<Opens> {
        self.table.read().get(id).cloned()
    }

    /// Replaces all keys. Returns the keys that were removed or changed.
    pub fn replace(&self, table: KeyTable) -> Vec<KeyId> {
        let old = std::mem::replace(&mut *self.table.write(), table);
        seeded!(RevokedKept => return Vec::new());
        let table = self.table.read();
        old.into_iter().filter(|(id, opens)| table.get(id) != Some(opens)).map(|(id, _)| id).collect()
    }

    /// Returns the number of keys.
    pub fn count(&self) -> usize {
        self.table.read().len()
    }
}

impl Keyring for Keys {
    fn grant(&self, id: &KeyId) -> Option<Grant> {
        let opens = self.opens(id)?;
        let domain = *self.domains.get(&(opens.export, opens.reach()))?;
        Some(Grant::new(opens.secret, domain))
    }
}

/// A new key on the command line: `NAME[,export=NAME][,ro][,squash=root|all][,uid=N][,gid=N]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewKey {
    /// Name of the key.
    pub id: KeyId,
    /// Name of the export.
    pub export: String,
    /// Access rights.
    pub rights: AccessMode,
    /// Mapping of the key's users.
    pub squash: Squash,
}

impl NewKey {
    /// Parses a new key; the error is a message for the user.
    pub fn parse(text: &str) -> Result<NewKey, String> {
        let mut parts = text.split(',');
        let id = parts.next().unwrap_or_default().parse().map_err(|e: rdmabox::KeyError| e.to_string())?;
        let mut key = NewKey { id, export: "rfs".into(), rights: AccessMode::Write, squash: Squash::None };
        let mut squash = SquashWords::default();
        for part in parts {
            match part.split_once('=') {
                _ if squash.take(part)? => {}
                Some(("export", name)) if !name.is_empty() => key.export = name.to_owned(),
                None => key.rights = part.parse()?,
                Some(_) => {
                    return Err(format!(
                        "{part:?}: a key has export=NAME, ro or rw, and squash=root or squash=all with uid=N and gid=N"
                    ));
                }
            }
        }
        key.squash = squash.squash()?;
        // Lines of the file are split at spaces.
        match key.export.contains(char::is_whitespace) {
            true => Err("an export with a key has a name without spaces".into()),
            false => Ok(key),
        }
    }

    /// Returns the line of the server's key file and the line of the client's.
    pub fn lines(&self, secret: &Secret) -> [zeroize::Zeroizing<String>; 2] {
        let (id, digits) = (self.id, secret.to_hex());
        let client = format!("{id} {}", *digits);
        [format!("{client} {} {}{}", self.export, self.rights, self.squash).into(), client.into()]
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    const SECRET: &str = "00112233445566778899aabbccddeeff";
    const OTHER: &str = "ffeeddccbbaa99887766554433221100";

    fn table(text: &str) -> Result<KeyTable, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let strip = |e: KeyFileError| e.to_string().replace(&format!("{}", path.display()), "FILE");
        read(&path, &["rfs", "scratch"]).map_err(strip)
    }

    fn id(name: &str) -> KeyId {
        name.parse().unwrap()
    }

    #[test]
    fn lines_describe_the_permissions_of_keys() {
        let table = table(&format!("# who\nlaptop {SECRET} rfs rw\n\n  tv  {OTHER}\tscratch ro\n")).unwrap();
        let opens = |secret: &str, export, rights| Opens {
            secret: secret.parse().unwrap(),
            export,
            rights,
            squash: Squash::None,
        };
        assert_eq!(table.len(), 2);
        assert_eq!(table[&id("laptop")], opens(SECRET, 0, AccessMode::Write));
        assert_eq!(table[&id("tv")], opens(OTHER, 1, AccessMode::Read));
    }

    #[test]
    fn errors_name_their_line() {
        for (text, said) in [
            ("", "FILE: there is no key in it"),
            ("\n\nk SECRET rfs\n", "FILE, line 3: a line is a name, a secret, an export, and ro or rw"),
            (
                "k SECRET rfs rw x\n",
                "FILE, line 1: a line is a name, a secret, an export, and ro or rw, with squash=root or squash=all, uid=N \
                 and gid=N if need be",
            ),
            (
                "k SECRET rfs rw squash=no\n",
                "FILE, line 1: invalid \"squash=no\": expected squash=root or squash=all",
            ),
            ("k SECRET rfs rw uid=5\n", "FILE, line 1: uid and gid are for squash=root and squash=all"),
            ("k SECRET home rw\n", "FILE, line 1: there is no export named \"home\""),
            ("k SECRET rfs r\n", "FILE, line 1: invalid right \"r\": expected ro or rw"),
            ("k SECRET rfs ro\nk SECRET rfs rw\n", "FILE, line 2: the key k is there twice"),
            ("k 12 rfs ro\n", "FILE, line 1: a secret is written as 32 to 128 hexadecimal digits"),
        ] {
            assert_eq!(table(&text.replace("SECRET", SECRET)), Err(said.into()));
        }
    }

    #[test]
    fn replacing_the_keys_returns_the_changed_ones() {
        let new = |text: &str| table(&text.replace("SECRET", SECRET).replace("OTHER", OTHER)).unwrap();
        let domains = HashMap::from([((0, AccessMode::Write), Domain::default())]);
        let keys =
            Keys::new(new("a SECRET rfs rw\nb SECRET rfs rw\nc SECRET rfs rw\nd SECRET rfs rw\n"), domains);
        assert_eq!(keys.grant(&id("a")).map(|grant| grant.secret), Some(SECRET.parse().unwrap()));
        let mut changed = keys.replace(new("a SECRET rfs rw\nb OTHER rfs rw\nc SECRET rfs ro\n"));
        changed.sort_unstable();
        assert_eq!((changed, keys.count()), (vec![id("b"), id("c"), id("d")], 3));
        assert!(keys.grant(&id("d")).is_none());
        assert_eq!(keys.grant(&id("c")), None, "there is no domain for it here");
    }

    #[test]
    fn the_lines_of_a_new_key_can_be_read() {
        let key = NewKey::parse("tv,export=scratch,ro").unwrap();
        let [server, client] = key.lines(&SECRET.parse().unwrap());
        assert_eq!(*server, format!("tv {SECRET} scratch ro"));
        assert_eq!(*client, format!("tv {SECRET}"));
        assert_eq!(table(&server).unwrap()[&id("tv")].rights, AccessMode::Read);
        let squashed = NewKey::parse("box,squash=all,uid=1000").unwrap();
        let [server, _] = squashed.lines(&SECRET.parse().unwrap());
        assert_eq!(*server, format!("box {SECRET} rfs rw squash=all uid=1000 gid=65534"));
        let opens = &table(&server).unwrap()[&id("box")];
        assert_eq!((opens.squash, opens.reach()), (squashed.squash, AccessMode::Read));
        let plain = NewKey::parse("laptop").unwrap();
        assert_eq!((plain.export.as_str(), plain.rights), ("rfs", AccessMode::Write));
        for wrong in ["", "a b", "a,x", "a,export=", "a,size=1", "a,export=b c", "a,"] {
            assert!(NewKey::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
