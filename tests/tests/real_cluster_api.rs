//! Tests of the inventory of Cluster API objects on a real API server, while the objects are created, changed and
//! deleted.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use kubelet_attestation::names::{NodeName, ProviderId};
use kubelet_authenticator_tests::management::{Contract, Management, WorkloadCluster};
use node_attestation_core::identifiers::TokenId;
use node_attestation_core::inventory::{Inventory as _, Machine, MachineState, TokenOwner};
use node_attestation_runtime::capi::{CapiInventory, ObjectKey, Objects, Selection};
use node_attestation_runtime::client::ClusterAccess;
use node_attestation_runtime::metrics::Metrics;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::time::timeout;

const BOTH: [Contract; 2] = [Contract::V1Beta1, Contract::V1Beta2];

/// The deadline for a change. A watch reports a change within milliseconds, but a busy machine needs more time.
const DEADLINE: Duration = Duration::from_secs(180);

/// The management cluster that the tests share. Each test uses a separate namespace.
static SHARED: LazyLock<Management> = LazyLock::new(Management::start);

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

/// A watcher of a management cluster.
struct Watcher {
    objects: Objects,
}

impl Watcher {
    fn start(management: &Management, selection: Selection) -> Self {
        let kubeconfig = management.admin_kubeconfig();
        let _entered = RUNTIME.enter();
        let access = RUNTIME
            .block_on(ClusterAccess::from_kubeconfig(kubeconfig))
            .unwrap();
        let (objects, watches) =
            Objects::new(access.client().clone(), selection, &Metrics::default());
        RUNTIME.spawn(watches);
        Self { objects }
    }

    fn in_namespace(management: &Management, namespace: &str) -> Self {
        let selection = Selection {
            namespace: Some(namespace.to_owned()),
            ..Selection::default()
        };
        Self::start(management, selection)
    }

    /// Waits until `look` returns a result, and returns it.
    #[track_caller]
    fn wait<T>(&self, what: &str, look: impl Fn() -> Option<T>) -> T {
        let until = Instant::now() + DEADLINE;
        let mut changes = self.objects.changes();
        loop {
            changes.mark_unchanged();
            if let Some(found) = look() {
                return found;
            }
            let left = until.saturating_duration_since(Instant::now());
            let changed = RUNTIME.block_on(async { timeout(left, changes.changed()).await });
            assert!(changed.is_ok(), "no {what}");
        }
    }

    fn inventory(&self, cluster: &WorkloadCluster) -> CapiInventory {
        let key = ObjectKey::new(cluster.namespace(), cluster.name());
        CapiInventory::new(self.objects.clone(), key)
    }
}

/// The machine, if the inventory is available and the machine exists.
fn by_id(inventory: &CapiInventory, id: &str) -> Option<Machine> {
    let id = ProviderId::parse(id).unwrap();
    RUNTIME.block_on(inventory.by_provider_id(&id)).ok()?
}

fn by_token(inventory: &CapiInventory, id: &str) -> Option<TokenOwner> {
    let id = TokenId::parse(id).unwrap();
    RUNTIME.block_on(inventory.by_token(&id)).ok()?
}

/// `Some` if the inventory reports that the machine does not exist.
fn is_gone(inventory: &CapiInventory, id: &str) -> Option<()> {
    let id = ProviderId::parse(id).unwrap();
    let found = RUNTIME.block_on(inventory.by_provider_id(&id));
    matches!(found, Ok(None)).then_some(())
}

#[test]
fn the_inventory_tracks_a_machine_through_its_lifetime() {
    for contract in BOTH {
        let management = Management::start_with(contract);
        let cluster = management.cluster("prod-1").self_hosted().create();
        let watcher = Watcher::start(&management, Selection::default());
        let inventory = watcher.inventory(&cluster);
        let (first, second) = ("generic:///a/first", "generic:///a/second");
        watcher.wait("list", || is_gone(&inventory, first));

        let mut machine = cluster
            .machine("m1")
            .provider_id(first)
            .node_name("node-1")
            .address("InternalIP", "192.0.2.7")
            .address("InternalDNS", "m1.example.com")
            .create();
        let found = watcher.wait("machine that is ready", || {
            by_id(&inventory, first).filter(|machine| {
                machine.token_id.is_some()
                    && machine.state == MachineState::Ready
                    && !machine.addresses.is_empty()
            })
        });
        assert_eq!(found.name, "m1");
        assert_eq!(found.node_name, NodeName::parse("node-1").ok());
        assert_eq!(found.token_id.unwrap().as_str(), machine.token().id());
        assert_eq!(found.addresses[0].to_string(), "192.0.2.7");
        assert_eq!(found.dns_names, ["m1.example.com"]);
        let object = found.object.unwrap();
        assert_eq!(machine.get()["metadata"]["uid"], object.uid.unwrap());
        let owner = by_token(&inventory, machine.token().id());
        assert!(matches!(owner, Some(TokenOwner::Machine(owner)) if owner.name == "m1"));

        machine.provision(second);
        watcher.wait("machine of another ID", || by_id(&inventory, second));
        assert_eq!(by_id(&inventory, first), None);

        machine.delete();
        watcher.wait("machine that is being deleted", || {
            by_id(&inventory, second).filter(|machine| machine.state == MachineState::Deleting)
        });
        let token = machine.token().id().to_owned();
        machine.remove();
        watcher.wait("end of the machine", || is_gone(&inventory, second));
        assert_eq!(by_token(&inventory, &token), None);
    }
}

#[test]
fn pool_members_are_tracked_by_list_and_by_machines() {
    for contract in BOTH {
        let management = Management::start_with(contract);
        let cluster = management.cluster("prod-1").self_hosted().create();
        let watcher = Watcher::start(&management, Selection::default());
        let inventory = watcher.inventory(&cluster);
        let (a, b) = ("generic:///pool/a", "generic:///pool/b");

        let listed = cluster.pool("listed").provider_ids(&[a]).create();
        let member = watcher.wait("member", || {
            by_id(&inventory, a).filter(|member| member.state == MachineState::Ready)
        });
        assert_eq!(member.pool.as_deref(), Some("listed"));
        assert_eq!(member.node_name, NodeName::parse("a").ok());
        let owner = watcher.wait("owner", || by_token(&inventory, listed.token().id()));
        assert!(matches!(owner, TokenOwner::Pool { name, .. } if name == "listed"));
        listed.set_provider_ids(&[b]);
        watcher.wait("other member", || by_id(&inventory, b));
        assert_eq!(by_id(&inventory, a), None);

        let (c, d) = ("generic:///pool/c", "generic:///pool/d");
        let pool = cluster.pool("made").provider_ids(&[c, d]).with_machines();
        let pool = pool.create();
        watcher.wait("owner", || by_token(&inventory, pool.token().id()));
        // The member exists, but cannot join yet, because its Machine, which contains the name, does not exist yet.
        let pending = |id| by_id(&inventory, id).map(|member| member.state);
        assert_eq!(pending(c), Some(MachineState::Pending));
        pool.machine("made-c").provider_id(c).create();
        let member = watcher.wait("member with a Machine", || {
            by_id(&inventory, c).filter(|member| member.state == MachineState::Ready)
        });
        assert_eq!(member.name, "made-c");
        assert_eq!(member.pool.as_deref(), Some("made"));
        assert_eq!(pending(d), Some(MachineState::Pending));
    }
}

#[test]
fn other_namespaces_and_filtered_clusters_are_not_watched() {
    let filter = "cluster.x-k8s.io/watch-filter";
    let cluster = |namespace: &str, name: &str, value: &str| {
        let cluster = SHARED.cluster(name).namespace(namespace).self_hosted();
        let cluster = cluster.label(filter, value).create();
        let id = format!("generic:///{namespace}/{name}");
        let machine = format!("{name}-m1");
        cluster.machine(&machine).provider_id(&id).create();
        (cluster, id)
    };
    let (ours, our_id) = cluster("filtered", "ours", "blue");
    let (theirs, _) = cluster("filtered", "theirs", "green");
    let (elsewhere, _) = cluster("filtered-too", "elsewhere", "blue");
    let names = |watcher: &Watcher| {
        watcher.wait("list", || watcher.objects.is_ready().then_some(()));
        let clusters = watcher.objects.clusters().into_iter();
        let mut names: Vec<_> = clusters.map(|(key, _)| key.name).collect();
        names.retain(|name| ["ours", "theirs", "elsewhere"].contains(&&**name));
        names
    };

    let all = Watcher::start(&SHARED, Selection::default());
    assert_eq!(names(&all), ["ours", "theirs", "elsewhere"]);
    let namespace = Watcher::in_namespace(&SHARED, "filtered");
    assert_eq!(names(&namespace), ["ours", "theirs"]);
    let filtered = |namespace: Option<&str>| Selection {
        namespace: namespace.map(str::to_owned),
        watch_filter: Some("blue".to_owned()),
    };
    let blue = Watcher::start(&SHARED, filtered(None));
    assert_eq!(names(&blue), ["ours", "elsewhere"]);
    let both = Watcher::start(&SHARED, filtered(Some("filtered")));
    assert_eq!(names(&both), ["ours"]);
    assert!(by_id(&both.inventory(&ours), &our_id).is_some());
    for other in [theirs, elsewhere] {
        let id = ProviderId::parse(&our_id).unwrap();
        let said = RUNTIME.block_on(both.inventory(&other).by_provider_id(&id));
        assert!(
            said.unwrap_err()
                .to_string()
                .contains("does not exist in the management cluster")
        );
    }

    let words = [
        "label",
        "clusters.cluster.x-k8s.io",
        "ours",
        "-n",
        "filtered",
    ];
    let relabelled = format!("{filter}=green");
    let words = words.into_iter().chain(["--overwrite", &relabelled]);
    SHARED.kubectl().ok(words);
    both.wait("end of the cluster", || {
        both.objects.clusters().is_empty().then_some(())
    });
}

#[test]
fn an_unserved_api_version_is_replaced_with_the_served_one() {
    let management = Management::start();
    let cluster = management.cluster("prod-1").self_hosted().create();
    let watcher = Watcher::start(&management, Selection::default());
    let inventory = watcher.inventory(&cluster);
    cluster
        .machine("m1")
        .provider_id("generic:///a/m1")
        .create();
    watcher.wait("machine", || by_id(&inventory, "generic:///a/m1"));

    let definition = "customresourcedefinition/machines.cluster.x-k8s.io";
    let mut versions = management.kubectl().json(["get", definition])["spec"]["versions"].take();
    for version in versions.as_array_mut().unwrap() {
        version["served"] = json!(version["name"] == "v1beta1");
    }
    let patch: Value = json!({"spec": {"versions": versions}});
    management.kubectl().patch(&[definition], &patch);
    let words = [
        "delete",
        "machines.v1beta1.cluster.x-k8s.io",
        "m1",
        "--wait=false",
    ];
    let finalizers = json!({"metadata": {"finalizers": null}});
    let served = || {
        let target = ["machines.v1beta1.cluster.x-k8s.io", "m1", "-n", "default"];
        management.kubectl().patch(&target, &finalizers);
    };
    served();
    management.kubectl().ok(words);

    watcher.wait("end of the machine", || {
        is_gone(&inventory, "generic:///a/m1")
    });
}
