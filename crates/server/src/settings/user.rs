//! The user that the operator names.
//!
//! It refuses to look it up: that is for [`crate::start::privileges`]. Bound: none of its own.

use std::fmt;

/// `NAME` or `NAME:GROUP`, each a name or a number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct UserName {
    /// Name or number.
    pub(crate) user: String,
    /// The same; `None`: the user's own.
    pub(crate) group: Option<String>,
}

impl UserName {
    /// Reads `NAME[:GROUP]`; `None` if a part is empty or there are too many.
    #[must_use]
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let is_name = |part: &str| !part.is_empty() && !part.contains([':', '\0']);
        (is_name(user) && group.is_none_or(is_name)).then(|| Self {
            user: user.into(),
            group: group.map(str::to_owned),
        })
    }

    /// That user, with its own group.
    #[must_use]
    pub(crate) fn of_user(user: &str) -> Self {
        Self {
            user: user.into(),
            group: None,
        }
    }
}

impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.group {
            Some(group) => write!(f, "{}:{group}", self.user),
            None => f.write_str(&self.user),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::UserName;

    #[test]
    fn a_user_is_a_name_and_perhaps_a_group() {
        for text in ["root", "root:root", "0:0", "a-b_c.d"] {
            assert_eq!(UserName::parse(text).unwrap().to_string(), text);
        }
        for text in ["", ":", "root:", ":root", "a:b:c", "a\0b"] {
            assert_eq!(UserName::parse(text), None, "{text:?}");
        }
    }
}
