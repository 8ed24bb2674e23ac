//! Machines on AWS, by the definitions of Cluster API Provider AWS.

use kubelet_authenticator_tests::cloud::{ACCOUNT, Instance, REGION};
use kubelet_authenticator_tests::fleet::{authorize, kubelet_of_instance};
use kubelet_authenticator_tests::management::{InfraCluster, Instances, Maker, network};
use serde_json::json;

use crate::bed::{CLOUD, SITE};

/// The order is that of Cluster API Provider AWS: the provider ID is on the AWSMachine first, and on
/// the Machine once the AWSMachine is ready.
#[test]
fn an_instance_that_asks_before_its_machine_has_a_provider_id_joins() {
    SITE.management.define_aws();
    let cluster = SITE.management.cluster("prod-1").namespace("instances");
    let infrastructure = InfraCluster::Aws(network(&CLOUD));
    let cluster = cluster.infrastructure(infrastructure).create();
    let authentication = authorize(&SITE.management, &cluster, &["aws"], json!({}));
    authentication.wait_until_ready(SITE.management.kubectl());
    let boot = {
        let plane = cluster.control_plane().clone();
        move |instance: &Instance, token: &str| {
            kubelet_of_instance(&plane, token, &CLOUD, instance)
                .arg(format!("--provider-id={}", instance.provider_id()))
                .start()
        }
    };
    let _instances = Instances::start(&cluster, &CLOUD, Maker::Test, boot);
    let node = json!({ "name": "{{ ds.meta_data.local_hostname }}" });
    let config = json!({ "joinConfiguration": { "nodeRegistration": node } });

    let deployment = cluster.machine_deployment_of("pool-a", 1, config);

    let machines = deployment.wait_until_running(1);
    let provider_id = machines[0]["spec"]["providerID"].as_str().unwrap();
    let id = provider_id.rsplit_once('/').unwrap().1;
    let name = CLOUD.moto().ec2(ACCOUNT, REGION).instance(id);
    let name = name.private_dns_name;
    assert_eq!(machines[0]["status"]["nodeRef"]["name"], name);
    let record = format!("prod-1.{name}");
    let words = ["get", "nodeidentities", &record, "-n", "instances"];
    let record = SITE.management.kubectl().json(words);
    assert_eq!(record["spec"]["attestor"], "aws", "{record:#}");
    assert_eq!(record["spec"]["providerID"], provider_id, "{record:#}");
    // It is the first one that was granted.
    assert_eq!(cluster.control_plane().csrs().len(), 1);
}
