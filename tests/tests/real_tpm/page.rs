//! Tests of the commands that an operator copies from docs/tpm.md.

use std::collections::BTreeSet;
use std::fs;

use base64::prelude::*;
use kubelet_attestation::names::Provider;
use kubelet_authenticator_tests::deploy::NAMESPACE;
use kubelet_authenticator_tests::page::{Desk, commands, section};
use serde_json::json;

use crate::bed::{Plugin, SITE, cluster, key, machine, tpm};

#[test]
fn the_documented_commands_create_the_challenge_key_secret() {
    let (site, _) = &*SITE;
    let kubectl = site.management.kubectl();
    kubectl.apply_object(&json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE},
    }));
    let desk = Desk::new(site.management.admin_kubeconfig());
    let steps = section("tpm.md", "## Set up TPM attestation").into_iter();
    let [make, create, _] = steps
        .map(|(_, command)| command)
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();

    desk.follow(&format!("{make}\n{create}"));

    let secret = kubectl.json(["get", "secret", "challenge-keys", "-n", NAMESPACE]);
    let names: Vec<&String> = secret["data"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["current"]);
    let value = BASE64_STANDARD.decode(secret["data"]["current"].as_str().unwrap());
    let value = String::from_utf8(value.unwrap()).unwrap();
    // The keys with which the controller in these tests runs have the same format.
    assert_eq!(value.len(), key(1).len());
    let digits = value.strip_suffix('\n').unwrap();
    assert!(digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
}

#[test]
fn the_documented_columns_show_the_challenge_and_the_certificate() {
    let scene = cluster("columns", json!({}));
    let tpm = tpm();
    let machine = machine(&scene, "columns-1", &tpm);
    Plugin::of(&scene, &machine, &tpm.tcti()).joins();
    let desk = Desk::new(scene.cluster.control_plane().admin_kubeconfig());
    let mut commands = commands("tpm.md", '$').into_iter();
    let show = commands.find(|one| one.starts_with("kubectl get csr"));
    let show = show.unwrap();
    let (show, shown) = show.split_once('\n').unwrap();

    desk.follow(&format!("{show} > requests.txt"));

    let printed = fs::read_to_string(desk.files().join("requests.txt")).unwrap();
    let columns = |table: &str| -> BTreeSet<Vec<String>> {
        let rows = table.lines().map(|row| {
            let words = row.split_whitespace().skip(1);
            words.map(ToOwned::to_owned).collect()
        });
        rows.collect()
    };
    assert_eq!(columns(&printed), columns(shown));
    assert!(
        printed.contains(&Provider::TPM.client_signer()),
        "{printed}"
    );
}
