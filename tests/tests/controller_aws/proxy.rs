//! Tests that both STS and EC2 are called through the proxy in the controller's environment.

use kubelet_authenticator_test_support::connect_proxy::ConnectProxy;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::cloud::{Cloud, OWNED, REGION};
use kubelet_authenticator_tests::controller::{Bed, Controller, PATIENCE, request};

/// A controller with these environment variables, whose EC2 endpoint uses TLS as in AWS, and an instance's request. The
/// STS simulator also receives the EC2 calls, because this test checks only the addresses of the calls.
fn asked(cloud: &Cloud, environment: &[(&str, &str)]) -> (Bed, Controller) {
    let instances = cloud.launch_many(1, &[OWNED]);
    let mut bed = Bed::instances(cloud, &instances);
    let ec2 = format!(
        "--aws-ec2-endpoint={REGION}=https://localhost:{}",
        cloud.sts().address().port()
    );
    bed.setup = bed.setup.args(&[ec2]);
    let setup = environment.iter();
    bed.setup = setup.fold(bed.setup, |setup, (name, value)| setup.env(name, value));
    let mut controller = bed.setup.start();
    controller.wait_until_it_watches();
    let csr = request(&bed, cloud, &instances[0]).put(&bed.server);
    // STS has confirmed the identity, but EC2's response about the instance's state is invalid.
    controller.wait_for_line("decided", |line| {
        line["csr"] == *csr && line["reason"] == "VerifierUnavailable"
    });
    assert_eq!(cloud.sts().calls().len(), 1);
    (bed, controller)
}

fn hosts(cloud: &Cloud) -> [String; 2] {
    let ec2 = format!("localhost:{}", cloud.sts().address().port());
    [cloud.sts().host(), ec2]
}

#[test]
fn sts_and_ec2_are_called_through_the_environment_proxy() {
    for name in ["HTTPS_PROXY", "https_proxy"] {
        let (cloud, proxy) = (Cloud::start(), ConnectProxy::start());

        let _running = asked(&cloud, &[(name, &proxy.url())]);

        let both = poll(PATIENCE, || {
            let connects = proxy.connects();
            hosts(&cloud)
                .iter()
                .all(|host| connects.contains(host))
                .then_some(())
        });
        assert!(both.is_some(), "{name}: {:?}", proxy.connects());
    }
}

#[test]
fn a_host_in_no_proxy_is_called_directly() {
    for name in ["NO_PROXY", "no_proxy"] {
        let (cloud, proxy) = (Cloud::start(), ConnectProxy::start());
        let environment = [
            ("HTTPS_PROXY", &*proxy.url()),
            (name, "127.0.0.1,localhost"),
        ];

        let _running = asked(&cloud, &environment);

        assert_eq!(proxy.connects(), [""; 0], "{name}");
    }
}

#[test]
fn a_proxy_for_another_protocol_is_not_used() {
    let (cloud, proxy) = (Cloud::start(), ConnectProxy::start());
    let url = proxy.url();
    let environment =
        ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"].map(|name| (name, &*url));

    let _running = asked(&cloud, &environment);

    assert_eq!(proxy.connects(), [""; 0]);
}
