//! `cargo xtask tidy`: rules about the tree itself that no compiler checks.
//!
//! Each rule reads the working tree and answers with a list of what breaks it, one line each, file
//! first; then the tree's weight is printed. It changes nothing, but for the generated parts of documents, and
//! those only if asked to. Bounded by: the tree's own text files.

mod generated;
mod numbers;
mod pages;
mod promises;
mod rules;
mod text;
mod weight;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use testbed::process::output;
use testbed::suite::{Outcome, Suite};
use testbed::workspace_root;

/// What holds nothing of the project's own. `.git` is a file in a linked worktree.
const SKIPPED: [&str; 2] = [".git", "target"];

/// A text file of the tree.
#[derive(Clone, Debug)]
struct SourceFile {
    /// Path from the top, with `/`.
    path: String,
    text: String,
}

/// A file that git has.
#[derive(Clone, Debug)]
struct Tracked {
    path: String,
    bytes: u64,
}

/// The tree's text files, and what git has of it.
#[derive(Debug)]
struct Tree {
    root: PathBuf,
    files: Vec<SourceFile>,
    tracked: Vec<Tracked>,
}

/// The longest that git may take to list its files.
const LIST_LIMIT: Duration = Duration::from_secs(60);

impl Tree {
    fn read(root: PathBuf) -> Result<Self> {
        let mut files = Vec::new();
        collect(&root, &root, &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let tracked = tracked(&root)?;
        Ok(Self {
            root,
            files,
            tracked,
        })
    }

    /// A tree of these files, none of which git has.
    #[cfg(test)]
    fn of(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| SourceFile {
            path: (*path).into(),
            text: (*text).into(),
        };
        Self {
            root: "/nonexistent".into(),
            files: files.iter().map(file).collect(),
            tracked: Vec::new(),
        }
    }

    /// The files whose name ends so.
    fn ending(&self, end: &'static str) -> impl Iterator<Item = &SourceFile> {
        self.files
            .iter()
            .filter(move |file| file.path.ends_with(end))
    }

    fn text_of(&self, path: &str) -> Option<&str> {
        self.files
            .iter()
            .find(|file| file.path == path)
            .map(|file| file.text.as_str())
    }
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<SourceFile>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let kind = entry.file_type()?;
        if SKIPPED.iter().any(|skipped| name == *skipped) {
            continue;
        }
        if kind.is_dir() {
            collect(root, &path, files)?;
        } else if kind.is_file() {
            // What is not UTF-8 is not text and has no rules.
            if let Ok(text) = fs::read_to_string(&path) {
                let path = path.strip_prefix(root).unwrap_or(&path);
                files.push(SourceFile {
                    path: path.to_string_lossy().into_owned(),
                    text,
                });
            }
        }
    }
    Ok(())
}

/// What git has, but for what the working tree has not.
fn tracked(root: &Path) -> Result<Vec<Tracked>> {
    let listed = output(
        Command::new("git")
            .args(["ls-files", "-z"])
            .current_dir(root),
        LIST_LIMIT,
    )?;
    let said = String::from_utf8_lossy(&listed.stderr);
    ensure!(listed.status.success(), "git ls-files: {}", said.trim());
    let names = String::from_utf8(listed.stdout).context("a name that is not UTF-8")?;
    let names = names.split_terminator('\0');
    let file = |name: &str| {
        let metadata = fs::symlink_metadata(root.join(name)).ok()?;
        Some(Tracked {
            path: name.to_owned(),
            bytes: metadata.len(),
        })
    };
    Ok(names.filter_map(file).collect())
}

/// A rule's name and what it finds.
type Rule = (&'static str, fn(&Tree) -> Vec<String>);

const RULES: [Rule; 18] = [
    ("rooms depend only along the arrows", rules::arrows),
    ("only the simulator puts faults back", rules::canaries),
    ("pure rooms forbid unsafe code", rules::purity),
    ("files have at most 800 code lines", rules::lengths),
    ("no banned words", rules::banned_words),
    ("every decision note is indexed", rules::decisions),
    (
        "every module with unsafe code is listed",
        rules::unsafe_listed,
    ),
    ("relative links resolve", rules::links),
    ("names in the architecture exist", rules::road),
    (
        "every room is told of in the architecture",
        rules::rooms_told,
    ),
    (
        "generated parts of documents are current",
        generated::generated,
    ),
    (
        "numbers of documents are those of the constants",
        numbers::numbers,
    ),
    ("figures of speed are in pages of results", numbers::speed),
    ("no registry hosts or machine paths", rules::places),
    ("no tracked file has more than 256 KiB", pages::large_files),
    ("every Markdown page is linked", pages::unlinked),
    ("Markdown lines have at most 140 columns", pages::long_lines),
    ("what pages promise has a test", promises::promises),
];

/// Applies all rules; fails if one is broken.
pub(crate) fn run_command() -> Result<()> {
    let mut suite = Suite::default();
    run(&mut suite);
    suite.close()
}

/// Applies all rules into a suite.
pub(crate) fn run(suite: &mut Suite) {
    let tree = match Tree::read(workspace_root()) {
        Ok(tree) => tree,
        Err(error) => return suite.fail("tidy", &format!("{error:#}")),
    };
    for (name, rule) in RULES {
        suite.run(&format!("tidy: {name}"), || {
            let problems = rule(&tree);
            ensure!(problems.is_empty(), "\n  {}", problems.join("\n  "));
            Ok(Outcome::Passed)
        });
    }
    println!("{}", weight::text(&tree));
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{collect, tracked};

    #[test]
    fn the_git_file_of_a_linked_worktree_is_not_read() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join(".git"), "gitdir: elsewhere").unwrap();
        fs::write(root.path().join("a.md"), "text").unwrap();
        fs::create_dir_all(root.path().join("target/b")).unwrap();
        fs::write(root.path().join("target/b/c.md"), "text").unwrap();
        let mut files = Vec::new();
        collect(root.path(), root.path(), &mut files).unwrap();
        let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["a.md"]);
    }

    #[test]
    fn what_git_has_is_listed_with_its_size_and_a_folder_of_no_repository_is_refused() {
        let root = tempfile::tempdir().unwrap();
        assert!(tracked(root.path()).is_err());
        let git = |arguments: &[&str]| {
            let mut command = std::process::Command::new("git");
            let status = command.current_dir(root.path()).args(arguments).status();
            assert!(status.unwrap().success());
        };
        git(&["init", "--quiet"]);
        for name in ["a.md", "b.md", "gone.md"] {
            fs::write(root.path().join(name), "text").unwrap();
        }
        git(&["add", "a.md", "gone.md"]);
        fs::remove_file(root.path().join("gone.md")).unwrap();
        let tracked = tracked(root.path()).unwrap();
        let found = tracked.iter().map(|it| (it.path.as_str(), it.bytes));
        assert_eq!(found.collect::<Vec<_>>(), [("a.md", 4)]);
    }
}
