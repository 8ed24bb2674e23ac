//! The answer to a case from the runtime of AWS Controllers for Kubernetes. This module computes the answer in separate
//! steps, so that the exact answers of both sides can be compared.

use serde_json::Value;

use super::case::{ACCOUNT_MAP, Case};

/// The account of the controller's credentials in the judge.
pub const CONTROLLER: &str = "111122223333";

/// The role and the account of the credentials, or an error. The role is empty if the runtime uses the controller's own
/// credentials.
pub type Answer = Result<(String, String), String>;

/// The answer from the judge.
pub fn answer(of_judge: &Value) -> Answer {
    let text = |name: &str| of_judge[name].as_str().unwrap().to_owned();
    match text("error") {
        error if error.is_empty() => Ok((text("role"), text("account"))),
        error => Err(error),
    }
}

/// The role of the controller itself.
pub fn own() -> Answer {
    Ok((String::new(), CONTROLLER.to_owned()))
}

/// The role that this text contains. The original parser only requires six parts, for any service.
pub fn role(text: &str) -> Result<(String, String), &'static str> {
    if !text.starts_with("arn:") {
        return Err("arn: invalid prefix");
    }
    match *text.splitn(6, ':').collect::<Vec<_>>() {
        [_, _, _, _, account, _] => Ok((text.to_owned(), account.to_owned())),
        _ => Err("arn: not enough sections"),
    }
}

/// The key for this account or team: the key for the service if that key has a value, and otherwise the plain key.
pub fn key(case: &Case, map: &str, id: &str) -> String {
    let of_service = format!("ec2.{id}");
    let value = case.data(map, &of_service);
    let counts = value.is_some_and(|value| !value.is_empty());
    if counts { of_service } else { id.to_owned() }
}

/// The role of an account or a team.
pub fn lookup(case: &Case, map: &str, id: &str) -> Answer {
    let why = match case.data(map, &key(case, map, id)) {
        _ if case.object("ConfigMap", map).is_none() => "CARM configmap not found",
        None => "key not found in CARM configmap",
        Some("") => "role value is empty in CARM configmap",
        // The error refers to the ConfigMap of teams, both for accounts and for teams.
        Some(value) => {
            return role(value).map_err(|why| {
                format!("parsing role ARN {value:?} from \"ack-role-team-map\" configmap: {why}")
            });
        }
    };
    Err(format!(
        "retrieving role ARN for account/team ID {id:?} from {map:?} configmap: {why}"
    ))
}

/// The role of the valid selector among these selectors. An error if several selectors are valid.
pub fn of_selectors(selectors: &[&Value]) -> Answer {
    let valid: Vec<_> = selectors
        .iter()
        .filter(|one| is_valid(&one["spec"]))
        .collect();
    match *valid.as_slice() {
        [] => own(),
        [one] => Ok(role(one["spec"]["arn"].as_str().unwrap()).unwrap()),
        _ => Err(format!(
            "multiple ({}) matching IAMRoleSelectors found",
            valid.len()
        )),
    }
}

/// `Matches` of pkg/runtime/iamroleselector/matcher.go: the selectors that match, valid or not, sorted by name.
pub fn matching(case: &Case) -> Vec<&Value> {
    let namespace = case.object("Namespace", &case.namespace);
    let of_namespace = namespace.map_or(&Value::Null, |namespace| &namespace["metadata"]["labels"]);
    let has = |labels: &Value, wanted: &Value| {
        let mut wanted = wanted["matchLabels"].as_object().into_iter().flatten();
        wanted.all(|(key, value)| labels[key] == *value)
    };
    let is = |wanted: &Value, found: &str| *wanted == "" || wanted.is_null() || *wanted == found;
    let matches = |selector: &&Value| {
        let spec = &selector["spec"];
        let names = items(&spec["namespaceSelector"]["names"]);
        let types = items(&spec["resourceTypeSelector"]);
        let is_type = |one: &&Value| {
            is(&one["group"], "ec2.services.k8s.aws")
                && is(&one["version"], "v1alpha1")
                && is(&one["kind"], "Instance")
        };
        (names.is_empty() || names.iter().any(|name| **name == *case.namespace))
            && has(of_namespace, &spec["namespaceSelector"]["labelSelector"])
            && (types.is_empty() || types.iter().any(is_type))
            && has(&case.labels, &spec["resourceLabelSelector"])
    };
    let objects = case.objects.iter();
    let selectors = objects.filter(|object| object["kind"] == "IAMRoleSelector");
    selectors.filter(matches).collect()
}

/// `validateSelector` of pkg/runtime/iamroleselector/matcher.go: whether the selector is valid.
pub fn is_valid(spec: &Value) -> bool {
    let is_distinct = |items: &[String]| {
        let mut distinct = items.to_vec();
        distinct.sort();
        distinct.dedup();
        distinct.len() == items.len()
    };
    let names: Vec<String> = items(&spec["namespaceSelector"]["names"])
        .into_iter()
        .map(|name| name.as_str().unwrap().to_owned())
        .collect();
    let types: Vec<String> = items(&spec["resourceTypeSelector"])
        .into_iter()
        .map(|one| {
            let field = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
            [field("group"), field("version"), field("kind")].join("/")
        })
        .collect();
    let labels = [
        &spec["namespaceSelector"]["labelSelector"],
        &spec["resourceLabelSelector"],
    ];
    role(spec["arn"].as_str().unwrap()).is_ok()
        && !names.contains(&String::new())
        && !types.contains(&"//".to_owned())
        && is_distinct(&names)
        && is_distinct(&types)
        && labels
            .iter()
            .all(|labels| labels["matchLabels"].get("").is_none())
}

fn items(list: &Value) -> Vec<&Value> {
    list.as_array().into_iter().flatten().collect()
}

/// The answer to a case, derived from the answer to the visible case. In the case itself, the runtime ignores the
/// annotations of some namespaces, and reads the status.
pub fn with_what_it_hides(case: &Case, visible: &Answer) -> Answer {
    let answer = if case.is_ignored() && !case.selectors {
        own()
    } else {
        visible.clone()
    };
    let account = &*case.owner_account;
    if account.is_empty() {
        return answer;
    }
    let is_annotated = !case.is_ignored() && case.looked_up().is_some();
    let answer = match answer {
        _ if !is_annotated && !case.selectors && account != CONTROLLER => {
            lookup(case, ACCOUNT_MAP, account)
        }
        Ok((role, _)) if !is_annotated && role.is_empty() => Ok((role, account.to_owned())),
        answer => answer,
    };
    let (role, of_role) = answer?;
    if of_role == account {
        return Ok((role, of_role));
    }
    Err(format!(
        "Resource already exists in account {account}, but the role used for reconciliation is in account {of_role}. "
    ))
}
