//! What is told by site: how sites are numbered, and the metrics that have a label `site` (`metrics_by_site`).
//!
//! A site's label is its first name. It keeps its number while the process runs, also when a reload removes it or moves it
//! in the file, so that its counters only grow. Bound: [`SITES_COUNTED_MAX`] labels; sites that come later share
//! [`REST`] with requests that name no site.

use counters::{CounterSet as _, Kind};
use session::{STATUS_CLASSES, SiteCounters};
use sites::SITES_COUNTED_MAX;

use super::text::{Text, escaped, family_of};

/// The label of all that has none of its own; no site has this name.
const REST: &str = "(other)";

/// The labels given so far, by number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SiteLabels(Vec<String>);

impl Default for SiteLabels {
    /// The one of all that has none of its own.
    fn default() -> Self {
        Self(vec![REST.to_owned()])
    }
}

impl SiteLabels {
    /// The number of the site with this first name ([`sites::Found::number`]), which gets one if it has none.
    pub(crate) fn number(&mut self, name: &str) -> u16 {
        let known = self.0.iter().position(|label| label == name);
        let index = known.unwrap_or(self.0.len());
        let number = u16::try_from(index).ok();
        let Some(number) = number.filter(|number| *number <= SITES_COUNTED_MAX) else {
            return 0;
        };
        if known.is_none() {
            self.0.push(name.to_owned());
        }
        number
    }

    /// Each, by number.
    pub(crate) fn into_labels(self) -> Vec<String> {
        self.0
    }
}

/// Writes the metrics of these sites; nothing if there are none.
pub(super) fn encode(sites: &[(String, SiteCounters)], text: &mut Text) {
    if sites.is_empty() {
        return;
    }
    let label = |site: &str| format!("site=\"{}\"", escaped(site));
    for (place, meaning) in SiteCounters::MEANINGS.iter().enumerate() {
        let family = family_of(meaning.name);
        if meaning.kind == Kind::Histogram {
            text.family(&family, "histogram", meaning.help);
            for (site, counters) in sites {
                text.buckets(&family, &label(site), &counters.first_byte_seconds);
            }
            continue;
        }
        text.family(&family, "counter", meaning.help);
        let sample = format!("{family}_total");
        for (site, counters) in sites {
            let label = label(site);
            if meaning.name == "site_reply_count" {
                for (class, count) in STATUS_CLASSES.iter().zip(counters.reply_count) {
                    text.sample(&sample, &format!("{{{label},class=\"{class}\"}}"), count);
                }
            } else {
                let value = counters.totals().nth(place).unwrap_or_default();
                text.sample(&sample, &format!("{{{label}}}"), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use counters::Histogram;
    use session::SiteCounters;
    use sites::SITES_COUNTED_MAX;

    use super::{REST, SiteLabels, Text, encode};

    #[test]
    fn a_site_keeps_its_number_and_those_beyond_the_limit_have_none() {
        let mut labels = SiteLabels::default();
        let name = |number: u16| format!("{number}.example");
        for number in 1..=SITES_COUNTED_MAX {
            assert_eq!(labels.number(&name(number)), number);
        }
        assert_eq!(labels.number("one-more.example"), 0);
        assert_eq!(labels.number(&name(1)), 1);
        assert_eq!(labels.number(&name(SITES_COUNTED_MAX)), SITES_COUNTED_MAX);
        let labels = labels.into_labels();
        assert_eq!(labels.len(), usize::from(SITES_COUNTED_MAX) + 1);
        assert_eq!(
            (labels[0].as_str(), labels[1].as_str()),
            (REST, "1.example")
        );
    }

    #[test]
    fn each_family_is_told_once_with_the_samples_of_every_site() {
        let mut values = [0; SiteCounters::VALUES];
        values[..6].copy_from_slice(&[7, 1_000, 3, 2, 1, 0]);
        let times = values.len() - Histogram::VALUES;
        values[times] = 5;
        let counters = SiteCounters::from_values(values);
        let mut text = Text::default();
        let odd = "a\"b\\c\n:1".to_owned();
        encode(
            &[(REST.to_owned(), counters.clone()), (odd, counters)],
            &mut text,
        );
        for part in [
            "# TYPE atlas_site_request counter\n# HELP atlas_site_request Requests whose",
            "atlas_site_request_total{site=\"(other)\"} 7\natlas_site_request_total{site=\"a\\\"b\\\\c\\n:1\"} 7\n",
            "# UNIT atlas_site_sent_bytes bytes\n",
            "atlas_site_sent_bytes_total{site=\"(other)\"} 1000\n",
            "atlas_site_reply_total{site=\"(other)\",class=\"2xx\"} 3\natlas_site_reply_total{site=\"(other)\",class=\"3xx\"} 2\n\
             atlas_site_reply_total{site=\"(other)\",class=\"4xx\"} 1\natlas_site_reply_total{site=\"(other)\",class=\"5xx\"} 0\n",
            "# TYPE atlas_site_first_byte_seconds histogram\n# UNIT atlas_site_first_byte_seconds seconds\n",
            "atlas_site_first_byte_seconds_bucket{site=\"(other)\",le=\"0.00005\"} 5\n",
            "atlas_site_first_byte_seconds_bucket{site=\"(other)\",le=\"+Inf\"} 5\n\
             atlas_site_first_byte_seconds_sum{site=\"(other)\"} 0.000000\n\
             atlas_site_first_byte_seconds_count{site=\"(other)\"} 5\n",
        ] {
            assert!(text.0.contains(part), "no {part:?} in:\n{}", text.0);
        }
        assert_eq!(text.0.matches("# TYPE ").count(), 4);
        let mut none = Text::default();
        encode(&[], &mut none);
        assert_eq!(none.0, "");
    }
}
