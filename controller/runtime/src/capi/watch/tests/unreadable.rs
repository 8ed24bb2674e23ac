//! Tests of Clusters, Machines and `MachinePools` that cannot be read.

use super::*;

/// The text in this Cluster's inventory about objects that cannot be read.
fn unread(objects: &Objects, namespace: &str, cluster: &str) -> Option<String> {
    let cluster = ObjectKey::new(namespace, cluster);
    CapiInventory::new(objects.clone(), cluster).unreadable_members()
}

/// The object without a readable spec.
fn without_spec(object: Value) -> Value {
    with(object, "/spec", json!([5]))
}

/// The object after the client has removed the parts that exceed its limits, which include the labels.
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

    // The Cluster of the object is unknown.
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

    // The Cluster of the object is known from the previous version.
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
    // A list of a different kind does not contain the object.
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
    // The cache keeps the last version that could be read.
    apply(Event::Apply(raw(cut(cluster()))));
    assert!(!objects.is_unreadable(&key));
    let text = "cannot read Cluster prod-1 (the log contains the cause)";
    assert_eq!(unread(&objects, NAMESPACE, "prod-1").as_deref(), Some(text));
    apply(Event::Init);
    apply(Event::InitDone);
    assert!(objects.cluster(&key).is_none());
    assert_eq!(unread(&objects, NAMESPACE, "prod-1"), None);
}

#[test]
fn unreadable_members_of_a_namespace_use_bounded_memory() {
    let objects = objects();
    for kind in [Cluster::KIND, Machine::KIND, MachinePool::KIND] {
        objects.listed(kind);
    }
    objects.store().limit_unreadable(KeptLimit::new(16 * 1024));
    let machine = |namespace: &str, number: usize| {
        let machine = Contract::V1Beta2.machine(&format!("m{number:02}"));
        without_spec(with(machine, "/metadata/namespace", json!(namespace)))
    };
    let apply = |event| apply::<Machine>(&objects, event, &mut BTreeSet::new());
    let known = || {
        let text = unread(&objects, NAMESPACE, "prod-1").unwrap();
        let rest = text.strip_prefix("cannot read at least ").unwrap();
        let (count, rest) = rest.split_once(' ').unwrap();
        assert_eq!(
            rest,
            "objects of the namespace, such as Machine m00 (the log contains the causes)"
        );
        count.parse::<usize>().unwrap()
    };
    for number in 0..90 {
        apply(Event::Apply(raw(machine(NAMESPACE, number))));
    }

    // The number of entries that fit into half of the limit, if each entry uses 320 bytes in addition to its names.
    let count = known();
    assert!((15..=25).contains(&count), "{count}");
    assert!(unread(&objects, NAMESPACE, "prod-2").is_some());
    let other = "cannot read Machine m00 (the log contains the cause)";
    apply(Event::Apply(raw(machine("tenant-b", 0))));
    assert_eq!(
        unread(&objects, "tenant-b", "prod-1").as_deref(),
        Some(other)
    );
    // An object that already has an entry keeps its entry.
    apply(Event::Apply(raw(machine(NAMESPACE, 0))));
    assert_eq!(known(), count);

    // Each deleted object frees memory for a later object.
    apply(Event::Delete(raw(machine(NAMESPACE, 1))));
    assert_eq!(known(), count - 1);
    apply(Event::Apply(raw(machine(NAMESPACE, 89))));
    assert_eq!(known(), count);

    for number in 0..90 {
        apply(Event::Delete(raw(machine(NAMESPACE, number))));
    }
    assert_eq!(
        unread(&objects, "tenant-b", "prod-1").as_deref(),
        Some(other)
    );
}

#[test]
fn unreadable_objects_without_an_entry_are_known_until_a_later_list() {
    let objects = objects();
    for kind in [Cluster::KIND, Machine::KIND, MachinePool::KIND] {
        objects.listed(kind);
    }
    // There is only enough memory for the first object.
    objects.store().limit_unreadable(KeptLimit::new(1));
    let machine = |name: &str| raw(without_spec(Contract::V1Beta2.machine(name)));
    let mut listing = BTreeSet::new();
    let mut apply = |event| apply::<Machine>(&objects, event, &mut listing);
    for name in ["m0", "m1"] {
        apply(Event::Apply(machine(name)));
    }
    let first = "cannot read at least 1 objects of the namespace, such as Machine m0 (the log contains the causes)";
    let read = || unread(&objects, NAMESPACE, "prod-1");
    assert_eq!(read().as_deref(), Some(first));

    apply(Event::Delete(machine("m0")));

    let known = "the controller could not read some objects of the namespace, such as Machine m1, and has not listed \
        these objects again";
    let text = read().unwrap();
    assert!(text.starts_with(known), "{text}");
    assert_eq!(unread(&objects, "tenant-b", "prod-1"), None);
    for event in [Event::Init, Event::InitDone, Event::Init, Event::InitDone] {
        apply(event);
    }
    assert_eq!(read(), None);
}

#[test]
fn unreadable_members_are_complete_again_after_a_list() {
    let (objects, mut listing) = (objects(), BTreeSet::new());
    for kind in [Cluster::KIND, Machine::KIND, MachinePool::KIND] {
        objects.listed(kind);
    }
    objects.store().limit_unreadable(KeptLimit::new(16 * 1024));
    let machine = |number: usize| without_spec(Contract::V1Beta2.machine(&format!("m{number:02}")));
    let mut relist = |numbers: std::ops::Range<usize>| {
        apply::<Machine>(&objects, Event::Init, &mut listing);
        for number in numbers {
            apply::<Machine>(
                &objects,
                Event::InitApply(raw(machine(number))),
                &mut listing,
            );
        }
        apply::<Machine>(&objects, Event::InitDone, &mut listing);
        unread(&objects, NAMESPACE, "prod-1").unwrap()
    };

    let all = relist(0..90);
    let again = relist(0..90);
    let few = relist(0..2);

    assert!(all.contains(" at least "), "{all}");
    assert_eq!(again, all);
    assert_eq!(
        few,
        "cannot read Machine m00 and 1 more (the log contains the causes)"
    );
}

#[test]
fn a_cluster_is_unreadable_beyond_the_memory_of_its_namespace() {
    let (objects, mut listing) = (objects(), BTreeSet::new());
    for kind in [Cluster::KIND, Machine::KIND, MachinePool::KIND] {
        objects.listed(kind);
    }
    objects.store().limit_unreadable(KeptLimit::new(1));
    let key = |name: &str| ObjectKey::new(NAMESPACE, name);
    for name in ["prod-0", "prod-1"] {
        let cluster = with(Contract::V1Beta2.cluster(), "/metadata/name", json!(name));
        let event = Event::Apply(raw(without_spec(cluster)));
        apply::<Cluster>(&objects, event, &mut listing);
    }

    assert!(objects.is_unreadable(&key("prod-0")));
    assert!(objects.is_unreadable(&key("prod-1")));
    assert!(!objects.is_unreadable(&ObjectKey::new("tenant-b", "prod-1")));
}

#[test]
fn an_unreadable_cluster_is_noticed_when_it_appears_and_disappears() {
    let (objects, mut listing) = (objects(), BTreeSet::new());
    for kind in [Cluster::KIND, Machine::KIND, MachinePool::KIND] {
        objects.listed(kind);
    }
    let mut changes = objects.changes_of(&ObjectKey::new(NAMESPACE, "prod-1"));
    let unreadable = || raw::<Cluster>(without_spec(Contract::V1Beta2.cluster()));
    let mut is_noticed = |event| {
        changes.borrow_and_update();
        apply::<Cluster>(&objects, event, &mut listing);
        changes.has_changed().unwrap()
    };

    assert!(is_noticed(Event::Apply(unreadable())));
    assert!(!is_noticed(Event::Apply(unreadable())), "the same state");
    assert!(is_noticed(Event::Delete(unreadable())));
    assert!(!is_noticed(Event::Delete(unreadable())), "the same state");
}

#[test]
fn a_deleted_cluster_is_missing_beyond_the_memory_of_its_namespace() {
    let (objects, mut listing) = (objects(), BTreeSet::new());
    for kind in [Cluster::KIND, Machine::KIND, MachinePool::KIND] {
        objects.listed(kind);
    }
    objects.store().limit_unreadable(KeptLimit::new(1));
    let key = |name: &str| ObjectKey::new(NAMESPACE, name);
    let cluster = |name: &str| {
        let cluster = with(Contract::V1Beta2.cluster(), "/metadata/name", json!(name));
        raw(without_spec(cluster))
    };
    let mut apply = |event| apply::<Cluster>(&objects, event, &mut listing);
    for name in ["prod-0", "prod-1", "prod-2"] {
        apply(Event::Apply(cluster(name)));
    }
    assert!(objects.is_unreadable(&key("prod-1")));

    apply(Event::Delete(cluster("prod-1")));

    assert!(!objects.is_unreadable(&key("prod-1")));
    assert!(objects.is_unreadable(&key("prod-2")));
    let machines = Event::<Raw<Machine>>::InitDone;
    super::apply::<Machine>(&objects, machines, &mut BTreeSet::new());
    assert!(!objects.is_unreadable(&key("prod-1")), "another kind");
    apply(Event::Apply(cluster("prod-1")));
    assert!(objects.is_unreadable(&key("prod-1")));
}
