//! Tests that the node itself detects a name that the cloud did not assign to the instance.

use kubelet_authenticator_test_support::imds::{Fault, Network, Route, Times};
use kubelet_authenticator_tests::program;

use crate::bed::{AWS, Bed, INSTANCE, NAME, REGION};

/// A test bed in which the node has this name, with this node name policy.
fn called(name: &str, policy: &str) -> Bed {
    let mut bed = Bed::new();
    bed.node.set("nodeName", name);
    bed.node.set("aws.nodeName", policy);
    bed
}

#[test]
fn a_node_gets_its_name_from_ec2() {
    for (name, policy) in [
        (NAME, "hostname"),
        (INSTANCE, "hostname"),
        (NAME, "localHostname"),
        (INSTANCE, "instanceID"),
    ] {
        let bed = called(name, policy);

        bed.run().succeeded();

        assert_eq!(bed.sent().node_name.as_str(), name);
    }
}

#[test]
fn a_wrong_node_name_exits_with_15_before_any_request() {
    for (name, policy, expected) in [
        ("ip-10-0-0-1", "hostname", NAME),
        ("i-0123456789abcdef1", "hostname", NAME),
        (INSTANCE, "localHostname", NAME),
        (NAME, "instanceID", INSTANCE),
    ] {
        let bed = called(name, policy);

        bed.run()
            .failed(15)
            .saying(&format!("the node name is {name}"))
            .saying(&format!("--hostname-override={expected}"));

        assert_eq!(bed.server.connections(), 0, "{policy}: {name}");
    }
}

#[test]
fn a_host_name_that_is_set_late_joins_if_ec2_reports_it() {
    let mut bed = Bed::new();
    bed.node.unset("nodeName");
    bed.node.call("localhost");

    bed.run()
        .failed(15)
        .saying("the node name is localhost")
        .saying(&format!("--hostname-override={NAME}"));

    assert_eq!(bed.server.connections(), 0);
    bed.node.call(NAME);
    bed.run().succeeded();
    assert_eq!(bed.sent().node_name.as_str(), NAME);
}

#[test]
fn in_every_network_the_names_that_ec2_reports_are_accepted() {
    for network in Network::ALL {
        let private = network.private_dns_name(REGION, INSTANCE, "10.0.0.1");
        for (name, policy) in [
            (private.as_str(), "hostname"),
            (INSTANCE, "hostname"),
            (private.as_str(), "localHostname"),
            (INSTANCE, "instanceID"),
        ] {
            let bed = called(name, policy);
            bed.imds.update(|instance| instance.join_network(network));

            bed.run().succeeded();

            assert_eq!(bed.sent().node_name.as_str(), name, "{network:?}");
        }
    }
}

#[test]
fn a_dhcp_domain_name_exits_with_15_and_the_suggested_name_joins() {
    for domain in ["corp.test", "corp.test.", "corp.test other.test"] {
        let network = Network::Domain(domain);
        let bed = called("ip-10-0-0-1.corp.test", "hostname");
        bed.imds.update(|instance| instance.join_network(network));

        bed.run()
            .failed(15)
            .saying("EC2 does not report names in the domain of the VPC's DHCP options")
            .saying(&format!("--hostname-override={NAME} "))
            .saying(&format!("also run: {} reset --yes", program(AWS).display()));

        assert_eq!(bed.server.connections(), 0, "{domain}");
        let bed = called(NAME, "hostname");
        bed.imds.update(|instance| instance.join_network(network));
        bed.run().succeeded();
    }
}

#[test]
fn without_a_local_hostname_the_instance_id_is_the_name() {
    for (name, code) in [(INSTANCE, 0), (NAME, 15)] {
        let bed = called(name, "hostname");
        let route = Route::path("meta-data/local-hostname");
        bed.imds.inject(route, Times::always(), Fault::Status(404));

        let run = bed.run();

        assert_eq!(run.code, Some(code), "{run:#?}");
    }
}

#[test]
fn a_node_keeps_its_credential_if_its_cloud_name_changes() {
    let bed = Bed::new();
    bed.issue_old_certificates();
    let pair = bed.run().succeeded().pair();
    bed.imds
        .update(|instance| instance.local_hostname = "ip-10-0-0-2.corp.test".to_owned());

    let run = bed.run().succeeded();
    let run = run.saying("ip-10-0-0-2.eu-west-1.compute.internal");

    assert_eq!(run.pair(), pair);
    assert_eq!(bed.server.creates(), 1);
}
