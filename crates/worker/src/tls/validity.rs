//! Names and validity period of a certificate, and whether another one is its issuer's.
//!
//! They are read once, when the certificate is loaded. Clients refuse a certificate outside of its
//! validity period, so the log warns of it, and before it expires ([`EXPIRY_NOTICE_SECONDS_MAX`]).
//! It refuses to reject such a certificate: the server's clock may be wrong. Bound: [`NAMES_SHOWN_MAX`]
//! names in a line.

use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::time::ASN1Time;

/// The log warns of a certificate that expires within this time, seconds: two weeks. ACME clients
/// renew when a third of the lifetime is left, so the warning means that the renewal failed.
pub const EXPIRY_NOTICE_SECONDS_MAX: i64 = 14 * SECONDS_A_DAY;
/// A short-lived certificate is warned of in this part of its lifetime, the last third.
pub const EXPIRY_NOTICE_LIFE_PART: i64 = 3;

const SECONDS_A_DAY: i64 = 86_400;
/// Most names of a certificate that a log line has.
const NAMES_SHOWN_MAX: usize = 3;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CertificateInfo {
    /// dNSName of subjectAltName (RFC 5280 s4.2.1.6), in lower case.
    names: Vec<String>,
    subject: String,
    /// Unix time of the first second of its life.
    not_before: i64,
    /// Unix time of the last second of its life.
    pub(super) not_after: i64,
}

/// A warning about a certificate's validity period.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Notice {
    NotYet,
    Soon,
    Over,
}

impl CertificateInfo {
    /// `None` for what is no certificate.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
        Some(Self {
            names: dns_names(&parsed),
            subject: parsed.subject().to_string(),
            not_before: parsed.validity().not_before.timestamp(),
            not_after: parsed.validity().not_after.timestamp(),
        })
    }

    /// Its names, as it has them.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether it is valid for that host: one of its names, or a wildcard of one label (RFC 9525
    /// s6.3). Used only to choose a certificate: the client verifies the name itself.
    pub(super) fn is_for(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        self.names.iter().any(|name| match name.strip_prefix("*.") {
            Some(suffix) => host.split_once('.').is_some_and(|(label, rest)| {
                !label.is_empty() && rest.eq_ignore_ascii_case(suffix)
            }),
            None => name.eq_ignore_ascii_case(host),
        })
    }

    pub(super) fn notice(&self, now: i64) -> Option<Notice> {
        let life = self.not_after.saturating_sub(self.not_before);
        let notice = EXPIRY_NOTICE_SECONDS_MAX.min(life / EXPIRY_NOTICE_LIFE_PART);
        if now < self.not_before {
            Some(Notice::NotYet)
        } else if now > self.not_after {
            Some(Notice::Over)
        } else if self.not_after.saturating_sub(now) < notice {
            Some(Notice::Soon)
        } else {
            None
        }
    }

    /// The warning for the log, if any; `file` is the certificate's file.
    pub(super) fn warning(&self, file: &str, now: i64) -> Option<String> {
        let (first, last) = (date(self.not_before), date(self.not_after));
        let days = |seconds: i64| seconds.div_euclid(SECONDS_A_DAY);
        let what = match self.notice(now)? {
            Notice::NotYet => format!(
                "is not valid before {first} (in {} days): clients refuse it; is the clock right?",
                days(self.not_before - now)
            ),
            Notice::Over => format!(
                "expired on {last} ({} days ago): clients refuse it; renew it, then SIGHUP",
                days(now - self.not_after)
            ),
            Notice::Soon => format!(
                "expires on {last} (in {} days); renew it, then SIGHUP",
                days(self.not_after - now)
            ),
        };
        Some(format!(
            "{file}: the certificate for {} {what}",
            self.shown()
        ))
    }

    fn shown(&self) -> String {
        let shown = match self.names.as_slice() {
            [] => self.subject.clone(),
            names => names[..names.len().min(NAMES_SHOWN_MAX)].join(", "),
        };
        let more = self.names.len().saturating_sub(NAMES_SHOWN_MAX);
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        // The certificate's author chose this text, so it is escaped.
        format!("{}{more}", shown.escape_debug())
    }
}

/// What stands behind a certificate in its chain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Follower {
    /// The certificate of its issuer (RFC 8446 s4.4.2).
    Issuer,
    /// Whatever it is: this one is its own issuer, or cannot be parsed.
    NotNeeded,
    /// Another one; with the issuer's name.
    Other { issuer: String },
    /// Nothing; with the issuer's name.
    Nothing { issuer: String },
}

/// Whether `behind` is of the issuer of `certificate`: by its name, and by the identifiers of its key
/// where both have one (RFC 5280 s4.2.1.1), since an authority may have several keys. Signatures are
/// left to clients.
pub(super) fn follower_of(certificate: &[u8], behind: Option<&[u8]>) -> Follower {
    let Ok((_, own)) = x509_parser::parse_x509_certificate(certificate) else {
        return Follower::NotNeeded;
    };
    if own.issuer().as_raw() == own.subject().as_raw() {
        return Follower::NotNeeded;
    }
    // The certificate's author chose this text, so it is escaped.
    let issuer = own.issuer().to_string().escape_debug().to_string();
    let Some(behind) = behind else {
        return Follower::Nothing { issuer };
    };
    let Ok((_, other)) = x509_parser::parse_x509_certificate(behind) else {
        return Follower::Other { issuer };
    };
    let is_same_key = match (issuer_key(&own), own_key(&other)) {
        (Some(one), Some(other)) => one == other,
        _ => true,
    };
    if other.subject().as_raw() == own.issuer().as_raw() && is_same_key {
        Follower::Issuer
    } else {
        Follower::Other { issuer }
    }
}

/// keyIdentifier of authorityKeyIdentifier (RFC 5280 s4.2.1.1).
fn issuer_key<'a>(certificate: &X509Certificate<'a>) -> Option<&'a [u8]> {
    let mut extensions = certificate.extensions().iter();
    extensions.find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(identifier) => {
            identifier.key_identifier.as_ref().map(|key| key.0)
        }
        _ => None,
    })
}

/// subjectKeyIdentifier (RFC 5280 s4.2.1.2).
fn own_key<'a>(certificate: &X509Certificate<'a>) -> Option<&'a [u8]> {
    let mut extensions = certificate.extensions().iter();
    extensions.find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(key) => Some(key.0),
        _ => None,
    })
}

fn dns_names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(names)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    let of_hosts = names
        .value
        .general_names
        .iter()
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            _ => None,
        });
    of_hosts.collect()
}

/// As ISO 8601 writes it.
fn date(unix_seconds: i64) -> String {
    ASN1Time::from_timestamp(unix_seconds).map_or_else(
        |_| format!("second {unix_seconds}"),
        |time| time.to_datetime().date().to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::{CertificateInfo, EXPIRY_NOTICE_SECONDS_MAX, Notice, SECONDS_A_DAY};

    const BEGIN: i64 = 1_700_000_000;

    fn info(days: i64, names: &[&str]) -> CertificateInfo {
        CertificateInfo {
            names: names.iter().map(|name| (*name).into()).collect(),
            subject: "CN=a subject".into(),
            not_before: BEGIN,
            not_after: BEGIN + days * SECONDS_A_DAY,
        }
    }

    #[test]
    fn a_certificate_is_noticed_before_its_time_after_it_and_shortly_before_its_end() {
        let long = info(90, &["a.example"]);
        let soon = long.not_after - EXPIRY_NOTICE_SECONDS_MAX;
        for (now, expected) in [
            (BEGIN - 1, Some(Notice::NotYet)),
            (BEGIN, None),
            (soon, None),
            (soon + 1, Some(Notice::Soon)),
            (long.not_after, Some(Notice::Soon)),
            (long.not_after + 1, Some(Notice::Over)),
        ] {
            assert_eq!(long.notice(now), expected, "{}", now - BEGIN);
        }
        // The last third of six days.
        let short = info(6, &["a.example"]);
        let soon = BEGIN + 4 * SECONDS_A_DAY;
        assert_eq!(short.notice(soon), None);
        assert_eq!(short.notice(soon + 1), Some(Notice::Soon));
    }

    #[test]
    fn a_warning_has_the_file_the_date_and_the_remedy() {
        let warn = |info: &CertificateInfo, days: i64| {
            info.warning("--cert x", BEGIN + days * SECONDS_A_DAY)
        };
        let one = info(90, &["a.example"]);
        assert_eq!(warn(&one, 1), None);
        assert_eq!(
            warn(&one, -2).unwrap(),
            "--cert x: the certificate for a.example is not valid before 2023-11-14 (in 2 days): \
             clients refuse it; is the clock right?"
        );
        assert_eq!(
            warn(&one, 80).unwrap(),
            "--cert x: the certificate for a.example expires on 2024-02-12 (in 10 days); \
             renew it, then SIGHUP"
        );
        assert_eq!(
            warn(&one, 91).unwrap(),
            "--cert x: the certificate for a.example expired on 2024-02-12 (1 days ago): \
             clients refuse it; renew it, then SIGHUP"
        );
        let many = warn(&info(1, &["a", "b", "c", "d", "e"]), 1).unwrap();
        assert!(many.contains(" for a, b, c and 2 more expires"), "{many}");
        let none = warn(&info(1, &[]), 1).unwrap();
        assert!(none.contains(" for CN=a subject expires"), "{none}");
        let odd = warn(&info(1, &["a\n\u{1b}[2J"]), 1).unwrap();
        assert!(odd.contains(" for a\\n\\u{1b}[2J expires"), "{odd}");
    }

    #[test]
    fn a_name_is_matched_whole_and_a_wildcard_by_one_label() {
        let info = info(1, &["a.example", "*.b.example"]);
        for host in [
            "a.example",
            "A.Example",
            "a.example.",
            "x.b.example",
            "X.B.EXAMPLE",
        ] {
            assert!(info.is_for(host), "{host}");
        }
        for host in [
            "b.example",
            "x.y.b.example",
            ".b.example",
            "a.example.x",
            "",
            "xa.example",
        ] {
            assert!(!info.is_for(host), "{host}");
        }
    }
}
