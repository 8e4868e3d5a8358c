//! What was found, and how it is printed: a line for each, below it the command that mends it; or as JSON.

use std::fmt::Write as _;

use serde_json::json;

use crate::failure::Failure;

/// How good it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
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
pub(crate) struct Finding {
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

    /// What serving would be refused for, with the remedy that the refusal names.
    pub(super) fn refused(subject: impl Into<String>, failure: &Failure) -> Self {
        let text = failure.to_string();
        let (found, remedy) = text.rsplit_once("; ").unwrap_or((&text, "see above"));
        Self::missing(subject, found, remedy)
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

/// All sections as one JSON object, of which `missing` is the number of findings without which no server starts.
pub(super) fn render_json(sections: &[(&str, Vec<Finding>)], missing: usize) -> String {
    let rows = sections.iter().flat_map(|(section, findings)| {
        findings.iter().map(move |finding| {
            json!({
                "section": section,
                "verdict": finding.verdict.word().to_lowercase(),
                "subject": finding.subject,
                "found": finding.found,
                "remedy": finding.remedy,
            })
        })
    });
    let rows: Vec<_> = rows.collect();
    format!("{}\n", json!({ "missing": missing, "findings": rows }))
}

#[cfg(test)]
mod tests {
    use super::{Failure, Finding, Verdict, render, render_json};

    #[test]
    fn a_refusal_becomes_a_finding_with_its_remedy() {
        let failure = Failure::refused("PATH /srv: no such; directory", "name an existing one");
        let finding = Finding::refused("PATH", &failure);
        assert_eq!(finding.verdict, Verdict::Missing);
        assert_eq!(finding.found, "PATH /srv: no such; directory");
        assert_eq!(finding.remedy.as_deref(), Some("name an existing one"));
    }

    #[test]
    fn json_has_the_same_findings_by_stable_names() {
        let findings = vec![
            Finding::good("kernel", "Linux \"6.18\""),
            Finding::missing("io_uring", "refused", "allow it"),
        ];
        let text = render_json(&[("Host", findings)], 1);
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        let expected = serde_json::json!({
            "missing": 1,
            "findings": [
                {"section": "Host", "verdict": "ok", "subject": "kernel",
                 "found": "Linux \"6.18\"", "remedy": null},
                {"section": "Host", "verdict": "missing", "subject": "io_uring",
                 "found": "refused", "remedy": "allow it"},
            ],
        });
        assert_eq!(read, expected);
    }

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
