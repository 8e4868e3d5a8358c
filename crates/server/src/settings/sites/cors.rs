//! `cors` of a site or a rule, as the file has it.
//!
//! It refuses to judge what an origin is. Bounds: those of a list.

use toml::de::DeValue;

use crate::settings::file::{Reader, Value, Written};

/// Pages of which origins may read replies, as written.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
#[serde(untagged)]
pub(super) enum CorsChoice {
    Switch(bool),
    Origins(Vec<String>),
}

impl Written for CorsChoice {
    fn read(value: &Value<'_>, expected: &str, reader: &mut Reader<'_>) -> Option<Self> {
        match value.get_ref() {
            DeValue::Boolean(is_on) => Some(Self::Switch(*is_on)),
            DeValue::Array(_) => Vec::read(value, expected, reader).map(Self::Origins),
            _ => {
                reader.mismatch(value, "true, false or a list of origins");
                None
            }
        }
    }
}
