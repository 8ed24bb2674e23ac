//! Tests of the command `identify`.

use kubelet_authenticator_test_support::api_server::ApiServer;
use kubelet_authenticator_tests::node::{INSECURE, Node};
use kubelet_authenticator_tests::tpm;
use serde_json::{Value, json};

use crate::clouds::{ACCOUNT, INSTANCE, NAME, instance, tpm_machine};

fn identity(node: &Node) -> Value {
    let run = node.command(&["identify", "-o", "json"]).succeeded();
    serde_json::from_str(&run.stdout).unwrap()
}

#[test]
fn the_identity_of_a_machine_without_evidence_comes_from_the_settings() {
    let server = ApiServer::start();
    let mut node = Node::new(INSECURE, &server);

    let table = node.command(&["identify"]).succeeded().stdout;

    let expected = "\
Provider     insecure
Provider ID  test:///machine-1
Node         n1
";
    assert_eq!(table, expected);
    assert_eq!(
        identity(&node),
        json!({"provider": "insecure", "providerID": "test:///machine-1", "nodeName": "n1"})
    );
    assert_eq!(server.connections(), 0);
    assert!(!node.state().exists());
    node.unset("providerID");
    node.command(&["identify"]).failed(3).saying("provider ID");
}

#[test]
fn the_identity_of_an_instance_comes_from_its_metadata() {
    let (bed, _imds) = instance();

    let table = bed.node.command(&["identify"]).succeeded().stdout;

    let expected = format!(
        "\
Provider          aws
Provider ID       aws:///eu-west-1a/{INSTANCE}
Node              {NAME}
Instance          {INSTANCE}
Account           {ACCOUNT}
Region            eu-west-1
Zone              eu-west-1a
Private DNS name  {NAME}
"
    );
    assert_eq!(table, expected);
    assert_eq!(
        identity(&bed.node),
        json!({
            "provider": "aws", "providerID": format!("aws:///eu-west-1a/{INSTANCE}"),
            "nodeName": NAME, "instanceID": INSTANCE, "account": ACCOUNT, "region": "eu-west-1",
            "zone": "eu-west-1a", "privateDNSName": NAME,
        })
    );
    assert_eq!(bed.server.connections(), 0);
}

#[test]
fn identify_shows_a_tpm_as_an_endorsement_key_list_entry() {
    let (bed, machine) = tpm_machine();
    let (digest, id) = (tpm::endorsement_key(&machine), tpm::provider_id(&machine));

    let table = bed.node.command(&["identify"]).succeeded().stdout;

    let expected = format!(
        "\
Provider         tpm
Provider ID      {id}
Node             n1
Endorsement key  ecc-p384
Certificate      in the TPM
Issuer           CN=TPM maker of a test intermediate 1
Expires on       9999-12-31

Entry for the controller's list of endorsement keys:
{digest}: {id}
"
    );
    assert_eq!(table, expected);
    let mut bed = bed;
    bed.node.set("providerID", "tinkerbell://metal/host-7");
    let found = identity(&bed.node);
    assert_eq!(
        found["endorsementKeys"],
        json!({&digest: "tinkerbell://metal/host-7"})
    );
    assert_eq!(found["endorsementKey"], "ecc-p384");
    assert_eq!(
        found["certificateIssuer"],
        "CN=TPM maker of a test intermediate 1"
    );
    assert_eq!(found["certificateExpiry"], "9999-12-31");
    assert_eq!(bed.server.connections(), 0);
}
