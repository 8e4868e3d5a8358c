use super::{FileConfig, KEYS, PortOrOff, documentation};

const DOCUMENTATION_PATH: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");

/// Run with `UPDATE_DOCS=1` after changing a key: the page is written from the table.
#[test]
fn the_documentation_is_the_table() {
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(DOCUMENTATION_PATH, documentation()).unwrap();
    }
    let page = std::fs::read_to_string(DOCUMENTATION_PATH).unwrap();
    assert!(
        page == documentation(),
        "docs/configuration.md is stale: UPDATE_DOCS=1 cargo test -p atlas-server writes it"
    );
}

#[test]
fn the_file_and_the_table_have_the_same_keys() {
    // serde lists every field it knows when it meets one that it does not.
    let message = FileConfig::parse("no_such_key = 1").unwrap_err();
    let known: Vec<&str> = message.split('`').skip(3).step_by(2).collect();
    let table: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
    assert_eq!(known, table);
}

#[test]
fn the_example_in_the_documentation_parses() {
    let page = documentation();
    let example = page
        .split("```toml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let file = FileConfig::parse(example.unwrap()).unwrap();
    assert_eq!(file.http, Some(PortOrOff("8080".into())));
    assert_eq!(file.certificate.unwrap().len(), 2);
}

#[test]
fn an_unknown_key_is_refused_with_its_line() {
    let message = FileConfig::parse("http = 80\nhtpp = 81\n").unwrap_err();
    assert!(
        message.starts_with("line 2: unknown field `htpp`"),
        "{message}"
    );
}

#[test]
fn a_wrong_type_is_refused_with_its_line() {
    let message = FileConfig::parse("slots = \"many\"").unwrap_err();
    assert!(message.starts_with("line 1: invalid type"), "{message}");
    let message = FileConfig::parse("http = true").unwrap_err();
    assert!(
        message.ends_with("expected a TCP port or \"off\""),
        "{message}"
    );
    let message = FileConfig::parse("[[certificate]]\ncert = \"a\"").unwrap_err();
    assert!(message.ends_with("missing field `key`"), "{message}");
}

#[test]
fn the_text_defaults_in_the_table_are_those_of_the_code() {
    let page = documentation();
    for default in [
        super::LINK_DEFAULT,
        super::ADDRESS_DEFAULT,
        super::LOG_DEFAULT,
    ] {
        assert_eq!(
            page.matches(&format!("\"{default}\"")).count(),
            1,
            "{default}"
        );
    }
}
