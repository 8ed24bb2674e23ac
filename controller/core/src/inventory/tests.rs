use super::*;
use crate::request::forge::cluster::machine;

#[test]
fn two_machines_that_share_what_names_them_are_refused() {
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
fn the_last_of_many_machines_is_compared_with_the_first() {
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
fn machines_may_have_nothing_yet() {
    let unnamed = |name: &str| Machine {
        provider_id: None,
        node_name: None,
        ..machine(name, "n1", None)
    };

    assert!(StaticInventory::new(vec![unnamed("m1"), unnamed("m2")]).is_ok());
}

#[test]
fn a_tokens_id_is_six_lower_case_letters_and_digits() {
    assert_eq!(TokenId::parse("abc123").unwrap().as_str(), "abc123");
    for id in [
        "",
        "abc12",
        "abc1234",
        "ABC123",
        "abc12.",
        "abc12\u{e4}",
        "abc12\n",
    ] {
        assert_eq!(TokenId::parse(id), Err(InvalidTokenId), "{id:?}");
    }
}
