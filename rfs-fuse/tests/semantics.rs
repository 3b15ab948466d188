//! Checks that every statement of docs/semantics has a footnote, and that the tests of each
//! footnote exist.
//!
//! Own program: it reads documents, which are checked so without a build of the mount tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

const NO_TEST: &str = "no test: ";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the paragraphs, list items and table rows of a Markdown text, each with its line
/// number. Skips headings and the heads of tables.
fn blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut continues = false;
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let is_head = lines.get(at + 1).is_some_and(|next| next.starts_with("|-"));
        if line.is_empty() || line.starts_with('#') || line.starts_with("|-") || is_head {
            continues = false;
        } else if continues && !line.starts_with("- ") && !line.starts_with('|') {
            let block = &mut blocks.last_mut().expect("it continues").1;
            block.push(' ');
            block.push_str(line.trim_start());
        } else {
            blocks.push((at + 1, (*line).to_owned()));
            continues = true;
        }
    }
    blocks
}

/// Returns the footnote marks of a text, each with its end position.
fn marks(text: &str) -> Vec<(&str, usize)> {
    let begins = text.match_indices("[^").map(|(at, begin)| at + begin.len());
    begins
        .map(|at| {
            let len = text[at..].find(']').expect("a mark ends");
            (&text[at..at + len], at + len + 1)
        })
        .collect()
}

/// Returns true if the block has a mark at its end. In a table the mark may be in an earlier
/// column. A line that introduces a list needs none.
fn is_marked(block: &str) -> bool {
    match marks(block).last() {
        Some((_, end)) => block.starts_with('|') || matches!(&block[*end..], "" | ":"),
        None => block.ends_with("but for this:"),
    }
}

/// Returns true if the source declares a test of this name that is not ignored.
fn declares_test(source: &str, name: &str) -> bool {
    let declared = format!("fn {name}(");
    let Some((before, _)) = source.split_once(&declared) else { return false };
    let attributes = before.trim_end().rsplit('\n').map(str::trim).take_while(|line| line.starts_with('#'));
    let attributes: Vec<&str> = attributes.collect();
    attributes.contains(&"#[test]") && !attributes.iter().any(|line| line.starts_with("#[ignore"))
}

/// Returns true if a file has a test of this name.
fn has_test(file: &Path, name: &str) -> bool {
    fs::read_to_string(file).is_ok_and(|source| declares_test(&source, name))
}

/// Returns true if the named test exists: `module::test` of the program `all`,
/// `directory/file::test` in the repository, or a script with steps.
fn is_there(named: &str) -> bool {
    if let Some((module, name)) = named.rsplit_once("::") {
        let path = match module.contains('/') {
            true => root().join(module),
            false => root().join("rfs-fuse/tests/all").join(module.replace("::", "/")),
        };
        return has_test(&path.with_extension("rs"), name) || has_test(&path.join("mod.rs"), name);
    }
    let mut words = named.split(' ');
    let Ok(script) = fs::read_to_string(root().join(words.next().expect("a word"))) else { return false };
    words.all(|step| script.contains(&format!("\n{step}() {{\n")))
}

/// Returns the pages of `docs/semantics`, sorted by name.
fn pages() -> Vec<(String, String)> {
    let directory = root().join("docs/semantics");
    let mut pages: Vec<_> = fs::read_dir(&directory)
        .expect("a directory")
        .map(|entry| {
            let entry = entry.expect("an entry");
            let name = entry.file_name().into_string().expect("UTF-8");
            (name, fs::read_to_string(entry.path()).expect("read"))
        })
        .collect();
    pages.sort();
    pages
}

/// Checks the statements of a page and the tests of its marks, and adds each fault to `wrong`.
/// Returns the number of statements.
fn check_page(
    page: &str,
    text: &str,
    tests: &mut BTreeMap<String, String>,
    wrong: &mut Vec<String>,
) -> usize {
    let Some((said, shown)) = text.split_once("\n## Shown by\n") else {
        wrong.push(format!("{page}: no list of tests"));
        return 0;
    };
    // The text before the first heading describes the page itself.
    let before = said.split_once("\n## ").expect("a heading").0;
    let blocks: Vec<_> =
        blocks(said).into_iter().filter(|(line, _)| *line > before.lines().count()).collect();
    for (line, block) in &blocks {
        if !is_marked(block) {
            wrong.push(format!("{page}:{line}: no mark behind: {block}"));
        }
    }
    let used: BTreeSet<&str> =
        blocks.iter().flat_map(|(_, block)| marks(block)).map(|(mark, _)| mark).collect();

    let mut defined = BTreeSet::new();
    for line in shown.lines().filter(|line| !line.is_empty()) {
        let Some((mark, rest)) = line.strip_prefix("[^").and_then(|line| line.split_once("]: ")) else {
            continue;
        };
        if !defined.insert(mark) {
            wrong.push(format!("{page}: [^{mark}] is there twice"));
        }
        if tests.insert(mark.to_owned(), rest.to_owned()).is_some_and(|other| other != rest) {
            wrong.push(format!("{page}: [^{mark}] names other tests than on another page"));
        }
        let named: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
        if named.is_empty() && !rest.starts_with(NO_TEST) {
            wrong.push(format!("{page}: [^{mark}] names no test"));
        }
        wrong.extend(
            named
                .iter()
                .filter(|named| !is_there(named))
                .map(|named| format!("{page}: [^{mark}]: no {named}")),
        );
    }
    wrong.extend(used.difference(&defined).map(|mark| format!("{page}: [^{mark}] leads nowhere")));
    wrong.extend(defined.difference(&used).map(|mark| format!("{page}: [^{mark}] is used nowhere")));
    blocks.len()
}

#[test]
fn every_statement_has_a_footnote_and_every_footnote_has_its_tests() {
    let (mut wrong, mut tests) = (Vec::new(), BTreeMap::new());
    let pages = pages();
    let blocks: usize = pages.iter().map(|(page, text)| check_page(page, text, &mut tests, &mut wrong)).sum();
    assert!(blocks > 100, "{blocks} blocks are not all of it");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    let without = tests.values().filter(|rest| rest.starts_with(NO_TEST)).count();
    println!("{} statements, {} of them without a test", tests.len(), without);
}

#[test]
fn a_text_is_split_into_blocks() {
    let text =
        "# Head\n\nOne\ntwo.[^a]\n\n- item.[^b]\n  more\n- next\n\n| a | b |\n|-|-|\n| row[^c] | why |\n";
    let found = blocks(text);
    let expected = [(3, "One two.[^a]"), (6, "- item.[^b] more"), (8, "- next"), (12, "| row[^c] | why |")];
    assert_eq!(found, expected.map(|(line, block)| (line, block.to_owned())));
    let marked: Vec<bool> = found.iter().map(|(_, block)| is_marked(block)).collect();
    assert_eq!(marked, [true, false, false, true]);
    assert!(!is_there("locking::locks::no_such_test") && !is_there("locking::locks::helper"));
    assert!(
        is_there("locking::locks::a_lock_here_is_a_lock_there")
            && is_there("rfs-fuse/tests/semantics::a_text_is_split_into_blocks")
    );
    assert!(is_there("ci/trials/reliability packets cut_off") && !is_there("ci/trials/reliability nonsense"));
}

#[test]
fn an_ignored_test_does_not_count() {
    let source = |attributes: &str| format!("fn other() {{}}\n\n{attributes}\nfn name() {{}}\n");
    let is_test = |attributes| declares_test(&source(attributes), "name");
    assert_eq!(["#[test]", "", "#[ignore]"].map(is_test), [true, false, false]);
    assert!(!is_test("#[test]\n#[ignore]") && !is_test("#[ignore = \"slow\"]\n#[test]"));
    assert!(!declares_test(&source("#[test]"), "another"));
}
