//! Roles, and the principals that can assume them: `AssumeRole` and `AssumeRoleWithWebIdentity`, with the same checks
//! as in AWS.
//!
//! moto accepts every call. Here, trust policies, external IDs and the one-hour limit of chained sessions apply.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde_json::Value;

use super::answers::{Denied, denied};
use super::{Credentials, Principal, State};

/// The maximum session duration of a role that a different role assumed.
const CHAINED: Duration = Duration::from_hours(1);

/// The space for session policies and session tags, in the unit that this service uses.
const PACKED_SIZE: usize = 2500;

/// The part of this space that the tags from EKS Pod Identity use.
const TAGS_OF_POD_IDENTITY: usize = 2000;

/// The principals that a role trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    /// The ARNs of callers: a user, a role (and its sessions), or the root of an account (and all its principals).
    pub principals: Vec<String>,
    /// The required value of `sts:ExternalId`.
    pub external_id: Option<String>,
    /// The subject and the audience in tokens from the OIDC provider. This service does not verify the signatures of
    /// tokens.
    pub web_identity: Option<(String, String)>,
}

impl Trust {
    /// Creates a role that this principal can assume.
    pub fn of(principal: &str) -> Self {
        Self {
            principals: vec![principal.to_owned()],
            external_id: None,
            web_identity: None,
        }
    }

    /// Requires this external ID.
    #[must_use]
    pub fn external_id(mut self, id: &str) -> Self {
        self.external_id = Some(id.to_owned());
        self
    }

    /// Creates a role that this service account can assume.
    pub fn of_service_account(namespace: &str, name: &str) -> Self {
        Self {
            principals: Vec::new(),
            external_id: None,
            web_identity: Some((
                format!("system:serviceaccount:{namespace}:{name}"),
                "sts.amazonaws.com".to_owned(),
            )),
        }
    }
}

/// The roles, keyed by ARN.
#[derive(Debug, Default)]
pub(super) struct Roles(pub(super) HashMap<String, Trust>);

/// The parameters of a call.
pub(super) type Parameters = BTreeMap<String, String>;

/// New credentials for a session.
#[derive(Debug)]
pub(super) struct Assumed {
    pub(super) credentials: Credentials,
    pub(super) principal: Principal,
}

fn access_denied(caller: &str, action: &str, arn: &str) -> Denied {
    let message =
        format!("User: {caller} is not authorized to perform: sts:{action} on resource: {arn}");
    denied(403, "AccessDenied", message)
}

/// Creates a session of the role for this caller, in this region.
pub(super) fn assume_role(
    state: &mut State,
    caller: &Principal,
    region: &str,
    parameters: &Parameters,
) -> Result<Assumed, Denied> {
    check(parameters)?;
    let parameter = |name: &str| parameters.get(name).map(String::as_str);
    let arn = parameter("RoleArn").unwrap_or_default();
    let refused = || access_denied(&caller.arn, "AssumeRole", arn);
    let trust = state.roles.0.get(arn).ok_or_else(refused)?;
    let is_trusted = trust
        .principals
        .iter()
        .any(|principal| is(principal, caller));
    if !is_trusted
        || trust
            .external_id
            .as_deref()
            .is_some_and(|id| parameter("ExternalId") != Some(id))
    {
        return Err(refused());
    }
    let is_tagged = state.tagged.contains(&caller.arn);
    if is_tagged && !state.accept_tags.contains(arn) {
        return Err(access_denied(&caller.arn, "TagSession", arn));
    }
    // The caller's account has enabled the region. Otherwise, its credentials would be unknown there.
    let account = arn.split(':').nth(4).unwrap_or_default();
    let place = (account.to_owned(), region.to_owned());
    if state.not_enabled.contains(&place) {
        let message = format!(
            "STS is not activated in this region for account:{account}. Your account administrator can activate STS in \
             this region using the IAM Console."
        );
        return Err(denied(403, "RegionDisabledException", message));
    }
    check_packed_size(parameters, is_tagged)?;
    let is_chained = caller.arn.contains(":assumed-role/");
    let assumed = issue(state, arn, parameters, is_chained)?;
    if is_tagged {
        state.tagged.insert(assumed.principal.arn.clone());
    }
    Ok(assumed)
}

/// Checks that session policies and session tags fit into the space that they share. AWS does not publish its size. The
/// tags from EKS Pod Identity use most of this space.
fn check_packed_size(parameters: &Parameters, is_tagged: bool) -> Result<(), Denied> {
    let policies = parameters
        .iter()
        .filter(|(name, _)| *name == "Policy" || name.starts_with("PolicyArns.member."));
    let policies: usize = policies.map(|(_, value)| value.len()).sum();
    let tags = if is_tagged { TAGS_OF_POD_IDENTITY } else { 0 };
    let percent = (policies + tags) * 100 / PACKED_SIZE;
    if percent <= 100 {
        return Ok(());
    }
    let message = format!(
        "Packed size of session policies and session tags consumes {percent}% of allotted space."
    );
    Err(denied(400, "PackedPolicyTooLarge", message))
}

/// Checks the parameters according to the STS API reference (`AssumeRole`), before the authorization.
fn check(parameters: &Parameters) -> Result<(), Denied> {
    let invalid = |name: &str| {
        let message = format!("1 validation error detected: Value at '{name}' is invalid");
        denied(400, "ValidationError", message)
    };
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_text = |name: &str, lengths: RangeInclusive<usize>, others: &str| {
        parameters.get(name).is_none_or(|value| {
            let is_allowed = |c: char| is_word(c) || others.contains(c);
            lengths.contains(&value.len()) && value.chars().all(is_allowed)
        })
    };
    let is_printable = |c: char| !c.is_control() && !c.is_whitespace();
    let is_arn = |arn: &String| (20..=2048).contains(&arn.len()) && arn.chars().all(is_printable);
    if !parameters.get("RoleArn").is_some_and(is_arn) {
        return Err(invalid("roleArn"));
    }
    if !is_text("RoleSessionName", 2..=64, "+=,.@-") {
        return Err(invalid("roleSessionName"));
    }
    if !is_text("ExternalId", 2..=1224, "+=,.@:/-") {
        return Err(invalid("externalId"));
    }
    let policies = parameters.iter();
    let mut policies = policies.filter(|(name, _)| name.starts_with("PolicyArns.member."));
    if policies.clone().count() > 10 || !policies.all(|(_, arn)| is_arn(arn)) {
        return Err(invalid("policyArns"));
    }
    if let Some(policy) = parameters.get("Policy") {
        if !(1..=2048).contains(&policy.chars().count()) {
            return Err(invalid("policy"));
        }
        if serde_json::from_str::<Value>(policy).is_err() {
            let message = "This policy contains invalid Json";
            return Err(denied(400, "MalformedPolicyDocument", message));
        }
    }
    Ok(())
}

/// Creates a session of the role for the bearer of a token.
pub(super) fn assume_role_with_web_identity(
    state: &mut State,
    parameters: &Parameters,
) -> Result<Assumed, Denied> {
    let arn = parameters.get("RoleArn").cloned().unwrap_or_default();
    let invalid = || {
        denied(
            400,
            "InvalidIdentityToken",
            "The web identity token is not a JWT",
        )
    };
    let token = parameters.get("WebIdentityToken").ok_or_else(invalid)?;
    let claims = token.split('.').nth(1).ok_or_else(invalid)?;
    let claims = BASE64_URL_SAFE_NO_PAD
        .decode(claims)
        .map_err(|_| invalid())?;
    let claims: Value = serde_json::from_slice(&claims).map_err(|_| invalid())?;
    let now = Timestamp::try_from(state.clock.now()).unwrap().as_second();
    if claims["exp"].as_i64().is_none_or(|end| end <= now) {
        return Err(denied(400, "ExpiredTokenException", "Token expired"));
    }
    let trust = state
        .roles
        .0
        .get(&arn)
        .and_then(|trust| trust.web_identity.clone());
    let is_trusted = trust.is_some_and(|(subject, audience)| {
        let audiences = claims["aud"].as_array().into_iter().flatten();
        claims["sub"] == subject && audiences.into_iter().any(|one| *one == audience)
    });
    if !is_trusted {
        return Err(access_denied(
            "the web identity",
            "AssumeRoleWithWebIdentity",
            &arn,
        ));
    }
    issue(state, &arn, parameters, false)
}

fn issue(
    state: &mut State,
    arn: &str,
    parameters: &Parameters,
    is_chained: bool,
) -> Result<Assumed, Denied> {
    let seconds = parameters
        .get("DurationSeconds")
        .map_or(Ok(3600), |seconds| seconds.parse());
    let duration = Duration::from_secs(seconds.unwrap_or_default());
    let invalid = |message: &str| denied(400, "ValidationError", message);
    if duration < Duration::from_mins(15) || duration > Duration::from_hours(12) {
        return Err(invalid("DurationSeconds is out of range"));
    }
    if is_chained && duration > CHAINED {
        let message = "The requested DurationSeconds exceeds the 1 hour session limit for roles assumed by role chaining";
        return Err(invalid(message));
    }
    let session = parameters
        .get("RoleSessionName")
        .ok_or_else(|| invalid("RoleSessionName is required"))?;
    let (account, role) = arn
        .strip_prefix("arn:aws:iam::")
        .and_then(|rest| rest.split_once(":role/"))
        .ok_or_else(|| invalid("RoleArn is invalid"))?;
    let role = role.rsplit('/').next().unwrap_or(role);
    let principal = Principal::session(account, role, session);
    let expiration = state.clock.now() + duration;
    let credentials = state.issued.issue_of(&principal.clone(), expiration);
    Ok(Assumed {
        credentials,
        principal,
    })
}

/// Whether a principal in a trust policy is the caller, or includes the caller.
fn is(principal: &str, caller: &Principal) -> bool {
    let root = format!("arn:aws:iam::{}:root", caller.account);
    let role = principal
        .replacen(":iam:", ":sts:", 1)
        .replacen(":role/", ":assumed-role/", 1);
    principal == root || principal == caller.arn || caller.arn.starts_with(&format!("{role}/"))
}
