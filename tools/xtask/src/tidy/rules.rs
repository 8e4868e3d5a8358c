//! The rules. Each returns one line for each thing that breaks it.

use std::collections::HashSet;
use std::path::Path;

use super::text::{code_lines, relative_links};
use super::{SourceFile, Tree};

/// Most code lines of a file; comments and tests are free.
const CODE_LINES_MAX: usize = 800;

/// Where the product's rooms are.
const PRODUCT_FOLDER: &str = "crates";

/// Where the tools are.
const TOOLS_FOLDER: &str = "tools";

/// Where the programs of a fleet are.
const FLEET_FOLDER: &str = "fleet";

/// The product's rooms under `crates/`, and which rooms each may depend on: no tool. A room not
/// named here may not exist.
pub(super) const PRODUCT_ARROWS: [(&str, &[&str]); 17] = [
    ("amount", &[]),
    ("clock", &[]),
    ("counters", &[]),
    ("wire", &[]),
    ("http", &["clock"]),
    ("sites", &["http"]),
    ("memory", &[]),
    ("record", &[]),
    ("volume", &[]),
    ("store", &["clock", "counters", "volume"]),
    ("tcp", &["clock", "wire"]),
    ("link", &["clock", "counters", "memory", "wire"]),
    ("diskmap", &["clock", "counters", "memory"]),
    ("writer", &["clock", "diskmap", "memory", "store", "volume"]),
    (
        "session",
        &[
            "clock", "counters", "http", "memory", "record", "sites", "tcp", "wire",
        ],
    ),
    (
        "worker",
        &[
            "clock", "counters", "diskmap", "http", "link", "memory", "record", "session", "sites",
            "store", "tcp", "wire",
        ],
    ),
    (
        "server",
        &[
            "amount", "clock", "counters", "diskmap", "http", "link", "memory", "record",
            "session", "sites", "store", "tcp", "volume", "wire", "worker", "writer",
        ],
    ),
];

/// The tools under `tools/`, which measure and test the product, and what each may depend on.
pub(super) const TOOL_ARROWS: [(&str, &[&str]); 12] = [
    ("llc", &[]),
    ("testbed", &["wire"]),
    ("nic-wire", &["clock", "memory", "testbed", "wire"]),
    (
        "stages",
        &[
            "clock", "diskmap", "http", "link", "memory", "nic-wire", "record", "session",
            "testbed", "wire",
        ],
    ),
    ("bottleneck", &["nic-wire", "testbed"]),
    (
        "bench",
        &[
            "bottleneck",
            "memory",
            "nic-wire",
            "stages",
            "tcp",
            "testbed",
        ],
    ),
    (
        "sim",
        &[
            "clock", "counters", "diskmap", "http", "link", "llc", "memory", "record", "session",
            "sites", "store", "tcp", "wire", "worker",
        ],
    ),
    (
        "drill",
        &[
            "clock", "http", "memory", "record", "session", "sites", "wire",
        ],
    ),
    ("demo", &["testbed"]),
    ("fleet", &["testbed"]),
    ("interop", &["bottleneck", "nic-wire", "testbed"]),
    (
        "xtask",
        &[
            "bench", "drill", "fleet", "interop", "llc", "nic-wire", "server", "sim", "testbed",
            "wire",
        ],
    ),
];

/// The programs of a fleet under `fleet/`, and which rooms of the product each may use: nothing of the product, and no
/// tool, depends on them.
pub(super) const FLEET_ARROWS: [(&str, &[&str]); 4] = [
    ("fill", &["amount", "store", "volume", "writer"]),
    ("placement", &[]),
    ("registry", &["placement"]),
    ("steer", &["placement", "registry"]),
];

/// Rooms without system calls, clocks, I/O or `unsafe`.
pub(super) const PURE_ROOMS: [&str; 10] = [
    "amount", "clock", "counters", "http", "record", "session", "sites", "tcp", "volume", "wire",
];

/// Words that mark unfinished work; split here, so that this file does not break its own rule.
const BANNED_WORDS: [&str; 3] = [
    concat!("FIX", "ME"),
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
];

/// Names of places that mean something on one machine or network only; split for the same reason.
const PLACES: [&str; 6] = [
    concat!("/wo", "rk/"),
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("deb.deb", "ian.org"),
    concat!("registry.npm", "js"),
    concat!("proxy.gol", "ang"),
];

/// Folders of one user of one machine, which code may have reason to name, but documents not.
const USER_FOLDERS: [&str; 2] = [concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// Where the decision notes are.
const DECISIONS: &str = "docs/develop/decisions/";

/// Where modules with unsafe code are listed.
const UNSAFE_LIST: &str = "docs/develop/unsafe.md";

/// How a module says that it has unsafe code.
const UNSAFE_MARK: &str = concat!("allow(\n    unsafe", "_code");

/// Every dependency between rooms is in [`PRODUCT_ARROWS`], [`FLEET_ARROWS`] or [`TOOL_ARROWS`], and no room
/// of the product depends on a tool, not even for its tests.
pub(super) fn arrows(tree: &Tree) -> Vec<String> {
    tree.ending("/Cargo.toml")
        .flat_map(|file| arrows_of(&file.path, &file.text))
        .collect()
}

fn arrows_of(path: &str, manifest: &str) -> Vec<String> {
    let Some((folder, room)) = folder_and_room(path) else {
        return Vec::new();
    };
    let is_product = folder == PRODUCT_FOLDER;
    let arrows: &[(&str, &[&str])] = match folder {
        PRODUCT_FOLDER => &PRODUCT_ARROWS,
        FLEET_FOLDER => &FLEET_ARROWS,
        _ => &TOOL_ARROWS,
    };
    let Some((_, allowed)) = arrows.iter().find(|(name, _)| *name == room) else {
        return vec![format!(
            "{path}: the room {room} has no arrows in tidy's table of {folder}/"
        )];
    };
    let table: toml::Table = match manifest.parse() {
        Ok(table) => table,
        Err(error) => return vec![format!("{path}: {error}")],
    };
    let built = dependencies(&table, &["dependencies", "build-dependencies"]);
    let refused = built
        .iter()
        .filter(|name| is_room(name) && !allowed.contains(name))
        .map(|name| format!("{path}: {room} may not depend on {name}"));
    let tested = dependencies(&table, &["dev-dependencies"]);
    let tools = tested
        .iter()
        .filter(|name| is_product && is_tool(name))
        .map(|name| format!("{path}: tests of {room} may not depend on the tool {name}"));
    refused.chain(tools).collect()
}

/// What the sections of a manifest name, also those for some targets only.
pub(super) fn dependencies<'a>(manifest: &'a toml::Table, sections: &[&str]) -> Vec<&'a str> {
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let targets = targets
        .into_iter()
        .flat_map(toml::Table::values)
        .filter_map(toml::Value::as_table);
    std::iter::once(manifest)
        .chain(targets)
        .flat_map(|table| sections.iter().filter_map(|section| table.get(*section)))
        .filter_map(toml::Value::as_table)
        .flat_map(toml::Table::iter)
        .map(|(key, value)| package(key, value))
        .collect()
}

/// The room that an entry of a manifest means, whatever name it is given there.
fn package<'a>(key: &'a str, value: &'a toml::Value) -> &'a str {
    let package = value.get("package").and_then(toml::Value::as_str);
    package.unwrap_or(key).trim_start_matches("atlas-")
}

fn is_room(name: &str) -> bool {
    let mut rooms = PRODUCT_ARROWS.iter().chain(&FLEET_ARROWS);
    rooms.any(|(room, _)| *room == name) || is_tool(name)
}

fn is_tool(name: &str) -> bool {
    TOOL_ARROWS.iter().any(|(room, _)| *room == name)
}

/// The room a file under `crates/`, `fleet/` or `tools/` belongs to. An instrument in the bench's folder is one of its own.
pub(super) fn room_of(path: &str) -> Option<&str> {
    folder_and_room(path).map(|(_, room)| room)
}

fn folder_and_room(path: &str) -> Option<(&str, &str)> {
    let (folder, rest) = path.split_once('/')?;
    let mut parts = rest.split('/');
    let room = parts.next()?;
    let inner = parts
        .next()
        .filter(|it| folder == TOOLS_FOLDER && is_tool(it));
    matches!(folder, PRODUCT_FOLDER | FLEET_FOLDER | TOOLS_FOLDER)
        .then_some((folder, inner.unwrap_or(room)))
}

/// The feature of `atlas-tcp` and `atlas-session` that puts faults in, and the manifest that alone turns it on.
const CANARY_FEATURE: &str = "canaries";
const CANARY_MANIFEST: &str = "tools/sim/Cargo.toml";

/// No manifest but the simulator's has faults put back.
pub(super) fn canaries(tree: &Tree) -> Vec<String> {
    tree.ending("Cargo.toml")
        .filter(|file| file.path != CANARY_MANIFEST)
        .flat_map(|file| canaries_of(&file.path, &file.text))
        .collect()
}

fn canaries_of(path: &str, manifest: &str) -> Vec<String> {
    let table: toml::Table = match manifest.parse() {
        Ok(table) => table,
        Err(error) => return vec![format!("{path}: {error}")],
    };
    let mut problems = Vec::new();
    // Wherever a manifest turns features on it does so in an array: of `features`, of `default`, or
    // of another feature.
    let mut tables = vec![&table];
    while let Some(table) = tables.pop() {
        for (key, value) in table {
            let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
            let mut names = items.iter().filter_map(toml::Value::as_str);
            if names.any(|name| name.rsplit('/').next() == Some(CANARY_FEATURE)) {
                problems.push(format!(
                    "{path}: {key} turns the feature {CANARY_FEATURE} on"
                ));
            }
            tables.extend(value.as_table());
            tables.extend(items.iter().filter_map(toml::Value::as_table));
        }
    }
    problems
}

/// Every pure room forbids unsafe code for good.
pub(super) fn purity(tree: &Tree) -> Vec<String> {
    PURE_ROOMS
        .iter()
        .map(|room| format!("crates/{room}/src/lib.rs"))
        .filter(|path| {
            !tree
                .text_of(path)
                .is_some_and(|text| text.contains("#![forbid(unsafe_code)]"))
        })
        .map(|path| format!("{path}: lacks #![forbid(unsafe_code)]"))
        .collect()
}

/// No file outgrows a reader.
pub(super) fn lengths(tree: &Tree) -> Vec<String> {
    tree.ending(".rs")
        .filter(|file| !file.path.ends_with("/tests.rs") && !file.path.contains("/tests/"))
        .map(|file| (file, code_lines(&file.text)))
        .filter(|(_, lines)| *lines > CODE_LINES_MAX)
        .map(|(file, lines)| format!("{}: {lines} code lines", file.path))
        .collect()
}

/// Nothing unfinished.
pub(super) fn banned_words(tree: &Tree) -> Vec<String> {
    tree.ending(".rs")
        .flat_map(|file| lines_with(file, &BANNED_WORDS))
        .collect()
}

/// No names of places.
pub(super) fn places(tree: &Tree) -> Vec<String> {
    tree.files
        .iter()
        // Cargo writes its registry into the lock file.
        .filter(|file| !file.path.ends_with("Cargo.lock"))
        .flat_map(|file| lines_with(file, &PLACES))
        .chain(
            tree.ending(".md")
                .flat_map(|file| lines_with(file, &USER_FOLDERS)),
        )
        .collect()
}

fn lines_with(file: &SourceFile, words: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for word in words.iter().filter(|word| line.contains(**word)) {
            found.push(format!("{}:{}: {word}", file.path, index + 1));
        }
    }
    found
}

/// Every numbered note has its line in the index.
pub(super) fn decisions(tree: &Tree) -> Vec<String> {
    let index = tree
        .text_of("docs/develop/decisions/README.md")
        .unwrap_or_default();
    tree.ending(".md")
        .filter_map(|file| file.path.strip_prefix(DECISIONS))
        .filter(|name| name.starts_with(|first: char| first.is_ascii_digit()))
        .filter(|name| !index.contains(&format!("({name})")))
        .map(|name| format!("{DECISIONS}{name}: no link from README.md there"))
        .collect()
}

/// Modules with unsafe code and their list agree, both ways.
pub(super) fn unsafe_listed(tree: &Tree) -> Vec<String> {
    let list = tree.text_of(UNSAFE_LIST).unwrap_or_default();
    let has_unsafe = |file: &SourceFile| {
        let one_line = UNSAFE_MARK.replace("\n    ", "");
        file.text.contains(UNSAFE_MARK) || file.text.contains(&one_line)
    };
    let missing = tree
        .ending(".rs")
        .filter(|file| has_unsafe(file) && !list.contains(&format!("`{}`", file.path)))
        .map(|file| format!("{}: not listed in {UNSAFE_LIST}", file.path));
    let stale = list
        .split('`')
        .filter(|span| span.ends_with(".rs") && room_of(span).is_some())
        .filter(|path| {
            !tree
                .files
                .iter()
                .any(|file| file.path == *path && has_unsafe(file))
        })
        .map(|path| format!("{UNSAFE_LIST}: {path} has no unsafe code"));
    missing.chain(stale).collect()
}

/// Every link from a document to a file of the tree leads somewhere.
pub(super) fn links(tree: &Tree) -> Vec<String> {
    let mut broken = Vec::new();
    for file in tree.ending(".md") {
        let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
        for link in relative_links(&file.text) {
            if !tree.root.join(folder).join(&link).exists() {
                broken.push(format!("{}: no {link}", file.path));
            }
        }
    }
    broken
}

/// Where the byte's road is told.
const ROAD: [&str; 2] = ["ARCHITECTURE.md", "docs/develop/stops.md"];

/// Every test, counter and file that the byte's road names exists. A name is what stands between
/// back-ticks and has two underscores or more, or a slash and an ending or a slash at its end.
pub(super) fn road(tree: &Tree) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = tree
        .ending(".rs")
        .flat_map(|file| file.text.split(move |c| !is_part(c)));
    let words: HashSet<&str> = words.collect();
    let is_known_path = |path: &str| tree.files.iter().any(|file| file.path.starts_with(path));
    let is_unknown = |span: &str| {
        let word = span
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if word && span.matches('_').count() >= 2 {
            return !words.contains(span);
        }
        let path = span.starts_with("crates/") || span.starts_with("tools/");
        path && !is_known_path(span)
    };
    let mut problems = Vec::new();
    for page in ROAD {
        let text = tree.text_of(page).unwrap_or_default();
        let spans = text.split('`').skip(1).step_by(2);
        let unknown = spans.filter(|span| is_unknown(span));
        problems.extend(unknown.map(|it| format!("{page}: nothing in the code is called {it}")));
    }
    problems
}

/// Every room of the product has its row where the byte's road is told.
pub(super) fn rooms_told(tree: &Tree) -> Vec<String> {
    let text = tree.text_of(ROAD[0]).unwrap_or_default();
    let rooms = PRODUCT_ARROWS.iter().map(|(room, _)| *room);
    rooms
        .filter(|room| !text.contains(&format!("| [{room}](crates/{room}/src/lib.rs) |")))
        .map(|room| format!("{}: no row for the room {room}", ROAD[0]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_the_road_exist() {
        let code = ("crates/tcp/src/lib.rs", "fn a_test_name() {}");
        let road_of = |text: &str| road(&Tree::of(&[code, (ROAD[0], text), (ROAD[1], text)]));
        assert!(
            road_of("see `a_test_name`, `crates/tcp/src/`, `Worker::step`, `two_parts`").is_empty()
        );
        assert_eq!(
            road_of("see `another_test_name` and `crates/udp/`").len(),
            4
        );
    }

    #[test]
    fn a_room_without_a_row_is_found() {
        let row = |room: &str| format!("| [{room}](crates/{room}/src/lib.rs) | what | how |\n");
        let all: String = PRODUCT_ARROWS.iter().map(|(room, _)| row(room)).collect();
        assert!(rooms_told(&Tree::of(&[(ROAD[0], &all)])).is_empty());
        let fewer = all.replace(&row("wire"), "");
        assert_eq!(rooms_told(&Tree::of(&[(ROAD[0], &fewer)])).len(), 1);
    }

    #[test]
    fn arrows_point_one_way() {
        let manifest = "[dependencies]\nwire.workspace = true\nlibc = \"1\"\n";
        assert!(arrows_of("crates/tcp/Cargo.toml", manifest).is_empty());
        let back = "[dependencies]\natlas-tcp = { path = \"../tcp\" }\n";
        assert_eq!(arrows_of("crates/wire/Cargo.toml", back).len(), 1);
        assert_eq!(arrows_of("crates/newcomer/Cargo.toml", "").len(), 1);
    }

    #[test]
    fn tools_depend_on_the_product_and_never_the_other_way() {
        for section in [
            "dependencies",
            "build-dependencies",
            "dev-dependencies",
            "target.'cfg(unix)'.dependencies",
            "target.'cfg(unix)'.dev-dependencies",
        ] {
            for tool in TOOL_ARROWS.map(|(tool, _)| tool) {
                let manifest = format!("[{section}]\n{tool}.workspace = true\n");
                assert_eq!(
                    arrows_of("crates/server/Cargo.toml", &manifest).len(),
                    1,
                    "{section} {tool}"
                );
            }
        }
        let renamed = "[dependencies]\nhelper = { package = \"atlas-stages\", path = \"x\" }\n";
        assert_eq!(arrows_of("crates/server/Cargo.toml", renamed).len(), 1);
        let tool = "[dependencies]\nrecord.workspace = true\ntestbed.workspace = true\n";
        assert!(arrows_of("tools/bench/stages/Cargo.toml", tool).is_empty());
        // An instrument has no more arrows for standing in the bench's folder.
        let bench = "[dependencies]\nstages.workspace = true\n";
        assert!(arrows_of("tools/bench/Cargo.toml", bench).is_empty());
        assert_eq!(arrows_of("tools/bench/nic-wire/Cargo.toml", bench).len(), 1);
        // A tool does not become a part of the product by standing among its rooms, nor a part of
        // the product a tool.
        assert_eq!(arrows_of("crates/stages/Cargo.toml", "").len(), 1);
        assert_eq!(arrows_of("tools/wire/Cargo.toml", "").len(), 1);
    }

    #[test]
    fn only_the_simulator_puts_faults_back() {
        let path = "crates/server/Cargo.toml";
        assert_eq!(canaries_of(path, "[features]\ncanaries = []\n"), [""; 0]);
        for bad in [
            "[features]\ndefault = [\"canaries\"]\n",
            "[features]\nextra = [\"tcp/canaries\"]\n",
            "[dependencies]\ntcp = { workspace = true, features = [\"canaries\"] }\n",
            "[dev-dependencies.tcp]\nworkspace = true\nfeatures = [\"canaries\"]\n",
            "[workspace.dependencies]\ntcp = { path = \"x\", features = [\"canaries\"] }\n",
        ] {
            assert_eq!(canaries_of(path, bad).len(), 1, "{bad}");
        }
    }

    #[test]
    fn the_tables_themselves_have_no_cycle_and_no_arrow_from_the_product_to_a_tool() {
        // Rooms come after all they depend on, so nothing can depend on itself; the product's
        // table comes first.
        let arrows = [&PRODUCT_ARROWS[..], &FLEET_ARROWS, &TOOL_ARROWS].concat();
        for (index, (room, allowed)) in arrows.iter().enumerate() {
            for name in *allowed {
                let before = arrows[..index].iter().any(|(earlier, _)| earlier == name);
                assert!(
                    before,
                    "{room} may depend on {name}, which does not stand before it"
                );
            }
        }
    }

    #[test]
    fn unsafe_modules_and_their_list_agree() {
        let module = concat!("#![allow(unsafe", "_code, reason = \"\")]");
        let path = "crates/link/src/sys.rs";
        let listed = "- `crates/link/src/sys.rs`: system calls";
        assert_eq!(unsafe_listed(&Tree::of(&[(path, module)])).len(), 1);
        assert!(unsafe_listed(&Tree::of(&[(path, module), (UNSAFE_LIST, listed)])).is_empty());
        assert_eq!(
            unsafe_listed(&Tree::of(&[(path, ""), (UNSAFE_LIST, listed)])).len(),
            1
        );
    }

    #[test]
    fn lengths_notes_words_and_places_are_found() {
        let long = "x();\n".repeat(CODE_LINES_MAX + 1);
        assert_eq!(lengths(&Tree::of(&[("a.rs", &long)])).len(), 1);
        assert!(lengths(&Tree::of(&[("a.rs", &long[5..]), ("b/tests.rs", &long)])).is_empty());
        let note = ("docs/develop/decisions/0001-a.md", "");
        assert_eq!(decisions(&Tree::of(&[note])).len(), 1);
        let index = ("docs/develop/decisions/README.md", "[a](0001-a.md)");
        assert!(decisions(&Tree::of(&[note, index])).is_empty());
        assert_eq!(
            banned_words(&Tree::of(&[("a.rs", BANNED_WORDS[0])])).len(),
            1
        );
        assert_eq!(
            places(&Tree::of(&[("a.md", PLACES[3]), ("Cargo.lock", PLACES[3])])).len(),
            1
        );
    }
}
