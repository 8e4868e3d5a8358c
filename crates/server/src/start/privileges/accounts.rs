//! Users and groups by name or number.
//!
//! It refuses to guess: with a number that no user has, a group must be given. Bound: one look-up of
//! a user and one of a group.

use std::fmt;
use std::io;

use crate::settings::UserName;
use crate::start::host;

/// A user the process can become.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Account {
    /// As messages name it.
    pub name: String,
    /// The user's number.
    pub uid: u32,
    /// The number of its group.
    pub gid: u32,
}

/// Why there is no such account.
#[derive(Debug)]
pub(super) enum AccountError {
    NoUser,
    NoGroup,
    /// A number that no user has, without a group.
    GroupUnknown,
    Lookup(io::Error),
}

impl AccountError {
    /// Whether there just is no such user.
    pub(super) const fn is_missing(&self) -> bool {
        matches!(self, Self::NoUser)
    }

    /// What the operator can do.
    pub(super) const fn remedy(&self) -> &'static str {
        match self {
            Self::NoUser => "create it (useradd --system NAME), or name another",
            Self::NoGroup => "create it (groupadd --system GROUP), or name another",
            Self::GroupUnknown => "give the group too, as UID:GID",
            Self::Lookup(_) => "use numbers, as UID:GID",
        }
    }
}

impl fmt::Display for AccountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoUser => f.write_str("there is no such user"),
            Self::NoGroup => f.write_str("there is no such group"),
            Self::GroupUnknown => f.write_str("no user has this number, so its group is not known"),
            Self::Lookup(error) => write!(f, "the users cannot be looked up: {error}"),
        }
    }
}

/// A name comes before a number, as chown(1) has it.
pub(super) fn find(name: &UserName) -> Result<Account, AccountError> {
    let known = host::user_named(&name.user).map_err(AccountError::Lookup)?;
    let gid = name.group.as_deref().map(find_group).transpose()?;
    let (uid, own_gid) = match (known, number(&name.user)) {
        (Some((uid, own_gid)), _) => (uid, Some(own_gid)),
        (None, Some(uid)) => (uid, None),
        (None, None) => return Err(AccountError::NoUser),
    };
    Ok(Account {
        name: name.to_string(),
        uid,
        gid: gid.or(own_gid).ok_or(AccountError::GroupUnknown)?,
    })
}

fn find_group(group: &str) -> Result<u32, AccountError> {
    let known = host::group_named(group).map_err(AccountError::Lookup)?;
    known.or_else(|| number(group)).ok_or(AccountError::NoGroup)
}

/// Refuses the largest number: to the kernel it means "leave unchanged".
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number| *number != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::{AccountError, UserName, find};

    fn found(text: &str) -> Result<(u32, u32), AccountError> {
        let account = find(&UserName::parse(text).unwrap())?;
        Ok((account.uid, account.gid))
    }

    #[test]
    fn names_are_looked_up_and_numbers_are_taken() {
        for text in ["root", "root:root", "root:0", "0:0"] {
            assert_eq!(found(text).unwrap(), (0, 0), "{text}");
        }
        assert_eq!(found("4000000000:7").unwrap(), (4_000_000_000, 7));
        assert_eq!(found("root:7").unwrap(), (0, 7));
    }

    #[test]
    fn unknown_users_and_groups_are_refused() {
        assert!(matches!(found("atlas-no-such"), Err(AccountError::NoUser)));
        assert!(matches!(
            found("root:atlas-no-such"),
            Err(AccountError::NoGroup)
        ));
        assert!(matches!(
            found("4000000000"),
            Err(AccountError::GroupUnknown)
        ));
        assert!(matches!(found("4294967295:7"), Err(AccountError::NoUser)));
        assert!(matches!(found("-1:7"), Err(AccountError::NoUser)));
    }
}
