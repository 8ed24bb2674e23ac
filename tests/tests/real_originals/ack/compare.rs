//! The differences between the two sides, each with the rule that explains it.

use std::collections::BTreeSet;

use node_attestation_aws::tenancy::{
    AccountMismatch, InvalidRoleArn, Plan, ResolutionError, Role, RoleArn, Root,
};
use serde_json::Value;

use super::case::{ACCOUNT_MAP, Case};
use super::runtime::{
    Answer, is_valid, key, lookup, matching, of_selectors, own, with_what_it_hides,
};

/// A row of the table "Differences from CAPA and ACK" in docs/tenancy-cases.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    NoAnnotation,
    NamespaceUnknown,
    NamespaceIgnored,
    EmptyServiceKey,
    AccountNoNumber,
    AccountOfRole,
    ArnOfNoRole,
    WhiteSpace,
    Fields,
    StatusAccount,
    NoSelector,
    InvalidSelector,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 12] = [
        Self::NoAnnotation,
        Self::NamespaceUnknown,
        Self::NamespaceIgnored,
        Self::EmptyServiceKey,
        Self::AccountNoNumber,
        Self::AccountOfRole,
        Self::ArnOfNoRole,
        Self::WhiteSpace,
        Self::Fields,
        Self::StatusAccount,
        Self::NoSelector,
        Self::InvalidSelector,
    ];

    /// The text in the first cell of the row.
    pub fn row(self) -> &'static str {
        match self {
            Self::NoAnnotation => "ACK: no annotation",
            Self::NamespaceUnknown => "ACK: Namespace that the controller has not read yet",
            Self::NamespaceIgnored => {
                "ACK: annotations on `kube-system`, `kube-public` and `kube-node-lease`"
            }
            Self::EmptyServiceKey => "ACK: empty value of a service key",
            Self::AccountNoNumber => "ACK: account that does not have 12 digits",
            Self::AccountOfRole => "ACK: role in a different account from the annotation",
            Self::ArnOfNoRole => "ACK: ARN that is not a role ARN",
            Self::WhiteSpace => "ACK: white space around an ARN",
            Self::Fields => "ACK: the value for a key",
            Self::StatusAccount => "ACK: `status.ackResourceMetadata.ownerAccountID`",
            Self::NoSelector => "ACK: no `IAMRoleSelector` matches",
            Self::InvalidSelector => "ACK: invalid `IAMRoleSelector`",
        }
    }

    fn explains(self, difference: &Difference<'_>) -> bool {
        match self {
            Self::NoAnnotation => difference.no_annotation(),
            Self::NamespaceUnknown => difference.namespace_unknown(),
            Self::EmptyServiceKey => difference.empty_service_key(),
            Self::AccountNoNumber => difference.account_no_number(),
            Self::AccountOfRole => difference.account_of_role(),
            Self::ArnOfNoRole => difference.arn_of_no_role(),
            Self::WhiteSpace => difference.white_space(),
            Self::Fields => difference.fields(),
            // These differences do not occur in a visible case.
            Self::NamespaceIgnored | Self::StatusAccount => false,
            Self::NoSelector => difference.no_selector(),
            Self::InvalidSelector => difference.invalid_selector(),
        }
    }
}

/// Returns the rules that explain the differences between the project's resolution of a case and the original's answer.
/// `visible` is the original's answer for the visible case. Empty if there is no difference.
///
/// # Errors
///
/// Returns an error if no rule explains the difference.
pub fn compare(
    case: &Case,
    ours: &Result<Plan, ResolutionError>,
    theirs: &Answer,
    visible: &Answer,
) -> Result<BTreeSet<Rule>, String> {
    let mut rules = BTreeSet::new();
    let difference = Difference {
        case: &case.visible(),
        ours,
        theirs: visible,
    };
    if !difference.is_none() {
        let mut all = Rule::ALL.into_iter();
        let rule = all.find(|rule| rule.explains(&difference));
        rules.insert(rule.ok_or("no rule explains the difference")?);
    }
    let expected = with_what_it_hides(case, visible);
    if *theirs != expected {
        return Err(format!("{expected:?} is expected, by {visible:?}"));
    }
    if theirs != visible {
        rules.extend(case.is_ignored().then_some(Rule::NamespaceIgnored));
        rules.extend((!case.owner_account.is_empty()).then_some(Rule::StatusAccount));
    }
    Ok(rules)
}

/// The role of the plan, if the plan has exactly one role and starts from the controller's credentials.
fn only(plan: &Plan) -> Option<&Role> {
    match &*plan.roles {
        [role] if matches!(plan.root, Root::Controller) => Some(role),
        _ => None,
    }
}

/// A value in a ConfigMap, as the project parses it: the ARN, the external ID and the session name.
fn read(value: &str) -> Option<[&str; 3]> {
    let value = value.trim();
    if value.starts_with("arn:") {
        return Some([value, "", ""]);
    }
    let mut fields = [""; 3];
    for line in value.lines() {
        let (name, value) = line.split_once(": ")?;
        let names = ["roleArn", "externalID", "sessionName"];
        fields[names.iter().position(|one| *one == name)?] = value;
    }
    Some(fields)
}

/// A visible case, with the answers of both sides.
struct Difference<'a> {
    case: &'a Case,
    ours: &'a Result<Plan, ResolutionError>,
    theirs: &'a Answer,
}

impl Difference<'_> {
    /// Whether both answers are the same, so that there is no difference.
    fn is_none(&self) -> bool {
        let is_their_role = |role: &Role| {
            let arn = (role.arn.to_string(), role.arn.account().to_owned());
            *self.theirs == Ok(arn) && self.is_plain(role)
        };
        let is_key = |map: &str, key: &str| self.is_looked_up() && self.key() == Some((map, key));
        match self.ours {
            Ok(plan) => only(plan).is_some_and(is_their_role),
            Err(ResolutionError::CarmMapNotFound(map)) => {
                let is_it = self.case.looked_up().is_some_and(|(of, _)| of == *map);
                is_it && self.case.object("ConfigMap", map).is_none() && self.is_looked_up()
            }
            Err(ResolutionError::CarmKeyNotFound { map, key }) => {
                is_key(map, key) && self.case.data(map, key).is_none()
            }
            Err(ResolutionError::CarmEmptyValue { map, key }) => {
                let value = self.case.data(map, key);
                is_key(map, key)
                    && value.is_some_and(|value| value.trim().is_empty())
                    && self.theirs.is_err()
            }
            Err(ResolutionError::CarmInvalidValue { map, key, .. }) => {
                is_key(map, key) && self.is_unparsed()
            }
            Err(ResolutionError::RoleSelectorConflict(names)) => {
                let matching = matching(self.case);
                let text = format!("multiple ({}) matching IAMRoleSelectors found", names.len());
                is_named(&matching, names) && *self.theirs == Err(text)
            }
            _ => false,
        }
    }

    /// Whether the answer is a role without an external ID, with the session of its account, team or selector.
    fn is_plain(&self, role: &Role) -> bool {
        let id = match self.case.looked_up() {
            Some((_, id)) => id,
            None => match *matching(self.case) {
                [one] => one["metadata"]["name"].as_str().unwrap(),
                _ => return false,
            },
        };
        role.external_id.is_none() && role.session_name == session(id)
    }

    fn is_own(&self) -> bool {
        *self.theirs == own()
    }

    /// Whether the original's answer comes from the ConfigMap.
    fn is_looked_up(&self) -> bool {
        let looked_up = self.case.looked_up();
        looked_up.is_some_and(|(map, id)| *self.theirs == lookup(self.case, map, id))
    }

    /// The ConfigMap and the key that the original runtime uses.
    fn key(&self) -> Option<(&'static str, &str)> {
        let (map, id) = self.case.looked_up()?;
        let key = key(self.case, map, id);
        let data = self.case.object("ConfigMap", map)?["data"].as_object();
        let stored = data.and_then(|data| data.keys().find(|name| **name == key));
        Some((map, stored.map_or(id, |name| &**name)))
    }

    /// The value that the original runtime uses.
    fn value(&self) -> Option<&str> {
        let (map, key) = self.key()?;
        self.case.data(map, key)
    }

    /// Whether the original runtime rejects the value because it cannot parse the ARN.
    fn is_unparsed(&self) -> bool {
        let is_parsed = |text: &String| text.starts_with("parsing role ARN ");
        self.is_looked_up() && self.theirs.as_ref().is_err_and(is_parsed)
    }

    fn is_not_named(&self) -> bool {
        matches!(self.ours, Err(ResolutionError::IdentityNotNamed(_)))
    }

    fn no_annotation(&self) -> bool {
        let has = |name| self.case.annotation(name).is_some();
        let has_one = has("owner-account-id") || has("team-id");
        let is_known = self
            .case
            .object("Namespace", &self.case.namespace)
            .is_some();
        self.is_not_named() && !self.case.selectors && is_known && !has_one && self.is_own()
    }

    fn namespace_unknown(&self) -> bool {
        let is_known = self
            .case
            .object("Namespace", &self.case.namespace)
            .is_some();
        let is_unknown = matches!(self.ours, Err(ResolutionError::NamespaceNotFound(_)));
        !self.case.selectors && !is_known && is_unknown && self.is_own()
    }

    /// Whether the difference is an empty key for the service. In this case, the original runtime uses the plain key.
    fn empty_service_key(&self) -> bool {
        let Err(ResolutionError::CarmEmptyValue { map, key }) = self.ours else {
            return false;
        };
        let Some((of, id)) = self.case.looked_up() else {
            return false;
        };
        let is_of_service = *key == format!("ec2.{id}");
        *map == of && is_of_service && self.case.data(map, key) == Some("") && self.is_looked_up()
    }

    fn account_no_number(&self) -> bool {
        let Err(ResolutionError::InvalidAccount { value, .. }) = self.ours else {
            return false;
        };
        let is_number = value.len() == 12 && value.chars().all(|c| c.is_ascii_digit());
        let is_looked_up = self.case.looked_up() == Some((ACCOUNT_MAP, value));
        !is_number && is_looked_up && self.is_looked_up()
    }

    /// Whether the difference is a value that the original runtime uses unchanged, or rejects unchanged.
    fn account_of_role(&self) -> bool {
        let Err(ResolutionError::AccountMismatch(AccountMismatch::OfNamespace { annotated, role })) =
            self.ours
        else {
            return false;
        };
        let is_read = |value| read(value).is_some_and(|[arn, ..]| arn == role);
        let is_of_other = role
            .parse::<RoleArn>()
            .is_ok_and(|arn| arn.account() != annotated);
        self.case.looked_up() == Some((ACCOUNT_MAP, annotated))
            && self.value().is_some_and(is_read)
            && is_of_other
            && self.is_looked_up()
    }

    /// Whether the difference is an ARN that does not belong to a role. The original parser only requires six parts,
    /// for any service.
    fn arn_of_no_role(&self) -> bool {
        let Ok((role, _)) = self.theirs else {
            return false;
        };
        let is_as_given = match self.ours {
            Err(ResolutionError::CarmInvalidValue { map, key, .. }) => {
                self.key() == Some((map, key)) && self.is_looked_up()
            }
            Err(ResolutionError::InvalidRoleSelector { name, .. }) => {
                let matching = matching(self.case);
                is_named(&matching, std::slice::from_ref(name))
                    && is_valid(&matching[0]["spec"])
                    && *self.theirs == of_selectors(&matching)
            }
            _ => false,
        };
        let given = if self.case.selectors {
            role
        } else {
            role.trim()
        };
        is_as_given && given.parse::<RoleArn>() == Err(InvalidRoleArn)
    }

    fn white_space(&self) -> bool {
        let is_trimmed = |role: &Role| {
            let value = self.value();
            value.is_some_and(|value| value != value.trim() && role.arn.to_string() == value.trim())
                && self.is_plain(role)
        };
        let ours = self.ours.as_ref().ok().and_then(only);
        ours.is_some_and(is_trimmed) && self.is_looked_up()
    }

    /// Whether the difference is a value with several fields, which the original runtime uses as an ARN.
    fn fields(&self) -> bool {
        let (Some(role), Some((_, id))) = (
            self.ours.as_ref().ok().and_then(only),
            self.case.looked_up(),
        ) else {
            return false;
        };
        let value = self
            .value()
            .filter(|value| !value.trim().starts_with("arn:"));
        let is_read = |[arn, external_id, name]: [&str; 3]| {
            let name = if name.is_empty() {
                session(id)
            } else {
                name.to_owned()
            };
            role.arn.to_string() == arn
                && role.external_id.as_deref().unwrap_or_default() == external_id
                && role.session_name == name
        };
        value.and_then(read).is_some_and(is_read) && self.is_unparsed()
    }

    fn no_selector(&self) -> bool {
        let is_none = matches!(self.ours, Err(ResolutionError::NoRoleSelector));
        self.case.selectors && is_none && matching(self.case).is_empty() && self.is_own()
    }

    /// Whether the difference is an invalid selector. The original runtime ignores it, so only the valid selectors
    /// count.
    fn invalid_selector(&self) -> bool {
        let names: &[String] = match self.ours {
            Err(ResolutionError::RoleSelectorConflict(names)) => names,
            Err(ResolutionError::InvalidRoleSelector { name, .. }) => std::slice::from_ref(name),
            _ => return false,
        };
        let matching = matching(self.case);
        let is_one_invalid = matching.iter().any(|one| !is_valid(&one["spec"]));
        self.case.selectors
            && is_named(&matching, names)
            && is_one_invalid
            && *self.theirs == of_selectors(&matching)
    }
}

/// Whether these are the names of these objects.
fn is_named(objects: &[&Value], names: &[String]) -> bool {
    let of_objects = objects.iter().map(|object| &object["metadata"]["name"]);
    let mut of_objects: Vec<&str> = of_objects.map(|name| name.as_str().unwrap()).collect();
    of_objects.sort_unstable();
    let mut names: Vec<&str> = names.iter().map(|name| &**name).collect();
    names.sort_unstable();
    of_objects == names
}

/// The name of the session for an account, team or selector.
fn session(id: &str) -> String {
    let allowed = |c: &char| c.is_ascii_alphanumeric() || "_+=,.@-".contains(*c);
    format!("node-attestation-{id}")
        .chars()
        .filter(allowed)
        .collect()
}
