//! Tests of the fields for one provider.

use super::*;

#[test]
fn invalid_aws_settings_are_refused() {
    let tags: serde_json::Map<_, _> = (0..51).map(|n| (n.to_string(), json!(""))).collect();
    each_is_refused(&[
        ("aws.accounts[0]", json!(["11112222333"]), "should match"),
        (
            "aws.accounts[1]",
            json!(["111122223333", "111122223333"]),
            "Duplicate value",
        ),
        ("aws.regions[0]", json!(["eu-west"]), "should match"),
        (
            "aws.regions[1]",
            json!(["eu-west-1", "eu-west-1"]),
            "Duplicate value",
        ),
        (
            "aws.requiredTags",
            json!({"a".repeat(129): ""}),
            "a tag key must have 1 to 128 characters",
        ),
        (
            "aws.requiredTags",
            json!({"": "a"}),
            "a tag key must have 1 to 128 characters",
        ),
        (
            "aws.requiredTags",
            json!(tags),
            "must have at most 50 items",
        ),
    ]);
    valid().refuses(
        "/spec/aws/requiredTags",
        &json!({"a": "b".repeat(257)}),
        "spec.aws.requiredTags.a",
        "may not be more than 256",
    );
}

#[test]
fn an_endorsement_key_can_be_listed_for_only_one_machine() {
    let key =
        |machine: &str, digit: &str| json!({"machine": machine, "ekSha256": digit.repeat(64)});
    each_is_refused(&[
        (
            "tpm.endorsementKeys.allowList[1]",
            json!([key("m-1", "1"), key("m-2", "1")]),
            "Duplicate value",
        ),
        (
            "tpm.endorsementKeys.allowList[0].ekSha256",
            json!([key("m-1", "A")]),
            "should match",
        ),
        (
            "tpm.endorsementKeys.allowList[0].machine",
            json!([key("M", "1")]),
            "should match",
        ),
        (
            "tpm.endorsementKeys.allowList[0].ekSha256",
            json!([{"machine": "m-1"}]),
            "Required value",
        ),
        (
            "tpm.endorsementKeys.requireCA[0]",
            json!(["MIIB"]),
            "should match",
        ),
    ]);
}

#[test]
fn an_entry_names_its_machine_or_its_host() {
    let list = "/spec/tpm/endorsementKeys/allowList";
    let entry = "tpm.endorsementKeys.allowList[0]";
    let host = "tpm.endorsementKeys.allowList[0].providerID";
    let of_host = |id: &str| json!([{"providerID": id, "ekSha256": "1".repeat(64)}]);
    let one = "must contain either machine or providerID";
    let beginning = "must be a provider ID, or a provider ID prefix that ends with '/' and is longer than the scheme";
    let mut both = of_host("metal3://metal/host-7/");
    both[0]["machine"] = json!("m-1");
    each_is_refused(&[
        (entry, both, one),
        (entry, json!([{"ekSha256": "1".repeat(64)}]), one),
        (host, of_host("metal3://"), beginning),
        (host, of_host("metal3:///"), beginning),
        (host, of_host("metal3:/metal/host-7/"), beginning),
        (host, of_host("://metal/host-7/"), beginning),
        (host, of_host("metal/host-7/"), beginning),
        (host, of_host("metal3://metal/host 7/"), beginning),
        (host, of_host("metal3://metal/höst-7/"), beginning),
        (host, of_host(""), "should be at least 1 chars"),
        (
            host,
            of_host(&format!("metal3://{}", "a".repeat(504))),
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
fn too_many_and_duplicate_config_maps_are_refused() {
    let maps = "/spec/tpm/endorsementKeys/configMaps";
    let names = |count: usize| (0..count).map(|n| format!("rack-{n}")).collect::<Vec<_>>();
    each_is_refused(&[
        (
            "tpm.endorsementKeys.configMaps",
            json!(names(65)),
            "must have at most 64 items",
        ),
        (
            "tpm.endorsementKeys.configMaps[1]",
            json!(["rack-1", "rack-1"]),
            "Duplicate value",
        ),
        (
            "tpm.endorsementKeys.configMaps[0]",
            json!(["Rack-1"]),
            "should match",
        ),
        (
            "tpm.endorsementKeys.configMaps[0]",
            json!(["metal/rack-1"]),
            "should match",
        ),
    ]);
    authentication("prod-1").accepts(maps, &json!(names(64)));
}

#[test]
fn an_allowed_state_without_a_register_or_digest_is_refused() {
    let state = |index: &str, value: &str| json!([{index: value.repeat(64)}]);
    each_is_refused(&[
        ("tpm.pcrPolicy.allowed[0]", json!([{}]), "at least 1"),
        (
            "tpm.pcrPolicy.allowed[0]",
            state("24", "a"),
            "a register must be a number from 0 to 23",
        ),
        (
            "tpm.pcrPolicy.allowed[0]",
            state("07", "a"),
            "a register must be a number from 0 to 23",
        ),
        (
            "tpm.pcrPolicy.allowed[0].7",
            state("7", "G"),
            "should match",
        ),
        // The values show that the firmware has not measured the boot.
        (
            "tpm.pcrPolicy.allowed[0]",
            state("0", "0"),
            "the firmware did not extend it",
        ),
        // The values belong to the SHA-384 bank.
        (
            "tpm.pcrPolicy.allowed[0].7",
            json!([{"7": "a".repeat(96)}]),
            "should match",
        ),
    ]);
    let valid = authentication("prod-1");
    valid.accepts("/spec/tpm/pcrPolicy", &json!({}));
    // The register is zero unless a program extends it.
    valid.accepts("/spec/tpm/pcrPolicy/allowed", &state("12", "0"));
}

#[test]
fn a_register_has_one_to_32_alternative_digests() {
    let allowed = "/spec/tpm/pcrPolicy/allowed";
    let (a, b) = ("a".repeat(64), "0b".repeat(32));
    let of = |register: &str, alternatives: &str| json!([{register: alternatives}]);
    let zeros = "0".repeat(64);
    let many = |count: usize| vec![a.as_str(); count].join(", ");
    for (register, alternatives) in [
        ("7", a.clone()),
        ("7", format!("{a},{b}")),
        ("7", format!("{a}, {b}")),
        ("7", format!("{b},{a}, {b}")),
        ("7", many(32)),
        // The register is zero until a program extends it.
        ("12", format!("{a},{zeros}")),
    ] {
        let value = of(register, &alternatives);
        let stored = authentication("prod-1").accepts(allowed, &value);
        assert_eq!(stored["spec"]["tpm"]["pcrPolicy"]["allowed"], value);
    }
    let value = "tpm.pcrPolicy.allowed[0].7";
    let malformed = |alternatives: String| (value, of("7", &alternatives), "should match");
    let unmeasured = |alternatives: String| {
        let unmeasured = "the firmware did not extend it";
        (
            "tpm.pcrPolicy.allowed[0]",
            of("7", &alternatives),
            unmeasured,
        )
    };
    each_is_refused(&[
        malformed(String::new()),
        malformed(format!("{a},")),
        malformed(format!(",{a}")),
        malformed(format!("{a},,{b}")),
        malformed(format!("{a};{b}")),
        malformed(format!("{a} {b}")),
        malformed(format!("{a}{b}")),
        malformed(format!("{a} ,{b}")),
        malformed(format!("{a},  {b}")),
        malformed(format!("{a},\t{b}")),
        malformed(format!("{a},\n{b}")),
        malformed(format!("{a},{b}\n")),
        malformed(format!("{a},{}", "0b0".repeat(21))),
        malformed(format!("{a},{b}0")),
        malformed(format!("{a},{}", b.to_uppercase())),
        malformed(format!("{a},sha256:{b}")),
        // The values belong to the SHA-384 bank.
        malformed(format!("{a},{}", "a".repeat(96))),
        (value, of("7", &many(33)), "may not be more than 2110"),
        unmeasured(format!("{a},{zeros}")),
        unmeasured(format!("{zeros}, {a}")),
        unmeasured(format!("{a}, {zeros}, {b}")),
    ]);
}
