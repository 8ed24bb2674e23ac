//! Tests of pools with more members than a limit permits, so the other members are unknown. Tests of Machines whose
//! reported addresses are unknown.

use node_attestation_core::inventory::Naming;
use node_attestation_core::ledger::{Claim, MISSING_MACHINE_TIMEOUT, RecordLedger};
use node_attestation_core::refusal::Refusal;
use node_attestation_core::testing::records::{at, claim, policy};

use super::super::super::objects::MemberLimit;
use super::super::super::store::Stored as _;
use super::*;
use crate::memory::KeptLimit;

const MEMBERS: [&str; 2] = ["metal:///p1", "metal:///p2"];

/// The memory that a pool member in these tests uses, in bytes.
const MEMBER: usize = 11 + 128;

/// Cluster `prod-1`, with memory for 16 pool members.
fn with_little_memory() -> (Objects, CapiInventory) {
    let (objects, inventory) = cluster(V2);
    objects.store().limit_pools(KeptLimit::new(16 * MEMBER));
    (objects, inventory)
}

fn see_pool(objects: &Objects, members: &[&str]) {
    seen::<MachinePool>(objects, V2.pool("p1", members));
    configured(objects, V2.config("p1", "poolp1"));
}

/// Adds pools in other namespaces that use all the memory available to them.
fn flood(objects: &Objects) {
    let ids: Vec<String> = (0..20)
        .map(|number| format!("metal:///{number:0>2}"))
        .collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    for namespace in ["tenant-b", "tenant-c", "tenant-d"] {
        let pool = V2.pool("p1", &ids);
        let pool = with(pool, "/metadata/namespace", json!(namespace));
        seen::<MachinePool>(objects, pool);
    }
}

fn remove_pool(objects: &Objects, namespace: &str) {
    objects.put::<MachinePool>(&ObjectKey::new(namespace, "p1"), None);
}

/// Drops the second member, as a controller restart does.
fn cut(objects: &Objects) {
    remove_pool(objects, NAMESPACE);
    flood(objects);
    see_pool(objects, &MEMBERS);
}

/// The claim of a pool member without a Machine.
fn of_member(machine: &str, node: &str, key: u8, hour: u32) -> Claim {
    Claim {
        machine_name: None,
        ..claim(machine, node, key, hour)
    }
}

/// The reason why requests wait for an unknown member.
fn cut_by(limit: MemberLimit) -> String {
    format!("MachinePool p1: {}", limit.reason())
}

#[test]
fn a_pool_member_beyond_the_limit_waits_until_memory_is_released() {
    let (objects, inventory) = with_little_memory();
    flood(&objects);
    see_pool(&objects, &MEMBERS);

    assert!(by_id(&inventory, MEMBERS[0]).is_some());
    let reason = cut_by(MemberLimit::Process);
    assert_eq!(not_now(&inventory, MEMBERS[1]), reason);
    let named = block_on(inventory.by_name("p2")).unwrap_err();
    assert_eq!(named.to_string(), reason);
    assert_eq!(inventory.unknown_members(), Some(reason));
    // The inventory still answers for other machines of the Cluster.
    assert!(by_id(&inventory, "generic:///rack/m1").is_some());
    assert_eq!(block_on(inventory.by_name("m1")).unwrap().len(), 1);
    assert_eq!(MachinePool::next_that_fits(objects.store(), None), None);

    remove_pool(&objects, "tenant-b");

    let next = MachinePool::next_that_fits(objects.store(), None);
    assert_eq!(next, Some(ObjectKey::new(NAMESPACE, "p1")));
    see_pool(&objects, &MEMBERS);
    assert!(by_id(&inventory, MEMBERS[1]).is_some());
    assert_eq!(block_on(inventory.by_name("p2")).unwrap().len(), 1);
    assert_eq!(inventory.unknown_members(), None);
    // If all members are known, an ID that does not belong to a member does not exist.
    assert_eq!(by_id(&inventory, "metal:///p3"), None);
    assert!(block_on(inventory.by_name("p3")).unwrap().is_empty());
}

#[test]
fn a_pool_over_its_namespace_limit_is_reported_with_that_limit() {
    let (objects, inventory) = with_little_memory();
    let ids: Vec<String> = (10..30)
        .map(|number| format!("metal:///{number}"))
        .collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();

    see_pool(&objects, &ids);

    assert!(by_id(&inventory, ids[7]).is_some(), "half of the memory");
    let reason = cut_by(MemberLimit::Namespace);
    assert_eq!(not_now(&inventory, ids[8]), reason);
}

#[test]
fn a_known_pool_member_is_not_displaced_by_other_namespaces() {
    let (objects, inventory) = with_little_memory();
    see_pool(&objects, &MEMBERS);
    flood(&objects);

    // After the change to the pool, the new member sorts before the others.
    see_pool(&objects, &["metal:///p0", MEMBERS[0], MEMBERS[1]]);

    for member in MEMBERS {
        assert!(by_id(&inventory, member).is_some(), "{member}");
    }
    let reason = cut_by(MemberLimit::Process);
    assert_eq!(not_now(&inventory, "metal:///p0"), reason);
}

#[test]
fn a_sweep_keeps_a_pool_member_that_is_beyond_the_limit() {
    for (is_cut, expected) in [(false, &["n2"][..]), (true, &[])] {
        let (objects, inventory) = with_little_memory();
        see_pool(&objects, &MEMBERS);
        let ledger = RecordLedger::in_memory(Arc::new(inventory), policy());
        for (machine, node, key) in [("p1", "n1", 1), ("p2", "n2", 2)] {
            let claim = of_member(machine, node, key, 0);
            block_on(ledger.claim(&claim, at(0))).unwrap();
        }
        if is_cut {
            cut(&objects);
        } else {
            see_pool(&objects, &MEMBERS[..1]);
        }

        let mut retired = Vec::new();
        for round in 0..3 {
            let now = at(1) + round * MISSING_MACHINE_TIMEOUT;
            let swept = block_on(ledger.sweep_at(now, &BTreeSet::new())).unwrap();
            assert_eq!(swept.held_back, None);
            retired.extend(swept.done.into_iter().map(|one| one.node_name.to_string()));
        }

        assert_eq!(retired, expected, "{is_cut}");
    }
}

#[test]
fn a_claim_to_the_name_of_a_member_beyond_the_limit_waits() {
    for is_cut in [true, false] {
        let (objects, inventory) = with_little_memory();
        see_pool(&objects, &MEMBERS);
        let ledger = RecordLedger::in_memory(Arc::new(inventory), policy());
        block_on(ledger.claim(&of_member("p2", "n2", 2, 0), at(0))).unwrap();
        if is_cut {
            cut(&objects);
        } else {
            see_pool(&objects, &MEMBERS[..1]);
        }

        let claimed = block_on(ledger.claim(&of_member("p1", "n2", 1, 1), at(1)));

        let reason = claimed.err().map(|refusal| match refusal {
            Refusal::Retry(deferral) => deferral.reason(),
            other @ (Refusal::Deny(_) | Refusal::Fail(_)) => panic!("{other}"),
        });
        assert_eq!(reason, is_cut.then_some("InventoryUnavailable"));
    }
}

#[test]
fn a_guest_reported_name_waits_if_a_pool_exceeds_its_limit() {
    let (objects, inventory) = with_little_memory();
    let naming = |asked: &str| {
        let machine = block_on(inventory.by_machine_name("m1")).unwrap().unwrap();
        let asked = NodeName::parse(asked).unwrap();
        block_on(inventory.naming(&machine, &asked))
    };
    see_pool(&objects, &MEMBERS);
    assert_eq!(naming("m1.example.com").unwrap(), Naming::Own);
    cut(&objects);

    let error = naming("m1.example.com").unwrap_err();
    assert_eq!(error.to_string(), cut_by(MemberLimit::Process));
    for own in ["m1", "m1-infra"] {
        assert_eq!(naming(own).unwrap(), Naming::Own, "{own}");
    }
}

/// A reported name with 63 characters.
fn host(machine: &str, number: usize) -> String {
    format!("{machine}-{number:0>60}")
}

/// Adds a Machine whose status has this number of host names.
fn see_reporting(objects: &Objects, name: &str, namespace: &str, count: usize) {
    let hosts = (0..count).map(|number| {
        let host = host(name, number);
        json!({"type": "Hostname", "address": host})
    });
    let hosts: Vec<Value> = hosts.collect();
    let machine = with(V2.machine(name), "/status/addresses", json!(hosts));
    let machine = with(machine, "/metadata/namespace", json!(namespace));
    seen::<objects::Machine>(objects, machine);
    configured(objects, V2.config(name, &format!("tokn{name}")));
}

#[test]
fn reported_names_beyond_the_memory_of_a_namespace_are_unknown() {
    // Two copies of each of the 60 names are stored, and 2 KiB of each Machine do not count.
    const LONG: usize = 2 * 60 * (63 + 64) - 2048;
    let (objects, inventory) = cluster(V2);
    objects.store().limit_reported(KeptLimit::new(3 * LONG));
    let see = |name: &str, namespace: &str, count: usize| {
        see_reporting(&objects, name, namespace, count);
    };
    let delete = |name: &str| {
        let key = ObjectKey::new(NAMESPACE, name);
        objects.put::<objects::Machine>(&key, None);
    };
    let named = |name: String| block_on(inventory.by_name(&name));
    let address = || block_on(inventory.by_address([10, 0, 0, 7].into()));

    see("x1", NAMESPACE, 60);
    assert_eq!(named(host("x1", 59)).unwrap().len(), 1);
    assert!(address().is_ok());
    see("x2", NAMESPACE, 60);
    see("x3", NAMESPACE, 8);

    let reason = MemberLimit::ReportedOfNamespace.reason();
    let reason = format!("Machine x2: {reason}");
    assert_eq!(named(host("x2", 0)).unwrap_err().to_string(), reason);
    assert_eq!(address().unwrap_err().to_string(), reason);
    assert_eq!(inventory.unknown_members(), Some(reason));
    // The inventory still knows the Machine's provider ID, the names that it already had, and the small lists of other
    // Machines.
    assert!(by_id(&inventory, "generic:///rack/x2").is_some());
    for known in ["x2".to_owned(), host("x1", 0), host("x3", 7)] {
        assert_eq!(named(known).unwrap().len(), 1);
    }
    see("x2", "tenant-b", 60);
    let other = CapiInventory::new(objects.clone(), ObjectKey::new("tenant-b", "prod-1"));
    assert_eq!(other.unknown_members(), None);

    let next = || objects::Machine::next_that_fits(objects.store(), None);
    assert_eq!(next(), None);
    delete("x1");
    assert_eq!(next(), Some(ObjectKey::new(NAMESPACE, "x2")));
    see("x2", NAMESPACE, 60);
    assert_eq!(named(host("x2", 59)).unwrap().len(), 1);
    assert!(address().is_ok());
    assert_eq!((next(), inventory.unknown_members()), (None, None));
}

#[test]
fn a_guest_reported_name_waits_if_another_machine_has_unknown_names() {
    let (objects, inventory) = cluster(V2);
    objects.store().limit_reported(KeptLimit::new(1));
    let naming = |asked: &str| {
        let machine = block_on(inventory.by_machine_name("m1")).unwrap().unwrap();
        let asked = NodeName::parse(asked).unwrap();
        block_on(inventory.naming(&machine, &asked))
    };
    assert_eq!(naming("m1.example.com").unwrap(), Naming::Own);

    see_reporting(&objects, "x1", NAMESPACE, 60);

    let error = naming("m1.example.com").unwrap_err();
    assert!(error.to_string().starts_with("Machine x1: "), "{error}");
    for own in ["m1", "m1-infra"] {
        assert_eq!(naming(own).unwrap(), Naming::Own, "{own}");
    }
}
