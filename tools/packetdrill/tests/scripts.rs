//! Runs packetdrill's scripts if the program and the scripts are found; else says SKIPPED. How to get
//! them: `docs/develop/packetdrill.md`.

use std::fs;

use packetdrill::command::{Row, TABLE, judge, table};
use packetdrill::program::Judge;

#[test]
fn scripts_pass_or_their_failure_is_explained() {
    let found = match Judge::find(None, None) {
        Ok(found) => found,
        Err(missing) => {
            eprintln!("SKIPPED: {missing:#}");
            return;
        }
    };
    let rows = match judge(&found) {
        Ok(rows) => rows,
        Err(error) if error.to_string().contains("may not lock its memory") => {
            eprintln!("SKIPPED: {error:#}");
            return;
        }
        Err(error) => panic!("{error:#}"),
    };
    let problems: Vec<String> = rows.iter().filter_map(Row::problem).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let page = fs::read_to_string(testbed::workspace_root().join(TABLE.page)).unwrap();
    let (new, old) = (table(&rows), TABLE.of(&page).unwrap());
    let only_in = |one: &str, other: &str| {
        let lines = one.lines().filter(|line| !other.contains(line));
        lines.collect::<Vec<_>>().join("\n")
    };
    assert!(
        new == old,
        "docs/develop/packetdrill.md is old, or of other scripts (cargo xtask packetdrill --write):\n\
         new:\n{}\nold:\n{}",
        only_in(&new, old),
        only_in(old, &new)
    );
}
