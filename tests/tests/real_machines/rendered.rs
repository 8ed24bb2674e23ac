//! Tests that Cluster API accepts the output of `render`.

use std::fs;

use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_tests::image::{self, render};
use kubelet_authenticator_tests::page::repository;
use serde_json::{Value, json};

use kubelet_authenticator_tests::machines::SITE;

#[test]
fn the_aws_page_has_the_render_options_that_instances_join_with() {
    let page = fs::read_to_string(repository().join("docs/aws.md")).unwrap();
    for option in image::TOLD_BY_EC2 {
        assert!(page.contains(option), "{option}");
    }
}

#[test]
fn the_rendered_config_is_accepted_in_both_versions_and_formats() {
    let kubectl = SITE.management.kubectl();
    // Machines without evidence do not get serving certificates, so kubeadm does not need settings for such
    // certificates.
    for (attestor, arguments) in [
        (
            Attestor::TPM,
            json!([{ "name": "rotate-server-certificates", "value": "true" }]),
        ),
        (Attestor::INSECURE, Value::Null),
    ] {
        let drop_in = render(&attestor, &["kubelet-drop-in"]);
        for version in ["v1beta1", "v1beta2"] {
            for format in ["cloud-config", "ignition"] {
                let name = format!("{attestor}-{version}-{format}");
                let choice = [
                    "--api-version",
                    version,
                    "--format",
                    format,
                    "--name",
                    &name,
                ];

                kubectl.apply(&render(
                    &attestor,
                    &[&["kubeadm-config"], &choice[..]].concat(),
                ));

                let kind = "kubeadmconfigtemplates.v1beta2.bootstrap.cluster.x-k8s.io";
                let stored = kubectl.json(["get", kind, &name]);
                let spec = &stored["spec"]["template"]["spec"];
                assert_eq!(spec["format"], format, "{stored:#}");
                assert_eq!(spec["files"][0]["content"], drop_in, "{stored:#}");
                let registration = &spec["joinConfiguration"]["nodeRegistration"];
                assert_eq!(registration["kubeletExtraArgs"], arguments, "{stored:#}");
            }
        }
    }
}
