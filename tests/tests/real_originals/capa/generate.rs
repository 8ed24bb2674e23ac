//! Generates cases: a valid chain of identities, usually with a fault.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::case::{Case, merge, trust};
use crate::objects::CAPA_NAMESPACE;
use crate::random::Random;
use crate::stored::NAMESPACES;

const ROLE: &str = "AWSClusterRoleIdentity";
const STATIC: &str = "AWSClusterStaticIdentity";
const CONTROLLER: &str = "AWSClusterControllerIdentity";

/// The case with this number.
pub fn case(number: usize) -> Case {
    let random = &mut Random::of_case(number);
    let mut case = Case::new(number);
    if random.once_in(5) {
        case = case.in_the_other_namespace();
    }
    namespaces(&mut case, random);
    if !random.once_in(12) {
        case = case.with(CONTROLLER, "default", with_allowed(json!({}), random));
    }
    let depth = *random.pick(&[0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5]);
    if depth > 0 {
        case = chain(case, depth, random);
    }
    if random.once_in(40) {
        case.cluster["spec"]["identityRef"] = json!({"kind": STATIC, "name": "nobody"});
    }
    if random.once_in(10) && case.cluster["spec"]["identityRef"].is_object() {
        case.cluster["spec"]["identityRef"]["namespace"] = json!(NAMESPACES[1]);
    }
    case
}

fn namespaces(case: &mut Case, random: &mut Random) {
    for object in &mut case.objects {
        let labels = &mut object["metadata"]["labels"];
        for (key, values) in [
            ("environment", &["REMOVED", "dev", "prod", ""][..]),
            ("team", &["REMOVED", "REMOVED", "a"]),
        ] {
            merge(labels, json!({key: random.pick(values)}));
        }
        if random.once_in(30) {
            object["metadata"]["annotations"] = json!({"services.k8s.aws/team-id": "a"});
        }
    }
    if random.once_in(25) {
        case.objects.remove(0);
    }
}

/// A chain of this number of identities. The cluster refers to the first identity.
fn chain(mut case: Case, depth: usize, random: &mut Random) -> Case {
    // A source can have the same name as the cluster's identity.
    let same_name = random.once_in(4);
    let name = |index: usize, last: bool| {
        if same_name && last {
            "i0".to_owned()
        } else {
            format!("i{index}")
        }
    };
    let root = *random.pick(&[CONTROLLER, CONTROLLER, STATIC, STATIC, ROLE]);
    let mut place = (root.to_owned(), name(depth - 1, depth > 1));
    match root {
        CONTROLLER => {
            let is_named = !random.once_in(15);
            place.1 = if is_named { "default" } else { "other" }.to_owned();
        }
        STATIC => case = static_identity(case, &place.1, random),
        // The role has no source, or its source does not exist.
        _ => {
            place.1 = format!("i{}", depth - 1);
            let source = if random.once_in(2) {
                json!("REMOVED")
            } else {
                json!({"kind": STATIC, "name": "gone"})
            };
            case = role(case, &place.1, source, random);
        }
    }
    for index in (0..depth - 1).rev() {
        let source = json!({"kind": place.0, "name": place.1});
        place = (ROLE.to_owned(), name(index, false));
        case = role(case, &place.1, source, random);
    }
    case.of(&place.0, &place.1)
}

fn role(mut case: Case, name: &str, source: Value, random: &mut Random) -> Case {
    let arn = case.arn(name);
    let mut spec = json!({"roleARN": arn, "sessionName": "session", "durationSeconds": 3600});
    spec = with_allowed(spec, random);
    merge(&mut spec, json!({"sourceIdentityRef": source}));
    let mut trust = trust();
    if random.once_in(2) {
        settings(&mut spec, random);
    }
    match random.below(8) {
        0 => trust.principals.clear(),
        1 => trust.external_id = Some("of-another".to_owned()),
        2 => {
            trust.external_id = Some("7a5b:816a/7743".to_owned());
            spec["externalID"] = json!("7a5b:816a/7743");
        }
        _ => {}
    }
    if random.once_in(12) {
        let nasty = [
            String::new(),
            "nodes".to_owned(),
            "arn:aws:iam::200000000001:user/nodes".to_owned(),
            "arn:aws:iam::20000000000:role/nodes".to_owned(),
            "arn:aws:iam::200000000001:role/no des".to_owned(),
            "arn:aws-cn:iam::200000000001:role/nodes".to_owned(),
            "arn:aws-cn:iam::200000000001:role/nodes".to_owned(),
            format!("{arn} "),
            format!(" {arn}"),
        ];
        spec["roleARN"] = json!(random.pick(&nasty));
    }
    case.trusts.push((arn, trust));
    case.with(ROLE, name, spec)
}

fn settings(spec: &mut Value, random: &mut Random) {
    let seconds = [
        json!("REMOVED"),
        json!("REMOVED"),
        json!(900),
        json!(3600),
        json!(3601),
        json!(43200),
    ];
    merge(spec, json!({"durationSeconds": random.pick(&seconds)}));
    let longest = "s".repeat(64);
    let names = ["REMOVED", "REMOVED", "", "session", "a@b", &longest];
    merge(spec, json!({"sessionName": random.pick(&names)}));
    if random.once_in(25) {
        let too_long = "s".repeat(65);
        let names = ["a", "a b", "ä-session", &too_long];
        spec["sessionName"] = json!(random.pick(&names));
    }
    if random.once_in(4) {
        let ids = ["", "an-id", "an-id", "x", "with a space"];
        spec["externalID"] = json!(random.pick(&ids));
    }
    if random.once_in(6) {
        let long = format!("\"{}\"", "p".repeat(2047));
        let policies = [
            "",
            "{\"Version\": \"2012-10-17\", \"Statement\": []}",
            "{\"Version\": \"2012-10-17\"}",
            "{",
            &long,
        ];
        spec["inlinePolicy"] = json!(random.pick(&policies));
    }
    if random.once_in(6) {
        let arn = |n: usize| format!("arn:aws:iam::aws:policy/Managed{n}");
        let arns: [Vec<String>; 5] = [
            vec![],
            vec![arn(1)],
            vec![arn(2), arn(1), arn(2)],
            vec!["no-arn".to_owned()],
            (0..11).map(arn).collect(),
        ];
        spec["policyARNs"] = json!(random.pick(&arns));
    }
}

fn static_identity(case: Case, name: &str, random: &mut Random) -> Case {
    let id = case.key_id(name);
    let unknown = format!("AKIAUNKNOWN{name}").to_uppercase();
    // The values end with a line feed, like the output of `echo`.
    let (id_line, secret_line) = (format!("{id}\n"), "s3cret\n");
    let references = [
        name,
        name,
        name,
        name,
        name,
        name,
        "nowhere",
        "../x",
        "capa-system/x",
        "UPPER",
        "",
    ];
    let spec = with_allowed(json!({"secretRef": random.pick(&references)}), random);
    let case = case.with(STATIC, name, spec);
    let (id_key, secret_key) = ("AccessKeyID", "SecretAccessKey");
    let data: Vec<(&str, &str)> = match random.below(16) {
        0 => vec![("accessKeyID", &id), ("secretAccessKey", "s3cret")],
        1 => vec![(id_key, &id), (secret_key, "")],
        2 => vec![(id_key, ""), (secret_key, "s3cret")],
        3 => vec![],
        4 | 8 => vec![(id_key, &unknown), (secret_key, "s3cret")],
        5 | 6 => vec![
            (id_key, &id),
            (secret_key, "s3cret"),
            ("SessionToken", "temporary"),
        ],
        9 => vec![(id_key, &id_line), (secret_key, "s3cret")],
        10 => vec![(id_key, &id), (secret_key, secret_line)],
        7 => vec![
            (id_key, &id),
            (secret_key, "s3cret"),
            ("Region", "us-east-1"),
        ],
        _ => vec![(id_key, &id), (secret_key, "s3cret")],
    };
    match random.below(16) {
        0 => case,
        1 => case.with_secret(NAMESPACES[0], name, &data),
        2 => {
            let other = [(id_key, "AKIAUNKNOWNOTHER"), (secret_key, "s3cret")];
            let case = case.with_secret(NAMESPACES[0], name, &other);
            case.with_secret(CAPA_NAMESPACE, name, &data)
        }
        3 => {
            let mut case = case.with_secret(CAPA_NAMESPACE, name, &[(id_key, &id)]);
            let last = case.objects.last_mut().unwrap();
            last["data"] = json!({secret_key: BASE64_STANDARD.encode([0xff, 0xfe, 0x41])});
            case
        }
        _ => case.with_secret(CAPA_NAMESPACE, name, &data),
    }
}

/// The spec, with or without `allowedNamespaces`.
fn with_allowed(mut spec: Value, random: &mut Random) -> Value {
    if random.below(3) > 0 {
        let everybody = [
            json!({}),
            json!({"list": null}),
            json!({"selector": {}}),
            json!({"list": null, "selector": {}}),
            json!({"list": NAMESPACES}),
            json!({"selector": {"matchExpressions": [{"key": "absent", "operator": "DoesNotExist"}]}}),
        ];
        spec["allowedNamespaces"] = random.pick(&everybody).clone();
        return spec;
    }
    if random.once_in(12) {
        merge(
            &mut spec,
            random
                .pick(&[
                    json!({"allowedNamespaces": "REMOVED"}),
                    json!({"allowedNamespaces": null}),
                ])
                .clone(),
        );
        return spec;
    }
    let mut allowed = json!({});
    let lists = [
        json!("REMOVED"),
        json!("REMOVED"),
        json!(null),
        json!([]),
        json!([NAMESPACES[0]]),
        json!([NAMESPACES[1]]),
        json!(["tenant-*", "*"]),
        json!([""]),
        json!([NAMESPACES[1], NAMESPACES[1], "gone"]),
    ];
    merge(&mut allowed, json!({"list": random.pick(&lists)}));
    merge(&mut allowed, json!({"selector": selector(random)}));
    spec["allowedNamespaces"] = allowed;
    spec
}

fn selector(random: &mut Random) -> Value {
    if random.once_in(5) {
        return random
            .pick(&[json!("REMOVED"), json!({}), json!({"matchLabels": null})])
            .clone();
    }
    let mut selector = json!({});
    let long = "v".repeat(64);
    let labels = [
        json!("REMOVED"),
        json!("REMOVED"),
        json!({}),
        json!({"environment": "dev"}),
        json!({"environment": ""}),
        json!({"environment": "dev", "team": "a"}),
        json!({"kubernetes.io/metadata.name": NAMESPACES[0]}),
        json!({"environment": "a b"}),
        json!({"environment": long}),
        json!({"-x": "a"}),
    ];
    merge(&mut selector, json!({"matchLabels": random.pick(&labels)}));
    let expressions: Vec<Value> = (0..random.below(3)).map(|_| expression(random)).collect();
    match random.below(6) {
        0 => selector["matchExpressions"] = json!([]),
        1 => {}
        _ if expressions.is_empty() => {}
        _ => selector["matchExpressions"] = json!(expressions),
    }
    selector
}

fn expression(random: &mut Random) -> Value {
    let keys = [
        "environment",
        "environment",
        "team",
        "kubernetes.io/metadata.name",
        "absent",
    ];
    let operators = ["In", "In", "NotIn", "NotIn", "Exists", "DoesNotExist"];
    let mut expression = json!({"key": random.pick(&keys), "operator": random.pick(&operators)});
    let takes_values = ["In", "NotIn"].contains(&expression["operator"].as_str().unwrap());
    if takes_values != random.once_in(12) {
        let values = [
            json!(["dev"]),
            json!(["dev", "prod"]),
            json!([""]),
            json!(["a", NAMESPACES[0]]),
            json!(["dev", "dev"]),
        ];
        expression["values"] = random.pick(&values).clone();
    }
    if random.once_in(12) {
        let nasty = [
            json!({"operator": "Is"}),
            json!({"operator": "in"}),
            json!({"operator": ""}),
            json!({"key": "a/b/c"}),
            json!({"key": ""}),
            json!({"key": "/a"}),
            json!({"key": "Upper.Example/a"}),
            json!({"key": "example.org/", "operator": "Exists", "values": "REMOVED"}),
            json!({"key": "k".repeat(64)}),
            json!({"values": []}),
            json!({"values": null}),
            json!({"values": ["dev", "ü"]}),
            json!({"values": ["-dev"]}),
        ];
        merge(&mut expression, random.pick(&nasty).clone());
    }
    expression
}

/// Six valid roles.
pub fn deep(number: usize) -> Case {
    let mut case = Case::new(number).with_controller();
    let mut source = (CONTROLLER, "default".to_owned());
    for index in (0..6).rev() {
        let name = format!("i{index}");
        case = case.with_role(&name, (source.0, &source.1), json!({}));
        source = (ROLE, name);
    }
    case.of(source.0, &source.1)
}
