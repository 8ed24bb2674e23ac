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
fn an_endorsement_key_is_of_one_machine_and_a_machine_has_one() {
    let list = "/spec/tpm/endorsementKeys/allowList";
    let key =
        |machine: &str, digit: &str| json!({"machine": machine, "ekSha256": digit.repeat(64)});
    each_is_refused(&[
        (
            list,
            json!([key("m-1", "1"), key("m-2", "1")]),
            "spec.tpm.endorsementKeys.allowList",
            "an endorsement key is of one machine",
        ),
        (
            list,
            json!([key("m-1", "1"), key("m-1", "2")]),
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
