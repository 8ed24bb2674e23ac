//! Clusters, Machines and `MachinePools` that cannot be read.

use super::*;

/// The text about unreadable objects in the inventory of this Cluster.
fn unread(objects: &Objects, namespace: &str, cluster: &str) -> Option<String> {
    let cluster = ObjectKey::new(namespace, cluster);
    CapiInventory::new(objects.clone(), cluster).unreadable_members()
}

/// The object without a readable spec.
fn without_spec(object: Value) -> Value {
    with(object, "/spec", json!([5]))
}

/// The object after the client has removed its excess, which includes its labels.
fn cut(mut object: Value) -> Value {
    object["$excessRemoved"] = json!(true);
    object
}

#[test]
fn unreadable_members_are_named_with_their_number_in_their_cluster() {
    let (objects, mut listing) = (objects(), BTreeSet::new());
    for kind in [Cluster::KIND, Machine::KIND, MachinePool::KIND] {
        objects.listed(kind);
    }
    let machine = |name: &str| Contract::V1Beta2.machine(name);
    let see = |object: Value| {
        apply::<Machine>(&objects, Event::Apply(raw(object)), &mut BTreeSet::new());
    };
    let of = |cluster: &str| unread(&objects, NAMESPACE, cluster);
    let one = |name: &str| {
        Some(format!(
            "cannot read Machine {name} (the log contains the cause)"
        ))
    };
    assert_eq!(of("prod-1"), None);

    see(without_spec(machine("m2")));
    assert_eq!([of("prod-1"), of("prod-2")], [one("m2"), None]);

    // Its Cluster is unknown.
    see(cut(machine("m3")));
    let two = "cannot read Machine m2 and 1 more (the log contains the causes)";
    assert_eq!(
        [of("prod-1"), of("prod-2")],
        [Some(two.to_owned()), one("m3")]
    );
    assert_eq!(unread(&objects, "tenant-b", "prod-2"), None);

    see(machine("m2"));
    assert_eq!(of("prod-1"), one("m3"));
    list(&objects, &mut listing, &["m2"]);
    apply::<Machine>(&objects, Event::InitDone, &mut listing);
    assert_eq!(of("prod-1"), None);

    // Its Cluster is known from the previous version.
    see(cut(machine("m2")));
    assert_eq!([of("prod-1"), of("prod-2")], [one("m2"), None]);
    assert_eq!(machines(&objects), ["m2"]);
    let gone = Event::Delete(raw(machine("m2")));
    apply::<Machine>(&objects, gone, &mut listing);
    assert_eq!(of("prod-1"), None);

    let pool = without_spec(Contract::V1Beta2.pool("p1", &[]));
    apply::<MachinePool>(&objects, Event::Apply(raw(pool)), &mut listing);
    let pool = "cannot read MachinePool p1 (the log contains the cause)";
    assert_eq!(of("prod-1").as_deref(), Some(pool));
    // The lists of another kind do not contain it.
    list(&objects, &mut listing, &[]);
    apply::<Machine>(&objects, Event::InitDone, &mut listing);
    assert_eq!(of("prod-1").as_deref(), Some(pool));
}

#[test]
fn unreadable_machines_among_many_are_counted_in_few_visits() {
    let (objects, mut listing) = (objects(), BTreeSet::new());
    for kind in [Cluster::KIND, Machine::KIND, MachinePool::KIND] {
        objects.listed(kind);
    }
    let mut see = |number: usize| {
        let machine = without_spec(Contract::V1Beta2.machine(&format!("m{number}")));
        apply::<Machine>(&objects, Event::InitApply(raw(machine)), &mut listing);
    };
    (0..1000).for_each(&mut see);

    let visited = most_visited(|| {
        see(1000);
        let text = unread(&objects, NAMESPACE, "prod-1").unwrap();
        assert!(text.contains(" and 1000 more "), "{text}");
        list(&objects, &mut BTreeSet::new(), &[]);
        apply::<Machine>(&objects, Event::InitDone, &mut BTreeSet::new());
    });

    assert_eq!(unread(&objects, NAMESPACE, "prod-1"), None);
    assert!(visited[&Lock::Clusters] <= PAGE, "{visited:?}");
}

#[test]
fn an_unreadable_cluster_is_known_until_it_is_read_or_deleted() {
    let (objects, mut listing) = (objects(), BTreeSet::new());
    let key = ObjectKey::new(NAMESPACE, "prod-1");
    let cluster = || Contract::V1Beta2.cluster();
    for kind in [Cluster::KIND, Machine::KIND, MachinePool::KIND] {
        objects.listed(kind);
    }
    let mut apply = |event| apply::<Cluster>(&objects, event, &mut listing);

    apply(Event::Apply(raw(without_spec(cluster()))));
    assert!(objects.is_unreadable(&key));
    apply(Event::Delete(raw(without_spec(cluster()))));
    assert!(!objects.is_unreadable(&key));

    apply(Event::Apply(raw(without_spec(cluster()))));
    apply(Event::Apply(raw(cluster())));
    assert!(!objects.is_unreadable(&key));
    // The last version that could be read stays.
    apply(Event::Apply(raw(cut(cluster()))));
    assert!(!objects.is_unreadable(&key));
    let text = "cannot read Cluster prod-1 (the log contains the cause)";
    assert_eq!(unread(&objects, NAMESPACE, "prod-1").as_deref(), Some(text));
    apply(Event::Init);
    apply(Event::InitDone);
    assert!(objects.cluster(&key).is_none());
    assert_eq!(unread(&objects, NAMESPACE, "prod-1"), None);
}
