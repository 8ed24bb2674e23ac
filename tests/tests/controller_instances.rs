//! What the controller answers AWS instances, by the real program: EC2 by moto server, STS by a
//! simulator that checks signatures itself, the API server in this process.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use kubelet_authenticator_test_support::moto::{Call, Failure, Scope};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_test_support::sts::{Fault, Times};
use kubelet_authenticator_tests::cloud::Cloud;
use kubelet_authenticator_tests::controller::{
    Bed, Change, Controller, PATIENCE, is_issued, reason_of, request,
};

/// What one call of EC2 may be about (DescribeInstances, values of a filter).
const BATCH: usize = 100;

/// Tests that count have a cloud of their own.
static CLOUD: LazyLock<Cloud> = LazyLock::new(Cloud::start);

fn started(bed: &Bed) -> Controller {
    let mut controller = bed.setup.start();
    controller.wait_until_it_watches();
    controller
}

#[test]
fn two_hundred_instances_that_join_at_once_cost_one_call_of_sts_each_and_four_of_ec2() {
    let cloud = Cloud::start();
    let instances = cloud.launch_many(2 * BATCH, &[]);
    let bed = Bed::instances(&cloud, &instances);
    let requests = instances.iter().enumerate();
    let requests = requests.map(|instance| request(&bed, &cloud, instance, &Change::default()));
    let requests: Vec<_> = requests.collect();
    let _controller = started(&bed);

    let put = requests.iter().map(|request| request.put(&bed.server));
    let names: Vec<_> = put.collect();

    for name in &names {
        let csr = bed.wait_for_answer(name);
        assert!(is_issued(&csr), "{csr:#}");
    }
    assert_eq!(cloud.sts().calls().len(), instances.len());
    let all = cloud.moto().calls();
    let asked = |call: &Call| {
        let names = call.parameters.iter().map(|(name, _)| name);
        names.filter(|name| name.contains(".Value.")).count()
    };
    let described: Vec<_> = all.iter().map(asked).collect();
    assert!(
        (1..=4).contains(&described.len()),
        "instances a call: {described:?}"
    );
    let actions: BTreeSet<_> = all.iter().map(|call| call.action.as_str()).collect();
    assert_eq!(actions, BTreeSet::from(["DescribeInstances"]));
}

#[test]
fn a_document_that_was_used_is_of_no_use_with_another_key() {
    let instances = CLOUD.launch_many(2, &[]);
    let bed = Bed::instances(&CLOUD, &instances);
    let mut controller = started(&bed);
    let victim = request(&bed, &CLOUD, (0, &instances[0]), &Change::default());
    let joined = bed.wait_for_answer(&victim.put(&bed.server));
    assert!(is_issued(&joined), "{joined:#}");

    // The document is no secret. Who has it has neither the instance's credentials nor its key.
    let attacker = &instances[1].credentials;
    let replayed = request(
        &bed,
        &CLOUD,
        (0, &instances[0]),
        &Change {
            credentials: Some(attacker),
            ..Change::default()
        },
    );

    let name = replayed.put(&bed.server);
    let answer = bed.wait_for_answer(&name);
    assert_eq!(
        reason_of(&answer, "Denied"),
        Some("CallerIsAnotherInstance"),
        "{answer:#}"
    );
    assert_eq!(controller.wait_for_decision(&name)["check"], "attest");
}

#[test]
fn an_instance_that_claims_a_colleagues_provider_id_is_denied_and_nobody_is_asked() {
    let cloud = Cloud::start();
    let instances = cloud.launch_many(2, &[]);
    let bed = Bed::instances(&cloud, &instances);
    let _controller = started(&bed);
    let colleague = instances[0].provider_id();
    let own = request(&bed, &cloud, (1, &instances[1]), &Change::default());
    let own = own.put(&bed.server);
    assert!(is_issued(&bed.wait_for_answer(&own)));
    let before = (cloud.sts().calls().len(), cloud.moto().calls().len());

    let claims = request(
        &bed,
        &cloud,
        (0, &instances[1]),
        &Change {
            provider_id: Some(&colleague),
            ..Change::default()
        },
    );

    let answer = bed.wait_for_answer(&claims.put(&bed.server));
    assert_eq!(reason_of(&answer, "Denied"), Some("AnotherMachine"));
    let after = (cloud.sts().calls().len(), cloud.moto().calls().len());
    assert_eq!(after, before);
}

#[test]
fn an_instance_that_asks_for_a_colleagues_name_is_denied() {
    let instances = CLOUD.launch_many(2, &[]);
    let bed = Bed::instances(&CLOUD, &instances);
    let _controller = started(&bed);

    let asks = request(
        &bed,
        &CLOUD,
        (1, &instances[1]),
        &Change {
            node_name: Some(instances[0].node_name()),
            ..Change::default()
        },
    );

    let answer = bed.wait_for_answer(&asks.put(&bed.server));
    assert_eq!(reason_of(&answer, "Denied"), Some("NodeNameMismatch"));
}

#[test]
fn sts_and_ec2_that_are_out_of_order_delay_a_join_and_deny_nobody() {
    let cloud = Cloud::start();
    let instances = cloud.launch_many(1, &[]);
    let bed = Bed::instances(&cloud, &instances);
    let mut controller = started(&bed);
    cloud.sts().inject(Times::always(), Fault::throttling());
    let name = request(&bed, &cloud, (0, &instances[0]), &Change::default()).put(&bed.server);
    let deferred = |line: &serde_json::Value| {
        line["csr"] == name.as_str() && line["reason"] == "VerifierUnavailable"
    };
    assert_eq!(
        controller.wait_for_line("decided", deferred)["outcome"],
        "deferred"
    );

    cloud
        .moto()
        .inject(Scope::any(), Times::always(), Failure::throttled());
    cloud.sts().clear_faults();
    let asked = poll(PATIENCE, || {
        (cloud.moto().count("DescribeInstances") > 0).then_some(())
    });
    assert!(asked.is_some(), "EC2 was never asked");
    cloud.moto().clear_failures();

    let answer = bed.wait_for_answer(&name);
    assert!(is_issued(&answer), "{answer:#}");
}

#[test]
fn no_credential_of_an_instance_is_told_to_anybody() {
    let instances = CLOUD.launch_many(2, &[]);
    let bed = Bed::instances(&CLOUD, &instances);
    let controller = started(&bed);
    let requests = [
        request(&bed, &CLOUD, (0, &instances[0]), &Change::default()),
        request(
            &bed,
            &CLOUD,
            (1, &instances[1]),
            &Change {
                credentials: Some(&instances[0].credentials),
                ..Change::default()
            },
        ),
        request(
            &bed,
            &CLOUD,
            (1, &instances[1]),
            &Change {
                node_name: Some("another"),
                ..Change::default()
            },
        ),
    ];
    let mut signatures = Vec::new();
    for application in requests {
        let name = application.put(&bed.server);
        bed.wait_for_answer(&name);
        let blocks = pem::parse_many(application.request()).unwrap();
        let evidence: serde_json::Value = serde_json::from_slice(blocks[2].contents()).unwrap();
        signatures.push(evidence["sts"]["signature"].as_str().unwrap().to_owned());
    }

    let mut told = controller.process.log().text();
    for event in bed.server.events() {
        told += &event.to_string();
    }
    for csr in bed.server.csrs() {
        told += &csr["status"].to_string();
    }
    assert!(told.contains("CallerIsAnotherInstance"), "{told}");
    let credentials = instances.iter().map(|instance| &instance.credentials);
    let credentials = credentials.flat_map(|it| {
        [&it.access_key_id, &it.secret_access_key, &it.session_token].map(String::clone)
    });
    for secret in credentials.chain(signatures) {
        assert!(!told.contains(&secret), "{secret} is told in {told}");
    }
}
