//! Numbers that documents quote from the code are those of the constants, and figures of speed those of the results.
//!
//! A row of a table whose last column is headed `Constant` names one in that column, and has its value in the column
//! before. For prose there is [`QUOTES`]. It refuses a name that the product defines twice: a path in front tells which
//! (`mailbox::QUESTIONS_MAX`). Bounded by the product's constants whose value is a number, a product or a shift of numbers,
//! or a duration of a number.

use anyhow::{Context as _, Result, bail, ensure};

use super::Tree;

/// Words of pages for operators that have a constant's value, `{}`.
const QUOTES: [(&str, &str, &str); 14] = [
    (
        "docs/run/what-to-expect.md",
        "{} bytes in the table of connections",
        "CLIENT_BYTES_MAX",
    ),
    (
        "docs/run/what-to-expect.md",
        "{} for each of `connections_max`",
        "CONNECTION_BYTES_MAX",
    ),
    (
        "docs/run/configuration.md",
        "{} for each of `connections_max`",
        "CONNECTION_BYTES_MAX",
    ),
    (
        "docs/run/configuration.md",
        "{} descriptors for each worker",
        "DESCRIPTORS_RESERVED",
    ),
    (
        "docs/run/configuration.md",
        "as sent | {} |",
        "TARGET_BYTES_MAX",
    ),
    (
        "docs/run/configuration.md",
        "header fields | {} |",
        "HEAD_BYTES_MAX",
    ),
    (
        "docs/run/configuration.md",
        "decoded | {} bytes |",
        "store::PATH_BYTES_MAX",
    ),
    (
        "docs/run/configuration.md",
        "in one request | {} |",
        "RANGES_MAX",
    ),
    (
        "docs/run/configuration.md",
        "(pipelined) | {} |",
        "REPLIES_MAX",
    ),
    (
        "docs/run/configuration.md",
        "thrown away | {} |",
        "BODY_BYTES_MAX",
    ),
    (
        "docs/run/deploy.md",
        "{} for each of `connections_max`",
        "CONNECTION_BYTES_MAX",
    ),
    (
        "docs/run/deploy.md",
        "{} descriptors for each worker",
        "DESCRIPTORS_RESERVED",
    ),
    (
        "docs/run/deploy.md",
        "{} threads beside each worker",
        "LOOKUP_THREADS",
    ),
    (
        "dist/atlas.service",
        "{} more for each worker",
        "DESCRIPTORS_RESERVED",
    ),
];

/// Every number that is tied to a constant is its value.
pub(super) fn numbers(tree: &Tree) -> Vec<String> {
    let mut problems = Vec::new();
    for file in tree.ending(".md") {
        for (number, name) in rows(&file.text) {
            let problem = match value_of(tree, name) {
                Err(error) => format!("{error:#}"),
                Ok(value) if parse_quantity(number) == Some(value) => continue,
                Ok(value) => format!("{name} is {}, not {number}", value.text()),
            };
            problems.push(format!("{}: {problem}", file.path));
        }
    }
    for (page, sentence, name) in QUOTES {
        let problem = match (tree.text_of(page), value_of(tree, name)) {
            (None, _) => "no such page".into(),
            (_, Err(error)) => format!("{error:#}"),
            (Some(text), Ok(value)) => {
                let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
                let sentence = sentence.replace("{}", &value.text());
                // A comment goes on behind a line's mark.
                if words(&text.replace("\n#", "\n")).contains(&sentence) {
                    continue;
                }
                format!("does not say that it is {sentence} ({name})")
            }
        };
        problems.push(format!("{page}: {problem}"));
    }
    problems
}

/// The page whose table of speed quotes results, and where these are.
const SPEED: &str = "README.md";
const RESULTS: &str = "bench/results/";

/// Every rate in the table of speed is in a page of results, with its brackets, and so is its cost.
pub(super) fn speed(tree: &Tree) -> Vec<String> {
    let text = tree.text_of(SPEED).unwrap_or_default();
    let mut head = text
        .lines()
        .skip_while(|line| !line.contains("core-s/GB |"));
    let columns: Vec<&str> = head.next().map(cells).unwrap_or_default();
    let is_figure = |column: &str| column.ends_with("Gb/s") || column == "core-s/GB";
    let rows = head.skip(1).take_while(|line| line.starts_with('|'));
    let figures = rows.flat_map(|row| columns.iter().zip(cells(row)));
    let figures = figures.filter(|(column, _)| is_figure(column));
    let is_measured = |figure: &str| {
        let mut pages = tree.ending(".md").filter(|it| it.path.starts_with(RESULTS));
        pages.any(|page| page.text.contains(figure))
    };
    let problems = figures
        .filter(|(_, figure)| !is_measured(figure))
        .map(|(column, figure)| format!("{SPEED}: no page of {RESULTS} has {figure} ({column})"));
    problems.collect()
}

fn cells(row: &str) -> Vec<&str> {
    row.trim_matches('|').split('|').map(str::trim).collect()
}

/// The rows of tables whose last column is headed `Constant`: the number and the constant's name.
fn rows(markdown: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut is_inside = false;
    for line in markdown.lines() {
        let Some(row) = line.strip_prefix('|') else {
            is_inside = false;
            continue;
        };
        let mut cells = row.trim_end_matches('|').rsplit('|').map(str::trim);
        let (last, before) = (cells.next().unwrap_or_default(), cells.next());
        if last == "Constant" {
            is_inside = true;
        } else if is_inside && let Some(name) = last.strip_prefix('`') {
            found.push((before.unwrap_or_default(), name.trim_end_matches('`')));
        }
    }
    found
}

/// A number, or a time in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Quantity {
    Number(u64),
    Nanoseconds(u64),
}

impl Quantity {
    /// As documents write it.
    fn text(self) -> String {
        match self {
            Self::Number(number) if number >= 1 << 20 && number % (1 << 20) == 0 => {
                format!("{} MiB", number >> 20)
            }
            // Halves of a KiB are said as such.
            Self::Number(number) if number >= 1 << 11 && number % 512 == 0 => {
                let half = if number % 1024 == 0 { "" } else { ".5" };
                format!("{}{half} KiB", number >> 10)
            }
            Self::Number(number) => grouped(number),
            Self::Nanoseconds(time) => match time {
                _ if time % 1_000_000_000 == 0 => format!("{} s", grouped(time / 1_000_000_000)),
                _ if time % 1_000_000 == 0 => format!("{} ms", time / 1_000_000),
                _ => format!("{} us", time / 1_000),
            },
        }
    }
}

/// With a comma between thousands.
fn grouped(number: u64) -> String {
    if number < 1_000 {
        return number.to_string();
    }
    format!("{},{:03}", grouped(number / 1_000), number % 1_000)
}

/// A quantity as documents write it: `4,096`, `2.5 KiB`, `600 s`.
fn parse_quantity(text: &str) -> Option<Quantity> {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let number = number.replace(',', "");
    let (whole, half) = match number.strip_suffix(".5") {
        Some(whole) => (whole, 1),
        None => (number.as_str(), 0),
    };
    let halves = 2 * whole.parse::<u64>().ok()? + half;
    let times = |unit: u64| halves * unit / 2;
    let quantity = match unit {
        "KiB" => Quantity::Number(times(1 << 10)),
        "MiB" => Quantity::Number(times(1 << 20)),
        "GiB" => Quantity::Number(times(1 << 30)),
        "us" => Quantity::Nanoseconds(times(1_000)),
        "ms" => Quantity::Nanoseconds(times(1_000_000)),
        "s" => Quantity::Nanoseconds(times(1_000_000_000)),
        _ => Quantity::Number(times(1)),
    };
    Some(quantity)
}

/// The value of a constant of the product.
fn value_of(tree: &Tree, name: &str) -> Result<Quantity> {
    let (path, constant) = name.rsplit_once("::").unwrap_or(("", name));
    let folders: Vec<&str> = path.split("::").filter(|it| !it.is_empty()).collect();
    let mark = format!("const {constant}: ");
    let mut values = Vec::new();
    for file in tree.ending(".rs") {
        let parts: Vec<&str> = file.path.split(['/', '.']).collect();
        let is_product = file.path.starts_with("crates/") && !file.path.contains("/tests");
        if is_product && folders.iter().all(|it| parts.contains(it)) {
            let defined = file.text.split(&mark).skip(1);
            values.extend(
                defined
                    .filter_map(|it| it.split_once(';'))
                    .map(|(it, _)| it),
            );
        }
    }
    let [value] = values[..] else {
        bail!("{name} is defined {} times", values.len());
    };
    let (_, value) = value.split_once('=').context("no value")?;
    evaluate(value.trim()).with_context(|| format!("{name} = {value}"))
}

fn evaluate(expression: &str) -> Result<Quantity> {
    let inner = |name: &str| {
        let rest = expression.strip_prefix(&format!("Duration::from_{name}("))?;
        rest.strip_suffix(')').map(product)
    };
    for (name, unit) in [
        ("secs", 1_000_000_000),
        ("millis", 1_000_000),
        ("micros", 1_000),
    ] {
        if let Some(number) = inner(name) {
            return Ok(Quantity::Nanoseconds(number? * unit));
        }
    }
    product(expression).map(Quantity::Number)
}

/// A product or a shift of numbers.
fn product(expression: &str) -> Result<u64> {
    let number = |text: &str| {
        let text = text.trim().replace('_', "");
        text.parse::<u64>()
            .with_context(|| format!("no number: {text}"))
    };
    if let Some((base, shift)) = expression.split_once("<<") {
        let shift = number(shift)?;
        ensure!(shift < 64, "shifted by {shift}");
        return Ok(number(base)? << shift);
    }
    expression.split('*').map(number).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_have_the_value_that_is_written() {
        for (expression, text) in [
            ("4096", "4 KiB"),
            ("1_000", "1,000"),
            ("24 << 20", "24 MiB"),
            ("64 * 1024", "64 KiB"),
            ("2560", "2.5 KiB"),
            ("1536", "1,536"),
            ("Duration::from_secs(600)", "600 s"),
            ("Duration::from_millis(500)", "500 ms"),
        ] {
            let value = evaluate(expression).unwrap();
            assert_eq!(value.text(), text);
            assert_eq!(parse_quantity(text), Some(value), "{text}");
        }
        assert_eq!(parse_quantity("4,096"), Some(Quantity::Number(4096)));
        assert!(evaluate("OTHER / 2").is_err());
    }

    #[test]
    fn a_row_that_differs_from_its_constant_or_names_none_is_found() {
        let code = ("crates/a/src/b.rs", "pub const LIMIT: usize = 1_024;\n");
        let other = ("crates/c/src/lib.rs", "const LIMIT: u8 = 3;\n");
        let page = |row: &str| format!("| What | Most | Constant |\n|---|---|---|\n{row}\n");
        let check = |code: &[(&str, &str)], row: &str| {
            let page = page(row);
            let files = [code, &[("a.md", page.as_str())]].concat();
            let problems = numbers(&Tree::of(&files));
            problems.iter().filter(|it| it.starts_with("a.md")).count()
        };
        assert_eq!(check(&[code], "| x | 1,024 | `LIMIT` |"), 0);
        assert_eq!(check(&[code], "| x | 1 KiB | `LIMIT` |"), 0);
        assert_eq!(check(&[code], "| x | `a_setting` | |"), 0);
        assert_eq!(check(&[code], "| x | 1,000 | `LIMIT` |"), 1);
        assert_eq!(check(&[code], "| x | 1,024 | `MISSING` |"), 1);
        assert_eq!(check(&[code, other], "| x | 1,024 | `LIMIT` |"), 1);
        assert_eq!(check(&[code, other], "| x | 1,024 | `a::b::LIMIT` |"), 0);
    }

    #[test]
    fn a_figure_that_no_page_of_results_has_is_found() {
        let head = "| | Rounds | Atlas, Gb/s | core-s/GB |\n|---|---|---|---|\n";
        let page =
            format!("{head}| plaintext | 2 | 39.3 (37.2-41.4) | 0.195 |\n\n| a | b | c | d |\n");
        let check = |results: &str| {
            let results = ("bench/results/files.md", results);
            speed(&Tree::of(&[(SPEED, page.as_str()), results])).len()
        };
        assert_eq!(
            check("| atlas | 39.3 (37.2-41.4) | 0.195 (0.187-0.203) |"),
            0
        );
        assert_eq!(
            check("| atlas | 39.4 (37.2-41.4) | 0.195 (0.187-0.203) |"),
            1
        );
        assert_eq!(check(""), 2);
    }

    #[test]
    fn a_sentence_is_found_across_lines() {
        let (page, sentence, constant) = QUOTES[3];
        let code = format!("const {constant}: usize = 16;");
        let check = |text: &str| {
            let tree = Tree::of(&[("crates/a/src/lib.rs", &code), (page, text)]);
            let problems = numbers(&tree);
            problems.iter().any(|it| it.contains(constant))
        };
        let text = sentence.replace("{}", "16").replacen(' ', "\n", 1);
        assert!(!check(&text));
        assert!(check(&text.replace("16", "17")));
    }
}
