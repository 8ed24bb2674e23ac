//! Size limits, which are checked before parsing.

use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
use kubelet_attestation::csr::envelope::MAX_REQUEST_LEN;
use kubelet_attestation::ensure;

use crate::refusal::Denial;

/// The maximum length of a user name. `system:node:` with the longest node name is 265 bytes long.
const MAX_USERNAME_LEN: usize = 512;

/// The maximum length of a user's UID. UIDs in the controller's certificates are at most 53 bytes long. Service
/// accounts and identity providers use longer UIDs.
const MAX_UID_LEN: usize = 256;

/// The maximum number of groups. A bootstrap token usually has only a few extra groups.
const MAX_GROUPS: usize = 32;

/// The maximum length of a group name: `system:bootstrappers:` and a name.
const MAX_GROUP_LEN: usize = 256;

/// The maximum number of usages. The API server accepts 23 usages, and rejects duplicates.
const MAX_USAGES: usize = 32;

/// Checks the fields that the chain reads. The chain does not read `spec.extra`.
pub(crate) fn within_limits(spec: &CertificateSigningRequestSpec) -> Result<(), Denial> {
    let len = spec.request.0.len();
    ensure!(len <= MAX_REQUEST_LEN, Denial::RequestTooLarge(len));
    if spec.usages.as_ref().map_or(0, Vec::len) > MAX_USAGES {
        return Err(Denial::UsagesNotExact);
    }
    let groups = spec.groups.as_deref().unwrap_or_default();
    let field = if spec.username.as_ref().map_or(0, String::len) > MAX_USERNAME_LEN {
        "username"
    } else if spec.uid.as_ref().map_or(0, String::len) > MAX_UID_LEN {
        "uid"
    } else if groups.len() > MAX_GROUPS || groups.iter().any(|group| group.len() > MAX_GROUP_LEN) {
        "groups"
    } else {
        return Ok(());
    };
    Err(Denial::RequesterTooLarge(field))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::valid;

    /// Checks the valid request after this change to it.
    fn checked(change: impl FnOnce(&mut CertificateSigningRequestSpec)) -> Result<(), Denial> {
        let mut spec = valid().spec;
        change(&mut spec);
        within_limits(&spec)
    }

    #[test]
    fn a_requester_field_over_its_limit_is_denied() {
        let too_large = |field| Err(Denial::RequesterTooLarge(field));
        let texts = |count: usize, len: usize| Some(vec!["x".repeat(len); count]);
        for (over, expected) in [(0, Ok(())), (1, too_large("username"))] {
            let username = Some("x".repeat(MAX_USERNAME_LEN + over));
            assert_eq!(checked(|spec| spec.username = username), expected);
        }
        for (over, expected) in [(0, Ok(())), (1, too_large("uid"))] {
            let uid = Some("x".repeat(MAX_UID_LEN + over));
            assert_eq!(checked(|spec| spec.uid = uid), expected);
        }
        for (over, expected) in [(0, Ok(())), (1, too_large("groups"))] {
            let groups = texts(MAX_GROUPS + over, 1);
            assert_eq!(checked(|spec| spec.groups = groups), expected);
            let groups = texts(1, MAX_GROUP_LEN + over);
            assert_eq!(checked(|spec| spec.groups = groups), expected);
        }
        for (over, expected) in [(0, Ok(())), (1, Err(Denial::UsagesNotExact))] {
            let usages = texts(MAX_USAGES + over, 1);
            assert_eq!(checked(|spec| spec.usages = usages), expected);
        }
    }
}
