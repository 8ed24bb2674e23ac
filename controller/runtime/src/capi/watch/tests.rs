use std::convert::Infallible;

use futures::channel::mpsc::unbounded;
use futures::stream;
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use hyper::{Request, Response};
use kube::client::Body;
use kube::core::Status;
use kube::runtime::watcher::{self, Event};
use kubelet_attestation::names::ProviderId;
use node_attestation_core::inventory::Inventory as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower::service_fn;
use tracing::Level;

use super::super::objects::{MemberLimit, Watched as _};
use super::super::store::Members;
use super::super::testing::{Contract, NAMESPACE, objects, with};
use super::*;
use crate::capi::CapiInventory;
use crate::memory::KeptLimit;
use crate::shared::testing::most_visited;
use crate::shared::{Lock, PAGE};
use crate::testing::ThreadLog;

mod unreadable;

fn raw<W: Stored>(object: Value) -> Raw<W> {
    serde_json::from_value(object).unwrap()
}

fn apply<W: Stored>(objects: &Objects, event: Event<Raw<W>>, listing: &mut BTreeSet<ObjectKey>) {
    objects.apply(event, listing, &mut Skipped::new(W::KIND));
}

/// Reports the start of a watch, with a list of these Machines.
fn list(objects: &Objects, listing: &mut BTreeSet<ObjectKey>, machines: &[&str]) {
    apply::<Machine>(objects, Event::Init, listing);
    for name in machines {
        let machine = raw(Contract::V1Beta2.machine(name));
        apply::<Machine>(objects, Event::InitApply(machine), listing);
    }
}

fn machines(objects: &Objects) -> Vec<String> {
    let mut keys: Vec<ObjectKey> = Vec::new();
    loop {
        let next = Machine::keys_after(objects.store(), keys.last());
        if next.is_empty() {
            return keys.into_iter().map(|key| key.name).collect();
        }
        keys.extend(next);
    }
}

#[test]
fn an_object_missing_from_a_complete_list_is_removed() {
    let (objects, mut listing) = (objects(), BTreeSet::new());
    list(&objects, &mut listing, &["m1", "m2"]);
    apply::<Machine>(&objects, Event::InitDone, &mut listing);
    assert_eq!(machines(&objects), ["m1", "m2"]);

    list(&objects, &mut listing, &["m2", "m3"]);
    // At this time, no object counts as deleted.
    assert_eq!(machines(&objects), ["m1", "m2", "m3"]);
    apply::<Machine>(&objects, Event::InitDone, &mut listing);

    assert_eq!(machines(&objects), ["m2", "m3"]);
}

#[test]
fn a_machine_counts_as_deleted_only_if_its_deletion_was_seen() {
    let (objects, mut listing) = (objects(), BTreeSet::new());
    let cluster = ObjectKey::new(NAMESPACE, "prod-1");
    let inventory = CapiInventory::new(objects.clone(), cluster);
    list(&objects, &mut listing, &["m1", "m2", "m3"]);
    apply::<Machine>(&objects, Event::InitDone, &mut listing);
    assert!(
        !["m1", "m2", "m3"]
            .iter()
            .any(|name| inventory.was_deleted(name))
    );

    let gone = Event::Delete(raw(Contract::V1Beta2.machine("m1")));
    apply::<Machine>(&objects, gone, &mut listing);
    let deleting = with(
        Contract::V1Beta2.machine("m2"),
        "/metadata/deletionTimestamp",
        json!("2027-01-01T00:00:00Z"),
    );
    apply::<Machine>(&objects, Event::Apply(raw(deleting)), &mut listing);
    // The watch restarts, and the other two objects are missing from the list.
    list(&objects, &mut listing, &[]);
    apply::<Machine>(&objects, Event::InitDone, &mut listing);

    assert!(machines(&objects).is_empty());
    let deleted = ["m1", "m2", "m3"].map(|name| inventory.was_deleted(name));
    assert_eq!(deleted, [true, true, false]);

    let again = Event::Apply(raw(Contract::V1Beta2.machine("m1")));
    apply::<Machine>(&objects, again, &mut listing);
    assert!(!inventory.was_deleted("m1"));
    let pool = Event::Delete(raw(Contract::V1Beta2.pool("m3", &[])));
    apply::<MachinePool>(&objects, pool, &mut listing);
    assert!(!inventory.was_deleted("m3"), "it was a pool");
}

#[test]
fn a_pool_member_counts_as_deleted_only_after_a_scale_down() {
    let ids = ["metal:///m1", "metal:///m2", "metal:///m3"];
    let pool = |members: &[&str], replicas: usize| {
        let pool = Contract::V1Beta2.pool("p", members);
        Event::Apply(raw(with(pool, "/spec/replicas", json!(replicas))))
    };
    let rewritten = ids.map(|id| id.replace("metal", "bare"));
    let rewritten = rewritten.each_ref().map(String::as_str);
    let cases: [(&[&str], usize, [bool; 3]); 6] = [
        (&ids[..1], 1, [false, true, true]),
        // The pool removes its members one after the other.
        (&ids[..2], 1, [false, false, true]),
        (&[], 0, [true, true, true]),
        // The infrastructure provider returns an incomplete list.
        (&ids[..1], 3, [false, false, false]),
        (&[], 3, [false, false, false]),
        (&rewritten, 3, [false, false, false]),
    ];
    for (members, replicas, expected) in cases {
        let (objects, mut listing) = (objects(), BTreeSet::new());
        let inventory = CapiInventory::new(objects.clone(), ObjectKey::new(NAMESPACE, "prod-1"));
        let deleted = || ids.map(|id| inventory.was_deleted(id));
        apply::<MachinePool>(&objects, pool(&ids, 3), &mut listing);
        apply::<MachinePool>(&objects, pool(&ids, replicas), &mut listing);
        assert_eq!(deleted(), [false; 3], "{members:?}");

        apply::<MachinePool>(&objects, pool(members, replicas), &mut listing);

        assert_eq!(deleted(), expected, "{members:?}");
        // The members are back.
        apply::<MachinePool>(&objects, pool(&ids, 3), &mut listing);
        assert_eq!(deleted(), [false; 3], "{members:?}");
    }
}

#[test]
fn a_member_that_a_new_pool_lists_no_longer_counts_as_deleted() {
    let ids = ["metal:///m1", "metal:///m2"];
    let pool = |name: &str, members: &[&str]| Contract::V1Beta2.pool(name, members);
    for name in ["p", "q"] {
        let (objects, mut listing) = (objects(), BTreeSet::new());
        let inventory = CapiInventory::new(objects.clone(), ObjectKey::new(NAMESPACE, "prod-1"));
        let one = pool("p", &ids[..1]);
        apply::<MachinePool>(&objects, Event::Apply(raw(pool("p", &ids))), &mut listing);
        apply::<MachinePool>(&objects, Event::Apply(raw(one.clone())), &mut listing);
        assert!(inventory.was_deleted(ids[1]), "{name}");
        apply::<MachinePool>(&objects, Event::Delete(raw(one)), &mut listing);

        let again = Event::Apply(raw(pool(name, &ids)));
        apply::<MachinePool>(&objects, again, &mut listing);

        assert!(!inventory.was_deleted(ids[1]), "{name}");
    }
}

#[test]
fn an_interrupted_list_is_restarted() {
    let (objects, mut listing) = (objects(), BTreeSet::new());
    list(&objects, &mut listing, &["m1"]);

    list(&objects, &mut listing, &["m2"]);
    apply::<Machine>(&objects, Event::InitDone, &mut listing);

    assert_eq!(machines(&objects), ["m2"]);
}

#[test]
fn a_deleted_object_or_one_without_a_cluster_is_removed() {
    let (objects, mut listing) = (objects(), BTreeSet::new());
    list(&objects, &mut listing, &["m1", "m2"]);
    let machine = Contract::V1Beta2.machine("m1");
    apply::<Machine>(&objects, Event::Delete(raw(machine.clone())), &mut listing);
    assert_eq!(machines(&objects), ["m2"]);

    let nobodys = with(
        with(
            Contract::V1Beta2.machine("m2"),
            "/spec/clusterName",
            Value::Null,
        ),
        "/metadata/labels",
        json!({}),
    );
    apply::<Machine>(&objects, Event::Apply(raw(nobodys)), &mut listing);

    assert!(machines(&objects).is_empty());
    let cluster = ObjectKey::new(NAMESPACE, "prod-1");
    let empty = objects.store().has_no_members(&cluster);
    assert!(empty, "a cluster without machines takes no memory");
}

#[test]
fn every_change_notifies_the_watchers() {
    let (objects, mut listing) = (objects(), BTreeSet::new());
    let mut news = objects.changes();
    let mut changed = || {
        let is_new = news.has_changed().unwrap();
        news.mark_unchanged();
        is_new
    };
    let machine = || raw::<Machine>(Contract::V1Beta2.machine("m1"));
    assert!(!changed());
    apply(&objects, Event::<Raw<Machine>>::Init, &mut listing);
    assert!(!changed());
    apply(&objects, Event::InitApply(machine()), &mut listing);
    assert!(changed());
    apply(&objects, Event::<Raw<Machine>>::InitDone, &mut listing);
    assert!(changed());
    apply(&objects, Event::Apply(machine()), &mut listing);
    assert!(!changed(), "it is equal to the stored one");
    let id = json!("generic:///1");
    let other = with(Contract::V1Beta2.machine("m1"), "/spec/providerID", id);
    apply::<Machine>(&objects, Event::Apply(raw(other)), &mut listing);
    assert!(changed());
    apply(&objects, Event::Delete(machine()), &mut listing);
    assert!(changed());
}

#[test]
fn a_cluster_watcher_is_notified_only_of_changes_to_its_cluster() {
    let (objects, mut listing) = (objects(), BTreeSet::new());
    let key = |name| ObjectKey::new(NAMESPACE, name);
    let mut own = objects.changes_of(&key("prod-1"));
    let mut other = objects.changes_of(&key("prod-2"));
    let all = objects.cluster_changes();
    let mut heard = |what: &str, expected: [bool; 2]| {
        let told = [own.has_changed().unwrap(), other.has_changed().unwrap()];
        assert_eq!(told, expected, "{what}");
        own.mark_unchanged();
        other.mark_unchanged();
    };

    list(&objects, &mut listing, &["m1"]);
    let machine = raw::<Machine>(Contract::V1Beta2.machine("m1"));
    apply(&objects, Event::Apply(machine), &mut listing);
    heard("a Machine", [false, false]);
    assert!(!all.has_changed().unwrap());

    let cluster = || raw::<Cluster>(Contract::V1Beta2.cluster());
    apply(&objects, Event::Apply(cluster()), &mut listing);
    heard("its Cluster", [true, false]);
    apply(&objects, Event::Delete(cluster()), &mut listing);
    heard("its Cluster's deletion", [true, false]);
    assert!(all.has_changed().unwrap());

    apply::<Cluster>(&objects, Event::InitDone, &mut listing);
    heard("a list of Clusters", [true, true]);
}

#[test]
fn an_unserved_api_version_is_recognized_in_every_watch_error() {
    let status = |code| {
        Box::new(Status {
            code,
            ..Status::default()
        })
    };
    let refused = |code| kube::Error::Api(status(code));
    for error in [
        watcher::Error::InitialListFailed(refused(404)),
        watcher::Error::WatchStartFailed(refused(404)),
        watcher::Error::WatchFailed(refused(404)),
        watcher::Error::WatchError(status(404)),
    ] {
        assert!(is_gone(&error), "{error}");
    }
    for error in [
        watcher::Error::InitialListFailed(refused(403)),
        watcher::Error::WatchError(status(410)),
        watcher::Error::NoResourceVersion,
    ] {
        assert!(!is_gone(&error), "{error}");
    }
}

#[test]
fn many_objects_are_listed_and_removed_in_small_steps() {
    let (objects, mut listing) = (objects(), BTreeSet::new());
    let names: Vec<String> = (0..3 * PAGE).map(|number| format!("m{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let cluster = |name: &str| {
        let cluster = with(Contract::V1Beta2.cluster(), "/metadata/name", json!(name));
        raw::<Cluster>(cluster)
    };
    list(&objects, &mut listing, &names);
    apply::<Machine>(&objects, Event::InitDone, &mut listing);
    for name in &names {
        apply::<Cluster>(&objects, Event::InitApply(cluster(name)), &mut listing);
    }
    apply::<Cluster>(&objects, Event::InitDone, &mut listing);
    objects.listed(MachinePool::KIND);

    let visited = most_visited(|| {
        list(&objects, &mut listing, &["m1"]);
        apply::<Machine>(&objects, Event::InitDone, &mut listing);
        assert_eq!(objects.clusters().len(), names.len());
        apply::<Cluster>(&objects, Event::InitApply(cluster("m1")), &mut listing);
        apply::<Cluster>(&objects, Event::InitDone, &mut listing);
    });

    assert_eq!(machines(&objects), ["m1"]);
    assert_eq!(objects.clusters().len(), 1);
    for lock in [
        Lock::Clusters,
        Lock::ClusterObjects,
        Lock::ClusterWaiters,
        Lock::Kinds,
    ] {
        assert!(visited[&lock] <= PAGE, "{visited:?}");
    }
}

/// The number of values that were written to the index of `prod-1`.
fn indexed(objects: &Objects) -> usize {
    let cluster = ObjectKey::new(NAMESPACE, "prod-1");
    objects
        .store()
        .look(&cluster, |_, members| members.indexed())
}

/// Whether the observed object changes the cache, and the number of values that this change writes to the index.
fn news<W: Stored>(objects: &Objects, object: Value) -> (bool, usize) {
    let (before, mut changes) = (indexed(objects), objects.changes());
    changes.mark_unchanged();
    apply::<W>(objects, Event::Apply(raw(object)), &mut BTreeSet::new());
    (changes.has_changed().unwrap(), indexed(objects) - before)
}

#[test]
fn an_unchanged_object_causes_no_notification_and_no_index_write() {
    const IDS: usize = 1000;
    let objects = objects();
    let id = |number: usize| format!("generic:///{number}");
    let pool = |first: usize, label: &str| {
        let ids: Vec<String> = (first..first + IDS).map(id).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let pool = Contract::V1Beta2.pool("p1", &ids);
        with(pool, "/metadata/labels", json!({ "other": label }))
    };
    // The values are each ID, each member name, and the name of the configuration.
    let all = 2 * IDS + 1;
    assert_eq!(news::<MachinePool>(&objects, pool(0, "a")), (true, all));
    assert_eq!(news::<MachinePool>(&objects, pool(0, "b")), (false, 0));
    assert_eq!(news::<MachinePool>(&objects, pool(1, "b")), (true, 4));

    let machine = Contract::V1Beta2.machine("m1");
    assert!(news::<Machine>(&objects, machine.clone()).0);
    assert_eq!(news::<Machine>(&objects, machine), (false, 0));
    let cluster = Contract::V1Beta2.cluster();
    assert_eq!(news::<Cluster>(&objects, cluster.clone()), (true, 0));
    let told = objects.cluster_changes();
    assert_eq!(news::<Cluster>(&objects, cluster.clone()), (false, 0));
    assert!(!told.has_changed().unwrap());
    let changed = with(cluster, "/spec/controlPlaneEndpoint/port", json!(443));
    assert_eq!(news::<Cluster>(&objects, changed), (true, 0));
    assert!(told.has_changed().unwrap());
}

#[test]
fn pool_members_over_the_memory_of_their_namespace_are_unknown_and_logged() {
    // 11 pools with the longest IDs use more than the memory of a namespace.
    const POOLS: usize = 11;
    let objects = objects();
    let id = |pool: usize, number: usize| format!("generic:///{pool}/{number:0>498}");
    let pool = |pool: usize, namespace: &str| {
        let ids: Vec<String> = (0..10_000).map(|number| id(pool, number)).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let pool = Contract::V1Beta2.pool(&format!("p{pool}"), &ids);
        with(pool, "/metadata/namespace", json!(namespace))
    };
    let knows = |namespace: &str, pool: usize, number: usize| {
        let id = ProviderId::parse(&id(pool, number)).unwrap();
        let cluster = ObjectKey::new(namespace, "prod-1");
        let found = |members: &Members| !members.with_provider_id(&id).pools.is_empty();
        objects.store().look(&cluster, |_, members| found(members))
    };
    let seen = |namespace: &str, number: usize| {
        let event = Event::Apply(raw::<MachinePool>(pool(number, namespace)));
        apply(&objects, event, &mut BTreeSet::new());
    };
    let delete = |namespace: &str, number: usize| {
        let event = Event::Delete(raw::<MachinePool>(pool(number, namespace)));
        apply(&objects, event, &mut BTreeSet::new());
    };
    let last = POOLS - 1;
    let log = ThreadLog::start(Level::INFO);
    (0..last).for_each(|number| seen(NAMESPACE, number));
    assert!(knows(NAMESPACE, last - 1, 9_999));
    assert_eq!(log.text(), "");

    seen(NAMESPACE, last);
    assert!(knows(NAMESPACE, last, 0) && !knows(NAMESPACE, last, 9_999));
    let told = log.text();
    assert!(
        told.contains(MemberLimit::Namespace.reason()) && told.contains("p10"),
        "{told}"
    );
    seen("tenant-b", last);
    assert!(knows("tenant-b", last, 9_999), "another namespace");

    delete(NAMESPACE, 0);
    seen(NAMESPACE, last);
    assert!(knows(NAMESPACE, last, 9_999), "it has room now");

    (0..POOLS).for_each(|number| delete(NAMESPACE, number));
    delete("tenant-b", last);
    assert!(objects.store().has_no_pool_memory());
}

#[tokio::test(start_paused = true)]
async fn a_cut_pool_that_fits_again_is_read_without_a_list_of_its_kind() {
    let ids: Vec<String> = (0..20).map(|number| format!("metal:///{number}")).collect();
    let pool = |namespace: &str, members: usize| {
        let ids: Vec<&str> = ids.iter().take(members).map(String::as_str).collect();
        let pool = Contract::V1Beta2.pool("p1", &ids);
        with(pool, "/metadata/namespace", json!(namespace))
    };
    let own = pool(NAMESPACE, 2);
    let others = ["tenant-b", "tenant-c", "tenant-d"].map(|namespace| pool(namespace, 20));
    let deleted = json!({"type": "DELETED", "object": others[0]});
    let items = [&others[..], std::slice::from_ref(&own)].concat();
    let list = json!({"metadata": {"resourceVersion": "7"}, "items": items});
    let kind = json!({
        "name": "machinepools", "kind": "MachinePool", "namespaced": true, "singularName": "", "verbs": ["list"],
    });
    let discovery = json!({"kind": "APIResourceList", "groupVersion": "", "resources": [kind]});
    let (events, watched) = unbounded::<Value>();
    let watched = Mutex::new(Some(watched));
    let calls: Arc<Mutex<Vec<&str>>> = Arc::default();
    let made = calls.clone();
    let service = service_fn(move |request: Request<Body>| {
        let uri = request.uri().to_string();
        let (call, answer) = if uri.contains("watch=") {
            ("watch", None)
        } else if uri.contains("limit=") {
            ("list", Some(&list))
        } else if uri.contains("/namespaces/tenant-a/machinepools/p1") {
            ("get", Some(&own))
        } else {
            ("discovery", Some(&discovery))
        };
        made.lock().push(call);
        let texts = match answer {
            Some(answer) => stream::iter([answer.clone()]).boxed(),
            None => watched.lock().take().unwrap().boxed(),
        };
        let frame =
            |text: Value| Ok::<_, Infallible>(Frame::data(Bytes::from(format!("{text}\n"))));
        let body = StreamBody::new(texts.map(frame));
        async move { Ok::<_, Infallible>(Response::new(body)) }
    });
    let objects = Objects::empty(Client::new(service, "default"), Selection::default(), None);
    // The other namespaces leave memory for one member.
    let member = "metal:///0".len() + 128;
    objects.store().limit_pools(KeptLimit::new(16 * member));
    let mut changes = objects.changes();
    let watching = objects.clone();
    let watching = tokio::spawn(async move {
        let (selection, metrics) = (Selection::default(), Metrics::default());
        let watch = watching.watch::<MachinePool>(&selection, &metrics);
        Box::pin(watch).await;
    });
    let cluster = ObjectKey::new(NAMESPACE, "prod-1");
    let mut until = async |is_cut: bool| {
        let is_so = |members: &Members| {
            let found = members.pool("p1");
            found.is_some() && members.cut_pool().is_some() == is_cut
        };
        while !objects.store().look(&cluster, |_, members| is_so(members)) {
            changes.changed().await.unwrap();
        }
    };

    until(true).await;
    events.unbounded_send(deleted).unwrap();
    until(false).await;

    watching.abort();
    assert_eq!(*calls.lock(), ["discovery", "list", "watch", "get"]);
}
