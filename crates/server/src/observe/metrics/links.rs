//! How frames travel, for those who read metrics: one info metric, a sample for each worker's link.
//!
//! It is known when the links are open, and does not change; that a packet socket stops lending slots is
//! counted (`link_bypass_end_events`). It refuses to tell of anything that is a number. Bound: a few words for
//! each worker.

use link::{Checksums, FramePath, ProgramPlace};

use super::text::escaped;

/// The metric's family; its samples are named so with `_info` behind.
pub(crate) const FAMILY: &str = "atlas_link";

/// What it says, for the page of metrics and for who reads them.
pub(crate) const HELP: &str = "How the frames of each worker travel.";

/// A worker's link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkInfo {
    /// As `--link` names its kind; never `auto`.
    pub kind: &'static str,
    /// The interface's name.
    pub interface: String,
    /// Which way frames pass.
    pub path: FramePath,
    /// Whether frames are sent from their slots.
    pub lends: bool,
}

impl LinkInfo {
    /// The labels of its sample, in braces.
    #[must_use]
    pub(crate) fn labels(&self, worker: usize) -> String {
        let program = match self.path.program {
            None => "none",
            Some(ProgramPlace::Driver) => "driver",
            Some(ProgramPlace::Generic) => "generic",
        };
        let Self { kind, lends, .. } = self;
        let zero_copy = self.path.is_zero_copy;
        let checksums = match self.path.checksums {
            Checksums::Device => "device",
            Checksums::Software => "software",
        };
        let interface = escaped(&self.interface);
        format!(
            "{{worker=\"{worker}\",link=\"{kind}\",interface=\"{interface}\",xdp=\"{program}\",zero_copy=\"{zero_copy}\",\
             loans=\"{lends}\",checksums=\"{checksums}\"}}"
        )
    }
}

#[cfg(test)]
mod tests {
    use link::{Checksums, FramePath, ProgramPlace};

    use super::LinkInfo;

    #[test]
    fn each_way_has_its_words_and_names_are_escaped() {
        let link = |program, is_zero_copy| LinkInfo {
            kind: "xdp",
            interface: "eth0.100".to_owned(),
            path: FramePath {
                program,
                is_zero_copy,
                checksums: if is_zero_copy {
                    Checksums::Device
                } else {
                    Checksums::Software
                },
            },
            lends: is_zero_copy,
        };
        assert_eq!(
            link(Some(ProgramPlace::Driver), true).labels(3),
            "{worker=\"3\",link=\"xdp\",interface=\"eth0.100\",xdp=\"driver\",zero_copy=\"true\",loans=\"true\",\
             checksums=\"device\"}"
        );
        let generic = link(Some(ProgramPlace::Generic), false).labels(0);
        let words = r#"xdp="generic",zero_copy="false",loans="false",checksums="software"}"#;
        assert!(generic.contains(words));
        assert!(link(None, false).labels(0).contains("xdp=\"none\""));
        let odd = LinkInfo {
            interface: "a\"b\\c".to_owned(),
            ..link(None, false)
        };
        assert!(odd.labels(0).contains(r#"interface="a\"b\\c","#));
    }
}
