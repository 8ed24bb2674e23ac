//! The differences between the two sides, each with the rule that explains it.

use std::collections::BTreeSet;

use node_attestation_aws::tenancy::{IdentityKind, IdentityRef, InvalidRoleSpec, ResolutionError};
use serde_json::Value;

use super::sides::{Assumed, Ours, Sides, Theirs, own};

/// The SDK's error about an access key without an ID or a secret.
const EMPTY_KEY: &str = "static credentials are empty";

/// Go's error about an access key with a line break.
const INVALID_HEADER: &str = "invalid header field value";

/// A row of the table "Differences from CAPA and ACK" in docs/tenancy-cases.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    NoIdentityRef,
    NilSource,
    TooDeep,
    PolicyArns,
    DurationDefault,
    DurationShortened,
    SessionNameDefault,
    InvalidRole,
    Partition,
    SecretFirst,
    SameName,
    SecretNotPrintable,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 12] = [
        Self::NoIdentityRef,
        Self::NilSource,
        Self::TooDeep,
        Self::PolicyArns,
        Self::DurationDefault,
        Self::DurationShortened,
        Self::SessionNameDefault,
        Self::InvalidRole,
        Self::Partition,
        Self::SecretFirst,
        Self::SameName,
        Self::SecretNotPrintable,
    ];

    /// The text in the first cell of the row.
    pub fn row(self) -> &'static str {
        match self {
            Self::NoIdentityRef => "`identityRef` missing",
            Self::NilSource => "role without `sourceIdentityRef`",
            Self::TooDeep => "more than five identities",
            Self::PolicyArns => "`policyARNs`",
            Self::DurationDefault => "`durationSeconds` missing",
            Self::DurationShortened => {
                "`durationSeconds` over 1 hour, with temporary credentials or the controller's credentials"
            }
            Self::SessionNameDefault => "`sessionName` missing",
            Self::InvalidRole => "role with a field that STS rejects",
            Self::Partition => "role in a different partition",
            Self::SecretFirst => "the Secret of an identity that is not permitted",
            Self::SameName => {
                "source that is not permitted, and that has the same name as the Cluster's identity"
            }
            Self::SecretNotPrintable => {
                "Secret with a value that contains unprintable characters, such as a trailing line break"
            }
        }
    }
}

/// The rules that explain all differences between the sides.
///
/// # Errors
///
/// Returns an error if there is a difference that no rule explains.
pub fn compare(sides: &Sides) -> Result<BTreeSet<Rule>, String> {
    let (ours, theirs) = (&sides.ours, &sides.theirs);
    let mut rules = BTreeSet::new();
    match (&ours.end, &theirs.end) {
        (Ours::Keys(_), Theirs::Keys(_)) => {
            all_calls(sides, &mut rules)?;
            owners(sides)?;
        }
        (Ours::Refused(code), Theirs::NotRetrieved(text))
            if text.contains(&format!("api error {code}: ")) =>
        {
            all_calls(sides, &mut rules)?;
        }
        (Ours::Unresolved(error), Theirs::Unresolved(text)) if is_same(sides, error, text) => {
            no_calls(sides)?;
        }
        (Ours::Unresolved(ResolutionError::SecretMalformed { .. }), Theirs::NotRetrieved(text))
            if text.ends_with(EMPTY_KEY) =>
        {
            no_calls(sides)?;
        }
        _ => {
            let rule = of_ends(sides, &mut rules).ok_or("no rule explains the ends")?;
            rules.insert(rule);
        }
    }
    Ok(rules)
}

fn no_calls(sides: &Sides) -> Result<(), String> {
    let both = [&sides.ours.calls, &sides.theirs.calls];
    let none = both.iter().all(|calls| calls.is_empty());
    none.then_some(())
        .ok_or_else(|| "STS was called".to_owned())
}

/// Whether the provider's refusal has the same reason as the project's error, both in its error text and in its
/// conditions.
fn is_same(sides: &Sides, error: &ResolutionError, text: &str) -> bool {
    let reason = |kind: &str| sides.reasons.get(kind).map(String::as_str);
    let retrieved =
        reason("PrincipalCredentialRetrieved") == Some("PrincipalCredentialRetrievalFailed");
    let usage = reason("PrincipalUsageAllowed");
    let not_permitted = |identity: &IdentityRef| {
        let IdentityRef { kind, name } = identity;
        text == format!("Namespace is not permitted to use {kind}: {name}")
    };
    retrieved
        && match error {
            ResolutionError::IdentityNotFound { identity } => text == not_found(identity),
            ResolutionError::UsageUnauthorized { identity, .. } => {
                not_permitted(identity) && usage == Some("PrincipalUsageUnauthorized")
            }
            ResolutionError::SourceUsageUnauthorized { identity, .. } => {
                not_permitted(identity) && usage == Some("SourcePrincipalUsageUnauthorized")
            }
            ResolutionError::BadSelector { .. } => {
                text.starts_with("failed to get label selector from spec selector: ")
            }
            ResolutionError::NotSingleton(name) => {
                text == format!("Expected AWSClusterControllerIdentity of name default, got {name}")
            }
            ResolutionError::SecretNotFound { name, .. } => {
                text == format!("secrets \"{name}\" not found")
            }
            _ => false,
        }
}

fn not_found(identity: &IdentityRef) -> String {
    let plural = match identity.kind {
        IdentityKind::Controller => "awsclustercontrolleridentities",
        IdentityKind::Static => "awsclusterstaticidentities",
        IdentityKind::Role => "awsclusterroleidentities",
        IdentityKind::ServiceAccount => "awsserviceaccountidentities",
    };
    let name = &identity.name;
    format!("{plural}.infrastructure.cluster.x-k8s.io \"{name}\" not found")
}

/// The rule that explains the difference between the two results. Also adds the rules for the calls that both sides
/// made.
fn of_ends(sides: &Sides, rules: &mut BTreeSet<Rule>) -> Option<Rule> {
    let theirs = &sides.theirs;
    let calls = &theirs.calls;
    match (&sides.ours.end, &theirs.end) {
        (Ours::Unresolved(error), end) => match error {
            // The provider uses the controller's credentials, without a check.
            ResolutionError::IdentityNotFound { identity }
            | ResolutionError::UsageUnauthorized { identity, .. }
            | ResolutionError::BadSelector { identity, .. }
                if *identity == IdentityRef::controller()
                    && sides.case.cluster["spec"]["identityRef"].is_null() =>
            {
                let is_own = *end == Theirs::Keys(own()) && calls.is_empty();
                is_own.then_some(Rule::NoIdentityRef)
            }
            // The provider makes the first call with the controller's credentials, without permission.
            ResolutionError::MissingSource(identity) => {
                let first = calls.first()?;
                let is_own = first.caller == own().owner && first.role == *arn(sides, identity);
                is_own.then_some(Rule::NilSource)
            }
            ResolutionError::ChainTooDeep(path) => {
                let roles = path.iter().rev();
                let roles = roles.map(|identity| arn(sides, identity).to_owned());
                let is_assumed = calls.iter().map(|call| call.role.clone()).eq(roles);
                let goes_on = match end {
                    Theirs::Keys(_) => is_assumed,
                    Theirs::Unresolved(text) => {
                        path.last().is_some_and(|last| *text == not_found(last))
                    }
                    Theirs::NotRetrieved(_) => false,
                };
                goes_on.then_some(Rule::TooDeep)
            }
            ResolutionError::InvalidRole {
                identity,
                invalid: InvalidRoleSpec::PolicyArns,
            } => {
                // The credentials are not sent, so a fault in the credentials has no effect.
                let is_assumed = calls.iter().any(|call| call.role == *arn(sides, identity));
                let beneath = || is_refused_beneath(sides, identity);
                let has_no_arns = calls.iter().all(|call| call.policy_arns.is_empty());
                (has_no_arns && (is_assumed || beneath())).then_some(Rule::PolicyArns)
            }
            ResolutionError::InvalidRole { identity, .. } => {
                let last = calls
                    .last()
                    .filter(|call| call.role == *arn(sides, identity));
                let codes = [
                    "ValidationError",
                    "MalformedPolicyDocument",
                    "AccessDenied",
                    "InvalidClientTokenId",
                ];
                let by_sts = last.is_some_and(|call| codes.contains(&&*call.outcome));
                let is_refused = by_sts || is_refused_beneath(sides, identity);
                is_refused.then_some(Rule::InvalidRole)
            }
            ResolutionError::PartitionMismatch { .. } => {
                let refused = calls.last().is_some_and(|call| call.outcome != "OK");
                let before = calls.iter().filter(|call| call.outcome == "OK");
                let mut before = before.map(|call| &call.role);
                let is_ours = before.all(|role| role.starts_with("arn:aws:"));
                (refused && is_ours && matches!(end, Theirs::NotRetrieved(_)))
                    .then_some(Rule::Partition)
            }
            ResolutionError::UsageUnauthorized { identity, .. }
            | ResolutionError::SourceUsageUnauthorized { identity, .. }
            | ResolutionError::BadSelector { identity, .. }
                if *end == Theirs::Unresolved(secret_not_found(sides, identity)) =>
            {
                (identity.kind == IdentityKind::Static).then_some(Rule::SecretFirst)
            }
            // The refusal is the same, but the provider's condition contains the name of the cluster's identity.
            ResolutionError::SourceUsageUnauthorized { identity, .. } => {
                let named = &sides.case.cluster["spec"]["identityRef"]["name"];
                let IdentityRef { kind, name } = identity;
                let text = format!("Namespace is not permitted to use {kind}: {name}");
                let usage = sides.reasons.get("PrincipalUsageAllowed");
                let is_misreported =
                    usage.is_some_and(|usage| usage == "PrincipalUsageUnauthorized");
                let is_same =
                    *end == Theirs::Unresolved(text) && is_misreported && *named == **name;
                is_same.then_some(Rule::SameName)
            }
            ResolutionError::SecretMalformed { .. } => {
                // The provider uses the key unchanged. If a role is assumed with this key, STS rejects the key, or the
                // key is not valid in a header.
                let first = calls.first().map(|call| &*call.outcome);
                let is_used = match end {
                    Theirs::Keys(_) => calls.is_empty(),
                    Theirs::NotRetrieved(text) => {
                        first == Some("InvalidClientTokenId")
                            || (calls.is_empty() && text.contains(INVALID_HEADER))
                    }
                    Theirs::Unresolved(_) => false,
                };
                (sides.case.has_unprintable_key() && is_used).then_some(Rule::SecretNotPrintable)
            }
            _ => None,
        },
        // The provider requests more than one hour with the credentials of a session.
        (_, Theirs::NotRetrieved(text)) if text.contains("1 hour session limit") => {
            let last = calls.len().checked_sub(1)?;
            let (ours, theirs) = (sides.ours.calls.get(last)?, calls.get(last)?);
            let is_longer = ours.seconds == 3600 && theirs.seconds > 3600;
            let is_session =
                ours.caller.contains(":assumed-role/") && ours.outcome != "ValidationError";
            for index in 0..last {
                call(sides, index, rules).ok()?;
            }
            (is_longer && is_session).then_some(Rule::DurationShortened)
        }
        _ => None,
    }
}

/// Whether the provider's error is about a source of this identity that both sides refuse.
fn is_refused_beneath(sides: &Sides, identity: &IdentityRef) -> bool {
    let sources = sources(sides, identity);
    match &sides.theirs.end {
        Theirs::Keys(_) => false,
        Theirs::Unresolved(text) => sources.iter().any(|source| {
            let IdentityRef { kind, name } = source;
            [
                not_found(source),
                format!("Namespace is not permitted to use {kind}: {name}"),
                secret_not_found(sides, source),
            ]
            .contains(text)
                || text.starts_with("failed to get label selector from spec selector: ")
                || *text
                    == format!("Expected AWSClusterControllerIdentity of name default, got {name}")
        }),
        Theirs::NotRetrieved(text) => match sides.theirs.calls.last() {
            None => text.ends_with(EMPTY_KEY) || text.contains(INVALID_HEADER),
            Some(last) => {
                let mut sources = sources.iter();
                last.outcome != "OK" && sources.any(|source| arn(sides, source) == last.role)
            }
        },
    }
}

fn sources(sides: &Sides, identity: &IdentityRef) -> Vec<IdentityRef> {
    let mut sources: Vec<IdentityRef> = Vec::new();
    let mut next = identity.clone();
    while sources.len() < 10 {
        let source = &spec(sides, &next)["sourceIdentityRef"];
        let (Some(kind), Some(name)) = (source["kind"].as_str(), source["name"].as_str()) else {
            break;
        };
        let kind = IdentityKind::named(kind).unwrap();
        next = IdentityRef {
            kind,
            name: name.to_owned(),
        };
        sources.push(next.clone());
    }
    sources
}

fn spec<'a>(sides: &'a Sides, identity: &IdentityRef) -> &'a Value {
    sides.case.spec(&identity.kind.to_string(), &identity.name)
}

fn arn<'a>(sides: &'a Sides, identity: &IdentityRef) -> &'a str {
    spec(sides, identity)["roleARN"]
        .as_str()
        .unwrap_or_default()
}

fn secret_not_found(sides: &Sides, identity: &IdentityRef) -> String {
    let name = spec(sides, identity)["secretRef"]
        .as_str()
        .unwrap_or_default();
    format!("secrets \"{name}\" not found")
}

/// Checks that the credentials belong to the last session, or to the same key.
fn owners(sides: &Sides) -> Result<(), String> {
    let (Ours::Keys(ours), Theirs::Keys(theirs)) = (&sides.ours.end, &sides.theirs.end) else {
        return Err("there are no credentials".to_owned());
    };
    let is_last =
        |calls: &[Assumed], owner: &str| calls.last().is_none_or(|last| session(last) == owner);
    let is_same = sides.theirs.calls.last().is_some() || ours == theirs;
    let are_last =
        is_last(&sides.ours.calls, &ours.owner) && is_last(&sides.theirs.calls, &theirs.owner);
    (is_same && are_last)
        .then_some(())
        .ok_or_else(|| "the credentials or their owners differ".to_owned())
}

fn all_calls(sides: &Sides, rules: &mut BTreeSet<Rule>) -> Result<(), String> {
    let (ours, theirs) = (&sides.ours.calls, &sides.theirs.calls);
    if ours.len() != theirs.len() {
        return Err("STS was called another number of times".to_owned());
    }
    (0..ours.len()).try_for_each(|index| call(sides, index, rules))
}

/// Compares, field by field, a call that both sides made.
fn call(sides: &Sides, index: usize, rules: &mut BTreeSet<Rule>) -> Result<(), String> {
    let (ours, theirs) = (&sides.ours.calls[index], &sides.theirs.calls[index]);
    let plan = sides.plan.as_ref().ok_or("a call without a plan")?;
    let identity = &plan.chain[plan.roles.len() - 1 - index].identity;
    let spec = spec(sides, identity);
    let differs = |field: &str| Err(format!("{field} of call {index} differs"));
    if ours.role != theirs.role || ours.role != *arn(sides, identity) {
        return differs("the role");
    }
    let given = |field: &str| {
        let given = spec[field].as_str().filter(|text| !text.is_empty());
        given.map(ToOwned::to_owned)
    };
    let wanted = (
        &given("externalID"),
        &given("inlinePolicy"),
        &theirs.outcome,
    );
    if (&ours.external_id, &ours.policy, &ours.outcome) != wanted
        || (&theirs.external_id, &theirs.policy, &theirs.outcome) != wanted
    {
        return differs("external ID, policy or outcome");
    }
    if ours.session != theirs.session {
        let is_theirs = theirs.session.strip_prefix("aws-go-sdk-");
        let is_theirs = is_theirs.is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit()));
        let is_ours = ours.session == format!("node-attestation-{}", identity.name);
        if !(given("sessionName").is_none() && is_theirs && is_ours) {
            return differs("the name of the session");
        }
        rules.insert(Rule::SessionNameDefault);
    }
    let wanted = spec["durationSeconds"].as_u64();
    if ours.seconds != theirs.seconds {
        match wanted {
            None if (ours.seconds, theirs.seconds) == (3600, 900) => {
                rules.insert(Rule::DurationDefault)
            }
            Some(wanted)
                if wanted > 3600 && u64::from(theirs.seconds) == wanted && ours.seconds == 3600 =>
            {
                rules.insert(Rule::DurationShortened)
            }
            _ => return differs("the validity"),
        };
    }
    let policies: BTreeSet<String> =
        crate::objects::read::<Option<Vec<String>>>(&spec["policyARNs"])
            .into_iter()
            .flatten()
            .collect();
    if ours.policy_arns != policies || !theirs.policy_arns.is_empty() {
        return differs("the managed session policies");
    }
    if !policies.is_empty() {
        rules.insert(Rule::PolicyArns);
    }
    let is_of_session = |calls: &[Assumed], caller: &str| {
        let before = index.checked_sub(1).and_then(|before| calls.get(before));
        before.is_some_and(|before| session(before) == caller)
    };
    let ours_follows = is_of_session(&sides.ours.calls, &ours.caller);
    let theirs_follows = is_of_session(&sides.theirs.calls, &theirs.caller);
    if (index == 0 && ours.caller == theirs.caller) || (index > 0 && ours_follows && theirs_follows)
    {
        Ok(())
    } else {
        differs("the caller")
    }
}

/// The ARN of the session that a call returned.
fn session(call: &Assumed) -> String {
    let (account, role) = call
        .role
        .trim_start_matches("arn:aws:iam::")
        .split_once(":role/")
        .unwrap();
    let role = role.rsplit('/').next().unwrap();
    format!(
        "arn:aws:sts::{account}:assumed-role/{role}/{}",
        call.session
    )
}
