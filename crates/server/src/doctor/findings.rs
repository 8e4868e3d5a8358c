//! What was found, and how it is printed: a line for each, below it the command that mends it.

use std::fmt::Write as _;

/// How good it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Nothing to mend.
    Good,
    /// Atlas works, but not everything does, or not at full speed.
    Less,
    /// Atlas does not work without it.
    Missing,
}

impl Verdict {
    const fn word(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Less => "less",
            Self::Missing => "MISSING",
        }
    }
}

/// One finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// How good it is.
    pub verdict: Verdict,
    /// What was looked at: a few words.
    pub subject: String,
    /// What was found.
    pub found: String,
    /// What mends it: a command, or a sentence.
    pub remedy: Option<String>,
}

impl Finding {
    pub(super) fn good(subject: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Good,
            subject: subject.into(),
            found: found.into(),
            remedy: None,
        }
    }

    pub(super) fn less(
        subject: impl Into<String>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Less,
            remedy: Some(remedy.into()),
            ..Self::good(subject, found)
        }
    }

    pub(super) fn missing(
        subject: impl Into<String>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Missing,
            ..Self::less(subject, found, remedy)
        }
    }
}

/// Columns of a verdict and of a subject.
const VERDICT_COLUMNS: usize = 8;
const SUBJECT_COLUMNS: usize = 17;

/// All sections as text.
pub(super) fn render(sections: &[(&str, Vec<Finding>)]) -> String {
    let mut text = String::new();
    for (title, findings) in sections {
        let _ = writeln!(text, "{title}");
        for finding in findings {
            let Finding {
                verdict,
                subject,
                found,
                remedy,
            } = finding;
            let word = verdict.word();
            let _ = writeln!(
                text,
                "  {word:VERDICT_COLUMNS$}{subject:SUBJECT_COLUMNS$} {found}"
            );
            if let Some(remedy) = remedy {
                let indent = 2 + VERDICT_COLUMNS + SUBJECT_COLUMNS + 1;
                let _ = writeln!(text, "{:indent$}-> {remedy}", "");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Finding, render};

    #[test]
    fn a_remedy_stands_below_its_finding() {
        let findings = vec![
            Finding::good("kernel", "Linux 6.18"),
            Finding::less("huge pages", "none", "sysctl -w vm.nr_hugepages=18"),
        ];
        let text = render(&[("Host", findings), ("NVMe", Vec::new())]);
        let expected = "\
Host
  ok      kernel            Linux 6.18
  less    huge pages        none
                            -> sysctl -w vm.nr_hugepages=18
NVMe
";
        assert_eq!(text, expected);
    }
}
