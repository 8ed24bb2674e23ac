//! Tests of node names that cloud-init reads from the EC2 metadata service.

use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::cloud_init::render_on_ec2;
use kubelet_authenticator_test_support::imds::{Imds, Instance, Network};
use kubelet_authenticator_test_support::instance_identity::Document;
use kubelet_authenticator_tests::image::{TOLD_BY_EC2, TOLD_BY_METADATA, render};
use kubelet_authenticator_tests::machines::{Infrastructure, Machines, Scene};
use kubelet_authenticator_tests::page::repository;
use serde_json::Value;

const ACCOUNT: &str = "111122223333";
const ID: &str = "i-0123456789abcdef0";

/// The metadata service of an instance in this network.
fn service(region: &str, network: Network) -> Imds {
    let zone = format!("{region}a");
    let mut instance = Instance::new(region, &zone, ID);
    instance.document = Document::new(ACCOUNT, region, &zone, ID)
        .to_json()
        .into_bytes();
    instance.join_network(network);
    Imds::start(instance)
}

/// The node name and the kubelet arguments in the JoinConfiguration, after cloud-init has rendered it on an instance in
/// this network.
fn registered(region: &str, network: Network, options: &[&str]) -> (String, Vec<Value>) {
    let service = service(region, network);
    let template = render(&Attestor::AWS, &[&["kubeadm-config"], options].concat());
    let config: Value = serde_saphyr::from_str(&template).unwrap();
    let spec = &config["spec"]["template"]["spec"];
    let registration = &spec["joinConfiguration"]["nodeRegistration"];
    let mut arguments = registration["kubeletExtraArgs"].as_array().unwrap().clone();
    // Cluster API rewrites the values with its own quotes. All values are in one document, as in user data, because
    // each cloud-init run takes a second.
    let values = arguments.iter().map(|argument| &argument["value"]);
    let values = [&registration["name"]].into_iter().chain(values);
    let values: Vec<_> = values.map(|value| value.as_str().unwrap()).collect();
    let rendered = render_on_ec2(&service.url(), &values.join("\n"));
    let rendered: Vec<_> = rendered.trim_end().lines().collect();
    assert_eq!(rendered.len(), values.len(), "{rendered:?}");
    for (argument, value) in arguments.iter_mut().zip(&rendered[1..]) {
        argument["value"] = (*value).into();
    }
    (rendered[0].to_owned(), arguments)
}

#[test]
fn cloud_init_renders_the_name_in_ec2_in_every_network() {
    for region in ["eu-west-1", "us-east-1"] {
        for network in Network::ALL {
            let (name, arguments) = registered(region, network, &TOLD_BY_EC2);

            let reported = network.private_dns_name(region, ID, "10.0.0.1");
            assert_eq!(name, reported, "{network:?}");
            let provider_id = arguments.iter().find(|it| it["name"] == "provider-id");
            let expected = format!("aws:///{region}a/{ID}");
            assert_eq!(provider_id.unwrap()["value"], expected, "{network:?}");
        }
    }
}

#[test]
fn the_documented_node_ip_is_the_first_address_of_the_instance() {
    let page = std::fs::read_to_string(repository().join("docs/aws.md")).unwrap();
    let mut lines = page.lines();
    let line = lines.find(|line| line.contains("name: node-ip")).unwrap();
    let parts = line.split("{{").skip(1);
    let templates: Vec<String> = parts
        .map(|part| format!("{{{{{}}}}}", part.split_once("}}").unwrap().0))
        .collect();
    let [four, six] = templates.as_slice() else {
        panic!("{line}");
    };
    for (network, template, address) in [
        (Network::AddressNames, four, "10.0.0.1"),
        (Network::Ipv6Only, six, "2001:db8::1"),
    ] {
        let service = service("eu-west-1", network);

        let rendered = render_on_ec2(&service.url(), template);

        assert_eq!(rendered.trim_end(), address, "{network:?}");
    }
}

#[test]
fn the_local_hostname_template_renders_the_dhcp_domain() {
    let network = Network::Domain("corp.test");
    let options = [
        TOLD_BY_EC2[0],
        TOLD_BY_EC2[1],
        TOLD_BY_METADATA[2],
        TOLD_BY_METADATA[3],
    ];

    let (name, _) = registered("eu-west-1", network, &options);

    assert_eq!(name, "ip-10-0-0-1.corp.test");
}

#[test]
fn an_instance_with_a_dhcp_domain_joins_with_its_name_in_ec2() {
    let machines = Machines::Ec2InDomain(Attestor::AWS, "corp.test.");
    let scene = Scene::attended("dhcp-domain", machines);
    let Infrastructure::Ec2(instances) = &scene.infrastructure else {
        panic!("the machine is on EC2");
    };
    let config = scene.config();
    let deployment = scene.cluster.machine_deployment_of("pool-a", 1, config);

    let machine = deployment.wait_until_running(1).remove(0);

    let node = scene.wait_for_node_of(&machine);
    let names = instances.each(|instance, machine| {
        let told = machine.ok(&["cloud-init", "query", "ds.meta_data.local_hostname"]);
        let flags = machine.ok(&["cat", "/var/lib/kubelet/kubeadm-flags.env"]);
        (instance.node_name().to_owned(), told, flags)
    });
    let [(reported, told, flags)] = names.as_slice() else {
        panic!("{names:?}");
    };
    assert_eq!(node, *reported);
    assert!(told.trim().ends_with(".corp.test."), "{told}");
    let option = format!("--hostname-override={reported}");
    assert!(flags.contains(&option), "{flags}");
    assert!(!flags.contains("corp.test"), "{flags}");
    assert_eq!(scene.record(&node)["spec"]["attestor"], "aws");
}
