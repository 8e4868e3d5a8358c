//! What all pages of results have in common: prose that a screen shows whole.
//!
//! It refuses nothing. Bounded by: the page.

/// Columns of a page's prose.
const COLUMNS: usize = 100;

/// A page with its prose in lines of at most [`COLUMNS`], where words allow it. Tables, images and
/// code stay as they are.
pub(crate) fn wrapped(page: &str) -> String {
    let mut out = String::new();
    let mut is_code = false;
    for line in page.lines() {
        is_code ^= line.starts_with("```");
        let is_prose = !is_code && !line.starts_with(['|', '!', '#']);
        let indent = if line.starts_with("* ") { "  " } else { "" };
        let mut column = 0;
        for (index, word) in line.split(' ').enumerate() {
            // At the start of a line these would begin a list.
            let is_marker = word == "*" || word == "-" || word == "+" || is_number_with_stop(word);
            let ends = column + 1 + word.chars().count();
            if index > 0 && is_prose && ends > COLUMNS && !is_marker {
                out.push('\n');
                out.push_str(indent);
                column = indent.len();
            } else if index > 0 {
                out.push(' ');
                column += 1;
            }
            out.push_str(word);
            column += word.chars().count();
        }
        out.push('\n');
    }
    out
}

fn is_number_with_stop(word: &str) -> bool {
    let digits = word.strip_suffix(['.', ')']);
    digits.is_some_and(|it| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_wrapped_at_words_and_tables_and_code_are_not() {
        let words = "word ".repeat(30);
        let page = format!("* {words}end\n| {words}|\n```\n{words}\n```\n");
        let lines: Vec<String> = wrapped(&page).lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), 6, "{lines:?}");
        assert!(lines[0].len() <= COLUMNS && lines[1].starts_with("  word"));
        assert_eq!(lines[2], format!("| {words}|"));
        assert_eq!(lines[4], words);
        let number = format!("{} 40. End", "a".repeat(97));
        assert_eq!(wrapped(&number), format!("{} 40.\nEnd\n", "a".repeat(97)));
    }
}
