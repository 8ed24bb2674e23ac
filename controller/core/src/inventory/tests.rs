use futures::executor::block_on;

use super::*;
use crate::testing::cluster::machine;

#[test]
fn machines_with_a_common_name_token_or_provider_id_are_refused() {
    let first = machine("m1", "n1", Some("abcdef"));
    let other = machine("m2", "n2", Some("ghijkl"));
    assert!(StaticInventory::new(vec![first.clone(), other.clone()]).is_ok());

    let shared_name = Machine {
        name: first.name.clone(),
        ..other.clone()
    };
    let shared_provider_id = Machine {
        provider_id: first.provider_id.clone(),
        ..other.clone()
    };
    let shared_node_name = Machine {
        node_name: first.node_name.clone(),
        ..other.clone()
    };
    let shared_token = Machine {
        token_id: first.token_id.clone(),
        ..other
    };
    for (second, expected) in [
        (shared_name, "name"),
        (shared_provider_id, "provider ID"),
        (shared_node_name, "node name"),
        (shared_token, "token"),
    ] {
        let error = StaticInventory::new(vec![first.clone(), second]).unwrap_err();

        assert_eq!(error.field, expected);
    }
}

#[test]
fn duplicates_among_many_machines_are_refused() {
    let many = (0..10_000).map(|index| Machine {
        node_name: None,
        ..machine(&format!("m{index}"), "n1", None)
    });
    let first = machine("m0", "n0", None);
    let again = Machine {
        name: "last".to_owned(),
        ..first
    };

    let error = StaticInventory::new(many.chain([again]).collect()).unwrap_err();

    assert_eq!(
        (&*error.first, &*error.second, error.field),
        ("m0", "last", "provider ID")
    );
}

#[test]
fn machines_without_name_and_provider_id_are_accepted() {
    let unnamed = |name: &str| Machine {
        provider_id: None,
        node_name: None,
        ..machine(name, "n1", None)
    };

    assert!(StaticInventory::new(vec![unnamed("m1"), unnamed("m2")]).is_ok());
}

#[test]
fn every_machine_with_an_address_or_a_name_is_found() {
    let machine = |name: &str, last: u8| {
        let mut machine = Machine::new(name);
        machine.node_name = Some(NodeName::parse(name).unwrap());
        machine.addresses = vec![[192, 0, 2, last].into(), [192, 0, 2, 100].into()];
        machine.dns_names = vec![format!("{name}.internal"), "shared.internal".to_owned()];
        machine
    };
    let machines = StaticInventory::new(vec![machine("m1", 1), machine("m2", 2)]).unwrap();
    let names = |found: Vec<Machine>| -> Vec<String> {
        found.into_iter().map(|machine| machine.name).collect()
    };
    let by_address = |last| block_on(machines.by_address([192, 0, 2, last].into())).unwrap();
    let by_name = |name| block_on(machines.by_name(name)).unwrap();

    assert_eq!(names(by_address(2)), ["m2"]);
    assert_eq!(names(by_address(100)), ["m1", "m2"]);
    assert_eq!(names(by_address(3)), [""; 0]);
    assert_eq!(names(by_name("m1.internal")), ["m1"]);
    assert_eq!(names(by_name("m2")), ["m2"]);
    assert_eq!(names(by_name("shared.internal")), ["m1", "m2"]);
    assert_eq!(names(by_name("m3")), [""; 0]);
}
