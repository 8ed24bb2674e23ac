//! What is said of one provider.

use super::*;

#[test]
fn what_aws_accepts_is_well_formed() {
    let tags: serde_json::Map<_, _> = (0..51).map(|n| (n.to_string(), json!(""))).collect();
    each_is_refused(&[
        (
            "/spec/aws/accounts",
            json!(["11112222333"]),
            "spec.aws.accounts[0]",
            "should match",
        ),
        (
            "/spec/aws/accounts",
            json!(["111122223333", "111122223333"]),
            "spec.aws.accounts[1]",
            "Duplicate value",
        ),
        (
            "/spec/aws/regions",
            json!(["eu-west"]),
            "spec.aws.regions[0]",
            "should match",
        ),
        (
            "/spec/aws/regions",
            json!(["eu-west-1", "eu-west-1"]),
            "spec.aws.regions[1]",
            "Duplicate value",
        ),
        (
            "/spec/aws/requiredTags",
            json!({"a".repeat(129): ""}),
            "spec.aws.requiredTags",
            "a tag's key has 1 to 128 characters",
        ),
        (
            "/spec/aws/requiredTags",
            json!({"": "a"}),
            "spec.aws.requiredTags",
            "a tag's key has 1 to 128 characters",
        ),
        (
            "/spec/aws/requiredTags",
            json!(tags),
            "spec.aws.requiredTags",
            "must have at most 50 items",
        ),
        (
            "/spec/aws/requiredTags",
            json!({"a": "b".repeat(257)}),
            "spec.aws.requiredTags.a",
            "may not be more than 256",
        ),
    ]);
}

#[test]
fn an_endorsement_key_is_of_one_machine() {
    let list = "/spec/tpm/endorsementKeys/allowList";
    let key =
        |machine: &str, digit: &str| json!({"machine": machine, "ekSha256": digit.repeat(64)});
    each_is_refused(&[
        (
            list,
            json!([key("m-1", "1"), key("m-2", "1")]),
            "spec.tpm.endorsementKeys.allowList[1]",
            "Duplicate value",
        ),
        (
            list,
            json!([key("m-1", "A")]),
            "spec.tpm.endorsementKeys.allowList[0].ekSha256",
            "should match",
        ),
        (
            list,
            json!([key("M", "1")]),
            "spec.tpm.endorsementKeys.allowList[0].machine",
            "should match",
        ),
        (
            list,
            json!([{"machine": "m-1"}]),
            "spec.tpm.endorsementKeys.allowList[0].ekSha256",
            "Required value",
        ),
        (
            "/spec/tpm/endorsementKeys/requireCA",
            json!(["MIIB"]),
            "spec.tpm.endorsementKeys.requireCA[0]",
            "should match",
        ),
    ]);
}

#[test]
fn an_entry_names_its_machine_or_its_host() {
    let list = "/spec/tpm/endorsementKeys/allowList";
    let entry = "spec.tpm.endorsementKeys.allowList[0]";
    let host = "spec.tpm.endorsementKeys.allowList[0].providerID";
    let of_host = |id: &str| json!([{"providerID": id, "ekSha256": "1".repeat(64)}]);
    let one = "names its machine by one of machine and providerID";
    let beginning = "is a provider ID, or its beginning up to a '/' with more than its scheme";
    let mut both = of_host("metal3://metal/host-7/");
    both[0]["machine"] = json!("m-1");
    each_is_refused(&[
        (list, both, entry, one),
        (list, json!([{"ekSha256": "1".repeat(64)}]), entry, one),
        (list, of_host("metal3://"), host, beginning),
        (list, of_host("metal3:///"), host, beginning),
        (list, of_host("metal3:/metal/host-7/"), host, beginning),
        (list, of_host("://metal/host-7/"), host, beginning),
        (list, of_host("metal/host-7/"), host, beginning),
        (list, of_host("metal3://metal/host 7/"), host, beginning),
        (list, of_host("metal3://metal/höst-7/"), host, beginning),
        (list, of_host(""), host, "should be at least 1 chars"),
        (
            list,
            of_host(&format!("metal3://{}", "a".repeat(504))),
            host,
            "may not be more than 512",
        ),
    ]);
    for id in [
        "metal3://metal/",
        "tinkerbell://metal/host-7",
        "maas:///zone-1/abc123",
        "vsphere://4230a1b2-0000-4000-8000-000000000000",
        &format!("metal3://{}", "a".repeat(503)),
    ] {
        authentication("prod-1").accepts(list, &of_host(id));
    }
    let full: Vec<_> = (0..512)
        .map(|n| json!({"providerID": format!("metal3://metal/{n}/"), "ekSha256": format!("{n:064x}")}))
        .collect();
    authentication("prod-1").accepts(list, &json!(full));
}

#[test]
fn config_maps_are_few_and_different() {
    let maps = "/spec/tpm/endorsementKeys/configMaps";
    let names = |count: usize| (0..count).map(|n| format!("rack-{n}")).collect::<Vec<_>>();
    each_is_refused(&[
        (
            maps,
            json!(names(65)),
            "spec.tpm.endorsementKeys.configMaps",
            "must have at most 64 items",
        ),
        (
            maps,
            json!(["rack-1", "rack-1"]),
            "spec.tpm.endorsementKeys.configMaps[1]",
            "Duplicate value",
        ),
        (
            maps,
            json!(["Rack-1"]),
            "spec.tpm.endorsementKeys.configMaps[0]",
            "should match",
        ),
        (
            maps,
            json!(["metal/rack-1"]),
            "spec.tpm.endorsementKeys.configMaps[0]",
            "should match",
        ),
    ]);
    authentication("prod-1").accepts(maps, &json!(names(64)));
}

#[test]
fn enforced_states_say_something() {
    let allowed = "spec.tpm.pcrPolicy.allowed";
    let state = |index: &str, value: &str| json!([{index: value.repeat(64)}]);
    each_is_refused(&[
        (
            "/spec/tpm/pcrPolicy/allowed",
            json!([]),
            allowed,
            "Enforce with no allowed state would refuse every machine",
        ),
        (
            "/spec/tpm/pcrPolicy/allowed",
            json!([{}]),
            "spec.tpm.pcrPolicy.allowed[0]",
            "at least 1",
        ),
        (
            "/spec/tpm/pcrPolicy/allowed",
            state("24", "a"),
            "spec.tpm.pcrPolicy.allowed[0]",
            "a register is one of 0 to 23",
        ),
        (
            "/spec/tpm/pcrPolicy/allowed",
            state("07", "a"),
            "spec.tpm.pcrPolicy.allowed[0]",
            "a register is one of 0 to 23",
        ),
        (
            "/spec/tpm/pcrPolicy/allowed",
            state("7", "G"),
            "spec.tpm.pcrPolicy.allowed[0].7",
            "should match",
        ),
    ]);
    authentication("prod-1").accepts("/spec/tpm/pcrPolicy", &json!({"mode": "Record"}));
}
