//! Tests in which clusterctl moves a Cluster with an AWS identity, and a Cluster whose nodes send requests during the
//! move, to another management cluster.

use std::sync::Arc;

use kubelet_authenticator_test_support::control_plane::Kubectl;
use kubelet_authenticator_test_support::moto::access_key;
use kubelet_authenticator_tests::absence::{Later, assert_unanswered};
use kubelet_authenticator_tests::controller::is_issued;
use kubelet_authenticator_tests::fleet::{Manager, authorize, grant};
use kubelet_authenticator_tests::management::{Contract, InfraCluster, Management};
use kubelet_authenticator_tests::scene::{Scene, Site};
use serde_json::{Value, json};

use crate::bed::{PATIENCE, SITE, STATIC_IDENTITY, Tenant, control_plane, identity_of, secret};

/// A management cluster with clusterctl's inventory.
fn management() -> Management {
    let management = Management::on(control_plane(), Contract::V1Beta2);
    management.define_aws();
    management.take_inventory_with_aws();
    grant(&management);
    management
}

#[test]
fn clusterctl_move_keeps_the_identity_its_secret_and_the_account() {
    const NAME: &str = "moved";
    const THEIRS: &str = "200000000140";
    const ANOTHER: &str = "200000000141";
    const PIN: &str = "attestation.cluster.x-k8s.io/aws-account";
    let (here, there) = (management(), management());
    let [_here, manager] =
        [&here, &there].map(|site| Manager::aws_without_fallback(site, &SITE.cloud, &[]));
    let spec = json!({"secretRef": NAME, "allowedNamespaces": {"list": [NAME]}});
    let identity = identity_of(STATIC_IDENTITY, NAME, &spec);
    let identity = here.kubectl().create_object(&identity);
    let mut key = secret("capa-system", NAME, THEIRS);
    // The provider's manager sends the same patch.
    let owner = |identity: &Value| {
        json!([{
            "apiVersion": identity["apiVersion"], "kind": STATIC_IDENTITY,
            "name": NAME, "uid": identity["metadata"]["uid"],
        }])
    };
    key["metadata"]["ownerReferences"] = owner(&identity);
    let key = here.kubectl().create_object(&key);
    let cluster = here.cluster(NAME).namespace(NAME);
    let cluster = cluster
        .infrastructure(InfraCluster::Aws(SITE.network.clone()))
        .create();
    let named = json!({"spec": {"identityRef": {"kind": STATIC_IDENTITY, "name": NAME}}});
    here.kubectl()
        .patch(&["awsclusters", NAME, "-n", NAME], &named);
    let tenant = Tenant {
        authentication: authorize(&here, &cluster, &["aws"], json!({})),
        cluster,
    };
    let first = tenant.launch(THEIRS);
    tenant.joins("m1", &first);
    let authentications = ["kubeletauthentications", "-n", NAME];
    let is_pinned = |one: &Value| one["metadata"]["annotations"][PIN] == THEIRS;
    let kubectl = here.kubectl();
    kubectl.wait_for(&authentications, "its account", PATIENCE, is_pinned);
    // clusterctl only moves Machines that have joined.
    let node = json!({"status": {"nodeRef": {"name": first.node_name()}}});
    let machine = ["machines.cluster.x-k8s.io", "m1", "-n", NAME];
    kubectl.patch(&[&machine[..], &["--subresource=status"]].concat(), &node);

    let Tenant {
        cluster,
        authentication,
    } = tenant;
    let cluster = cluster.clusterctl_move(&there);

    let kubectl = there.kubectl();
    let moved = kubectl.json(["get", "awsclusterstaticidentities", NAME]);
    assert_eq!(moved["spec"], identity["spec"]);
    assert_ne!(moved["metadata"]["uid"], identity["metadata"]["uid"]);
    let left = here
        .kubectl()
        .json(["get", "awsclusterstaticidentities", NAME]);
    assert_eq!(left["metadata"]["uid"], identity["metadata"]["uid"]);
    let moved_key = kubectl.json(["get", "secrets", NAME, "-n", "capa-system"]);
    assert_eq!(moved_key["data"], key["data"]);
    assert_eq!(moved_key["metadata"]["ownerReferences"], owner(&moved));
    let resolved = "AWSIdentityResolved";
    let found = authentication.wait_for(kubectl, resolved, "True", "Resolved");
    assert!(is_pinned(&found), "{found:#}");
    let tenant = Tenant {
        cluster,
        authentication,
    };
    tenant.joins("m2", &tenant.launch(THEIRS));

    // The account in the moved KubeletAuthentication still applies, so the controller does not accept credentials for
    // another account.
    SITE.cloud.learn(ANOTHER, NAME);
    let (id, secret) = access_key(ANOTHER);
    let data = json!({"stringData": {"AccessKeyID": id, "SecretAccessKey": secret}});
    kubectl.patch(&["secrets", NAME, "-n", "capa-system"], &data);
    let request = tenant.asks("m3", &tenant.launch(ANOTHER));
    let authentication = &tenant.authentication;
    authentication.wait_for(kubectl, resolved, "False", "AccountMismatch");
    tenant.waits_with(&manager, &request, ANOTHER);
}

/// A site with clusterctl's inventory, for machines with rubber stamps.
pub fn site() -> Arc<Site> {
    let management = management();
    let manager = Manager::null(&management, &[]);
    Arc::new(Site {
        management,
        manager,
    })
}

/// The specs of the records in this namespace, keyed by name.
pub fn records(kubectl: &Kubectl, namespace: &str) -> Vec<(Value, Value)> {
    let list = kubectl.json(["get", "nodeidentities", "--namespace", namespace]);
    let of = |record: &Value| (record["metadata"]["name"].clone(), record["spec"].clone());
    list["items"].as_array().unwrap().iter().map(of).collect()
}

/// `clusterctl move` does not move writes that a controller makes after clusterctl has listed the objects, and before
/// it pauses the Cluster.
#[test]
fn a_cluster_paused_before_a_move_keeps_its_records_and_requests() {
    const NAME: &str = "paused-first";
    const PAUSED: &str = "cluster.x-k8s.io/paused";
    let annotate = |site: &Site, value: &str| {
        let kubectl = site.management.kubectl();
        let words = ["annotate", "kubeletauthentication", "--all", "--namespace"];
        kubectl.ok(words.into_iter().chain([NAME, value]));
    };
    let (here, there) = (site(), site());
    let scene = Scene::start(&here, NAME, json!({"adoption": "Allow"}));
    let names = ["adopted", "joined", "waits"];
    let [adopted, joined, waits] = names.map(|name| scene.cluster.machine(name).create());
    let credential = scene.join(&joined);
    for machine in names {
        // clusterctl only moves Machines that have Nodes.
        let node = json!({"status": {"nodeRef": {"name": machine}}});
        let target = ["machines.cluster.x-k8s.io", machine, "-n", NAME];
        let words = [&target[..], &["--subresource=status"]].concat();
        scene.management().patch(&words, &node);
    }

    annotate(&here, &format!("{PAUSED}="));
    let paused = ["Ready", "False", "Paused"];
    let wait_until_paused = |scene: &Scene| {
        let [condition, status, reason] = paused;
        let kubectl = scene.management();
        scene
            .authentication
            .wait_for(kubectl, condition, status, reason)
    };
    wait_until_paused(&scene);
    let before = records(scene.management(), NAME);
    // This certificate is in the form in which kubeadm issues it, and does not identify a record.
    let plane = scene.cluster.control_plane();
    let stock = plane.client_cert_kubeconfig("system:node:adopted", Some("system:nodes"));
    let asked = [
        scene.file(&stock, &scene.rightful(&adopted)),
        scene.file(&waits.bootstrap_kubeconfig(), &scene.rightful(&waits)),
        scene.file(&credential, &scene.rightful(&joined)),
    ];
    let Scene {
        cluster,
        authentication,
        ..
    } = scene;
    let scene = Scene {
        cluster: cluster.clusterctl_move(&there.management),
        authentication,
        site: there.clone(),
    };

    let paused_there = wait_until_paused(&scene);
    assert_eq!(records(scene.management(), NAME), before);
    for name in &asked {
        let later = Later::condition(&paused_there, "Ready");
        assert_unanswered(later, || scene.request(name));
    }

    annotate(&there, &format!("{PAUSED}-"));
    for name in &asked {
        let csr = scene.answer(name);
        assert!(is_issued(&csr), "{csr:#}");
    }
    let after = records(scene.management(), NAME);
    let names: Vec<&Value> = after.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["prod-1.adopted", "prod-1.joined", "prod-1.waits"]);
    assert!(after.contains(&before[0]));
}
