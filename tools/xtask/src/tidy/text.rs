//! Reading Rust and Markdown just closely enough for the rules.

/// Lines that hold code: not blank, not comment, not in a test module at the end of the file.
pub(super) fn code_lines(source: &str) -> usize {
    without_tests(source)
        .lines()
        .map(str::trim_start)
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count()
}

/// The source without its inline test modules: rustfmt puts their attributes and closing braces in
/// column 0.
pub(super) fn without_tests(source: &str) -> String {
    let is_module = |line: &str| {
        let visibility = ["mod ", "pub mod ", "pub(crate) mod ", "pub(super) mod "];
        visibility.iter().any(|start| line.starts_with(start))
    };
    let mut kept = String::new();
    let mut lines = source.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "#[cfg(test)]" && lines.peek().is_some_and(|next| is_module(next)) {
            let opens = lines.next().is_some_and(|module| module.ends_with('{'));
            if opens {
                lines.by_ref().find(|line| *line == "}");
            }
        } else {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// Targets of the links of a Markdown text that lead to files beside it, without fragments.
pub(super) fn relative_links(markdown: &str) -> Vec<String> {
    let mut links = Vec::new();
    let mut fenced = false;
    for line in markdown.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        let mut rest = without_code_spans(line);
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, tail)) = after.split_once(')') else {
                break;
            };
            links.extend(file_part(target));
            rest = tail.to_owned();
        }
    }
    links
}

/// A line with what stands between backticks taken out.
fn without_code_spans(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

/// The file a link leads to, unless it leads elsewhere or to its own page.
fn file_part(target: &str) -> Option<String> {
    let target = target.split_whitespace().next()?;
    let elsewhere = target.contains("://") || target.starts_with("mailto:");
    let file = target.split('#').next()?;
    (!elsewhere && !file.is_empty()).then(|| file.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_blanks_and_test_modules_are_not_code() {
        let source = "//! doc\n\nfn a() {\n    // why\n    b();\n}\n\n#[cfg(test)]\nmod tests {\n    \
                      fn t() {\n    }\n}\nconst C: u8 = 0;\n";
        assert_eq!(code_lines(source), 4);
        assert_eq!(code_lines("#[cfg(test)]\nmod tests;\nfn a() {}\n"), 1);
        let shared = "#[cfg(test)]\npub(crate) mod tests {\n    use a;\n}\nfn a() {}\n";
        assert_eq!(code_lines(shared), 1);
        assert_eq!(code_lines("#[cfg(test)]\nfn helper() {}\n"), 2);
    }

    #[test]
    fn only_links_to_files_are_followed() {
        let text = "[a](b.md) [c](d/e.md#part \"title\") [f](https://g) [h](#i) `[j](k)`\n\
                    ```\n[l](m)\n```\n[n](o)";
        assert_eq!(relative_links(text), ["b.md", "d/e.md", "o"]);
    }
}
