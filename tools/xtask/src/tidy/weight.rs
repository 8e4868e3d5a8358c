//! What the tree weighs, in seven lines. Nothing is refused: the numbers are for whoever changes it.

use super::Tree;
use super::text::without_tests;

/// Folders whose Rust files are tests, or what only developers run.
const TEST_FOLDERS: [&str; 3] = ["tests", "examples", "benches"];

/// Where results are.
const RESULTS: &str = "bench/results/";

/// Seven lines, without an end.
pub(super) fn text(tree: &Tree) -> String {
    let [crates, fleet, tools] =
        ["crates/", "fleet/", "tools/"].map(|folder| production(tree, folder));
    let all = tree.ending(".rs").filter(|file| {
        let folders = ["crates/", "fleet/", "tools/"];
        folders.iter().any(|folder| file.path.starts_with(folder))
    });
    let all: usize = all.map(|file| file.text.lines().count()).sum();
    let markdown = kilobytes(tree, |path| path.ends_with(".md"));
    let results = kilobytes(tree, |path| path.starts_with(RESULTS));
    [
        format!("production lines of crates: {crates}"),
        format!("production lines of fleet: {fleet}"),
        format!("production lines of tools: {tools}"),
        format!(
            "lines of tests, examples and benches: {}",
            all - crates - fleet - tools
        ),
        format!("tracked files: {}", tree.tracked.len()),
        format!("Markdown: {markdown} KB"),
        format!("results: {results} KB"),
    ]
    .join("\n")
}

/// Lines of a folder's Rust files outside of tests, comments included.
fn production(tree: &Tree, folder: &str) -> usize {
    let is_test = |path: &str| {
        let mut parts = path.split('/');
        path.ends_with("/tests.rs") || parts.any(|part| TEST_FOLDERS.contains(&part))
    };
    tree.ending(".rs")
        .filter(|file| file.path.starts_with(folder) && !is_test(&file.path))
        .map(|file| without_tests(&file.text).lines().count())
        .sum()
}

fn kilobytes(tree: &Tree, is_wanted: fn(&str) -> bool) -> u64 {
    let files = tree.tracked.iter().filter(|file| is_wanted(&file.path));
    files.map(|file| file.bytes).sum::<u64>() / 1000
}

#[cfg(test)]
mod tests {
    use super::super::Tracked;
    use super::*;

    #[test]
    fn tests_are_told_apart_from_what_ships() {
        let source = "//! doc\nfn a() {}\n\n#[cfg(test)]\nmod tests {\n    fn t() {}\n}\n";
        let mut tree = Tree::of(&[
            ("crates/a/src/lib.rs", source),
            ("crates/a/src/tests.rs", "fn t() {}\n"),
            ("crates/a/tests/b.rs", "fn t() {}\n"),
            ("fleet/e/src/main.rs", "fn main() {}\n"),
            ("tools/b/examples/c.rs", "fn t() {}\n"),
            ("tools/b/src/main.rs", "fn main() {}\n"),
            ("fuzz/d.rs", source),
        ]);
        let file = |path: &str, bytes| Tracked {
            path: path.to_owned(),
            bytes,
        };
        tree.tracked = vec![file("a.md", 1500), file("bench/results/b.md", 2500)];
        let lines = [
            "production lines of crates: 3",
            "production lines of fleet: 1",
            "production lines of tools: 1",
            "lines of tests, examples and benches: 7",
            "tracked files: 2",
            "Markdown: 4 KB",
            "results: 2 KB",
        ];
        assert_eq!(text(&tree), lines.join("\n"));
    }
}
