//! Texts with variables in them, `$name`: what signed links hash, and where redirects lead.

/// A piece of such a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Piece<V> {
    /// As it stands there.
    Text(Box<str>),
    /// What stands in place of a name.
    Variable(V),
}

/// Splits a text; `None`: there is a `$` without one of the names. Of names that begin alike the longer comes first.
pub(crate) fn split<V: Copy>(text: &str, variables: &[(&str, V)]) -> Option<Vec<Piece<V>>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if rest.starts_with('$') {
            let mut known = variables.iter();
            let (name, variable) = known.find(|(name, _)| rest.starts_with(name))?;
            pieces.push(Piece::Variable(*variable));
            rest = rest.strip_prefix(name)?;
        } else {
            let (plain, behind) = rest.split_at(rest.find('$').unwrap_or(rest.len()));
            pieces.push(Piece::Text(plain.into()));
            rest = behind;
        }
    }
    Some(pieces)
}
