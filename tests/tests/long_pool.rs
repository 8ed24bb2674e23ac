//! Tests of a MachinePool that grows to 50 nodes, and of MachinePools that keep their first bootstrap token.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::{Timestamp, ToSpan as _};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::machines::{Machines, PATIENCE, SITE, Scene, joinable};
use kubelet_authenticator_tests::management::{MachinePool, Order};
use serde_json::{Value, json};

const MEMBERS: u32 = 50;

#[test]
fn an_empty_pool_grows_to_50_nodes_after_three_token_rotations() {
    let scene = Scene::attended("fifty", Machines::Insecure(Order::ProviderIdFirst));
    let pool = scene.cluster.machine_pool_of("pool-a", 0, scene.config());
    let token = |former: &[String]| {
        let found = poll(PATIENCE, || {
            pool.token_id().filter(|id| !former.contains(id))
        });
        found.unwrap_or_else(|| panic!("no token after {former:?}: {:#}", pool.get()))
    };
    let mut tokens = Vec::new();
    while tokens.len() < 4 {
        tokens.push(token(&tokens));
    }

    pool.scale(MEMBERS);

    let count = usize::try_from(MEMBERS).unwrap();
    let nodes = pool.wait_until_running(count);
    for node in &nodes {
        scene.plane().wait_for_node_ready(node);
        let record = scene.record(node);
        let provider_id = format!("generic:///fifty/{node}");
        assert_eq!(record["spec"]["providerID"], provider_id, "{record:#}");
    }
    assert_eq!(scene.client_requests().len(), count);
}

const ENFORCED: &str = "Remove";

/// Waits until the pool has a token that differs from the former tokens. Returns the ID of the new token.
#[track_caller]
fn token_after(pool: &MachinePool, former: &[String]) -> String {
    let found = poll(PATIENCE, || {
        pool.token_id().filter(|id| !former.contains(id))
    });
    found.unwrap_or_else(|| panic!("no token after {former:?}: {:#}", pool.get()))
}

/// The Secret for this token in the workload cluster.
fn secret(scene: &Scene, token: &str) -> Option<Value> {
    let words = format!("get secret bootstrap-token-{token} -n kube-system -o json");
    // Without this option, any failure of kubectl would look like a deleted token.
    let words = words.split(' ').chain(["--ignore-not-found"]);
    let found = scene.plane().kubectl().ok(words);
    (!found.is_empty()).then(|| serde_json::from_str(&found).unwrap())
}

/// The expiry time of this token.
#[track_caller]
fn end(scene: &Scene, token: &str) -> Timestamp {
    end_in(&secret(scene, token).expect("the token exists"))
}

/// The expiry time in the Secret for a token.
#[track_caller]
fn end_in(secret: &Value) -> Timestamp {
    let encoded = secret["data"]["expiration"].as_str().unwrap();
    let text = BASE64_STANDARD.decode(encoded).unwrap();
    String::from_utf8(text).unwrap().parse().unwrap()
}

/// Waits until the controller has extended this token. Initially, the token expires within a day.
#[track_caller]
fn wait_until_extended(scene: &Scene, token: &str) {
    let extended = poll(PATIENCE, || {
        (end(scene, token) > Timestamp::now() + 40.hours()).then_some(())
    });
    assert!(extended.is_some(), "{:#?}", secret(scene, token));
}

/// The tokens that Cluster API has created in the workload cluster.
fn tokens_of_provider(scene: &Scene) -> Vec<String> {
    let kubectl = scene.plane().kubectl();
    let secrets = kubectl.json(["get", "secrets", "-n", "kube-system"]);
    let secrets = secrets["items"].as_array().unwrap().iter();
    let of_provider = secrets.filter(|secret| {
        let description = secret["data"]["description"].as_str().unwrap_or_default();
        let description = BASE64_STANDARD.decode(description).unwrap();
        String::from_utf8_lossy(&description).contains("cluster-api-bootstrap-provider-kubeadm")
    });
    let names = of_provider.map(|secret| secret["metadata"]["name"].as_str().unwrap());
    names
        .map(|name| name.trim_start_matches("bootstrap-token-").to_owned())
        .collect()
}

#[test]
fn a_pool_with_evidence_keeps_its_first_token_for_three_lifetimes() {
    let scene = Scene::unattended(joinable("kept-token"), Machines::Tpm(1));
    scene.attend(&json!({"autoApproveBindings": ENFORCED}));
    let pool = (scene.cluster).machine_pool_with_machines_of("pool-k", 0, scene.config());
    let first = token_after(&pool, &[]);
    wait_until_extended(&scene, &first);

    // If evidence is not required, the bootstrap provider replaces the token of a pool once per token lifetime.
    let witness = Scene::attended("witness", Machines::Insecure(Order::ProviderIdFirst));
    let config = witness.config();
    let witness = witness.cluster.machine_pool_of("pool-w", 0, config);
    let mut replaced = Vec::new();
    while replaced.len() < 4 {
        replaced.push(token_after(&witness, &replaced));
    }

    assert_eq!(pool.token_id().as_ref(), Some(&first));
    assert_eq!(tokens_of_provider(&scene), std::slice::from_ref(&first));
    pool.scale(1);
    let nodes = pool.wait_until_running(1);
    scene.plane().wait_for_node_ready(&nodes[0]);
    assert_eq!(pool.token_id(), Some(first));
}

#[test]
fn a_pool_token_that_lives_for_a_day_is_extended_before_it_is_replaced() {
    let scene = Scene::unattended(joinable("day-token"), Machines::Tpm(1));
    let pool = (scene.cluster).machine_pool_with_machines_of("pool-d", 0, scene.config());
    let first = token_after(&pool, &[]);
    // The token expires in 24 hours, as with `--bootstrap-token-ttl=24h`.
    let day = Timestamp::from_second((Timestamp::now() + 24.hours()).as_second()).unwrap();
    let patch = json!({"data": {"expiration": BASE64_STANDARD.encode(day.to_string())}});
    let name = format!("bootstrap-token-{first}");
    let target = ["secret", &name, "-n", "kube-system"];
    scene.plane().kubectl().patch(&target, &patch);

    scene.attend(&json!({"autoApproveBindings": ENFORCED}));

    wait_until_extended(&scene, &first);
    assert_eq!(pool.token_id(), Some(first));
}

#[test]
fn a_pool_token_that_an_operator_deletes_is_replaced_and_stays_deleted() {
    let scene = Scene::unattended(joinable("ended-token"), Machines::Tpm(1));
    scene.attend(&json!({"autoApproveBindings": ENFORCED}));
    let pool = (scene.cluster).machine_pool_with_machines_of("pool-e", 0, scene.config());
    let first = token_after(&pool, &[]);
    wait_until_extended(&scene, &first);

    let name = format!("bootstrap-token-{first}");
    let words = ["delete", "secret", &name, "-n", "kube-system"];
    scene.plane().kubectl().ok(words);

    let second = token_after(&pool, std::slice::from_ref(&first));
    wait_until_extended(&scene, &second);
    assert_eq!(tokens_of_provider(&scene), [second]);
    assert!(secret(&scene, &first).is_none());
}

#[test]
fn a_pool_token_expires_after_its_pool_is_deleted() {
    const NAMESPACE: &str = "deleted-pool";
    let scene = Scene::unattended(joinable(NAMESPACE), Machines::Tpm(1));
    scene.attend(&json!({"autoApproveBindings": ENFORCED}));
    let pool = (scene.cluster).machine_pool_with_machines_of("pool-g", 0, scene.config());
    let token = token_after(&pool, &[]);
    wait_until_extended(&scene, &token);

    let pools = "machinepools.cluster.x-k8s.io";
    let words = ["delete", pools, "pool-g", "-n", NAMESPACE, "--wait=false"];
    SITE.management.kubectl().ok(words);

    let expired = poll(PATIENCE, || {
        // Kubernetes deletes an expired token.
        let left = secret(&scene, &token);
        let left = left.is_some_and(|secret| end_in(&secret) > Timestamp::now());
        (!left).then_some(())
    });
    assert!(expired.is_some(), "{:#?}", secret(&scene, &token));
}
