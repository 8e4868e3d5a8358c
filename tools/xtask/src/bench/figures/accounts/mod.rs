//! What the parts of the pipeline cost alone, and what follows for the whole: how near Atlas comes
//! to the most that this machine's two cores could do ([`ceiling`]), and what would be left of its
//! lead if everybody sealed at one cost ([`matched`]).
//!
//! [`stages`] measures; the rest is pure arithmetic on medians. It says nothing of what was not
//! measured in the same run.

mod ceiling;
mod matched;
pub(super) mod stages;

use serde::Serialize;

use self::ceiling::{Attained, Ceiling};
use self::matched::Matched;
use self::stages::Stages;
use super::plan::Security;
use super::summary::Point;
use crate::bench::lab::Contender;

/// Stages, and what they say of the points.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Accounts {
    stages: Stages,
    ceilings: Vec<Attained>,
    matched: Vec<Matched>,
}

impl Accounts {
    /// `is_kernel_tls`: nginx's records are the kernel's, and so not OpenSSL's to match.
    pub(super) fn new(stages: Stages, points: &[Point], is_kernel_tls: bool) -> Self {
        Self {
            ceilings: ceiling::attained(&stages, points, Contender::ATLAS),
            matched: matched::matched(&stages, points, Contender::ATLAS, is_kernel_tls),
            stages,
        }
    }

    /// The most that the stages permit.
    pub(super) fn ceiling_gbps(&self, security: Security) -> f64 {
        Ceiling::new(&self.stages, security).gbps
    }

    /// Whether a share of the ceiling is enough; none if the stages were disturbed.
    pub(super) fn is_aim_met(share: f64) -> Option<bool> {
        ceiling::is_aim_met(share)
    }

    /// The page's part, in Markdown.
    pub(super) fn section(&self) -> String {
        ceiling::section(&self.stages, &self.ceilings)
            + &matched::section(&self.stages, &self.matched)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Of nothing, with these ceilings, the second no higher than the first.
    pub(in super::super) fn accounts(plain_gbps: f64, tls_gbps: f64) -> Accounts {
        let stages = Stages {
            read: 8.0 / plain_gbps,
            seal: 8.0 / tls_gbps - 8.0 / plain_gbps,
            disk_gbps: f64::INFINITY,
            ..Stages::default()
        };
        Accounts::new(stages, &[], false)
    }

    #[test]
    fn ceilings_are_of_the_stages() {
        let accounts = accounts(40.0, 20.0);
        assert!((accounts.ceiling_gbps(Security::Plain) - 40.0).abs() < 1e-9);
        assert!((accounts.ceiling_gbps(Security::Tls) - 20.0).abs() < 1e-9);
    }

    #[test]
    fn the_section_has_both_parts_in_order() {
        let section = accounts(40.0, 20.0).section();
        let (ceilings, matched) = (section.find("## Ceilings"), section.find("at one cost"));
        assert!(ceilings.is_some() && ceilings < matched, "{section}");
        assert!(section.ends_with("\n\n"), "another part follows");
    }
}
