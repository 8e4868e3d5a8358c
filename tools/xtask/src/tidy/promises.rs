//! What a page promises has its test named beside it, in a comment that readers of the page do not see:
//! `<!-- test: NAME, NAME -->`, where a name is a test's function or the words by which a tool prints a check.
//!
//! It does not judge whether the test shows what the sentence says. Bounded by: the pages.

use std::collections::HashSet;

use super::{SourceFile, Tree};

const OPEN: &str = "<!-- test: ";
const CLOSE: &str = " -->";
/// The head of a table that says what happens when something else does. Each of its rows has a test, in the pages
/// for operators.
const PROMISES_HEAD: &str = "| What | Then |";
const OPERATORS_PAGES: &str = "docs/run/";

/// Names that no test has, and rows of promises without one.
pub(super) fn promises(tree: &Tree) -> Vec<String> {
    let tests: HashSet<&str> = tree.ending(".rs").flat_map(test_names).collect();
    let is_known = |name: &str| {
        let is_check = || {
            let mut tools = tree
                .ending(".rs")
                .filter(|file| file.path.starts_with("tools/"));
            name.contains(' ') && tools.any(|file| file.text.contains(name))
        };
        tests.contains(name) || is_check()
    };
    let pages = tree.ending(".md");
    pages
        .flat_map(|page| promises_of(page, &is_known))
        .collect()
}

/// Functions right below `#[test]`, or that of an asynchronous test, attributes between them left out.
fn test_names(file: &SourceFile) -> Vec<&str> {
    let mut names = Vec::new();
    let mut is_test = false;
    for line in file.text.lines().map(str::trim_start) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some((name, _)) = line
            .trim_start_matches("async ")
            .strip_prefix("fn ")
            .and_then(|rest| rest.split_once('('))
        {
            if is_test {
                names.push(name);
            }
            is_test = false;
        }
    }
    names
}

fn promises_of(page: &SourceFile, is_known: &impl Fn(&str) -> bool) -> Vec<String> {
    let is_for_operators = page.path.starts_with(OPERATORS_PAGES);
    let mut found = Vec::new();
    // Of a table of promises: its head and the line below it come first.
    let mut rows = None;
    for (index, line) in page.text.lines().enumerate() {
        let mut note =
            |problem: String| found.push(format!("{}:{}: {problem}", page.path, index + 1));
        let names = line
            .split(OPEN)
            .skip(1)
            .filter_map(|rest| rest.split_once(CLOSE));
        let names = names.flat_map(|(names, _)| names.split(", "));
        for name in names.filter(|name| !is_known(name)) {
            note(format!("no test or check is called {name:?}"));
        }
        rows = match rows {
            _ if is_for_operators && line == PROMISES_HEAD => Some(0),
            Some(count) if line.starts_with('|') => Some(count + 1),
            _ => None,
        };
        if rows.is_some_and(|rows| rows > 1) && !line.contains(OPEN) {
            note("no test is named".to_owned());
        }
    }
    found
}

/// A line without the names of its tests, as readers of the page see it.
pub(super) fn shown(line: &str) -> String {
    let mut parts = line.split(OPEN);
    let first = parts.next().unwrap_or_default();
    let rest = parts.filter_map(|part| part.split_once(CLOSE));
    first
        .chars()
        .chain(rest.flat_map(|(_, rest)| rest.chars()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::Tree;
    use super::{promises, shown};

    #[test]
    fn promises_name_tests_that_exist() {
        let code = (
            "crates/a/src/lib.rs",
            "#[test]\n#[ignore]\nfn it_holds() {\n}\nfn helper() {\n}\n\
             #[tokio::test]\nasync fn it_waits() {\n}\nasync fn waiter() {\n}\n",
        );
        let tool = (
            "tools/x/src/main.rs",
            "suite.run(\"packet: it holds\", check)",
        );
        let page = |text| Tree::of(&[code, tool, ("docs/run/a.md", text)]);
        let good = "It holds. <!-- test: it_holds, it holds, it_waits -->\n\n\
            | What | Then |\n|---|---|\n| a | b <!-- test: it_holds --> |\n\nText.\n";
        assert_eq!(promises(&page(good)), [""; 0]);
        let bad = "It holds. <!-- test: helper -->\n\n\
            | What | Then |\n|---|---|\n| a | b |\n\n| What | Takes |\n|---|---|\n| a | b |\n\
            No. <!-- test: it_holds, it breaks, waiter -->\n";
        assert_eq!(
            promises(&page(bad)),
            [
                "docs/run/a.md:1: no test or check is called \"helper\"",
                "docs/run/a.md:5: no test is named",
                "docs/run/a.md:10: no test or check is called \"it breaks\"",
                "docs/run/a.md:10: no test or check is called \"waiter\"",
            ]
        );
    }

    #[test]
    fn names_of_tests_are_not_shown() {
        assert_eq!(shown("It holds. <!-- test: it_holds -->"), "It holds. ");
        assert_eq!(shown("A <!-- test: a -->b <!-- test: c -->d"), "A b d");
        assert_eq!(shown("nothing <!-- else -->"), "nothing <!-- else -->");
    }
}
