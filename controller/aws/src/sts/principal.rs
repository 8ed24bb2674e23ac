//! The caller that STS reports, and the check that it is the instance in the document.

use std::fmt;
use std::str::FromStr;

use super::answer::CallerIdentity;
use crate::denial::AwsDenial;
use crate::document::{VerifiedDocument, is_account};
use crate::partition::Partition;

/// The role whose credentials are available only from the instance metadata. It has no trust policy, so it cannot be
/// assumed (EC2 User Guide, "Instance identity roles for Amazon EC2 instances").
const INSTANCE_IDENTITY_ROLE: &str = "aws:ec2-instance";

/// The maximum length of a role name, in characters (IAM quotas).
const MAX_ROLE_LEN: usize = 64;

/// The maximum length of a name from STS in a reason, in characters.
const MAX_SHOWN: usize = 256;

/// An instance profile role that the operator trusts: only EC2 must be allowed to assume it.
///
/// The form is `<account>:<role>`, or `<role>` for the role with this name in every accepted account.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProfileRole {
    account: Option<String>,
    name: String,
}

/// The text is not a role name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be <role> or <account>:<role>; the role name must not contain its path")]
pub struct InvalidRole;

impl FromStr for ProfileRole {
    type Err = InvalidRole;

    fn from_str(role: &str) -> Result<Self, InvalidRole> {
        let (account, name) = match role.split_once(':') {
            Some((account, name)) => (Some(account), name),
            None => (None, role),
        };
        if !account.is_none_or(is_account) || !is_role_name(name) {
            return Err(InvalidRole);
        }
        Ok(Self {
            account: account.map(ToOwned::to_owned),
            name: name.to_owned(),
        })
    }
}

impl fmt::Display for ProfileRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.account {
            Some(account) => write!(f, "{account}:{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl ProfileRole {
    fn is(&self, account: &str, name: &str) -> bool {
        self.name == name && self.account.as_deref().is_none_or(|ours| ours == account)
    }
}

/// The characters in role names: "Upper and lower case alphanumeric characters ... and `_+=,.@-`" (IAM, `CreateRole`).
/// Therefore a role name never equals [`INSTANCE_IDENTITY_ROLE`].
fn is_role_name(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"_+=,.@-".contains(&b);
    (1..=MAX_ROLE_LEN).contains(&name.len()) && name.bytes().all(allowed)
}

/// Checks that the caller is the instance in `document`, with a role that only this instance can have.
pub(super) fn is_instance(
    identity: &CallerIdentity,
    document: &VerifiedDocument,
    partition: Partition,
    roles: &[ProfileRole],
) -> Result<(), AwsDenial> {
    let Some(session) = Session::parse(&identity.arn) else {
        return Err(AwsDenial::CallerNotARole(shown(&identity.arn)));
    };
    if session.account != identity.account || !session.has_user_id(&identity.user_id) {
        return Err(AwsDenial::CallerAmbiguous {
            arn: shown(&identity.arn),
            user_id: shown(&identity.user_id),
        });
    }
    if session.partition != partition.name {
        return Err(AwsDenial::CallerOfAnotherPartition {
            caller: shown(session.partition),
            partition: partition.name.to_owned(),
        });
    }
    if session.account != document.account {
        return Err(AwsDenial::CallerOfAnotherAccount {
            caller: shown(session.account),
            account: document.account.clone(),
        });
    }
    let vouched = |role: &ProfileRole| role.is(session.account, session.role);
    if session.role != INSTANCE_IDENTITY_ROLE && !roles.iter().any(vouched) {
        return Err(AwsDenial::CallerRoleNotAllowed(shown(session.role)));
    }
    if session.name != document.instance {
        return Err(AwsDenial::CallerIsAnotherInstance {
            caller: shown(session.name),
            instance: document.instance.clone(),
        });
    }
    Ok(())
}

/// The parts of an ARN that has exactly the form `arn:<partition>:sts::<account>:assumed-role/<role>/<name>`.
struct Session<'a> {
    partition: &'a str,
    account: &'a str,
    role: &'a str,
    name: &'a str,
}

impl<'a> Session<'a> {
    fn parse(arn: &'a str) -> Option<Self> {
        // The role name can contain a colon, so the sixth part is the whole resource.
        let parts: Vec<&str> = arn.splitn(6, ':').collect();
        let ["arn", partition, "sts", "", account, resource] = *parts.as_slice() else {
            return None;
        };
        let resource: Vec<&str> = resource.split('/').collect();
        let ["assumed-role", role, name] = *resource.as_slice() else {
            return None;
        };
        let whole = is_account(account) && !role.is_empty() && !name.is_empty();
        whole.then_some(Self {
            partition,
            account,
            role,
            name,
        })
    }

    /// Whether the user ID belongs to the same session. For the instance identity role, the user ID repeats the account
    /// and the role. For any other role, it contains the role's unique ID (IAM User Guide, "IAM identifiers").
    fn has_user_id(&self, user_id: &str) -> bool {
        if self.role == INSTANCE_IDENTITY_ROLE {
            return user_id == format!("{}:{INSTANCE_IDENTITY_ROLE}:{}", self.account, self.name);
        }
        let is_unique = |rest: &str| {
            let allowed = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit();
            !rest.is_empty() && rest.bytes().all(allowed)
        };
        user_id.split_once(':').is_some_and(|(id, name)| {
            id.strip_prefix("AROA").is_some_and(is_unique) && name == self.name
        })
    }
}

/// The name, in a form that is safe to log.
fn shown(name: &str) -> String {
    name.chars()
        .take(MAX_SHOWN)
        .map(|c| if c.is_ascii_graphic() { c } else { '?' })
        .collect()
}
