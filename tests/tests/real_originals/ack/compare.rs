//! The differences of the sides, each with the rule that explains it.

use node_attestation_aws::tenancy::{InvalidRoleArn, Plan, ResolutionError, RoleArn, Root};
use serde_json::Value;

use super::case::Case;

/// A row of the table "Differences from CAPA and ACK" in docs/tenancy.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    NoAnnotation,
    TeamWithoutGate,
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
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::NoAnnotation,
        Self::TeamWithoutGate,
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

    /// The first cell of the row.
    pub fn row(self) -> &'static str {
        match self {
            Self::NoAnnotation => "ACK: no annotation",
            Self::TeamWithoutGate => "ACK: annotation of a team without its gate",
            Self::NamespaceUnknown => "ACK: Namespace that is not known yet",
            Self::NamespaceIgnored => {
                "ACK: annotations of `kube-system`, `kube-public`, `kube-node-lease`"
            }
            Self::EmptyServiceKey => "ACK: empty value of a service's key",
            Self::AccountNoNumber => "ACK: account that is not twelve digits",
            Self::AccountOfRole => "ACK: role of another account than the annotation's",
            Self::ArnOfNoRole => "ACK: ARN of anything but a role",
            Self::WhiteSpace => "ACK: white space around an ARN",
            Self::Fields => "ACK: value of a key",
            Self::StatusAccount => "ACK: `status.ackResourceMetadata.ownerAccountID`",
            Self::NoSelector => "ACK: no `IAMRoleSelector` matches",
            Self::InvalidSelector => "ACK: invalid `IAMRoleSelector`",
        }
    }

    fn explains(self, difference: &Difference<'_>) -> bool {
        match self {
            Self::NoAnnotation => difference.no_annotation(),
            Self::TeamWithoutGate => difference.team_without_gate(),
            Self::NamespaceUnknown => difference.namespace_unknown(),
            Self::NamespaceIgnored => difference.namespace_ignored(),
            Self::EmptyServiceKey => difference.empty_service_key(),
            Self::AccountNoNumber => difference.account_no_number(),
            Self::AccountOfRole => difference.account_of_role(),
            Self::ArnOfNoRole => difference.arn_of_no_role(),
            Self::WhiteSpace => difference.white_space(),
            Self::Fields => difference.fields(),
            Self::StatusAccount => difference.status_account(),
            Self::NoSelector => difference.no_selector(),
            Self::InvalidSelector => difference.invalid_selector(),
        }
    }
}

/// The namespaces whose annotations they do not read.
const IGNORED: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// The controller's account at the judge.
const CONTROLLER: &str = "111122223333";

/// What their code said: the role, which is empty for the controller's own, or the error.
pub type Theirs<'a> = Result<&'a str, &'a str>;

/// The answer of the judge.
pub fn theirs(answer: &Value) -> Theirs<'_> {
    let text = |name: &str| answer[name].as_str().unwrap();
    match text("error") {
        "" => Ok(text("role")),
        error => Err(error),
    }
}

/// The rule that explains the difference of the sides; `None` if there is none.
///
/// # Errors
///
/// No rule explains it.
pub fn compare(
    case: &Case,
    ours: &Result<Plan, ResolutionError>,
    theirs: Theirs<'_>,
) -> Result<Option<Rule>, String> {
    match (ours, theirs) {
        (Ok(plan), Ok(role)) if is_role(plan, role) => return Ok(None),
        (Err(error), Err(text)) if is_same(error, text) => return Ok(None),
        _ => {}
    }
    let difference = Difference { case, ours, theirs };
    let mut rules = Rule::ALL.into_iter();
    let rule = rules.find(|rule| rule.explains(&difference));
    rule.map(Some)
        .ok_or_else(|| "no rule explains the difference".to_owned())
}

/// A plan of this role over the controller's credentials.
fn is_role(plan: &Plan, role: &str) -> bool {
    let is_own = matches!(plan.root, Root::Controller);
    let [one] = &*plan.roles else {
        return false;
    };
    is_own && one.arn.to_string() == role
}

/// The refusal in their words.
fn is_same(error: &ResolutionError, text: &str) -> bool {
    let retrieving = |map: &str, key: &str, why: &str| {
        text == format!(
            "retrieving role ARN for account/team ID {key:?} from {map:?} configmap: {why}"
        )
    };
    match error {
        ResolutionError::CarmMapNotFound(map) => {
            text.ends_with(&format!("from {map:?} configmap: CARM configmap not found"))
        }
        ResolutionError::CarmKeyNotFound { map, key } => {
            retrieving(map, key, "key not found in CARM configmap")
        }
        ResolutionError::CarmEmptyValue { map, key } => {
            retrieving(map, key, "role value is empty in CARM configmap")
                || [" ", "\n"]
                    .iter()
                    .any(|blank| text.starts_with(&format!("parsing role ARN {blank:?} from ")))
        }
        ResolutionError::CarmInvalidValue { .. } => text.starts_with("parsing role ARN "),
        ResolutionError::RoleSelectorConflict(names) => {
            text == format!("multiple ({}) matching IAMRoleSelectors found", names.len())
        }
        _ => false,
    }
}

struct Difference<'a> {
    case: &'a Case,
    ours: &'a Result<Plan, ResolutionError>,
    theirs: Theirs<'a>,
}

impl Difference<'_> {
    fn own_role(&self) -> bool {
        self.theirs == Ok("")
    }

    fn namespace_ignored(&self) -> bool {
        IGNORED.contains(&&*self.case.namespace) && (self.own_role() || self.is_by_status())
    }

    fn namespace_unknown(&self) -> bool {
        let is_unknown = matches!(self.ours, Err(ResolutionError::NamespaceNotFound(_)));
        is_unknown && (self.own_role() || self.is_by_status())
    }

    fn no_annotation(&self) -> bool {
        let has_one = ["owner-account-id", "team-id"]
            .iter()
            .any(|name| self.case.annotation(name).is_some());
        matches!(self.ours, Err(ResolutionError::IdentityNotNamed(_)))
            && !has_one
            && self.own_role()
    }

    fn team_without_gate(&self) -> bool {
        let is_alone = self.case.annotation("team-id").is_some()
            && self.case.annotation("owner-account-id").is_none();
        let is_off = is_alone && !self.case.team_level;
        matches!(self.ours, Err(ResolutionError::IdentityNotNamed(_))) && is_off && self.own_role()
    }

    /// With a status, and nothing else that counts, they look the account of it up; and they refuse a role of another.
    fn status_account(&self) -> bool {
        if self.case.owner_account.is_empty() {
            return false;
        }
        let drifted = format!(
            "Resource already exists in account {}, ",
            self.case.owner_account
        );
        self.theirs.is_err_and(|text| text.starts_with(&drifted))
            || (matches!(self.ours, Err(ResolutionError::IdentityNotNamed(_)))
                && self.is_by_status())
    }

    fn is_by_status(&self) -> bool {
        let account = &*self.case.owner_account;
        let drifted = format!("Resource already exists in account {account}, ");
        !account.is_empty()
            && (self.theirs.is_err_and(|text| text.starts_with(&drifted))
                || (account != CONTROLLER && self.is_lookup("ack-role-account-map", account)))
    }

    fn account_no_number(&self) -> bool {
        let Err(ResolutionError::InvalidAccount { value, .. }) = self.ours else {
            return false;
        };
        let is_number = value.len() == 12 && value.chars().all(|c| c.is_ascii_digit());
        !is_number && self.is_lookup("ack-role-account-map", value)
    }

    fn empty_service_key(&self) -> bool {
        let Err(ResolutionError::CarmEmptyValue { map, key }) = self.ours else {
            return false;
        };
        let Some(plain) = key.strip_prefix("ec2.").filter(|_| self.case.service_level) else {
            return false;
        };
        let is_empty = self.data(map, key) == Some("");
        is_empty && self.is_plain(map, plain)
    }

    fn account_of_role(&self) -> bool {
        let annotation = self.case.annotation("owner-account-id");
        let is_of_other = |role: &str| {
            role.parse::<RoleArn>()
                .is_ok_and(|arn| Some(arn.account()) != annotation)
        };
        matches!(self.ours, Err(ResolutionError::AccountMismatch(_)))
            && annotation.is_some_and(|account| self.is_lookup("ack-role-account-map", account))
            && self.theirs.map_or_else(|_| self.is_padded(), is_of_other)
    }

    /// White space before the ARN, which they cannot parse.
    fn is_padded(&self) -> bool {
        self.theirs
            .is_err_and(|text| text.starts_with("parsing role ARN \" arn:"))
    }

    /// Their parser wants six parts, of any service.
    fn arn_of_no_role(&self) -> bool {
        let is_invalid = match self.ours {
            Err(ResolutionError::CarmInvalidValue { map, key, .. }) => {
                let value = self.data(map, key).map(str::trim);
                value.is_some_and(|value| self.theirs.is_ok_and(|role| role.trim() == value))
            }
            Err(ResolutionError::InvalidRoleSelector { name, .. }) => {
                let selector = self.case.object("IAMRoleSelector", name);
                selector
                    .is_some_and(|one| self.theirs.is_ok_and(|role| one["spec"]["arn"] == *role))
            }
            _ => false,
        };
        let parts = |role: &str| role.starts_with("arn:") && role.splitn(6, ':').count() == 6;
        is_invalid
            && self
                .theirs
                .is_ok_and(|role| parts(role) && role.parse::<RoleArn>() == Err(InvalidRoleArn))
    }

    fn white_space(&self) -> bool {
        let Ok(plan) = self.ours else {
            return false;
        };
        match self.theirs {
            Ok(role) => role != role.trim() && is_role(plan, role.trim()),
            Err(_) => self.is_padded(),
        }
    }

    fn fields(&self) -> bool {
        let is_structured = |text: &str| text.starts_with("parsing role ARN \"roleArn: ");
        match self.ours {
            Ok(plan) => {
                let with_id =
                    |role: &node_attestation_aws::tenancy::Role| role.external_id.is_some();
                plan.roles.iter().all(with_id) && self.theirs.is_err_and(is_structured)
            }
            Err(ResolutionError::AccountMismatch(_)) => self.theirs.is_err_and(is_structured),
            Err(_) => false,
        }
    }

    fn no_selector(&self) -> bool {
        matches!(self.ours, Err(ResolutionError::NoRoleSelector)) && self.own_role()
    }

    /// They leave invalid ones out: the rest decides.
    fn invalid_selector(&self) -> bool {
        let (
            Err(
                ResolutionError::InvalidRoleSelector { .. }
                | ResolutionError::RoleSelectorConflict(_),
            ),
            Ok(role),
        ) = (self.ours, self.theirs)
        else {
            return self.is_conflict_of_the_valid();
        };
        let names: &[String] = match self.ours {
            Err(ResolutionError::RoleSelectorConflict(names)) => names,
            Err(ResolutionError::InvalidRoleSelector { name, .. }) => std::slice::from_ref(name),
            _ => return false,
        };
        let valid: Vec<&str> = self.valid(names);
        valid.len() < names.len()
            && match *valid.as_slice() {
                [] => role.is_empty(),
                [one] => role == one,
                _ => false,
            }
    }

    fn is_conflict_of_the_valid(&self) -> bool {
        let (Err(ResolutionError::RoleSelectorConflict(names)), Err(text)) =
            (self.ours, self.theirs)
        else {
            return false;
        };
        let valid = self.valid(names).len();
        (2..names.len()).contains(&valid)
            && text == format!("multiple ({valid}) matching IAMRoleSelectors found")
    }

    /// The roles of those that are valid to them.
    fn valid(&self, names: &[String]) -> Vec<&str> {
        let specs = names
            .iter()
            .filter_map(|name| self.case.object("IAMRoleSelector", name));
        let specs = specs
            .map(|object| &object["spec"])
            .filter(|spec| is_valid(spec));
        specs.map(|spec| spec["arn"].as_str().unwrap()).collect()
    }

    fn data(&self, map: &str, key: &str) -> Option<&str> {
        self.case.object("ConfigMap", map)?["data"][key].as_str()
    }

    /// Whether they give what this key has, or that of the service.
    fn is_lookup(&self, map: &str, id: &str) -> bool {
        let of_service = self
            .data(map, &format!("ec2.{id}"))
            .filter(|value| !value.is_empty());
        match of_service.filter(|_| self.case.service_level) {
            Some(value) => self.is_value(value),
            None => self.is_plain(map, id),
        }
    }

    fn is_plain(&self, map: &str, id: &str) -> bool {
        let why = match self.data(map, id) {
            _ if self.case.object("ConfigMap", map).is_none() => "CARM configmap not found",
            None => "key not found in CARM configmap",
            Some("") => "role value is empty in CARM configmap",
            Some(value) => return self.is_value(value),
        };
        let text =
            format!("retrieving role ARN for account/team ID {id:?} from {map:?} configmap: {why}");
        self.theirs == Err(&text)
    }

    fn is_value(&self, value: &str) -> bool {
        match self.theirs {
            Ok(role) => role == value,
            Err(text) => text.starts_with(&format!("parsing role ARN {value:?} from ")),
        }
    }
}

/// `validateSelector` of pkg/runtime/iamroleselector/matcher.go, for the invalid ones that are generated.
fn is_valid(spec: &Value) -> bool {
    let arn = spec["arn"].as_str().unwrap();
    let strings = |value: &Value| -> Vec<String> {
        let items = value.as_array().into_iter().flatten();
        items.map(ToString::to_string).collect()
    };
    let is_distinct = |mut items: Vec<String>| {
        let count = items.len();
        items.sort();
        items.dedup();
        items.len() == count
    };
    let names = strings(&spec["namespaceSelector"]["names"]);
    let types = strings(&spec["resourceTypeSelector"]);
    let labels = [
        &spec["namespaceSelector"]["labelSelector"],
        &spec["resourceLabelSelector"],
    ];
    arn.starts_with("arn:")
        && arn.splitn(6, ':').count() == 6
        && !names.contains(&"\"\"".to_owned())
        && !types.iter().any(|one| one.matches("\"\"").count() == 3)
        && is_distinct(names)
        && is_distinct(types)
        && labels
            .iter()
            .all(|labels| labels["matchLabels"].get("").is_none())
}
