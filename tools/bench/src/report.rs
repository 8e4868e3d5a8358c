//! Rounds of servers beside each other, of whatever was measured.
//!
//! It refuses nothing. Bounded by: the rounds.

use std::fmt::Write as _;

use serde::Serialize;

/// All runs of one server, in the order of the rounds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Rival<R> {
    pub(crate) name: String,
    /// Measured against the others, not one of them.
    #[serde(skip)]
    pub(crate) is_ours: bool,
    pub(crate) runs: Vec<R>,
}

impl<R> Rival<R> {
    pub(crate) fn new(name: &str, is_ours: bool) -> Self {
        Self {
            name: name.to_owned(),
            is_ours,
            runs: Vec::new(),
        }
    }

    /// The median of a figure of the rounds.
    pub(crate) fn middle(&self, of: fn(&R) -> f64) -> f64 {
        median(&self.runs.iter().map(of).collect::<Vec<_>>())
    }

    /// The least and the greatest of a figure, for people.
    pub(crate) fn spread(&self, of: fn(&R) -> f64, decimals: usize) -> String {
        let least = self.runs.iter().map(of).fold(f64::INFINITY, f64::min);
        let greatest = self.runs.iter().map(of).fold(0.0, f64::max);
        format!("({least:.decimals$}-{greatest:.decimals$})")
    }
}

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

/// What a bench ran on and with, a line each.
pub(crate) fn environment_text(environment: &[(String, String)]) -> String {
    let mut out = String::new();
    for (name, value) in environment {
        let _ = writeln!(out, "{name:<12} {value}");
    }
    out
}

/// The middle value; of an even number of values, the mean of the middle two. 0 for none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// Our figure over the others' highest, round by round: noise that lasts a round hits all alike.
pub(crate) fn over_highest<R>(
    ours: &Rival<R>,
    rivals: &[Rival<R>],
    figure: fn(&R) -> f64,
) -> Vec<f64> {
    rounds(ours, rivals, figure)
        .filter_map(|(own, others)| Some(own / others.into_iter().reduce(f64::max)?))
        .collect()
}

/// The others' lowest figure over ours, round by round.
pub(crate) fn lowest_over<R>(
    ours: &Rival<R>,
    rivals: &[Rival<R>],
    figure: fn(&R) -> f64,
) -> Vec<f64> {
    rounds(ours, rivals, figure)
        .filter_map(|(own, others)| Some(others.into_iter().reduce(f64::min)? / own))
        .collect()
}

/// For each round our figure, and the figures of those that are not ours.
fn rounds<'a, R>(
    ours: &'a Rival<R>,
    rivals: &'a [Rival<R>],
    figure: fn(&R) -> f64,
) -> impl Iterator<Item = (f64, Vec<f64>)> + 'a {
    ours.runs.iter().enumerate().map(move |(round, run)| {
        let others = rivals
            .iter()
            .filter(|rival| !rival.is_ours)
            .filter_map(|rival| rival.runs.get(round).map(figure));
        (figure(run), others.collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_none_odd_and_even() {
        assert!(median(&[]).abs() < f64::EPSILON);
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < f64::EPSILON);
    }

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

    #[test]
    fn ratios_take_the_best_rival_of_each_round() {
        let rival = |name: &str, is_ours, runs: [f64; 2]| Rival {
            name: name.to_owned(),
            is_ours,
            runs: runs.to_vec(),
        };
        let ours = rival("atlas", true, [4.0, 4.0]);
        let rivals = [
            rival("other", true, [100.0, 0.1]),
            rival("a", false, [1.0, 2.0]),
            rival("b", false, [2.0, 1.0]),
        ];
        assert_eq!(over_highest(&ours, &rivals, |run| *run), [2.0, 2.0]);
        assert_eq!(lowest_over(&ours, &rivals, |run| *run), [0.25, 0.25]);
        assert!(over_highest(&ours, &rivals[..1], |run| *run).is_empty());
    }
}
