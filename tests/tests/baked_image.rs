//! Tests with machines that boot an image from the role in `image-builder/`: `make image-builder-check` creates the
//! image, and runs this test.

use kubelet_attestation::names::Provider as Attestor;

use kubelet_authenticator_tests::machines::{Machines, Scene};

/// The variable with the layers of the image's root directory.
const IMAGE: &str = "KUBELET_AUTHENTICATOR_IMAGE";

#[test]
fn a_machine_from_a_baked_image_joins_without_plugin_bootstrap_data() {
    let layers = std::env::var(IMAGE).expect("the layers of an image");
    let scene = Scene::attended("baked", Machines::Ec2OfImage(Attestor::AWS, layers));
    let mut config = scene.stock_config();
    assert!(!config.to_string().contains("kubelet-authenticator"));
    // The image sets this argument, without which the kubelet does not request a serving certificate.
    let arguments = &mut config["joinConfiguration"]["nodeRegistration"]["kubeletExtraArgs"];
    let arguments = arguments.as_array_mut().unwrap();
    let before = arguments.len();
    arguments.retain(|argument| argument["name"] != "rotate-server-certificates");
    assert_eq!(arguments.len() + 1, before, "{arguments:#?}");

    let deployment = scene.cluster.machine_deployment_of("pool-a", 1, config);

    let one = deployment.wait_until_running(1);
    // The node also has a serving certificate.
    assert!(scene.serves());
    let node = scene.wait_for_node_of(&one[0]);
    scene.on(&node, |machine| {
        let exec = machine.read("/etc/kubernetes/kubelet.conf").unwrap();
        let exec = String::from_utf8(exec).unwrap();
        assert!(
            exec.contains("/usr/local/bin/kubelet-authenticator-aws"),
            "{exec}"
        );
        // The root directory comes from the image, and not from the host.
        assert!(machine.exists("/usr/bin/dnf"));
    });
    scene.reads_well(&[node]);
    let requests = scene.client_requests();
    assert_eq!(requests.len(), 1, "{requests:#?}");
}
