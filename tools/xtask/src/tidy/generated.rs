//! Parts of documents that are made from the code: what one declaration knows is not written twice.
//!
//! A rule compares each with its page; with `UPDATE_SNAPSHOTS=1` it writes the page instead. Prose is no part: it stays
//! in the pages. Bounded by [`PARTS`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};
use clap::CommandFactory as _;

use super::Tree;
use super::rules::{FLEET_ARROWS, PRODUCT_ARROWS, PURE_ROOMS, TOOL_ARROWS, dependencies, room_of};
use testbed::pages::Part;

/// Makes a part from the tree and from what the page has now.
type Make = fn(&Tree, &str) -> Result<String>;

/// Every part, and what makes it.
const PARTS: [(Part, Make); 7] = [
    (
        part("docs/run/configuration.md", "settings"),
        |_: &Tree, _: &str| Ok(server::documents::settings()),
    ),
    (part("docs/run/sites.md", "sites"), |_: &Tree, _: &str| {
        Ok(server::documents::sites())
    }),
    (
        part("docs/run/configuration.md", "exit codes"),
        |_: &Tree, _: &str| Ok(server::documents::exit_codes()),
    ),
    (
        part("docs/run/metrics.md", "counters"),
        |_: &Tree, _: &str| Ok(server::documents::counters()),
    ),
    (part("docs/develop/dependencies.md", "crates"), crates),
    (part("ARCHITECTURE.md", "arrows"), arrows),
    (part("docs/README.md", "commands"), commands),
];

const fn part(page: &'static str, name: &'static str) -> Part {
    Part {
        page,
        name,
        command: "UPDATE_SNAPSHOTS=1 cargo xtask tidy",
    }
}

/// Every part of a page is what the code says.
pub(super) fn generated(tree: &Tree) -> Vec<String> {
    let is_update = std::env::var_os("UPDATE_SNAPSHOTS").is_some();
    let check = |(part, make): &(Part, Make)| -> Result<()> {
        let page = tree.text_of(part.page).context("no such page")?;
        let old = part.of(page)?;
        let new = make(tree, old)?;
        match (new == old, is_update) {
            (true, _) => Ok(()),
            // The page is read again: it may have several parts.
            (false, true) => part.write(&tree.root, &new),
            (false, false) => bail!("stale: {} writes it", part.command),
        }
    };
    let problem = |it: &(Part, Make)| {
        let error = check(it).err()?;
        Some(format!("{} ({}): {error:#}", it.0.page, it.0.name))
    };
    PARTS.iter().filter_map(problem).collect()
}

/// The commands of `cargo xtask`, with the first line of each one's help.
fn commands(_: &Tree, _: &str) -> Result<String> {
    let mut text = String::from("| Command | Does |\n|---|---|\n");
    let command = crate::Arguments::command();
    for inner in command.get_subcommands() {
        command_rows(&mut text, "cargo xtask", inner);
    }
    Ok(text)
}

fn command_rows(text: &mut String, before: &str, command: &clap::Command) {
    let name = format!("{before} {}", command.get_name());
    if command.has_subcommands() {
        for inner in command.get_subcommands() {
            command_rows(text, &name, inner);
        }
    } else {
        let about = command.get_about().map(ToString::to_string);
        let _ = writeln!(text, "| `{name}` | {} |", about.unwrap_or_default());
    }
}

/// The rooms of the product, pure ones first, and which each may use: those behind its arrow and what these use.
fn arrows(tree: &Tree, _: &str) -> Result<String> {
    let uses = uses(tree)?;
    let mut text = String::from("```text\n");
    for (kind, is_pure) in [("pure ", true), ("Linux", false)] {
        let rooms = PRODUCT_ARROWS.iter().map(|(room, _)| *room);
        let rooms = rooms.filter(|room| PURE_ROOMS.contains(room) == is_pure);
        let mut kind = kind;
        for room in rooms {
            let direct = nearest(&uses, room);
            let line = format!("{kind}  {room:8} -> {}", direct.join(", "));
            let line = line.trim_end().trim_end_matches("->").trim_end();
            let _ = writeln!(text, "{line}");
            kind = "     ";
        }
    }
    text.push_str("```\n");
    Ok(text)
}

/// What a room uses but for what those use anyway.
fn nearest<'a>(uses: &BTreeMap<&'a str, BTreeSet<&'a str>>, room: &str) -> Vec<&'a str> {
    let direct = &uses[room];
    let reached = |from: &str| -> BTreeSet<&str> {
        let mut found = BTreeSet::new();
        let mut open: Vec<&str> = uses[from].iter().copied().collect();
        while let Some(next) = open.pop() {
            if found.insert(next) {
                open.extend(&uses[next]);
            }
        }
        found
    };
    let is_far = |it: &str| direct.iter().any(|other| reached(other).contains(it));
    let near = direct.iter().filter(|it| !is_far(it));
    near.copied().collect()
}

/// The rooms of the product that each uses, by their manifests.
fn uses(tree: &Tree) -> Result<BTreeMap<&'static str, BTreeSet<&'static str>>> {
    let rooms = PRODUCT_ARROWS.map(|(room, _)| room);
    let mut uses = BTreeMap::new();
    for room in rooms {
        let path = format!("crates/{room}/Cargo.toml");
        let manifest = tree.text_of(&path).with_context(|| format!("no {path}"))?;
        let manifest: toml::Table = manifest.parse()?;
        let named = dependencies(&manifest, &["dependencies"]);
        let named = rooms.into_iter().filter(|it| named.contains(it)).collect();
        uses.insert(room, named);
    }
    Ok(uses)
}

/// Who uses a crate.
#[derive(Debug, Default)]
struct Users<'a> {
    /// Rooms that are built with it.
    built: Vec<&'a str>,
    /// Rooms whose tests alone are.
    tested: Vec<&'a str>,
}

impl Users<'_> {
    fn text(&self) -> String {
        let tested = match self.tested.as_slice() {
            [] => String::new(),
            rooms => format!("tests of {}", rooms.join(", ")),
        };
        let parts = [self.built.join(", "), tested];
        let parts = parts.into_iter().filter(|it| !it.is_empty());
        parts.collect::<Vec<_>>().join("; ")
    }
}

/// The table of crates that are not ours: who uses each is from the manifests, and why it is there from the page.
fn crates(tree: &Tree, old: &str) -> Result<String> {
    let users = users(tree)?;
    let reasons = old.lines().skip(2).map(|row| {
        let mut cells = row.trim_matches('|').splitn(3, '|');
        let (name, why) = (cells.next().unwrap_or_default(), cells.nth(1));
        (name.trim(), why.unwrap_or_default().trim())
    });
    let reasons: BTreeMap<&str, &str> = reasons.collect();
    let mut text = String::from("| Crate | Used by | Why |\n|---|---|---|\n");
    for (name, users) in &users {
        let why = reasons.get(name.as_str()).filter(|it| !it.is_empty());
        let why = why.with_context(|| format!("no row says why {name} is there"))?;
        let _ = writeln!(text, "| {name} | {} | {why} |", users.text());
    }
    Ok(text)
}

fn users(tree: &Tree) -> Result<BTreeMap<String, Users<'_>>> {
    let mut users: BTreeMap<String, Users<'_>> = BTreeMap::new();
    let is_ours = |name: &str| {
        let rooms = PRODUCT_ARROWS.iter().chain(&FLEET_ARROWS);
        let mut rooms = rooms.chain(&TOOL_ARROWS);
        rooms.any(|(room, _)| *room == name)
    };
    for file in tree.ending("/Cargo.toml") {
        let Some(room) = room_of(&file.path).or_else(|| file.path.strip_suffix("/Cargo.toml"))
        else {
            continue;
        };
        let manifest: toml::Table = file.text.parse()?;
        let built = dependencies(&manifest, &["dependencies", "build-dependencies"]);
        for name in built.iter().filter(|name| !is_ours(name)) {
            users.entry((*name).into()).or_default().built.push(room);
        }
        let tested = dependencies(&manifest, &["dev-dependencies"]);
        let tested = tested.iter().filter(|name| !built.contains(name));
        for name in tested.filter(|name| !is_ours(name)) {
            users.entry((*name).into()).or_default().tested.push(room);
        }
    }
    Ok(users)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_those_of_the_manifests_and_each_crate_has_its_reason() {
        let tree = Tree::of(&[
            (
                "crates/tcp/Cargo.toml",
                "[dependencies]\nwire.workspace = true\nlibc = \"1\"\n[dev-dependencies]\nproptest = \"1\"\n",
            ),
            ("fuzz/Cargo.toml", "[dependencies]\nlibc = \"1\"\n"),
        ]);
        let head = "| Crate | Used by | Why |\n|---|---|---|\n";
        let old = format!("{head}| gone | a | b |\n| libc | nobody | calls |\n");
        let error = crates(&tree, &old).unwrap_err().to_string();
        assert!(error.contains("proptest"), "{error}");
        let new = crates(&tree, &format!("{old}| proptest | | properties |\n"));
        let rows = "| libc | tcp, fuzz | calls |\n| proptest | tests of tcp | properties |\n";
        assert_eq!(new.unwrap(), format!("{head}{rows}"));
    }

    #[test]
    fn what_is_reached_anyway_is_not_drawn() {
        let uses = BTreeMap::from([
            ("a", BTreeSet::new()),
            ("b", BTreeSet::from(["a"])),
            ("c", BTreeSet::from(["a", "b"])),
        ]);
        assert_eq!(nearest(&uses, "c"), ["b"]);
    }

    #[test]
    fn a_page_that_is_stale_or_lacks_its_part_is_named() {
        let (part, _) = PARTS[1];
        let marked = "<!-- exit codes: written by UPDATE_SNAPSHOTS=1 cargo xtask tidy, not to be \
                      edited -->\n<!-- end of exit codes -->\n";
        for page in ["", marked] {
            let problems = generated(&Tree::of(&[(part.page, page)]));
            let named = problems.iter().filter(|it| it.contains("exit codes"));
            assert_eq!(named.count(), 1, "{problems:?}");
        }
    }
}
