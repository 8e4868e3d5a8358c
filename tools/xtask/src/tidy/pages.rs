//! Rules about the tree's size and its Markdown: nothing large, no page that nobody finds, no line that
//! no screen shows.

use std::path::{Component, Path, PathBuf};

use super::Tree;
use super::promises::shown;
use super::text::relative_links;

/// Most bytes of a tracked file: what is larger is a measurement or a program, and belongs elsewhere.
const FILE_BYTES_MAX: u64 = 256 << 10;

/// Most columns of a Markdown line.
const COLUMNS_MAX: usize = 140;

/// A word of more columns, such as an address, may stand in a line of any length.
const WORD_COLUMNS_MAX: usize = 100;

/// The page that every reader begins with.
const FIRST_PAGE: &str = "README.md";

/// No tracked file is large.
pub(super) fn large_files(tree: &Tree) -> Vec<String> {
    let large = tree.tracked.iter().filter(|it| it.bytes > FILE_BYTES_MAX);
    large
        .map(|it| format!("{}: {} bytes", it.path, it.bytes))
        .collect()
}

/// Every page but the first is linked from another. A link to a folder is one to its `README.md`.
pub(super) fn unlinked(tree: &Tree) -> Vec<String> {
    let mut linked = Vec::new();
    for file in tree.ending(".md") {
        let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
        for link in relative_links(&file.text) {
            let target = plain(&folder.join(link));
            if target != Path::new(&file.path) {
                linked.push(target.join(FIRST_PAGE));
                linked.push(target);
            }
        }
    }
    tree.ending(".md")
        .filter(|file| file.path != FIRST_PAGE)
        .filter(|file| !linked.iter().any(|it| it == Path::new(&file.path)))
        .map(|file| format!("{}: no page links to it", file.path))
        .collect()
}

/// A relative path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

/// Lines can be read without scrolling sideways, but for rows of tables, which cannot be broken.
pub(super) fn long_lines(tree: &Tree) -> Vec<String> {
    let mut long = Vec::new();
    for file in tree.ending(".md") {
        for (index, line) in file.text.lines().enumerate() {
            let line = shown(line);
            let columns = line.chars().count();
            let is_row = line.trim_start().starts_with('|');
            let mut words = line.split_whitespace();
            let is_whole = words.any(|word| word.chars().count() > WORD_COLUMNS_MAX);
            if columns > COLUMNS_MAX && !is_row && !is_whole {
                long.push(format!("{}:{}: {columns} columns", file.path, index + 1));
            }
        }
    }
    long
}

#[cfg(test)]
mod tests {
    use super::super::Tracked;
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::of(files);
        tree.tracked = files
            .iter()
            .map(|(path, text)| Tracked {
                path: (*path).into(),
                bytes: text.len() as u64,
            })
            .collect();
        tree
    }

    #[test]
    fn a_file_of_256_kib_is_in_the_tree_and_a_larger_one_is_refused() {
        let most = "x".repeat(256 << 10);
        assert_eq!(large_files(&tree(&[("a", &most)])), [""; 0]);
        let found = large_files(&tree(&[("a", &(most + "x"))]));
        assert_eq!(found, ["a: 262145 bytes"]);
    }

    #[test]
    fn a_page_is_found_by_a_link_from_another_page() {
        let first = (FIRST_PAGE, "[a](docs/a.md) [folder](docs/more#part)");
        let pages = [
            first,
            ("docs/a.md", "[up](../docs/./b.md \"b\")"),
            ("docs/b.md", ""),
            ("docs/more/README.md", ""),
        ];
        assert_eq!(unlinked(&tree(&pages)), [""; 0]);
        let itself = ("docs/c.md", "[c](c.md)");
        assert_eq!(
            unlinked(&tree(&[first, pages[1], itself])),
            ["docs/c.md: no page links to it"]
        );
    }

    #[test]
    fn lines_of_more_than_140_columns_are_refused_unless_they_cannot_be_broken() {
        let most = "ä ".repeat(70);
        let (longer, address) = (format!("{most}b"), format!("see {}", "a".repeat(140)));
        let row = format!("  | {longer} |");
        assert_eq!(
            long_lines(&tree(&[
                ("a.md", &most),
                ("b.md", &address),
                ("c.md", &row)
            ])),
            [""; 0]
        );
        let text = format!("```\n{longer}\n```");
        let found = long_lines(&tree(&[("a.md", &text), ("a.rs", &longer)]));
        assert_eq!(found, ["a.md:2: 141 columns"]);
    }
}
