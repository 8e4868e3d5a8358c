//! `on_miss` of a site or a rule: what is done when there is no such object.
//!
//! It refuses `redirect` and `hold` together, and `$1` to `$9`, since a site has no glob. Bounds: [`HOLD_RANGE_US`].

use std::ops::RangeInclusive;

use ::amount::{TimeUnit, parse_duration};
use sites::redirects::Redirect;
use sites::rules::OnMiss;
use toml::de::DeValue;

use super::{MissTable, Place};
use crate::failure::Failure;
use crate::settings::file::{Amount, Reader, Value, Written};

/// How long a request may wait, microseconds: players give up after 10 s or more.
const HOLD_RANGE_US: RangeInclusive<u64> = 100_000..=30_000_000;

/// As written.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
#[serde(untagged)]
pub(super) enum MissChoice {
    Status(Amount),
    Table(MissTable),
}

impl Written for MissChoice {
    fn read(value: &Value<'_>, expected: &str, reader: &mut Reader<'_>) -> Option<Self> {
        match value.get_ref() {
            DeValue::Table(_) => MissTable::read(value, expected, reader).map(Self::Table),
            DeValue::String(_) | DeValue::Integer(_) => {
                Amount::read(value, expected, reader).map(Self::Status)
            }
            _ => {
                reader.mismatch(value, "\"404\", or a table with redirect or hold");
                None
            }
        }
    }
}

pub(super) fn resolve_on_miss(
    choice: Option<MissChoice>,
    place: &Place,
) -> Result<Option<OnMiss>, Failure> {
    let remedy =
        "write \"404\", { redirect = \"https://origin.example{path}\" } or { hold = \"5s\" }";
    let table = match choice {
        None => return Ok(None),
        Some(MissChoice::Status(Amount(text))) if text == "404" => {
            return Ok(Some(OnMiss::NotFound));
        }
        Some(MissChoice::Status(Amount(text))) => {
            return Err(place.refuse(format_args!("on_miss {text:?}: unknown"), remedy));
        }
        Some(MissChoice::Table(table)) => table,
    };
    match table {
        MissTable {
            redirect: Some(to),
            hold: None,
        } => {
            let redirect = Redirect::new(307, &to.replace("{path}", "$request_uri"));
            let redirect = redirect.map_err(|problem| {
                place.refuse(
                    format_args!("on_miss.redirect {to:?}: {problem}"),
                    "write a URL like \"https://origin.example{path}\"",
                )
            })?;
            if redirect.wildcards() > 0 {
                let problem = format_args!(
                    "on_miss.redirect {to:?}: there is no glob that $1 to $9 could be of"
                );
                return Err(place.refuse(problem, "write {path}, $uri or $request_uri"));
            }
            Ok(Some(OnMiss::Redirect(redirect)))
        }
        MissTable {
            redirect: None,
            hold: Some(Amount(text)),
        } => {
            let time = parse_duration(&text, TimeUnit::Seconds).ok();
            let time = time.filter(|time| HOLD_RANGE_US.contains(time));
            let milliseconds = time.and_then(|time| u32::try_from(time / 1000).ok());
            let milliseconds = milliseconds.ok_or_else(|| {
                place.refuse(
                    format_args!("on_miss.hold {text}: not a duration from 100ms to 30s"),
                    "write it like \"5s\"",
                )
            })?;
            Ok(Some(OnMiss::Hold { milliseconds }))
        }
        _ => Err(place.refuse("on_miss: it needs either redirect or hold", remedy)),
    }
}

#[cfg(test)]
mod tests {
    use crate::settings::tests::with_file;

    /// `on_miss` of a site and of its rule as they are resolved, in debug form.
    fn on_miss(site: &str, rule: &str) -> Result<Vec<String>, String> {
        let text = format!("[[site]]\n{site}\n[[site.rule]]\npaths = [\"/**\"]\n{rule}\n");
        let settings = with_file(&text).map_err(|failure| failure.to_string())?;
        let site = &settings.sites[0].site;
        let rules = site.rules.iter().map(|(_, rule)| rule);
        let all = [&site.otherwise].into_iter().chain(rules);
        Ok(all.map(|rule| format!("{:?}", rule.on_miss)).collect())
    }

    #[test]
    fn a_rule_without_on_miss_has_that_of_its_site() {
        let hold = |milliseconds: u32| format!("Hold {{ milliseconds: {milliseconds} }}");
        let not_found = "NotFound".to_owned();
        for (site, rule, expected) in [
            ("", "", [not_found.clone(), not_found.clone()]),
            ("on_miss = { hold = \"5s\" }", "", [hold(5000), hold(5000)]),
            (
                "on_miss = { hold = 30 }",
                "on_miss = \"404\"",
                [hold(30_000), not_found.clone()],
            ),
            (
                "",
                "on_miss = { hold = \"100ms\" }",
                [not_found.clone(), hold(100)],
            ),
            ("on_miss = 404", "", [not_found.clone(), not_found]),
        ] {
            assert_eq!(on_miss(site, rule).unwrap(), expected, "{site} {rule}");
        }
        let path = on_miss("on_miss = { redirect = \"https://o.example{path}\" }", "").unwrap();
        let same = "on_miss = { redirect = \"https://o.example$request_uri\" }";
        assert_eq!(path, on_miss(same, "").unwrap());
    }

    #[test]
    fn a_wrong_on_miss_is_told_with_its_site_and_rule() {
        for (wrong, problem) in [
            ("\"405\"", "on_miss \"405\": unknown"),
            ("true", "expected \"404\", or a table"),
            ("{}", "on_miss: it needs either redirect or hold"),
            (
                "{ redirect = \"/a\", hold = \"5s\" }",
                "on_miss: it needs either redirect or hold",
            ),
            ("{ hold = \"99ms\" }", "on_miss.hold 99ms: not a duration"),
            ("{ hold = \"31s\" }", "on_miss.hold 31s"),
            ("{ redirect = \"o.example\" }", "not a URI"),
            ("{ redirect = \"https://o.example/{query}\" }", "not a URI"),
            ("{ redirect = \"/$1\" }", "there is no glob"),
            ("{ wait = 1 }", "wait"),
        ] {
            for (is_site, place) in [(true, "site 1"), (false, "site 1, rule 1")] {
                let wrong = format!("on_miss = {wrong}");
                let text = |is_here| if is_here { wrong.as_str() } else { "" };
                let told = on_miss(text(is_site), text(!is_site)).unwrap_err();
                assert!(told.contains(problem), "{wrong}: {told}");
                let is_of_reader = problem.contains("expected") || problem == "wait";
                assert!(is_of_reader || told.contains(place), "{told}");
            }
        }
    }
}
