//! `link` of a rule: how its links are signed, and the file of their keys.
//!
//! It refuses keys that mean nothing with the form, and never shows a secret. Bound: [`sites::links::KEYS_MAX`].

use std::path::{Path, PathBuf};

use sites::links::{Expression, LinkForm, LinkKey};

use super::{LinkTable, Place};
use crate::failure::Failure;

/// The signed links of a rule, but for their keys.
#[derive(Clone, Debug)]
pub(crate) struct LinkSettings {
    pub(super) place: Place,
    /// The rule's index.
    pub(super) rule: usize,
    pub(super) form: LinkForm,
    pub(super) file: PathBuf,
}

pub(super) fn resolve_link(
    table: LinkTable,
    place: &Place,
) -> Result<(LinkForm, PathBuf), Failure> {
    let LinkTable {
        keys,
        form,
        name,
        hash_parameter,
        expires_parameter,
        expression,
    } = table;
    let keys = keys.ok_or_else(|| {
        place.refuse(
            "link: keys is missing",
            "name a file with a secret in each line",
        )
    })?;
    let is_token = match form.as_deref().unwrap_or("token") {
        "token" => true,
        "secure_link" => false,
        other => {
            let remedy = "write token or secure_link";
            return Err(place.refuse(format_args!("link.form {other:?}: unknown"), remedy));
        }
    };
    let foreign: &[_] = if is_token {
        &[
            ("hash_parameter", &hash_parameter),
            ("expires_parameter", &expires_parameter),
            ("expression", &expression),
        ]
    } else {
        &[("name", &name)]
    };
    if let Some((key, _)) = foreign.iter().find(|(_, value)| value.is_some()) {
        let problem = format_args!("link.{key} means nothing with this form");
        return Err(place.refuse(problem, "leave it out, or write the other form"));
    }
    let parameter = |key, value: Option<String>, default: &str| {
        let name = value.unwrap_or_else(|| default.to_owned());
        let belongs = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if name.is_empty() || !name.bytes().all(belongs) {
            let remedy = "use letters, digits, _ and -";
            return Err(place.refuse(format_args!("link.{key} {name:?}: no name"), remedy));
        }
        Ok(name.into_boxed_str())
    };
    if is_token {
        return Ok((LinkForm::Token(parameter("name", name, "hdnts")?), keys));
    }
    let text = expression.as_deref();
    let text = text.unwrap_or("$secure_link_expires$uri$remote_addr $key");
    let expression = Expression::parse(text).map_err(|problem| {
        place.refuse(
            format_args!("link.expression {text:?}: {problem}"),
            "write it like \"$secure_link_expires$uri$remote_addr $key\"",
        )
    })?;
    let form = LinkForm::SecureLink {
        hash_name: parameter("hash_parameter", hash_parameter, "md5")?,
        expires_name: parameter("expires_parameter", expires_parameter, "expires")?,
        expression,
    };
    Ok((form, keys))
}

impl LinkSettings {
    /// The file of the keys.
    #[must_use]
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// The keys in a file's text.
    ///
    /// # Errors
    /// A line that is no key, or too few or too many of them. The line is not shown: it is a secret.
    pub(crate) fn parse_keys(&self, text: &[u8]) -> Result<Vec<LinkKey>, Failure> {
        let shown = format!("{}: link.keys {}", self.place, self.file.display());
        let is_token = matches!(self.form, LinkForm::Token(_));
        let lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
        let lines = (1..)
            .zip(lines)
            .filter(|(_, line)| !line.is_empty() && !line.starts_with(b"#"));
        let keys = lines.map(|(number, line)| {
            let key = if is_token {
                std::str::from_utf8(line).ok().and_then(LinkKey::from_hex)
            } else {
                LinkKey::new(line)
            };
            let remedy = if is_token {
                "write 2 to 128 hexadecimal digits, as openssl rand -hex 32 makes them"
            } else {
                "write 1 to 64 bytes"
            };
            key.ok_or_else(|| Failure::refused(format!("{shown}: line {number} is no key"), remedy))
        });
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        if !(1..=sites::links::KEYS_MAX).contains(&keys.len()) {
            return Err(Failure::refused(
                format!("{shown}: {} keys", keys.len()),
                format!("write 1 to {}, a line each", sites::links::KEYS_MAX),
            ));
        }
        Ok(keys)
    }

    /// The file could not be read.
    #[must_use]
    pub(crate) fn refuse_file(&self, error: &std::io::Error) -> Failure {
        let shown = self.file.display();
        self.place.refuse(
            format_args!("link.keys {shown}: {error}"),
            "name a file that the server may read",
        )
    }
}
