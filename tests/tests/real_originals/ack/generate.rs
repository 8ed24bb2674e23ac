//! Generated cases.

use serde_json::{Value, json};

use super::case::{ACCOUNT_MAP, Case, IGNORED, OTHER_ACCOUNT, TEAM_MAP, THEIRS, arn};
use crate::random::Random;
use crate::stored::NAMESPACES;

/// The case with this number. Every second case uses selectors.
pub fn case(number: usize) -> Case {
    let random = &mut Random::of_case(number);
    let mut case = Case::new();
    let labels = json!({"environment": random.pick(&["dev", "prod", ""])});
    if number.is_multiple_of(2) {
        carm(&mut case, &labels, random);
    } else {
        selectors(&mut case, &labels, random);
    }
    if random.once_in(12) {
        case.owner_account = (*random.pick(&[THEIRS, OTHER_ACCOUNT, "111122223333"])).to_owned();
    }
    case
}

fn carm(case: &mut Case, labels: &Value, random: &mut Random) {
    if random.once_in(30) {
        case.namespace = (*random.pick(&IGNORED)).to_owned();
    }
    let mut annotations = json!({});
    let accounts = [
        THEIRS,
        THEIRS,
        THEIRS,
        OTHER_ACCOUNT,
        "my-ns",
        "",
        "20000000000",
        " 200000000001",
        "2000 00000001",
    ];
    if random.below(4) > 0 {
        annotations["services.k8s.aws/owner-account-id"] = json!(random.pick(&accounts));
    }
    if random.once_in(2) {
        annotations["services.k8s.aws/team-id"] =
            json!(random.pick(&["team-a", "team-a", "team-b", "", "ec2.team-a", "a/b"]));
    }
    if random.once_in(20) {
        annotations["ec2.services.k8s.aws/team-id"] = json!("team-a");
    }
    if !random.once_in(25) {
        case.namespace_with(labels, &annotations);
    }
    let keys = [THEIRS, OTHER_ACCOUNT, "my-ns", "20000000000"];
    if let Some(data) = map(&keys, random) {
        case.map(ACCOUNT_MAP, &data);
    }
    if let Some(data) = map(&["team-a", "team-b", "ec2.team-a"], random) {
        case.map(TEAM_MAP, &data);
    }
}

/// The data in a ConfigMap.
fn map(keys: &[&str], random: &mut Random) -> Option<Value> {
    if random.once_in(10) {
        return None;
    }
    let mut data = json!({});
    for key in keys {
        if random.below(4) > 0 {
            data[*key] = value(random);
        }
        if random.once_in(3) {
            data[format!("ec2.{key}")] = value(random);
        }
        if random.once_in(6) {
            data[format!("s3.{key}")] = json!(arn(THEIRS, "of-s3"));
        }
    }
    Some(data)
}

fn value(random: &mut Random) -> Value {
    let good = arn(THEIRS, &format!("r{}", random.below(1000)));
    if random.below(3) > 0 {
        return json!(good);
    }
    let structured = format!("roleArn: {good}\nexternalID: an-id\nsessionName: a@b\n");
    let unknown = format!("roleArn: {good}\nproxy: yes\n");
    let nasty = [
        String::new(),
        String::new(),
        String::new(),
        String::new(),
        " ".to_owned(),
        "\n".to_owned(),
        format!("{good}\n"),
        format!(" {good}"),
        structured.clone(),
        structured,
        unknown,
        "nodes".to_owned(),
        "arn:aws:iam::200000000001".to_owned(),
        "arn:aws:iam::200000000001:user/nodes".to_owned(),
        "arn:aws:s3:::bucket".to_owned(),
        "arn:aws:iam::20000000000:role/nodes".to_owned(),
        "arn:aws-cn:iam::200000000001:role/nodes".to_owned(),
        arn(OTHER_ACCOUNT, "nodes"),
    ];
    json!(random.pick(&nasty))
}

fn selectors(case: &mut Case, labels: &Value, random: &mut Random) {
    case.selectors = true;
    case.labels = match random.below(4) {
        0 => json!({}),
        1 => json!({"app": ""}),
        2 => json!({"app": "a", "environment": "dev"}),
        _ => json!({"app": "a"}),
    };
    if !random.once_in(30) {
        case.namespace_with(labels, &json!({}));
    }
    for index in 0..*random.pick(&[0, 1, 1, 1, 1, 2, 2, 3]) {
        case.selector(&format!("s{index}"), selector(random));
    }
}

fn selector(random: &mut Random) -> Value {
    let good = arn(THEIRS, &format!("r{}", random.below(1000)));
    let mut spec = json!({"arn": good});
    if random.once_in(8) {
        let nasty = [
            json!(""),
            json!("nodes"),
            json!("arn:aws:iam::200000000001:user/nodes"),
            json!("arn:aws:iam::200000000001"),
            json!(format!("{good} ")),
        ];
        spec["arn"] = random.pick(&nasty).clone();
    }
    let [own, other] = NAMESPACES;
    if random.once_in(3) {
        return spec;
    }
    let labels = |random: &mut Random, key: &str, values: &[&str]| match random.below(5) {
        0 => json!({"matchLabels": {}}),
        1 => json!({"matchLabels": {key: random.pick(values), "absent": ""}}),
        2 => json!({"matchLabels": {"": "a"}}),
        _ => json!({"matchLabels": {key: random.pick(values)}}),
    };
    if random.once_in(2) {
        let names = [
            json!([]),
            json!([own]),
            json!([own, other]),
            json!([other]),
            json!([own, own]),
            json!([""]),
            json!(["tenant-*"]),
        ];
        spec["namespaceSelector"] = json!({"names": random.pick(&names)});
        if random.once_in(3) {
            spec["namespaceSelector"]["labelSelector"] =
                labels(random, "environment", &["dev", "prod", ""]);
        }
    }
    if random.once_in(2) {
        let types: Vec<Value> = (0..random.below(3))
            .map(|_| {
                json!({
                    "group": random.pick(&["", "ec2.services.k8s.aws", "s3.services.k8s.aws"]),
                    "version": random.pick(&["", "v1alpha1", "v1alpha1", "v1"]),
                    "kind": random.pick(&["", "Instance", "Instance", "VPC"]),
                })
            })
            .collect();
        spec["resourceTypeSelector"] = json!(types);
    }
    if random.once_in(3) {
        spec["resourceLabelSelector"] = labels(random, "app", &["a", "b", ""]);
    }
    spec
}
