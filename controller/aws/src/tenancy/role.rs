//! A role to assume: its ARN, and the parameters of `AssumeRole`.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::document::is_account;

/// The default validity of a session. Every role allows this validity, which is also the maximum for a chained session.
const DEFAULT_DURATION: Duration = Duration::from_hours(1);

/// The maximum validity of a session with a temporary source (STS, "role chaining").
const MAX_CHAINED_DURATION: Duration = Duration::from_hours(1);

/// The maximum length of a session name (STS, `AssumeRole`).
const MAX_SESSION_NAME_LEN: usize = 64;

/// The maximum length of an external ID (STS, `AssumeRole`).
const MAX_EXTERNAL_ID_LEN: usize = 1224;

/// The maximum length of an inline session policy (STS, `AssumeRole`).
const MAX_INLINE_POLICY_LEN: usize = 2048;

/// The maximum number of managed session policies (STS, `AssumeRole`).
const MAX_POLICY_ARNS: usize = 10;

/// The maximum length of an ARN (IAM).
const MAX_ARN_LEN: usize = 2048;

/// The fields of a role in a custom resource: `AWSRoleSpec` in Cluster API Provider AWS, and `externalID`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RoleSpec {
    /// The role's ARN.
    #[serde(rename = "roleARN", default)]
    pub role_arn: String,
    /// The name of the session. If empty, the session name is derived from the identity's name.
    #[serde(default)]
    pub session_name: String,
    /// The validity of the session in seconds. 0 means one hour.
    #[serde(default)]
    pub duration_seconds: i64,
    /// An inline session policy. Empty if the role has none.
    #[serde(default)]
    pub inline_policy: String,
    /// Managed session policies.
    #[serde(rename = "policyARNs", default)]
    pub policy_arns: Option<Vec<String>>,
    /// The external ID. Empty if the role has none.
    #[serde(rename = "externalID", default)]
    pub external_id: String,
}

/// A role ARN.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
#[display("{text}")]
pub struct RoleArn {
    text: String,
    partition: String,
    account: String,
}

/// The error for a text that is not a role ARN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is not a role ARN (want arn:PARTITION:iam::ACCOUNT:role/NAME)")]
pub struct InvalidRoleArn;

/// The field of a role that is invalid, so that STS would reject the role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRoleSpec {
    /// The role's ARN is invalid.
    #[error("roleARN: {0}")]
    RoleArn(#[from] InvalidRoleArn),
    /// The session name is invalid.
    #[error("sessionName must have 2 to 64 letters, digits and characters from _+=,.@-")]
    SessionName,
    /// The validity is out of bounds.
    #[error("durationSeconds must be from 900 to 43200")]
    DurationSeconds,
    /// The inline session policy is invalid.
    #[error("inlinePolicy must be JSON with at most 2048 characters")]
    InlinePolicy,
    /// The managed session policies are invalid.
    #[error("policyARNs must have at most 10 ARNs")]
    PolicyArns,
    /// The external ID is invalid.
    #[error("externalID must have 2 to 1224 letters, digits and characters from _+=,.@:/-")]
    ExternalId,
}

/// A role to assume, with the parameters of the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// The role.
    pub arn: RoleArn,
    /// The name of the session.
    pub session_name: String,
    /// The validity of the session.
    pub duration: Duration,
    /// The external ID.
    pub external_id: Option<String>,
    /// The inline session policy.
    pub inline_policy: Option<String>,
    /// The managed session policies.
    pub policy_arns: BTreeSet<String>,
}

impl Role {
    /// Creates the role with these fields. If the fields do not contain a session name, it is derived from the
    /// identity's name.
    ///
    /// # Errors
    ///
    /// Returns the first field that STS would reject.
    pub fn new(spec: &RoleSpec, identity: &str) -> Result<Self, InvalidRoleSpec> {
        let session_name = match &*spec.session_name {
            "" => session_name_of(identity),
            name => name.to_owned(),
        };
        let is_session_char = |c: char| is_word(c) || "+=,.@-".contains(c);
        if !is_text(&session_name, MAX_SESSION_NAME_LEN, is_session_char) {
            return Err(InvalidRoleSpec::SessionName);
        }
        let duration = match spec.duration_seconds {
            0 => DEFAULT_DURATION,
            900..=43200 => Duration::from_secs(spec.duration_seconds.unsigned_abs()),
            _ => return Err(InvalidRoleSpec::DurationSeconds),
        };
        let external_id = Some(&spec.external_id).filter(|id| !id.is_empty());
        let is_external_char = |c: char| is_word(c) || "+=,.@:/-".contains(c);
        if !external_id.is_none_or(|id| is_text(id, MAX_EXTERNAL_ID_LEN, is_external_char)) {
            return Err(InvalidRoleSpec::ExternalId);
        }
        let inline_policy = Some(&spec.inline_policy).filter(|policy| !policy.is_empty());
        if !inline_policy.is_none_or(|policy| is_policy(policy)) {
            return Err(InvalidRoleSpec::InlinePolicy);
        }
        let policy_arns: BTreeSet<String> = spec.policy_arns.iter().flatten().cloned().collect();
        let is_arn = |arn: &String| arn.starts_with("arn:") && arn.len() <= MAX_ARN_LEN;
        if policy_arns.len() > MAX_POLICY_ARNS || !policy_arns.iter().all(is_arn) {
            return Err(InvalidRoleSpec::PolicyArns);
        }
        Ok(Self {
            arn: spec.role_arn.parse()?,
            session_name,
            duration,
            external_id: external_id.cloned(),
            inline_policy: inline_policy.cloned(),
            policy_arns,
        })
    }

    /// Shortens the session to the STS limit for a temporary source. Returns whether the session was longer.
    pub(super) fn chain(&mut self) -> bool {
        let is_longer = self.duration > MAX_CHAINED_DURATION;
        self.duration = self.duration.min(MAX_CHAINED_DURATION);
        is_longer
    }
}

impl RoleArn {
    /// The partition in the role's ARN.
    pub fn partition(&self) -> &str {
        &self.partition
    }

    /// The account in the role's ARN.
    pub fn account(&self) -> &str {
        &self.account
    }
}

impl FromStr for RoleArn {
    type Err = InvalidRoleArn;

    fn from_str(arn: &str) -> Result<Self, InvalidRoleArn> {
        let parts: Vec<&str> = arn.split(':').collect();
        let ["arn", partition, "iam", "", account, resource] = *parts.as_slice() else {
            return Err(InvalidRoleArn);
        };
        let name = resource.strip_prefix("role/").ok_or(InvalidRoleArn)?;
        // The text consists of a path, which ends with a slash, and a name. Both contain only printable characters
        // without spaces.
        let is_name = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_graphic());
        let is_role = name.split('/').all(is_name) && arn.len() <= MAX_ARN_LEN;
        if !is_role || partition.is_empty() || !is_account(account) {
            return Err(InvalidRoleArn);
        }
        Ok(Self {
            partition: partition.to_owned(),
            account: account.to_owned(),
            text: arn.to_owned(),
        })
    }
}

/// The session name for an identity. All clusters that use the identity have the same session name, so that they share
/// a session.
fn session_name_of(identity: &str) -> String {
    let name = format!("node-attestation-{identity}");
    let valid = name.chars().filter(|&c| is_word(c) || "+=,.@-".contains(c));
    valid.take(MAX_SESSION_NAME_LEN).collect()
}

fn is_text(text: &str, max_len: usize, is_allowed: impl Fn(char) -> bool) -> bool {
    (2..=max_len).contains(&text.len()) && text.chars().all(is_allowed)
}

/// Whether `\w` in the patterns of the STS API reference matches the character.
fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn is_policy(policy: &str) -> bool {
    policy.chars().count() <= MAX_INLINE_POLICY_LEN
        && serde_json::from_str::<IgnoredAny>(policy).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARN: &str = "arn:aws:iam::111122223333:role/nodes";

    fn spec() -> RoleSpec {
        RoleSpec {
            role_arn: ARN.to_owned(),
            ..RoleSpec::default()
        }
    }

    fn role(change: impl FnOnce(&mut RoleSpec)) -> Result<Role, InvalidRoleSpec> {
        let mut spec = spec();
        change(&mut spec);
        Role::new(&spec, "tenant-a")
    }

    #[test]
    fn a_role_without_options_gets_an_hour_and_a_derived_session_name() {
        let role = role(|_| {}).unwrap();
        assert_eq!(role.arn.to_string(), ARN);
        assert_eq!(
            (role.arn.partition(), role.arn.account()),
            ("aws", "111122223333")
        );
        assert_eq!(role.session_name, "node-attestation-tenant-a");
        assert_eq!(role.duration, Duration::from_hours(1));
        assert_eq!(
            (role.external_id, role.inline_policy, role.policy_arns),
            (None, None, BTreeSet::new())
        );
    }

    #[test]
    fn a_session_name_is_derived_from_any_identity_name() {
        let long = Role::new(&spec(), &"a".repeat(200)).unwrap();
        assert_eq!(long.session_name.len(), 64);
        let strange = Role::new(&spec(), "a:b/ü").unwrap();
        assert_eq!(strange.session_name, "node-attestation-ab");
    }

    #[test]
    fn a_role_arn_without_partition_account_or_name_is_refused() {
        for valid in [
            ARN,
            "arn:aws-cn:iam::111122223333:role/a",
            "arn:aws:iam::111122223333:role/path/to/a",
        ] {
            assert_eq!(
                valid.parse::<RoleArn>().map(|arn| arn.to_string()),
                Ok(valid.to_owned())
            );
        }
        for invalid in [
            "",
            "nodes",
            "arn:aws:iam::111122223333:user/nodes",
            "arn:aws:iam::111122223333:role/",
            "arn:aws:iam::111122223333:role",
            "arn:aws:iam::111122223333:role/a//b",
            "arn:aws:iam::11112222333:role/nodes",
            "arn:aws:iam::11112222333a:role/nodes",
            "arn:aws:iam:eu-west-1:111122223333:role/nodes",
            "arn:aws:sts::111122223333:role/nodes",
            "arn::iam::111122223333:role/nodes",
            "arn:aws:iam::111122223333:role/nodes:b",
            "arn:aws:iam::111122223333:role/no des",
            "ARN:aws:iam::111122223333:role/nodes",
            " arn:aws:iam::111122223333:role/nodes",
        ] {
            assert_eq!(invalid.parse::<RoleArn>(), Err(InvalidRoleArn), "{invalid}");
        }
        let too_long = format!("{ARN}{}", "a".repeat(2048));
        assert_eq!(too_long.parse::<RoleArn>(), Err(InvalidRoleArn));
    }

    #[test]
    fn role_fields_are_validated_as_in_sts() {
        use InvalidRoleSpec::{DurationSeconds, ExternalId, InlinePolicy, PolicyArns, SessionName};
        let invalid = |change: fn(&mut RoleSpec)| role(change).unwrap_err();
        assert_eq!(
            invalid(|s| s.role_arn.clear()),
            InvalidRoleSpec::RoleArn(InvalidRoleArn)
        );
        assert_eq!(invalid(|s| s.session_name = "a".to_owned()), SessionName);
        assert_eq!(invalid(|s| s.session_name = "a b".to_owned()), SessionName);
        assert_eq!(invalid(|s| s.session_name = "a".repeat(65)), SessionName);
        assert_eq!(invalid(|s| s.duration_seconds = 899), DurationSeconds);
        assert_eq!(invalid(|s| s.duration_seconds = 43201), DurationSeconds);
        assert_eq!(invalid(|s| s.duration_seconds = -900), DurationSeconds);
        assert_eq!(invalid(|s| s.external_id = "a".to_owned()), ExternalId);
        assert_eq!(invalid(|s| s.external_id = "a b".to_owned()), ExternalId);
        assert_eq!(invalid(|s| s.external_id = "a".repeat(1225)), ExternalId);
        assert_eq!(invalid(|s| s.inline_policy = "{".to_owned()), InlinePolicy);
        assert_eq!(
            invalid(|s| s.inline_policy = format!("\"{}\"", "a".repeat(2047))),
            InlinePolicy
        );
        assert_eq!(
            invalid(|s| s.policy_arns = Some(vec!["a".to_owned()])),
            PolicyArns
        );
        let eleven = |n: u32| format!("arn:aws:iam::aws:policy/{n}");
        assert_eq!(
            role(|s| s.policy_arns = Some((0..11).map(eleven).collect())),
            Err(PolicyArns)
        );

        let all = role(|s| {
            s.session_name = "a@b".to_owned();
            s.duration_seconds = 900;
            s.external_id = "7a5b:816a/7743".to_owned();
            s.inline_policy = "{\"Version\": \"2012-10-17\"}".to_owned();
            s.policy_arns = Some((0..10).rev().map(eleven).collect());
        });
        let all = all.unwrap();
        assert_eq!(all.session_name, "a@b");
        assert_eq!(all.duration, Duration::from_mins(15));
        assert_eq!(all.external_id.as_deref(), Some("7a5b:816a/7743"));
        assert_eq!(
            all.inline_policy.as_deref(),
            Some("{\"Version\": \"2012-10-17\"}")
        );
        assert_eq!(all.policy_arns, (0..10).map(eleven).collect());
    }

    #[test]
    fn a_chained_session_lasts_at_most_an_hour() {
        let mut long = role(|s| s.duration_seconds = 7200).unwrap();
        assert!(long.chain());
        assert_eq!(long.duration, Duration::from_hours(1));
        assert!(!long.chain());

        let mut short = role(|s| s.duration_seconds = 900).unwrap();
        assert!(!short.chain());
        assert_eq!(short.duration, Duration::from_mins(15));
    }
}
