//! Checks of the requester.

use kubelet_attestation::names::{NODE_USER_PREFIX, NODES_GROUP, NodeName};

use crate::identifiers::{BOOTSTRAP_USER_PREFIX, CertificateUid, TokenId};
use crate::refusal::Denial;

/// The group of all bootstrap tokens, and the prefix of the extra groups of a token.
const BOOTSTRAPPERS_GROUP: &str = "system:bootstrappers";

/// The group of all authenticated users.
const AUTHENTICATED_GROUP: &str = "system:authenticated";

/// The requester of a certificate, as authenticated by the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requester {
    /// A machine without a certificate, which uses its bootstrap token.
    First {
        /// The token's ID.
        token: TokenId,
    },
    /// The node itself, with its certificate.
    Renewal {
        /// The certificate's UID.
        uid: CertificateUid,
    },
    /// The node itself, with a certificate from another signer, which does not identify a node identity.
    Unmarked,
}

/// Accepts a bootstrap token, or the node's own certificate. The ledger determines whether to accept a certificate that
/// does not identify a node identity.
///
/// The proposal requires `CN == spec.username`. A machine that joins has no certificate yet, so this check applies only
/// to renewals.
pub(crate) fn accepted(
    username: &str,
    groups: &[String],
    uid: Option<&str>,
    node_name: &NodeName,
) -> Result<Requester, Denial> {
    if let Some(token) = username.strip_prefix(BOOTSTRAP_USER_PREFIX) {
        let token = TokenId::parse(token).map_err(|_| not_accepted(username))?;
        has_groups(groups, &[BOOTSTRAPPERS_GROUP], is_bootstrappers)?;
        Ok(Requester::First { token })
    } else if username.starts_with(NODE_USER_PREFIX) {
        is_node(username, groups, node_name)?;
        match uid {
            None | Some("") => Ok(Requester::Unmarked),
            Some(uid) => CertificateUid::parse(uid)
                .map(|uid| Requester::Renewal { uid })
                .map_err(|_| Denial::RequesterUidMissing),
        }
    } else {
        Err(not_accepted(username))
    }
}

/// Accepts the node itself, with any certificate.
///
/// These are the checks that the proposal requires for serving certificates: `spec.username` is
/// `system:node:<nodeName>`, and `spec.groups` contains `system:nodes`.
pub(crate) fn is_node(
    username: &str,
    groups: &[String],
    node_name: &NodeName,
) -> Result<(), Denial> {
    let requester = NodeName::from_user_name(username).ok_or_else(|| not_accepted(username))?;
    has_groups(groups, &[NODES_GROUP, AUTHENTICATED_GROUP], |_| false)?;
    if requester == *node_name {
        Ok(())
    } else {
        Err(Denial::RequesterIsAnotherNode {
            requester,
            asked: node_name.clone(),
        })
    }
}

/// Checks that `groups` contains all `required` groups. Apart from these groups, `groups` can contain only the group of
/// all authenticated users, and the groups that `may_be` accepts.
fn has_groups(
    groups: &[String],
    required: &[&str],
    may_be: impl Fn(&str) -> bool,
) -> Result<(), Denial> {
    let complete = required
        .iter()
        .all(|required| groups.iter().any(|group| group == required));
    let no_other = groups.iter().all(|group| {
        group == AUTHENTICATED_GROUP || required.contains(&group.as_str()) || may_be(group)
    });
    if complete && no_other {
        Ok(())
    } else {
        Err(Denial::RequesterGroups(groups.to_vec()))
    }
}

fn is_bootstrappers(group: &str) -> bool {
    group
        .strip_prefix(BOOTSTRAPPERS_GROUP)
        .and_then(|rest| rest.strip_prefix(':'))
        .is_some_and(|name| !name.is_empty())
}

fn not_accepted(username: &str) -> Denial {
    Denial::RequesterNotAccepted(username.to_owned())
}
